"""`leeboard serve`: the service beside a real kube-scheduler."""

import resource
from contextlib import suppress

import click
import structlog

from app.cli.options import check_kubeconfig, port_options, read_settings, settings_help
from app.cli.running import run_until_asked
from app.kube.client import KubeCluster
from app.service import Endpoints, Kubernetes
from app.service import serve as run_service
from app.settings import Settings
from app.telemetry import Logging, Metrics

log = structlog.get_logger()


@click.command(epilog=settings_help())
@click.option("--kubeconfig", metavar="PATH", help="Kubeconfig to use instead of the pod's service account.")
@port_options
def serve(kubeconfig: str | None, webhook_port: int | None, operations_port: int | None, view_port: int | None) -> None:
    """Run the service beside a kube-scheduler.

    Ends cleanly on SIGTERM and SIGINT.
    """
    settings = read_settings(
        kubeconfig=kubeconfig, webhook_port=webhook_port, operations_port=operations_port, view_port=view_port
    )
    check_kubeconfig(settings.kubeconfig)
    metrics = Metrics()
    _allow_open_files()
    with Logging(dropped=metrics.log_lines_dropped):
        run_until_asked(_serve(settings, metrics))


async def _serve(settings: Settings, metrics: Metrics) -> None:
    async with await KubeCluster.connect(settings.kubeconfig) as cluster:
        kubernetes = Kubernetes(installation=cluster.installation(), reviews=cluster.reviews())
        await run_service(settings, cluster, kubernetes=kubernetes, metrics=metrics, on_ready=_say_where)


def _say_where(endpoints: Endpoints) -> None:
    admission = {"admission": endpoints.admission} if endpoints.admission else {}
    probes = {"probes": endpoints.probes} if endpoints.probes else {}
    view = {"view": endpoints.view} if endpoints.view else {}
    aggregated = {"aggregated": endpoints.aggregated} if endpoints.aggregated else {}
    others = {**admission, **probes, **view, **aggregated}
    log.info("listening", webhooks=endpoints.webhooks, operations=endpoints.operations, **others)


def _allow_open_files() -> None:
    # A bind that waits for its gang holds a connection. The usual limit of 1,024 files would refuse larger gangs.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a higher limit than it grants.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
