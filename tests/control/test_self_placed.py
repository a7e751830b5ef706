"""A pod whose author wrote `spec.nodeName` affects no other pod before its kubelet has accepted it."""

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


def created(cluster: SimulatedCluster, pod: RawObject) -> Ref:
    return Ref.of(Resource.PODS, cluster.create(Resource.PODS, pod))


def allocated(world: Watched) -> int:
    usage = world.cache.charges.usage().get(QueueName("q"))
    return usage.allocated.gpu_milli // 1000 if usage else 0


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "default-scheduler"])
@pytest.mark.parametrize("nodes", [["a"], []])
async def test_a_self_placed_pod_that_no_kubelet_accepted_takes_no_queue_above_its_limit(
    scheduler: str, nodes: Sequence[str]
) -> None:
    cluster = furnished(*nodes)
    for number in range(100):
        cluster.create(Resource.PODS, put(f"p{number}", scheduler=scheduler))
    async with watched(cluster) as world:
        usage, total = world.cache.charges.usage().get(QueueName("q")), world.cache.snapshot().total
        assert usage is None or usage.requested == NOTHING
        assert total.gpu_milli == 4000 * len(nodes)


async def test_the_queue_is_charged_once_the_kubelet_accepted_a_self_placed_pod() -> None:
    cluster = furnished("a")
    ref = created(cluster, put("p", gpus=3))
    async with watched(cluster) as world:
        assert allocated(world) == 0
        cluster.patch(ref, {"status": {"startTime": "2026-01-01T00:00:00Z"}})
        await passes(0.1)
        assert allocated(world) == 3
        assert world.gpus()["a"] == 1


async def test_the_queue_of_a_pod_that_a_scheduler_bound_is_charged_at_once() -> None:
    cluster = furnished("a")
    cluster.create(Resource.PODS, put("p", gpus=3, conditions=[SCHEDULED]))
    async with watched(cluster) as world:
        assert allocated(world) == 3


async def test_a_pod_that_was_accepted_once_is_charged_until_it_ends() -> None:
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


# Extended resources that a kubelet does not know


MIG = "nvidia.com/mig-1g.10gb"
RUNNING = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}


def beyond(name: str, *, mig: int = 0, scheduler: str = "kai-scheduler", **annotations: str) -> RawObject:
    """Build a pod that runs on a node without GPUs, whatever it requests: its kubelet does not check that."""
    pod = put(name, gpus=0 if mig or annotations else 1_000_000, scheduler=scheduler, **RUNNING)
    pod["metadata"]["annotations"] |= annotations
    if mig:
        pod["spec"]["containers"][0]["resources"]["requests"][MIG] = str(mig)
    return pod


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "default-scheduler"])
@pytest.mark.parametrize(
    "asks", [{}, {"mig": 1_000_000}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "64"}], ids=str
)
@pytest.mark.parametrize("node_first", [True, False])
async def test_a_pod_on_a_node_without_gpus_takes_no_queue_above_its_limit(
    asks: dict[str, Any], scheduler: str, *, node_first: bool
) -> None:
    cluster, node = furnished(), manifests.node("a", gpus=0, cpu=64, labels={})
    if node_first:
        cluster.create(Resource.NODES, node)
    ref = created(cluster, beyond("p", scheduler=scheduler, **asks))
    async with watched(cluster) as world:
        if not node_first:
            cluster.create(Resource.NODES, node)
            await passes(0.1)
        assert allocated(world) == 0
        usage = world.cache.charges.usage()[QueueName("q")]
        assert usage.allocated.cpu_milli == 2000
        # Resources that its node gets later may count.
        node["status"]["allocatable"] |= {"nvidia.com/gpu": "4", MIG: "7"}
        cluster.patch(Ref(resource=Resource.NODES, name="a"), {"status": node["status"]})
        await passes(0.1)
        assert allocated(world) <= 32
        cluster.patch(Ref(resource=Resource.NODES, name="a"), {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
        await passes(0.1)
        cluster.delete(ref)
        await passes(0.1)
        assert not world.cache.charges.usage()


async def test_a_pod_bound_with_its_queue_keeps_its_gpus_while_the_device_plugin_starts() -> None:
    cluster = furnished("a")
    pod = put("p", gpus=3, **RUNNING)
    pod["metadata"]["annotations"] |= {"leeboard.dev/queue": "q"}
    cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        cluster.patch(Ref(resource=Resource.NODES, name="a"), {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
        await passes(0.1)
        assert allocated(world) == 3


async def test_a_pod_larger_than_its_node_that_is_marked_for_eviction_is_still_shown_as_before() -> None:
    cluster = furnished()
    cluster.create(Resource.NODES, manifests.node("a", gpus=0, cpu=64, labels={}))
    cluster.create(Resource.PODS, beyond("p"))
    async with watched(cluster) as world:
        (pod,) = world.cache.pods.all()
        shown = world.cache.pods.as_shown(pod.uid)
        assert shown is not None
        assert (shown.request.gpu_milli, pod.request.gpu_milli) == (1_000_000_000, 0)

        world.cache.mark_leaving(pod.uid)
        world.cache.unmark_leaving(pod.uid)
        assert (world.cache.pods.as_shown(pod.uid), world.cache.pods.get(pod.uid)) == (shown, pod)
