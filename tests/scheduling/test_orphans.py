"""Pods whose queue is deleted or invalid stay charged, deserve nothing, and are the first to be reclaimed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.model.decision import Action, Plan
from app.model.podgroup import PodGroup
from app.model.queue import ORPHANED, Queue
from app.model.reason import Reason
from app.model.snapshot import Snapshot
from app.scheduling.explain.queue_summary import stands
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.quota import QueueLedger
from tests import given
from tests.scheduling.test_victims import order, runs

TOP, A, B = given.queue("top", deserved=8), given.queue("a", "top", deserved=4), given.queue("b", "top", deserved=4)
NOBODYS = [given.queue("lost", "nowhere"), replace(given.queue("lost"), problem="its limit cannot be read")]
BELOW_TOP = replace(given.queue("lost", "top", deserved=8), problem="its limit cannot be read")


def cluster(*groups: PodGroup, queues: Sequence[Queue] = (TOP, A, B)) -> Snapshot:
    return given.snapshot([given.node("n", gpus=8)], queues, groups)


def lone(name: str, count: int, *, queue: str) -> list[PodGroup]:
    """Build single pods that run on node `n`, with a GPU each."""
    pods = [given.pod(f"{name}{number}", queue=queue, bare=False) for number in range(count)]
    return [given.group(running=[given.placed(pod, "n")], min_member=1) for pod in pods]


def planned(snapshot: Snapshot) -> Plan:
    return plan(snapshot, Policy(), now=1000.0)


def leaving(found: Plan) -> list[str]:
    return sorted(one.pod.removeprefix("uid-") for one in found.evictions)


def held(snapshot: Snapshot) -> dict[str, int]:
    """Return the GPUs charged to each account."""
    return {name: account.allocated[2] // 1000 for name, account in QueueLedger(snapshot).accounts.items()}


def test_pods_of_a_deleted_queue_are_evicted_before_those_of_any_other() -> None:
    queues = given.queue("p", deserved=0), given.queue("q", deserved=8)

    assert order(runs("lost", queue="gone"), runs("p", 5, queue="p"), runs("q"), queues=queues)[0] == "lost0"


def test_pods_of_several_deleted_queues_are_evicted_in_the_order_of_one_queue() -> None:
    groups = [runs("x", queue="gone", created_at=1.0), runs("y", queue="lost", created_at=2.0, priority=-1)]
    groups += [runs("z", queue="gone", created_at=3.0)]

    assert order(*groups) == ["y0", "z0", "x0"]


def test_gpus_of_pods_whose_queue_was_deleted_can_be_reclaimed() -> None:
    wants = given.group(given.pod("w", gpus=4, queue="a"))

    found = planned(cluster(*lone("lost", 5, queue="ghost"), *lone("b", 3, queue="b"), wants))

    assert leaving(found) == ["lost1", "lost2", "lost3", "lost4"]
    assert {one.action for one in found.evictions} == {Action.RECLAIM}


@pytest.mark.parametrize("lost", [*NOBODYS, BELOW_TOP], ids=["no parent", "unreadable", "below a sound queue"])
def test_gpus_of_pods_whose_queue_is_invalid_can_be_reclaimed(lost: Queue) -> None:
    wants = given.group(given.pod("w", gpus=4, queue="a"))

    found = planned(cluster(*lone("lost", 5, queue="lost"), *lone("b", 3, queue="b"), wants, queues=(TOP, A, B, lost)))

    assert leaving(found) == ["lost1", "lost2", "lost3", "lost4"]


def test_no_pod_of_a_deleted_queue_is_evicted_unless_another_queue_deserves_the_room() -> None:
    assert leaving(planned(cluster(*lone("lost", 8, queue="ghost")))) == []


def test_pods_of_deleted_queues_are_charged_to_one_queue_that_deserves_nothing() -> None:
    snapshot = cluster(*lone("lost", 2, queue="ghost"), *lone("gone", 1, queue="gone"), *lone("a", 1, queue="a"))

    shares = fair_shares(snapshot)

    assert held(snapshot) == {"top": 1, "a": 1, "b": 0, ORPHANED.name: 3}
    share = shares[ORPHANED.name]
    assert (share.deserved.gpu_milli, share.fair_share.gpu_milli, share.allocated.gpu_milli) == (0, 0, 3000)


def test_an_invalid_queue_is_charged_for_its_pods_and_so_are_its_valid_ancestors() -> None:
    assert held(cluster(*lone("lost", 2, queue="lost"), queues=(TOP, A, BELOW_TOP))) == {"top": 2, "a": 0, "lost": 2}
    assert held(cluster(*lone("lost", 2, queue="lost"), queues=(A, TOP, NOBODYS[0]))) == {"top": 0, "a": 0, "lost": 2}


def test_a_queue_that_is_created_again_is_charged_for_its_pods_again() -> None:
    gone, back = (cluster(*lone("a", 2, queue="a"), queues=queues) for queues in ([TOP, B], [TOP, A, B]))

    assert (held(gone), held(back)) == ({"top": 0, "b": 0, ORPHANED.name: 2}, {"top": 2, "a": 2, "b": 0})


def test_deleted_queues_are_not_shown_when_no_pod_holds_anything_in_them() -> None:
    waits = given.group(given.pod("w", queue="ghost"))

    assert [stand.queue.name for stand in stands(cluster(waits))] == ["a", "b", "top"]


def test_pods_of_deleted_queues_are_shown_after_all_queues_with_the_reason() -> None:
    *_, last = stands(cluster(*lone("lost", 2, queue="ghost")))

    assert (last.queue.name, last.allocated.gpu_milli) == ("(orphaned)", 2000)
    assert "do not exist" in last.queue.problem


def test_pods_of_a_deleted_queue_stay_pending_whatever_runs_in_it() -> None:
    waits = given.group(given.pod("w", queue="ghost"))

    found = planned(cluster(*lone("lost", 2, queue="ghost"), waits))

    assert [refusal.reason for refusal in found.refusals.values()] == [Reason.QUEUE_DOES_NOT_EXIST]


def test_resources_held_by_pods_of_deleted_queues_are_not_free() -> None:
    full = planned(cluster(*lone("lost", 8, queue="ghost"), given.group(given.pod("w", queue="b", gpus=5))))

    assert [start.awaits_release for start in full.starts] == [True]
