"""Min-runtime: which queue sets it, and how far it protects a running PodGroup."""

from dataclasses import dataclass, replace

import pytest

from app.model.names import QueueName
from app.model.podgroup import PodGroup, PodSet, SubGroup
from app.model.queue import Queue
from app.scheduling.preemption.minruntime import Protection, is_elastic
from app.scheduling.preemption.victims import Safety, may_leave
from app.settings import ResolveMethod
from tests import given

NOW = 1000.0
A, B, C = QueueName("a"), QueueName("b"), QueueName("c")


@dataclass(frozen=True, slots=True)
class Defaults:
    preempt_min_runtime_s: float = 5.0
    reclaim_min_runtime_s: float = 7.0
    consolidate_min_runtime_s: float = 9.0


def queue(name: str, parent: str | None = None, *, preempt: float | None = None, reclaim: float | None = None) -> Queue:
    return replace(given.queue(name, parent), preempt_min_runtime_s=preempt, reclaim_min_runtime_s=reclaim)


def protection(*queues: Queue, method: ResolveMethod = ResolveMethod.LCA) -> Protection:
    return Protection({each.name: each for each in queues}, Defaults(), NOW, method=method)


def running(count: int, *, minimum: int, since: float | None = 0.0, queue: str = "b") -> PodGroup:
    """Build a group that started `since` seconds ago."""
    pods = [given.placed(given.pod(f"v{index}", queue=queue, gang="v"), "n") for index in range(count)]
    group = given.group(running=pods, min_member=minimum)
    return replace(group, started_at=None if since is None else NOW - since)


def waiting(queue: str = "a") -> PodGroup:
    return given.group(given.pod("p", queue=queue))


def test_the_queue_of_the_victim_sets_its_min_runtime_against_preemption() -> None:
    assert protection(queue("b", preempt=15)).preempt_s(B) == 15


def test_a_queue_without_a_min_runtime_inherits_that_of_its_ancestors_and_then_of_the_policy() -> None:
    ancestors = protection(queue("b", "m"), queue("m", "top"), queue("top", preempt=20))

    assert ancestors.preempt_s(B) == 20
    assert protection(queue("b")).preempt_s(B) == 5


def test_the_policy_sets_the_min_runtime_of_a_queue_that_does_not_exist() -> None:
    assert protection().preempt_s(B) == 5
    assert protection().reclaim_s(A, B) == 7


def test_a_min_runtime_of_zero_is_a_setting() -> None:
    assert protection(queue("b", "top", preempt=0), queue("top", preempt=20)).preempt_s(B) == 0


def test_reclaim_uses_the_min_runtime_of_the_ancestor_just_below_the_common_ancestor() -> None:
    tree = [queue("a", "l"), queue("l"), queue("b", "r", reclaim=35), queue("r", reclaim=30)]

    assert protection(*tree).reclaim_s(A, B) == 30
    assert protection(*tree, method=ResolveMethod.QUEUE).reclaim_s(A, B) == 35


def test_reclaim_between_siblings_uses_the_queue_of_the_victim_and_then_the_common_ancestors() -> None:
    tree = [queue("a", "top"), queue("b", "top", reclaim=35), queue("c", "top"), queue("top", reclaim=30)]

    assert protection(*tree).reclaim_s(A, B) == 35
    assert protection(*tree).reclaim_s(A, C) == 30


def test_reclaim_ignores_min_runtimes_below_the_ancestor_just_below_the_common_one() -> None:
    tree = [queue("a", "top"), queue("b", "m", reclaim=35), queue("m", "top"), queue("top")]

    assert protection(*tree).reclaim_s(A, B) == 7


def test_a_cycle_of_parents_ends() -> None:
    assert protection(queue("b", "c"), queue("c", "b", reclaim=3)).reclaim_s(A, B) in {3, 7}


@pytest.mark.parametrize(("since", "safe"), [(14.9, Safety.ALL), (15.0, Safety.NONE), (None, Safety.NONE)])
def test_a_gang_is_protected_until_its_min_runtime_has_passed(since: float | None, safe: Safety) -> None:
    victim = running(2, minimum=2, since=since)

    assert protection(queue("b", preempt=15)).from_preempt(waiting("b"), victim) is safe


def test_only_the_minimum_of_an_elastic_podgroup_is_protected() -> None:
    victim = running(3, minimum=1, since=1.0)

    assert protection(queue("a"), queue("b", reclaim=15)).from_reclaim(waiting(), victim) is Safety.MINIMUM


def test_a_podgroup_is_elastic_if_a_pod_set_has_more_pods_than_its_minimum() -> None:
    roles = SubGroup(pod_sets=(PodSet(name="x", min_member=1), PodSet(name="", min_member=3)))

    assert is_elastic(running(3, minimum=2))
    assert not is_elastic(running(2, minimum=2))
    assert not is_elastic(replace(running(3, minimum=0), root=roles))


@pytest.mark.parametrize(
    ("safety", "leaving", "allowed"),
    [
        (Safety.NONE, 3, True),
        (Safety.ALL, 0, True),
        (Safety.ALL, 1, False),
        (Safety.MINIMUM, 1, True),
        (Safety.MINIMUM, 2, False),
    ],
)
def test_only_pods_beyond_the_protected_minimum_are_evictable(safety: Safety, leaving: int, allowed: bool) -> None:  # noqa: FBT001 # the table's last column
    victim = running(3, minimum=2)

    assert may_leave(victim, [one.pod for one in victim.placed[:leaving]], safety) is allowed
