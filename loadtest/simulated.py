"""What `leeboard serve` runs, on a simulated cluster of any size in the same process: `python -m loadtest.simulated`.

The cluster has no simulated users. The client of the webhooks creates and deletes pods through one more port on
loopback: GET /nodes names the nodes, POST /pods takes a list of pods and returns them as stored, DELETE /pods takes
their namespaces and names, PATCH /queues/NAME takes a merge patch. GET /longest-hold returns the longest time, in
seconds, that the event loop was held since the last such call; the first call starts to measure.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict

import click
import orjson
from aiohttp import web

from app.cli.options import port_options, read_settings
from app.cli.running import run_until_asked
from app.model.seam import ConflictError, NotFoundError, RawObject, Resource
from app.service import Endpoints
from app.service import serve as run_service
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.manifests import Quota
from app.telemetry import Logging, Metrics
from loadtest.holds import Holds, watched
from loadtest.questions import GPUS_A_NODE, LATER_QUEUE, QUEUE, running

HOST = "127.0.0.1"
CLUSTER_PORT = 8889
AT_ONCE = 20
"""So many pods are created before the watches get a turn: an API server does not send more at once either."""
BODY_BYTES = 64 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@click.command
@port_options
@click.option("--cluster-port", type=click.IntRange(0, 65535), default=CLUSTER_PORT, show_default=True)
@click.option("--nodes", type=click.IntRange(1, 20_000), default=5000, show_default=True, help="Nodes of 8 GPUs.")
def simulated(
    webhook_port: int | None, operations_port: int | None, view_port: int | None, cluster_port: int, nodes: int
) -> None:
    """Run the service on a simulated cluster that is used in part.

    Prints one line of JSON that says where what listens; Ctrl-C ends it.
    """
    settings = read_settings(
        webhook_port=webhook_port, operations_port=operations_port, view_port=view_port, anonymous_reads=True
    )
    metrics = Metrics()
    with Logging(dropped=metrics.log_lines_dropped):
        run_until_asked(_serve(settings, metrics, used_in_part(nodes), cluster_port))


def used_in_part(nodes: int) -> SimulatedCluster:
    """Return a cluster with one queue, whose nodes have from one free GPU to all of them."""
    cluster = SimulatedCluster()
    for queue, limit in ((QUEUE, manifests.UNLIMITED), (LATER_QUEUE, 0)):
        cluster.create(Resource.QUEUES, manifests.queue(queue, None, Quota(gpus=nodes * GPUS_A_NODE // 2, limit=limit)))
    cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("train"))
    for number in range(nodes):
        name = f"gpu-node-{number:05}"
        cluster.create(Resource.NODES, manifests.node(name, gpus=GPUS_A_NODE, cpu=96, labels={}))
        if used := number % GPUS_A_NODE:
            cluster.create(Resource.PODS, running(f"since-ever-{number:05}", name, used))
    return cluster


async def _serve(settings: Settings, metrics: Metrics, cluster: SimulatedCluster, port: int) -> None:
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_service(settings, cluster, metrics=metrics, on_ready=ready.set_result))
        endpoints = await ready
        async with Door(cluster, port) as url:
            click.echo(orjson.dumps({**asdict(endpoints), "cluster": url}).decode())
            await asyncio.Event().wait()


class Door:
    """The port through which pods come and go, open while the block runs."""

    def __init__(self, cluster: SimulatedCluster, port: int) -> None:
        self._cluster = cluster
        self._port = port
        # Set by the first `_longest_hold`: a watched loop needs 3 % of a core, which `make bench-webhooks` would count.
        self._holds: Holds | None = None
        self._watching = AsyncExitStack()
        app = web.Application(client_max_size=BODY_BYTES)
        app.router.add_get("/nodes", self._nodes)
        app.router.add_get("/longest-hold", self._longest_hold)
        app.router.add_post("/pods", _told(self._create))
        app.router.add_delete("/pods", _told(self._delete))
        app.router.add_patch("/queues/{name}", _told(self._patch_queue))
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=600)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self._port).start()
        return f"http://{HOST}:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *exc: object) -> None:
        await self._watching.aclose()
        await self._runner.cleanup()

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        del request
        return _json([node["metadata"]["name"] for node in self._cluster.objects(Resource.NODES)])

    async def _longest_hold(self, request: web.Request) -> web.StreamResponse:
        del request
        if self._holds is None:
            self._holds = await self._watching.enter_async_context(watched())
        longest_s, self._holds.longest_s = self._holds.longest_s, 0.0
        return _json(longest_s)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        stored: list[RawObject] = []
        for number, pod in enumerate(orjson.loads(await request.read()), start=1):
            stored.append(self._cluster.create(Resource.PODS, pod))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return _json(stored)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        for number, (namespace, name) in enumerate(orjson.loads(await request.read()), start=1):
            self._cluster.delete(Ref(resource=Resource.PODS, namespace=namespace, name=name))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return _json([])

    async def _patch_queue(self, request: web.Request) -> web.StreamResponse:
        ref = Ref(resource=Resource.QUEUES, name=request.match_info["name"])
        return _json(self._cluster.patch(ref, orjson.loads(await request.read())))


def _told(handler: Handler) -> Handler:
    """Say in the answer why a write was not possible."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (ConflictError, NotFoundError, orjson.JSONDecodeError) as error:
            return web.Response(status=409, text=str(error))

    return answer


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


if __name__ == "__main__":
    simulated()
