"""Requests by GPU memory in a cluster of different GPUs: checked by what the pods can get, charged by what they got."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.decision import Plan, Share
from app.model.node import Node
from app.model.pod import Constraint, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import NOTHING, UNLIMITED, Resources
from app.model.snapshot import Snapshot
from app.scheduling.explain.unsatisfiable import judged
from app.scheduling.planner.planner import fitting, plan
from app.scheduling.policy import Policy
from app.scheduling.preemption.lending import borrows
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.order import Turns
from app.scheduling.queues.quota import QueueLedger
from tests import given

GB = 1000


def node(name: str, memory_gb: int, *, gpus: int = 1) -> Node:
    return given.node(name, gpus=gpus, device_memory_mib=memory_gb * GB, labels={"size": str(memory_gb)})


def by_memory(name: str, memory_gb: int, *, size: int | None = None, devices: int = 1, **more: Any) -> Pod:
    only = Constraint() if size is None else Constraint(node_selector=(("size", str(size)),))
    sharing = Sharing(memory_mib=memory_gb * GB, devices=devices)
    return replace(given.pod(name, gpus=0, constraint=only, **more), sharing=sharing)


def alone(number: int, memory_gb: int, *, preemptible: bool = False, **more: Any) -> list[PodGroup]:
    pods = (by_memory(f"p{index}", memory_gb, **more) for index in range(number))
    return [given.group(pod, preemptible=preemptible) for pod in pods]


def paid(found: Plan, nodes: list[Node], groups: list[PodGroup]) -> int:
    """Return what the queue is charged for the pods that start, in thousandths of a GPU."""
    sizes = {each.name: each.device_memory_mib for each in nodes}
    pods = {pod.uid: pod for group in groups for pod in group.pending}
    places = [one for start in found.starts for one in start.placements]
    return sum((pods[one.pod].charge(sizes[one.node]) for one in places), NOTHING).gpu_milli


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize(
    ("queue", "preemptible"),
    [(given.queue("q", deserved=1), False), (given.queue("q", limit=1), True)],
    ids=["quota", "limit"],
)
def test_pods_within_quota_start_on_the_larger_gpu_although_there_are_smaller_ones(
    queue: Queue, names: str, *, preemptible: bool
) -> None:
    nodes = [node(names[0], 16), node(names[1], 80)]
    pods = alone(4, 16, preemptible=preemptible)

    found = plan(given.snapshot(nodes, [queue], pods))

    assert len(found.starts) == 4
    assert paid(found, nodes, pods) == 800


def test_a_pod_restricted_to_smaller_gpus_is_charged_by_the_smaller_gpus() -> None:
    pods = alone(2, 8, size=16)
    nodes = [node("a", 16, gpus=2), node("b", 80)]
    third = given.group(by_memory("third", 16, size=16), created_at=9.0, preemptible=False)

    found = plan(given.snapshot(nodes, [given.queue("q", deserved=1)], [*pods, third]))

    assert len(found.starts) == 2
    assert paid(found, nodes, pods) == 1000


def test_the_message_names_the_quota_if_the_only_free_gpu_is_smaller_and_exceeds_the_quota() -> None:
    nodes = [node("a", 16), node("b", 80)]
    full = given.group(running=[given.placed(given.pod("full", queue="r"), "b")], preemptible=False)
    half = Queue(name=given.queue("q").name, gpu_milli=replace(given.queue("q").gpu_milli, deserved=500))
    (pod,) = alone(1, 16)

    found = plan(given.snapshot(nodes, [half, given.queue("r", deserved=1)], [pod, full]))

    assert found.starts == ()
    assert found.refusals[pod.key].reason is Reason.NON_PREEMPTIBLE_OVER_QUOTA


def test_a_what_if_charges_by_the_largest_gpu_that_the_pod_can_get() -> None:
    snapshot = given.snapshot([node("a", 16), node("b", 80)], [given.queue("q", deserved=1)], [])
    pod = by_memory("p", 40, devices=1)

    found = fitting(snapshot, given.group(pod, preemptible=False), pod)

    assert not isinstance(found, Refusal)
    assert found.tolist() == [False, True]


def large_beside_small() -> Snapshot:
    """Build a cluster in which one queue waits for half of a large GPU, and another one for a whole GPU."""
    half = given.group(by_memory("half", 40, size=80, queue="parts"), created_at=1.0)
    whole = given.group(given.pod("whole", queue="all"))
    queues = [given.queue("parts", deserved=0), given.queue("all", deserved=0)]
    return given.snapshot([node("a", 16), node("b", 80)], queues, [half, whole])


def test_a_fair_share_counts_gpu_memory_by_the_gpus_that_the_pods_can_get() -> None:
    shares = fair_shares(judged(large_beside_small()))

    assert {name: share.fair_share.gpu_milli for name, share in shares.items()} == {"parts": 500, "all": 1000}


def test_the_order_of_queues_counts_gpu_memory_by_the_gpus_that_the_pods_can_get() -> None:
    snapshot = judged(large_beside_small())

    first = Turns(snapshot, QueueLedger(snapshot), dict.fromkeys(snapshot.queues, Share())).pop()

    assert first is not None
    assert first.queue == "parts"


def test_gpu_memory_that_may_cost_more_than_the_fair_share_is_borrowed() -> None:
    held = given.group(running=[given.placed(given.pod("held", queue="r"), "b")])
    pod = given.group(by_memory("p", 16))
    snapshot = given.snapshot(
        [node("a", 16), node("b", 80)], [given.queue("q"), given.queue("r", deserved=2)], [held, pod]
    )
    state = WhatIf(snapshot, Policy().strategy)
    state.shares = dict.fromkeys(snapshot.queues, Share(fair_share=Resources(cpu_milli=9000, gpu_milli=500)))

    assert borrows(state, pod)


sizes = st.sampled_from([16, 24, 40, 80])


@settings(max_examples=200)
@for_all(
    st.lists(st.tuples(sizes, st.integers(1, 2)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(4, 80), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(0, 4),
    st.booleans(),
)
def test_no_queue_exceeds_its_limit_whichever_gpus_its_pods_get(
    gpus: list[tuple[int, int]],
    asked: list[tuple[int, int]],
    most: int,
    is_limit: bool,  # noqa: FBT001 # drawn
) -> None:
    nodes = [node(f"n{index}", size, gpus=count) for index, (size, count) in enumerate(gpus)]
    groups = [
        given.group(
            *(by_memory(f"g{index}-{pod}", memory, gang=f"g{index}") for pod in range(count)), preemptible=is_limit
        )
        for index, (memory, count) in enumerate(asked)
    ]
    queue = given.queue("q", deserved=0 if is_limit else most, limit=most if is_limit else None)

    found = plan(given.snapshot(nodes, [queue], groups))

    assert paid(found, nodes, groups) <= most * 1000 < UNLIMITED
