"""The largest possible numbers affect no other object: neither the table, nor the sums, nor an answer."""

from collections.abc import Callable

import pytest

from app.cluster.ledger.charge import Hold
from app.model.names import NodeName, QueueName
from app.model.quantity import MAX_QUEUE_AMOUNT
from app.model.question import Fits
from app.model.resources import AXES, MAX_AMOUNT, MAX_COLUMN
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import Job, Quota
from tests.control.wired import FickleCluster, World, furnished, living, passes

MANY = 12
LARGEST = str(MAX_AMOUNT)
MIG = "nvidia.com/mig-9999g.80gb"
RUNNING = {"phase": "Running", "startTime": "1970-01-01T00:00:00Z"}

Write = Callable[[RawObject], None]


def asks(resource: str, amount: str) -> Write:
    def write(pod: RawObject) -> None:
        pod["spec"]["containers"][0]["resources"] = {"requests": {resource: amount}, "limits": {resource: amount}}

    return write


def annotates(**annotations: str) -> Write:
    def write(pod: RawObject) -> None:
        pod["metadata"]["annotations"] |= {key.replace("_", "-"): value for key, value in annotations.items()}

    return write


def has_overhead(pod: RawObject) -> None:
    pod["spec"]["overhead"] = {"cpu": str(MAX_AMOUNT // 1000), "memory": LARGEST}


def holds(pod: RawObject) -> None:
    """Build the resources that the kubelet has allocated."""
    amounts = {"cpu": str(MAX_AMOUNT // 1000), "memory": LARGEST}
    pod["status"] |= {"containerStatuses": [{"name": "main", "allocatedResources": amounts}]}


def wants_all(pod: RawObject) -> None:
    amounts = {f"example.com/gpu-{number}": LARGEST for number in range(10)}
    amounts |= {f"nvidia.com/mig-{number}g.1gb": LARGEST for number in range(20)}
    pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}


PODS: dict[str, Write] = {
    "cpu": asks("cpu", str(MAX_AMOUNT // 1000)),
    "memory": asks("memory", LARGEST),
    "memory beyond the largest": asks("memory", "9E"),
    "GPUs": asks("nvidia.com/gpu", str(MAX_AMOUNT // 1000)),
    "a MIG profile": asks("nvidia.com/mig-7g.80gb", LARGEST),
    "a MIG profile beyond any GPU": asks(MIG, LARGEST),
    "an extended resource": asks("example.com/any", LARGEST),
    "all kinds of extended resources": wants_all,
    "overhead": has_overhead,
    "what the kubelet allocated": holds,
    "parts by memory": annotates(gpu_memory=str(1 << 40), gpu_fraction_num_devices="64"),
    "parts by fraction": annotates(gpu_fraction="0.999999", gpu_fraction_num_devices="64"),
}


def many_run(cluster: FickleCluster, write: Write, *, scheduler: str) -> None:
    """Let many pods with these values run on node `a`."""
    for number in range(MANY):
        pod = manifests.pod(Job(name=f"x{number}", queue="q", cpu=0))
        pod["spec"] |= {"nodeName": "a", "schedulerName": scheduler}
        pod["status"] = dict(RUNNING)
        if scheduler != manifests.PROFILE:
            del pod["metadata"]["labels"][manifests.QUEUE_LABEL]
        write(pod)
        cluster.create(Resource.PODS, pod)


async def answers_for(world: World, *, of_b: int) -> None:
    """Check that everything works around node `a`, with new nodes and filter calls."""
    for number in range(3):
        world.nodes(f"z{number}")
        await passes(1)
        assert isinstance(await world.filter(world.pod(f"p{number}"), f"z{number}"), Fits)
    assert world.free_gpus() == world.free_gpus() | {"b": of_b, "z0": 0, "z1": 0, "z2": 0}
    snapshot = world.cache.snapshot()
    assert (abs(snapshot.free) <= MAX_COLUMN).all()
    assert world.inspect.queues()().keys() >= {QueueName("q")}
    assert min(snapshot.total.amounts) >= 0


@pytest.mark.parametrize("scheduler", [manifests.PROFILE, "default-scheduler"])
@pytest.mark.parametrize("stated", PODS)
async def test_the_largest_amounts_in_pods_cost_other_nodes_nothing(stated: str, scheduler: str) -> None:
    cluster = furnished("a", "b", gpus=4)
    many_run(cluster, PODS[stated], scheduler=scheduler)
    cluster.create(Resource.PODS, manifests.foreign_pod("ds", node="b", gpus=1))

    async with living(cluster=cluster) as world:
        await passes(1)

        await answers_for(world, of_b=3)
        # One GPU of node `b` is outside, and all GPUs of the three new nodes are divided.
        assert 6000 <= world.cache.snapshot().total.gpu_milli <= 10_000


ALLOCATABLE = {
    "cpu": {"cpu": str(MAX_AMOUNT // 1000)},
    "memory": {"memory": LARGEST},
    "GPUs": {"nvidia.com/gpu": str(MAX_AMOUNT // 1000)},
    "pods": {"pods": LARGEST},
    "a MIG profile": {MIG: LARGEST},
    "many MIG profiles": {f"nvidia.com/mig-{number}g.1gb": LARGEST for number in range(100)},
    "an extended resource": {"example.com/any": LARGEST},
    "beyond the largest": {"cpu": "9E", "memory": "9E", "nvidia.com/gpu": "9E", "pods": "9E"},
}


@pytest.mark.parametrize("stated", ALLOCATABLE)
async def test_the_largest_amounts_of_a_kubelet_cost_other_nodes_nothing(stated: str) -> None:
    cluster = furnished("b", gpus=4)
    for name in ("a", "a2"):
        node = manifests.node(name, gpus=4, cpu=64, labels={manifests.MEMORY_LABEL: LARGEST})
        node["status"]["allocatable"] |= ALLOCATABLE[stated]
        cluster.create(Resource.NODES, node)
    many_run(cluster, wants_all, scheduler="default-scheduler")

    async with living(cluster=cluster) as world:
        await passes(1)

        await answers_for(world, of_b=4)


async def test_the_largest_memory_reported_by_an_agent_costs_other_nodes_nothing() -> None:
    cluster = furnished("a", "b", gpus=4)
    memory = {"total": 1 << 40, "used": 1 << 40, "foreign": 1 << 40}
    devices = [{"uuid": f"GPU-{index}", "index": index, "memoryMiB": memory} for index in range(63)]
    status = {"kubelet": {"answers": True}, "devices": devices}
    cluster.create(Resource.GPU_NODES, {"kind": "GpuNode", "metadata": {"name": "a"}, "status": status})
    many_run(cluster, PODS["parts by memory"], scheduler=manifests.PROFILE)

    async with living(cluster=cluster) as world:
        await passes(1)

        await answers_for(world, of_b=4)


async def test_the_largest_quotas_leave_all_queues_their_shares() -> None:
    cluster = furnished("a", "b", gpus=4)
    most = MAX_QUEUE_AMOUNT // 1000
    for number in range(MANY):
        queue = manifests.queue(f"large{number}", None, Quota(gpus=most, weight=1_000_000, limit=most))
        cluster.create(Resource.QUEUES, queue)
    many_run(cluster, PODS["GPUs"], scheduler=manifests.PROFILE)

    async with living(cluster=cluster) as world:
        await passes(1)

        await answers_for(world, of_b=4)


async def test_resources_held_by_more_pods_than_a_column_can_count_are_never_free() -> None:
    cluster = furnished("a", "b", gpus=4)

    async with living(cluster=cluster) as world:
        await passes(1)
        charges = world.cache.charges
        beyond = [MAX_COLUMN] * len(AXES)
        for sums in (charges._used, charges._used, charges._part_of_used[Hold.LEAVING]):
            sums.add(NodeName("a"), beyond)
        snapshot = world.cache.snapshot()
        column = snapshot.nodes.index[NodeName("a")]

        assert snapshot.releasing is not None
        assert (snapshot.free[:, column] + snapshot.releasing[:, column] < 0).all()
        assert world.free_gpus()["b"] == 4
