"""A pod whose author wrote `spec.nodeName` costs others nothing before its kubelet has taken it."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.model.names import QueueName
from app.model.resources import NOTHING
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.manifests import Job, Quota
from tests.control.test_unreadable import Watched, watched
from tests.control.wired import passes

SCHEDULED = {"type": "PodScheduled", "status": "True"}


def furnished(*nodes: str) -> SimulatedCluster:
    cluster = SimulatedCluster(now=lambda: 0.0)
    cluster.create(Resource.QUEUES, manifests.queue("d", None, Quota(gpus=4, limit=4)))
    cluster.create(Resource.QUEUES, manifests.queue("q", "d", Quota(gpus=4)))
    for name in nodes:
        cluster.create(Resource.NODES, manifests.node(name, gpus=4, cpu=64, labels={}))
    return cluster


def put(
    name: str, node: str = "a", *, gpus: int = 1_000_000, scheduler: str = "kai-scheduler", **status: Any
) -> RawObject:
    pod = manifests.pod(Job(name=name, queue="q", gpus=gpus))
    pod["spec"] |= {"nodeName": node, "schedulerName": scheduler}
    return pod | {"status": {"phase": "Pending"} | status}


def allocated(world: Watched) -> int:
    usage = world.cache.usage().get(QueueName("q"))
    return usage.allocated.gpu_milli // 1000 if usage else 0


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "default-scheduler"])
@pytest.mark.parametrize("nodes", [["a"], []])
async def test_a_pod_that_no_kubelet_has_taken_takes_no_queue_over_its_limit(
    scheduler: str, nodes: Sequence[str]
) -> None:
    cluster = furnished(*nodes)
    for number in range(100):
        cluster.create(Resource.PODS, put(f"p{number}", scheduler=scheduler))
    async with watched(cluster) as world:
        usage, total = world.cache.usage().get(QueueName("q")), world.cache.snapshot().total
        assert usage is None or usage.requested == NOTHING
        assert total.gpu_milli == 4000 * len(nodes)


async def test_its_queue_pays_once_its_kubelet_has_taken_it() -> None:
    cluster = furnished("a")
    ref = Ref.of(Resource.PODS, cluster.create(Resource.PODS, put("p", gpus=3)))
    async with watched(cluster) as world:
        assert allocated(world) == 0
        cluster.patch(ref, {"status": {"startTime": "2026-01-01T00:00:00Z"}})
        await passes(0.1)
        assert allocated(world) == 3
        assert world.gpus()["a"] == 1


async def test_the_queue_of_a_pod_that_a_scheduler_has_bound_pays_at_once() -> None:
    cluster = furnished("a")
    cluster.create(Resource.PODS, put("p", gpus=3, conditions=[SCHEDULED]))
    async with watched(cluster) as world:
        assert allocated(world) == 3


async def test_a_pod_that_was_taken_once_is_paid_for_until_it_ends() -> None:
    cluster = furnished("a")
    ref = Ref.of(
        Resource.PODS, cluster.create(Resource.PODS, put("p", gpus=3, scheduler="default-scheduler", phase="Running"))
    )
    async with watched(cluster) as world:
        cluster.patch(ref, {"status": {"phase": "Pending"}})
        await passes(0.1)
        assert allocated(world) == 3
        cluster.delete(ref)
        await passes(0.1)
        assert allocated(world) == 0
