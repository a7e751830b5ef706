"""The cost of an event does not depend on the size of the cluster, nor that of a list on more than its length."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from app.cluster.groups.lineage import Lineage
from app.cluster.groups.owners import Owners, Walk
from app.cluster.state.cache import ClusterCache
from app.model.device import Device, DeviceUuid, GpuNode, Health
from app.model.names import GroupKey, NodeName, PodUid
from app.model.node import Node
from app.model.owner import Kind, Owner, OwnerRef
from app.model.pod import Pod, Sharing
from app.model.podgroup import GroupSpec
from tests import given
from tests.cluster.steps import entries, steps

pytestmark = pytest.mark.slow

FEW, MANY = 60, 240
"""Four times as many: a scan of all takes several times as long, a copy of a bucket does not."""

ALIKE = 1.2
LINEAR = 4.4
NEW = given.pod("new", queue="q-1")

Event = Callable[[ClusterCache], object]


def gpu_node(name: str, used_mib: int = 0) -> GpuNode:
    device = Device(uuid=DeviceUuid(f"{name}-u"), memory_mib=3000, used_mib=used_mib, health=Health.HEALTHY)
    return GpuNode(name=NodeName(name), devices=(device,), kubelet_answers=True)


def node(number: int, **more: Any) -> Node:
    return given.node(f"n{number}", device_memory_mib=3000, **more)


def lone(number: int) -> Pod:
    """Every second pod runs."""
    pod = given.pod(f"p{number}", queue=f"q-{number}")
    return replace(pod, node=NodeName(f"n{number}")) if number % 2 else pod


def half(number: int) -> Pod:
    pod = given.pod(f"h{number}", gpus=0, sharing=Sharing(portion_ppm=500_000), queue=f"q-{number}")
    return replace(pod, node=NodeName(f"n{number}"), devices=(f"d{number}",), device_uuids=(f"n{number}-u",))


def filled(size: int) -> ClusterCache:
    """Return a cache with this number of nodes, agents, queues, single pods and pods with half a GPU."""
    cache = ClusterCache()
    for number in range(size):
        cache.apply_node(node(number))
        cache.apply_gpu_node(gpu_node(f"n{number}"), heard_at=0.0)
        cache.apply_queue(given.queue(f"q-{number}"))
        cache.apply_pod(lone(number))
        cache.apply_pod(half(number))
    cache.snapshot()
    return cache


EVENTS: dict[str, Event] = {
    "a pod comes": lambda cache: cache.apply_pod(NEW),
    "a pod is bound": lambda cache: cache.apply_pod(replace(lone(2), node=NodeName("n2"))),
    "a pod is promised a node": lambda cache: cache.promises.make(PodUid("uid-p2"), NodeName("n2"), expires_at=1.0),
    "a pod goes": lambda cache: cache.delete_pod(PodUid("uid-p1")),
    "a pod with half a GPU goes": lambda cache: cache.delete_pod(PodUid("uid-h1")),
    "a pod with half a GPU is told to leave": lambda cache: cache.mark_leaving(PodUid("uid-h1")),
    "a node is heard": lambda cache: cache.apply_node(node(1)),
    "a node is cordoned": lambda cache: cache.apply_node(node(1, unschedulable=True)),
    "a node is lost": lambda cache: cache.apply_node(node(1, ready=False)),
    "a node has larger GPUs": lambda cache: cache.apply_node(replace(node(1), device_memory_mib=4000)),
    "an agent is heard": lambda cache: cache.apply_gpu_node(gpu_node("n1"), heard_at=1.0),
    "an agent measures more": lambda cache: cache.apply_gpu_node(gpu_node("n1", used_mib=900), heard_at=1.0),
    "a queue is heard": lambda cache: cache.apply_queue(given.queue("q-1")),
    "a group is stated": lambda cache: cache.apply_group(GroupSpec(key=GroupKey("default", "g"), min_member=2)),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_an_event_costs_the_same_in_a_large_cluster_as_in_a_small_one(event: Event) -> None:
    few, many = (steps(partial(event, filled(size))) for size in (FEW, MANY))

    assert many <= ALIKE * few, (few, many)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_a_snapshot_after_an_event_costs_the_same_and_copies_only_columns(event: Event) -> None:
    few, many = (steps(frozen_after(event, filled(size))) for size in (FEW, MANY))

    assert many <= ALIKE * few, (few, many)


def frozen_after(event: Event, cache: ClusterCache) -> Callable[[], object]:
    event(cache)
    return cache.snapshot


@pytest.mark.parametrize("first", ["nodes", "pods"])
def test_a_list_costs_time_in_proportion_to_its_objects_whichever_kind_is_first(first: str) -> None:
    few, many = (steps(partial(listed, size, first)) for size in (FEW, MANY))

    assert many <= LINEAR * few, (few, many)


def listed(size: int, first: str) -> None:
    cache = ClusterCache()
    kinds: list[Callable[[int], None]] = [
        lambda number: cache.apply_node(node(number)),
        lambda number: cache.apply_pod(half(number)),
    ]
    for apply in kinds if first == "nodes" else reversed(kinds):
        for number in range(size):
            apply(number)
    cache.groups.form()


def test_a_gang_that_is_bound_pod_by_pod_is_formed_once() -> None:
    few, many = (steps(partial(bound_one_by_one, size)) for size in (FEW, MANY))

    assert many <= LINEAR * few, (few, many)


def bound_one_by_one(size: int) -> None:
    cache = ClusterCache()
    cache.apply_node(node(1))
    cache.apply_group(GroupSpec(key=GroupKey("default", "g"), min_member=size))
    for number in range(size):
        cache.apply_pod(replace(given.pod(f"p{number}", gang="g"), node=NodeName("n1")))
    cache.snapshot()


# Owners

JOB = Kind("batch", "v1", "Job")


def test_pods_with_a_missing_owner_are_found_without_a_scan_of_all_others() -> None:
    few, many = (steps(partial(asked, with_one_late(size))) for size in (FEW, MANY))

    assert many <= ALIKE * few, (few, many)


def with_one_late(size: int) -> Lineage:
    lineage = Lineage(Owners(lambda _: None))
    for number in range(size):
        ref = OwnerRef(JOB, f"job-{number}", f"job-{number}")
        line = lineage.add(ref, "ns", PodUid(f"{number}"))
        lineage.note(line, Walk(missing=ref))
        if number:
            lineage.note(line, Walk((Owner(ref=ref, namespace="ns"),)))
    return lineage


def asked(lineage: Lineage) -> None:
    late = OwnerRef(JOB, "job-0", "job-0")
    assert list(lineage.missing()) == [(late, "ns")]
    assert [line.first for line in lineage.waiting_for(JOB)] == [late]


# Memory


def test_a_single_pod_costs_few_entries_of_dicts_and_tuples() -> None:
    cache = filled(FEW)
    before = entries(cache)

    for number in range(FEW, MANY):
        cache.apply_pod(lone(number))
    cache.snapshot()

    # Each pod has a queue of its own, and each queue its own counts of started pods. The key of its group has three
    # entries, because two APIs have PodGroups.
    assert (entries(cache) - before) / (MANY - FEW) <= 35


def test_nothing_is_left_of_deleted_pods_and_nodes() -> None:
    cache = filled(FEW)
    come_and_go(cache, range(FEW, MANY))
    before = entries(cache)

    come_and_go(cache, range(MANY, 2 * MANY))

    assert entries(cache) == before


def come_and_go(cache: ClusterCache, numbers: range) -> None:
    for number in numbers:
        cache.apply_node(node(number))
        cache.apply_gpu_node(gpu_node(f"n{number}"), heard_at=0.0)
        cache.apply_pod(lone(number))
        cache.apply_pod(half(number))
        cache.mark_leaving(PodUid(f"uid-p{number}"))
    # As a planning step does, which forgets the started pods of queues that do not exist.
    cache.arrivals.freeze(cache.snapshot())
    for number in numbers:
        cache.delete_pod(PodUid(f"uid-p{number}"))
        cache.delete_pod(PodUid(f"uid-h{number}"))
        cache.delete_gpu_node(NodeName(f"n{number}"))
        cache.delete_node(NodeName(f"n{number}"))
    cache.snapshot()
    cache.drain_changes()
    cache.gpus.drain_changes()
    cache.groups.touched.tell({})
