"""`leeboard agent`: reports the GPUs of the node it runs on."""

import json
from datetime import UTC, datetime
from functools import partial
from random import SystemRandom

import click

from app.agent.agent import Agent, LibraryOutdatedError
from app.agent.events import LoopFlag
from app.agent.gpunodes import KubeGpuNodes
from app.agent.lookout import Lookout
from app.agent.publication import Publication, Rhythm
from app.agent.report import gpu_node, status_of
from app.agent.settings import AgentSettings
from app.agent.table import table
from app.cli.options import check_kubeconfig, read, settings_help
from app.cli.running import first_of, run_until_asked
from app.telemetry import Logging, Metrics


@click.command(epilog=settings_help(AgentSettings))
@click.option("--once", is_flag=True, help="Print the report once and exit; needs no cluster.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format with --once.",
)
def agent(once: bool, output: str) -> None:  # noqa: FBT001 - a flag of the command line
    """Report the GPUs of this node.

    Keeps running without a driver, a GPU or a kubelet, and reports that. Ends cleanly on SIGTERM and SIGINT.
    """
    settings = read(AgentSettings)
    if once:
        click.echo(_report(settings, output))
        return
    check_kubeconfig(settings.kubeconfig, by="LEEBOARD_AGENT_KUBECONFIG")
    with Logging(dropped=Metrics().log_lines_dropped):
        run_until_asked(_run(settings))


def _report(settings: AgentSettings, output: str) -> str:
    lookout = Lookout(settings)
    try:
        status = status_of(lookout.sight(lookout.devices(), lookout.kubelet()))
    finally:
        lookout.close()
    if output == "json":
        return json.dumps(gpu_node(settings.node_name, status), indent=2)
    return table(settings.node_name, status)


async def _run(settings: AgentSettings) -> None:
    rhythm = Rhythm(memory_s=settings.devices_interval_s, heartbeat_s=settings.heartbeat_s)
    reported = LoopFlag()
    async with await KubeGpuNodes.connect(settings.kubeconfig) as gpu_nodes:
        publication = Publication(
            settings.node_name, gpu_nodes, rhythm, chance=SystemRandom(), now=partial(datetime.now, UTC)
        )
        try:
            await Agent(settings, publication, Lookout(settings, reported=reported), reported).run()
        except ExceptionGroup as errors:
            # Other errors at the same moment have the same cause.
            if outdated := first_of(errors, LibraryOutdatedError):
                raise click.ClickException(str(outdated)) from errors
            raise
