"""Two replicas on one cluster, with a lease between them, and a Service that leads each connection to either."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from app.model.seam import Lease
from app.service import Endpoints, serve
from app.settings import Settings
from app.simulation.cluster import SimulatedCluster
from app.simulation.workload import furniture

HOSTS = ("one", "two")
LEASE_S = 2.0
HOST = "127.0.0.1"


class LeasedCluster(SimulatedCluster):
    """A cluster whose kube-schedulers hold a lease, and renew it all the time."""

    def __init__(self) -> None:
        super().__init__(now=time.time)
        self.leader = HOSTS[0]
        self._renewals = itertools.count()

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        del namespace, name
        return Lease(holder=f"{self.leader}_5b5c", duration_s=LEASE_S, renewed=str(next(self._renewals)))


@dataclass
class Pair:
    """Both replicas, in the order of `HOSTS`."""

    cluster: LeasedCluster
    replicas: list[Endpoints]
    port: int = 0
    """Of the Service of their views."""
    reached: list[int] = field(default_factory=list)
    """The replica of each connection."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on to one of the replicas, in turn."""
        number = len(self.reached) % len(self.replicas)
        self.reached.append(number)
        port = int(self.replicas[number].view.rpartition(":")[2])
        there, back = await asyncio.open_connection(HOST, port)
        copies = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, back):
            each.close()
        await asyncio.wait(copies)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()


@asynccontextmanager
async def paired() -> AsyncIterator[Pair]:
    """Run both."""
    cluster = LeasedCluster()
    for resource, item in furniture():
        cluster.create(resource, item)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(_replica(cluster, host)) for host in HOSTS]
        pair = Pair(cluster, replicas)
        service = await asyncio.start_server(pair.lead, HOST, 0)
        stack.callback(service.close)
        pair.port = service.sockets[0].getsockname()[1]
        yield pair


@asynccontextmanager
async def _replica(cluster: LeasedCluster, host: str) -> AsyncIterator[Endpoints]:
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    settings = Settings(
        webhook_port=0,
        operations_port=0,
        view_port=0,
        anonymous_reads=True,
        scheduler_lease="leeboard/scheduler",
        hostname=host,
    )
    service = asyncio.create_task(serve(settings, cluster, on_ready=ready.set_result))
    try:
        yield await ready
    finally:
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service
