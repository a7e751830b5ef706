"""`leeboard demo`: the service on a simulated cluster with traffic; curl shows it at work without Kubernetes."""

import asyncio
import json

import click

from app.cli.options import port_options, read_settings
from app.cli.running import run_until_asked
from app.service import Endpoints
from app.service import serve as run_service
from app.settings import Settings
from app.simulation.manifests import PROFILE, QUEUE_LABEL
from app.simulation.world import furnished, live

SEED = 186
"""A seed whose first minute already has pods that run and pods that wait for each of several reasons."""

OFFERED = ("gpu-a-01", "gpu-b-08", "cpu-01")

STORY = """\
Leeboard runs on a simulated cluster: 16 nodes of 8 GPUs in two racks, 2 CPU nodes, three queues that share them,
and kube-scheduler played over HTTP. The cluster fills within seconds; nothing here is real but the service.

  webhooks    {webhooks}
  operations  {operations}

Where could a pod of 2 GPUs go now, if anywhere? (Without a uid it is only a question: nothing is promised to it.)

  {filter}

Which of these nodes would be best for a pod of 2 CPUs?

  {prioritize}

Who has how much, and who should have?

  {queues}

Ctrl-C ends it."""


@click.command
@port_options
@click.option("--speed", type=click.FloatRange(0.1, 100), default=4.0, show_default=True, help="Simulated s a real s.")
@click.option("--seed", type=int, default=SEED, show_default=True, help="The same seed brings the same work.")
def demo(webhook_port: int | None, operations_port: int | None, speed: float, seed: int) -> None:
    """Run the service on a simulated cluster with work in it.

    Needs no Kubernetes. Prints three curl commands to try; Ctrl-C ends it.
    """
    settings = read_settings(webhook_port=webhook_port, operations_port=operations_port)
    run_until_asked(_demo(settings, speed=speed, seed=seed))


async def _demo(settings: Settings, *, speed: float, seed: int) -> None:
    cluster = furnished()
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_service(settings, cluster, on_ready=ready.set_result))
        endpoints = await ready
        click.echo(story(endpoints.webhooks, endpoints.operations))
        tasks.create_task(live(cluster, endpoints.webhooks, speed=speed, seed=seed))


def story(webhooks: str, operations: str) -> str:
    """Say what runs, where, and three commands to try."""
    return STORY.format(
        webhooks=webhooks,
        operations=operations,
        filter=_ask(f"{webhooks}/filter", {"nvidia.com/gpu": "2"}),
        prioritize=_ask(f"{webhooks}/prioritize", {"cpu": "2"}),
        queues=f"curl -s {operations}/api/v1/queues",
    )


def _ask(url: str, requests: dict[str, str]) -> str:
    metadata = {"name": "try", "namespace": "default", "labels": {QUEUE_LABEL: "vision"}}
    container = {"name": "c", "resources": {"requests": requests}}
    pod = {"metadata": metadata, "spec": {"schedulerName": PROFILE, "containers": [container]}}
    question = json.dumps({"Pod": pod, "NodeNames": OFFERED}, separators=(",", ":"))
    return f"curl -s {url} -d '{question}'"
