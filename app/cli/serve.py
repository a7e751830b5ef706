"""`leeboard serve`: the service beside a real kube-scheduler."""

import click

from app.cli.options import port_options, read_settings
from app.cli.running import run_until_asked
from app.kube.client import KubeCluster
from app.service import serve as run_service
from app.settings import Settings


@click.command
@click.option("--kubeconfig", metavar="PATH", help="Instead of the pod's service account.")
@port_options
def serve(kubeconfig: str | None, webhook_port: int | None, operations_port: int | None) -> None:
    """Run the service beside a kube-scheduler.

    Ends cleanly on SIGTERM and SIGINT.
    """
    settings = read_settings(kubeconfig=kubeconfig, webhook_port=webhook_port, operations_port=operations_port)
    run_until_asked(_serve(settings))


async def _serve(settings: Settings) -> None:
    async with await KubeCluster.connect(settings.kubeconfig) as cluster:
        await run_service(settings, cluster)
