"""Two replicas behind one Service: only the one that decides is read, also after the lead has changed."""

import asyncio
from typing import Any

import httpx
import pytest

from app.client.reach_errors import OnStandbyError
from app.client.service_ways import DirectWay, Service
from app.model.seam import Resource
from app.simulation import manifests
from tests.view.frames import Client
from tests.view.pair import Pair, paired

PATIENCE_S = 120.0
READS = ("/api/v1/state", "/api/v1/stream", "/api/v1/queues", "/api/v1/why/a/b")


def replica(pair: Pair, number: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=pair.replicas[number].view, timeout=PATIENCE_S, trust_env=False)


async def leads(http: httpx.AsyncClient) -> Any:
    """Return the state, once this replica decides."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            reply = await http.get("/api/v1/state")
            if reply.status_code == 200 and reply.json()["active"]:
                return reply.json()
            await asyncio.sleep(0.2)


async def stands_by(http: httpx.AsyncClient) -> httpx.Response:
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await http.get("/api/v1/state")).status_code == 200:  # noqa: ASYNC110 - it looks at a lease
            await asyncio.sleep(0.2)
    return reply


async def followed(http: httpx.AsyncClient, after: str = "", *, begun: asyncio.Event | None = None) -> Client:
    """Read the stream until the server ends it, or until a new node is shown."""
    client, waiting = Client(), ""
    async with http.stream("GET", "/api/v1/stream", headers={"Last-Event-ID": after}) as stream:
        async for text in stream.aiter_text():
            *whole, waiting = (waiting + text).split("\n\n")
            for event in whole:
                client.hear(event.encode() + b"\n\n")
                if begun is not None:
                    begun.set()
            if "new" in client.tables.get("nodes", {}):
                break
    return client


async def test_the_lead_changes_and_a_reader_is_never_shown_the_picture_of_a_standby() -> None:
    async with paired() as pair, replica(pair, 0) as one, replica(pair, 1) as two:
        before = await leads(one)
        await stands_by(two)
        refused = [await two.get(path) for path in READS]
        begun = asyncio.Event()
        following = asyncio.create_task(followed(one, begun=begun))
        await begun.wait()
        pair.cluster.leader = "two"
        async with asyncio.timeout(PATIENCE_S):
            last = await following
        ended = await stands_by(one)
        pair.cluster.create(Resource.NODES, manifests.node("new", gpus=4, cpu=8, labels={}))
        after = await leads(two)
        async with asyncio.timeout(PATIENCE_S):
            resumed = await followed(two, last.id)

    for reply in (*refused, ended):
        assert (reply.status_code, reply.headers["retry-after"], reply.headers["connection"]) == (503, "1", "close")
        assert reply.json()["type"] == "urn:leeboard:standby"
    assert "on standby, and one_5b5c leads" in refused[0].json()["detail"]
    assert "on standby, and two_5b5c leads" in ended.json()["detail"]
    assert (before["epoch"], last.state["epoch"]) == (last.state["epoch"], last.id.partition("-")[0])
    assert resumed.states == 1
    assert resumed.state["epoch"] == after["epoch"] != before["epoch"]


async def test_a_command_asks_again_until_the_replica_that_decides_answers() -> None:
    async with paired() as pair, replica(pair, 0) as one, replica(pair, 1) as two:
        await leads(one)
        await stands_by(two)

        def asked(url: str) -> bytes:
            return Service(DirectWay(url, token=None, context=lambda: None, timeout_s=PATIENCE_S)).ask("/api/v1/queues")

        answers = [await asyncio.to_thread(asked, pair.url) for _ in range(2)]
        with pytest.raises(OnStandbyError, match="one_5b5c leads"):
            await asyncio.to_thread(asked, pair.replicas[1].view)

    assert all(b"research" in answer for answer in answers)
    assert set(pair.reached) == {0, 1}
