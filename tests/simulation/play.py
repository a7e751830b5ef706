"""Shared by the tests of the simulated cluster: a clock that the test moves, and a loop that settles."""

import asyncio
import heapq
import itertools
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from app.model.names import PodUid
from app.model.seam import PodRef, RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import SimulatedCluster
from app.simulation.manifests import Job

TURNS = 50


class ManualClock:
    """Sleepers wake when `advance` passes their time."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def now(self) -> float:
        return self._now_s

    async def sleep(self, simulated_s: float) -> None:
        waker = asyncio.Event()
        heapq.heappush(self._sleepers, (self._now_s + simulated_s, next(self._order), waker))
        await waker.wait()

    async def advance(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            self._now_s, _, waker = heapq.heappop(self._sleepers)
            waker.set()
            await settle()
        self._now_s = end_s


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


@contextmanager
def playing(*actors: Coroutine[Any, Any, None]) -> Iterator[None]:
    tasks = [asyncio.ensure_future(actor) for actor in actors]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def cluster_with_node(*names: str) -> SimulatedCluster:
    cluster = SimulatedCluster(now=lambda: 0.0)
    for name in names:
        cluster.create(Resource.NODES, manifests.node(name, gpus=8, cpu=64, labels={}))
    return cluster


def create_pod(cluster: SimulatedCluster, name: str = "one", **more: Any) -> RawObject:
    return cluster.create(Resource.PODS, manifests.pod(Job(**{"name": name, "queue": "q", "gpus": 1, **more})))


def ref(pod: RawObject, *, uid: str | None = None) -> PodRef:
    metadata = pod["metadata"]
    return PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=PodUid(uid or metadata["uid"]))


def stored(cluster: SimulatedCluster, pod: RawObject) -> RawObject:
    (found,) = [one for one in cluster.objects(Resource.PODS) if one["metadata"]["uid"] == pod["metadata"]["uid"]]
    return found
