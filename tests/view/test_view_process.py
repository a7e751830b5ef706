"""The view as a process beside the service: it follows, it is started again, and it ends with its parent."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.model.seam import Resource
from app.service import Endpoints, serve
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import SimulatedCluster
from app.simulation.world import furnished
from tests.view.frames import Client

PATIENCE_S = 120.0
"""No test waits this long unless it fails."""


@dataclass
class Running:
    """A service with its view, and a client of it."""

    cluster: SimulatedCluster
    endpoints: Endpoints
    http: httpx.AsyncClient

    async def state(self) -> Any:
        return (await self.http.get("/api/v1/state")).raise_for_status().json()

    async def nodes(self) -> set[str]:
        return {row[0] for row in (await self.state())["tables"]["nodes"]["rows"]}


@asynccontextmanager
async def viewed(**settings: Any) -> AsyncIterator[Running]:
    cluster = furnished()
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    asked = Settings(webhook_port=0, operations_port=0, view_port=0, **settings)
    service = asyncio.create_task(serve(asked, cluster, on_ready=ready.set_result))
    try:
        endpoints = await ready
        async with httpx.AsyncClient(base_url=endpoints.view, timeout=PATIENCE_S, trust_env=False) as http:
            yield Running(cluster, endpoints, http)
    finally:
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not found():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.05)


def children(of: int) -> set[int]:
    """Return the processes that run the view below a process."""
    found = set[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == of and b"app.view" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_view_shows_the_cluster_follows_it_and_passes_the_read_api_on() -> None:
    async with viewed(anonymous_reads=True) as running:
        before = await running.nodes()
        queues = await running.http.get("/api/v1/queues")
        direct = await running.http.get(f"{running.endpoints.operations}/api/v1/queues")
        client = Client()
        async with running.http.stream("GET", "/api/v1/stream") as stream, asyncio.timeout(PATIENCE_S):
            running.cluster.create(Resource.NODES, manifests.node("new", gpus=4, cpu=8, labels={}))
            waiting = ""
            async for text in stream.aiter_text():
                *whole, waiting = (waiting + text).split("\n\n")
                for event in whole:
                    client.hear(event.encode() + b"\n\n")
                if "new" in client.tables.get("nodes", {}):
                    break
        after = await running.state()

    assert "new" not in before
    assert queues.json() == direct.json()
    assert {f"new/{index}" for index in range(4)} <= client.tables["devices"].keys()
    assert client.state["epoch"] == after["epoch"]
    assert client.state["active"] is True


async def test_no_name_is_shown_without_a_token_where_tokens_cannot_be_reviewed() -> None:
    async with viewed() as running:
        replies = [await running.http.get(path) for path in ("/api/v1/state", "/api/v1/stream", "/api/v1/queues")]
    assert {reply.status_code for reply in replies} == {401}


async def test_a_view_that_is_killed_is_started_again_on_its_port_with_another_epoch() -> None:
    async with viewed(anonymous_reads=True) as running:
        before = await running.state()
        (killed,) = children(os.getpid())
        os.kill(killed, signal.SIGKILL)
        await until(lambda: bool(children(os.getpid()) - {killed}))
        after = await running.state()
        (left,) = children(os.getpid())
    assert before["epoch"] != after["epoch"]
    assert [row[0] for row in before["tables"]["queues"]["rows"]] == [
        row[0] for row in after["tables"]["queues"]["rows"]
    ]
    assert has_ended(left)


PARENT = """
import asyncio
from app.service import serve
from app.settings import Settings
from app.simulation.world import furnished
asyncio.run(serve(Settings(webhook_port=0, operations_port=0, view_port=0), furnished()))
"""


async def test_a_view_ends_when_the_deciding_process_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stderr=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: bool(children(parent.pid)))
        (view,) = children(parent.pid)
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: has_ended(view))
