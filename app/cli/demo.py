"""`leeboard demo`: the service on a simulated cluster with traffic. curl shows it at work without Kubernetes."""

import asyncio
import json

import click

from app.cli.asking import VIEW_PORT
from app.cli.options import port_options, read_settings
from app.cli.running import run_until_asked
from app.service import Endpoints
from app.service import serve as run_service
from app.settings import Settings
from app.simulation.manifests import PROFILE, QUEUE_LABEL
from app.simulation.workload import LAB, LAB_TAINT
from app.simulation.world import furnished, live
from app.telemetry import Logging, Metrics

SEED = 219
"""With this seed, the first minute already has running pods, and pods that wait for several different reasons."""

OFFERED = tuple(LAB)
"""Nodes that no job of the demo uses, so that the answers are always the same."""

REQUESTS = {"nvidia.com/gpu": "4"}

STORY = """\
Leeboard runs on a simulated cluster: 16 nodes of 8 GPUs in two racks of two NVLink domains, 3 nodes in a lab, and 2 CPU
nodes. Simulated users submit work to queues; some request a part of a GPU, and some gangs want one rack. A simulated
kube-scheduler calls the service over HTTP. The racks fill within seconds. Only the service is real.

  webhooks    {webhooks}
  operations  {operations}
  page        {view}/

Which nodes of the lab have room for a pod of 4 GPUs? (Without a uid it is only a question: nothing is reserved.)

  {filter}

Which of them is best for this pod? (Scores from 0 to 10: the fullest node that fits gets the highest.)

  {prioritize}

How much does each queue hold, and how much is its share? (Or `leeboard queues --server {operations}`, and `top`,
`pending -A` and `why NAMESPACE/NAME` in the same way.)

  {queues}

Which pods are on which GPU, and how full is it? (Or `leeboard gpus --server {operations}`; `gpus NODE` shows the
node's devices, pods and links.)

  {gpus}

Ctrl-C ends it."""


@click.command
@port_options
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 100),
    default=4.0,
    show_default=True,
    help="Simulated seconds per real second.",
)
@click.option("--seed", type=int, default=SEED, show_default=True, help="The same seed creates the same work.")
def demo(webhook_port: int | None, operations_port: int | None, view_port: int | None, speed: float, seed: int) -> None:
    """Run the service on a simulated cluster with work in it.

    Needs no Kubernetes. Prints four curl commands to try; Ctrl-C ends it.
    """
    # The demo has no tokens and no names to protect.
    settings = read_settings(
        webhook_port=webhook_port, operations_port=operations_port, view_port=view_port, anonymous_reads=True
    )
    if settings.view_port is None:
        settings = settings.model_copy(update={"view_port": VIEW_PORT})
    metrics = Metrics()
    with Logging(dropped=metrics.log_lines_dropped):
        run_until_asked(_demo(settings, metrics, speed=speed, seed=seed))


async def _demo(settings: Settings, metrics: Metrics, *, speed: float, seed: int) -> None:
    cluster = furnished()
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_service(settings, cluster, metrics=metrics, on_ready=ready.set_result))
        endpoints = await ready
        click.echo(story(endpoints.webhooks, endpoints.operations, endpoints.view))
        tasks.create_task(live(cluster, endpoints.webhooks, speed=speed, seed=seed))


def story(webhooks: str, operations: str, view: str) -> str:
    """Return the text for the user: what runs, where, and four commands to try."""
    return STORY.format(
        webhooks=webhooks,
        operations=operations,
        view=view,
        filter=_ask(f"{webhooks}/filter"),
        prioritize=_ask(f"{webhooks}/prioritize"),
        queues=f"curl -s {operations}/api/v1/queues",
        gpus=f"curl -s {operations}/api/v1/gpus",
    )


def _ask(url: str) -> str:
    metadata = {"name": "try", "namespace": "default", "labels": {QUEUE_LABEL: "vision"}}
    container = {"name": "c", "resources": {"requests": REQUESTS}}
    tolerations = [{key: LAB_TAINT[key] for key in ("key", "value")}]
    spec = {"schedulerName": PROFILE, "tolerations": tolerations, "containers": [container]}
    pod = {"metadata": metadata, "spec": spec}
    question = json.dumps({"Pod": pod, "NodeNames": OFFERED}, separators=(",", ":"))
    return f"curl -s {url} -d '{question}'"
