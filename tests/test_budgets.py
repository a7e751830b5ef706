"""Budgets: how cost grows, in ratios of CPU time or in counts, so that no machine is too slow for them."""

import time
from collections.abc import Callable

import pytest

from app.cluster.cache import ClusterCache
from app.cluster.membership import Membership
from app.model.names import NodeName
from app.model.pod import Pod
from app.model.snapshot import Snapshot
from app.scheduling.planner import plan
from tests import given

TRIES = 3
SLACK = 3.0
"""What costs n log n grows by less than 1.3 a pod over these sizes, what costs n * n by 4."""


def cost_s(work: Callable[[], object]) -> float:
    """Return the CPU time of the best of several tries."""
    best = float("inf")
    for _ in range(TRIES):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def growth(work: Callable[[int], Callable[[], object]], *, few: int, many: int) -> float:
    """Return how much more each of many costs than each of few."""
    return cost_s(work(many)) / many * few / cost_s(work(few))


def waiting(pods: int, *, gang: int = 1, gpus: int = 64) -> Snapshot:
    nodes = [given.node(f"n{index}", gpus=gpus, cpu=512) for index in range(50)]
    groups = [
        given.group(*(given.pod(f"p{first}-{index}", gang=f"g{first}", queue=f"q{first % 7}") for index in range(gang)))
        for first in range(0, pods, gang)
    ]
    return given.snapshot(nodes, [given.queue(f"q{index}") for index in range(7)], groups)


def bound(pods: int) -> ClusterCache:
    found = ClusterCache()
    for index in range(50):
        found.apply_node(given.node(f"n{index}", gpus=1000))
    for index in range(pods):
        found.apply_pod(given.pod(f"p{index}", node=NodeName(f"n{index % 50}")))
    return found


def gang_of(size: int) -> list[Pod]:
    return [given.pod(f"p{index}", gang="g") for index in range(size)]


@pytest.mark.parametrize(("gang", "gpus"), [(1, 64), (1, 1), (20, 64), (20, 1)])
def test_a_plan_costs_each_pod_the_same_however_many_wait(gang: int, gpus: int) -> None:
    def planning(pods: int) -> Callable[[], object]:
        snapshot = waiting(pods, gang=gang, gpus=gpus)
        return lambda: plan(snapshot)

    assert growth(planning, few=500, many=2000) < SLACK


def test_a_snapshot_costs_the_same_however_many_pods_run() -> None:
    late = given.pod("late")

    def changing(pods: int) -> Callable[[], object]:
        found = bound(pods)

        def change() -> None:
            for _ in range(100):
                found.apply_pod(late)
                found.snapshot()
                found.delete_pod(late.uid)

        return change

    assert cost_s(changing(10_000)) < 2 * cost_s(changing(1000))


def test_pods_come_to_a_gang_and_leave_it_at_a_cost_that_does_not_grow_with_it() -> None:
    def living(size: int) -> Callable[[], object]:
        pods = gang_of(size)

        def live() -> None:
            found = ClusterCache()
            for pod in pods:
                found.apply_pod(pod)
            for pod in pods:
                found.delete_pod(pod.uid)

        return live

    assert growth(living, few=500, many=2000) < SLACK


def test_a_gang_is_promised_its_places_at_a_cost_that_does_not_grow_with_it() -> None:
    def promising(size: int) -> Callable[[], object]:
        found = bound(0)
        for pod in gang_of(size):
            found.apply_pod(pod)
        pods = list(found.pods())

        def promise() -> None:
            for pod in pods:
                found.promise(pod.uid, NodeName("n0"), expires_at=60.0)
            for pod in pods:
                found.drop_promise(pod.uid)

        return promise

    assert growth(promising, few=500, many=2000) < SLACK


def test_only_the_group_that_changed_is_formed_anew() -> None:
    formed: list[Pod] = []
    found = Membership(formed.append)  # counts, and holds no place
    for index in range(1000):
        found.join(given.pod(f"p{index}"))
    found.waiting(lambda _key, _group: None)
    formed.clear()

    found.join(given.pod("p7", cpu=2))
    found.waiting(lambda _key, _group: None)

    assert formed == [given.pod("p7", cpu=2)]
