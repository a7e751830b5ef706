"""Evictions for a PodGroup cost no more work than it has waited for, except for the deserved share of its queue."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given as for_all
from hypothesis import settings

from app.model.decision import Action, Plan
from app.model.memory import NO_MEMORY, PlanMemory
from app.model.pod import Placed
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from tests import given
from tests.scheduling.worlds import World, worlds

PATIENT = Policy(patience_s=300.0)
QUEUES = [given.queue("lender"), given.queue("owed")]
"""Of eight GPUs, the fair share of each queue is four when both request as many."""

START = 10_000.0


def running(name: str, queue: str, *, gpus: int = 1, since: float, on: str = "n0") -> PodGroup:
    pod = given.pod(name, gpus=gpus, queue=queue)
    return replace(given.group(running=[given.placed(pod, on)], min_member=1), started_at=since)


def waiting(name: str, queue: str, *, gpus: int = 1) -> PodGroup:
    return given.group(given.pod(name, gpus=gpus, queue=queue), created_at=START)


def lent(queues: list[Queue], *, ran_s: float) -> Snapshot:
    """Build a full node: one queue has held five of its GPUs for this time, another lacks one of its four."""
    held = [running(f"l{index}", "lender", since=START - ran_s) for index in range(5)]
    held += [running(f"o{index}", "owed", since=START - 5000) for index in range(3)]
    return given.snapshot([given.node("n0")], queues, [*held, waiting("w", "owed"), waiting("x", "lender")])


def after(snapshot: Snapshot, waited_s: float, policy: Policy = PATIENT) -> Plan:
    """Plan, and again after this number of seconds in which nothing changes."""
    first = plan(snapshot, policy, now=START)
    return plan(snapshot, policy, now=START + waited_s, memory=first.memory)


def test_a_pod_is_evicted_when_the_queue_that_deserves_its_gpu_has_waited_for_as_long_as_the_pod_has_run() -> None:
    snapshot = lent(QUEUES, ran_s=100.0)

    evictions = [len(after(snapshot, waited_s).evictions) for waited_s in (0.0, 50.0, 99.0)]

    assert evictions == [0, 0, 0]
    # The pod runs on while the other waits: both times are equal when patience ends.
    assert len(after(snapshot, 299.0).evictions) == 0
    assert [each.action for each in after(snapshot, 300.0).evictions] == [Action.RECLAIM]


def test_a_pod_that_has_just_started_is_evicted_first_and_soon() -> None:
    snapshot = lent(QUEUES, ran_s=100.0)
    young = running("l4", "lender", since=START + 90.0)
    later = replace(snapshot, running={**snapshot.running, young.key: young})

    made = plan(later, PATIENT, now=START + 110.0, memory=plan(snapshot, PATIENT, now=START).memory)

    assert [each.group for each in made.evictions] == [young.key]


def test_a_queue_below_its_deserved_share_does_not_wait() -> None:
    snapshot = lent([given.queue("lender"), given.queue("owed", deserved=4)], ran_s=100.0)

    assert len(plan(snapshot, PATIENT, now=START).evictions) == 1


def test_no_eviction_waits_where_patience_is_off() -> None:
    assert len(plan(lent(QUEUES, ran_s=100.0), Policy(), now=START).evictions) == 1


def test_the_message_of_a_pod_whose_victims_would_lose_too_much_work_says_how_long_it_waits() -> None:
    snapshot = lent(QUEUES, ran_s=1000.0)
    twin = waiting("v", "owed")
    snapshot = replace(snapshot, groups={**snapshot.groups, twin.key: twin})
    first = plan(snapshot, PATIENT, now=START)
    # The second plan searches for neither group: the results of the first plan are remembered.
    second = plan(snapshot, PATIENT, now=START + 1.0, memory=first.memory)

    said = (
        "No node has room: the only node has too few GPUs (requested 1, at most 0 free); no pod is evicted for it yet "
        "because running pods would lose too much work; they may be evicted after it has waited for "
        "300 s."
    )
    for made in (first, second):
        assert [made.refusals[key].sentence for key in snapshot.groups if key.name != "uid-x"] == [said, said]


def test_the_message_of_a_pod_without_evictable_pods_does_not_say_that_they_are_evicted_later() -> None:
    snapshot = lent(QUEUES, ran_s=1000.0)
    firm = {key: replace(group, preemptible=False) for key, group in snapshot.running.items()}
    made = plan(replace(snapshot, running=firm), PATIENT, now=START)

    assert all("evicted for it yet" not in refusal.sentence for refusal in made.refusals.values())


def test_a_search_is_due_again_when_patience_ends() -> None:
    memory = plan(lent(QUEUES, ran_s=1000.0), PATIENT, now=START).memory

    assert memory.conditions is not None
    assert START < memory.conditions.changes_at <= START + PATIENT.patience_s


def test_a_search_stays_due_after_a_plan_that_remembers_its_failure() -> None:
    snapshot = lent(QUEUES, ran_s=1000.0)
    memory = plan(snapshot, PATIENT, now=START).memory
    later = plan(snapshot, PATIENT, now=START + 1.0, memory=memory).memory

    assert memory.conditions is not None
    assert later.conditions is not None
    assert later.conditions.changes_at == memory.conditions.changes_at


def test_the_time_waited_continues_when_a_plan_is_not_carried_out() -> None:
    snapshot = lent(QUEUES, ran_s=1000.0)
    memory = plan(snapshot, PATIENT, now=START).memory
    later = START + PATIENT.patience_s
    found = plan(snapshot, PATIENT, now=later, memory=memory)

    assert found.evictions
    assert plan(snapshot, PATIENT, now=later + 1.0, memory=found.memory).evictions


def test_the_time_waited_is_forgotten_when_a_podgroup_no_longer_waits() -> None:
    snapshot = lent(QUEUES, ran_s=100.0)
    memory = plan(snapshot, PATIENT, now=START).memory
    gone = replace(snapshot, groups={})

    assert memory.waiting_since
    assert not plan(gone, PATIENT, now=START + 1.0, memory=memory).memory.waiting_since


def in_two_halves(*, ran_s: float = 100.0, queue: Queue = QUEUES[1], holder: str = "owed") -> Snapshot:
    """Build two nodes of eight GPUs with four free each, for a pod of eight."""
    held = [running(f"h{index}", holder, gpus=4, since=START - ran_s, on=f"n{index}") for index in range(2)]
    nodes = [given.node("n0"), given.node("n1")]
    return given.snapshot(nodes, [QUEUES[0], queue], [*held, waiting("large", "owed", gpus=8)])


def test_a_pod_moves_when_the_pod_that_needs_its_room_has_waited_for_as_long_as_the_work_lost() -> None:
    snapshot = in_two_halves()

    # The other pod has worked for 4 x (100 + t) GPU-seconds; 8 x t were waited for after t = 100 s.
    assert len(after(snapshot, 99.0).evictions) == 0
    assert [each.action for each in after(snapshot, 101.0).evictions] == [Action.CONSOLIDATE]


@pytest.mark.parametrize(("checkpoint_s", "moves"), [(inf, 0), (60.0, 1)])
def test_a_pod_that_saves_its_work_loses_no_more_than_the_time_since_its_last_checkpoint(
    checkpoint_s: float, moves: int
) -> None:
    snapshot = in_two_halves(ran_s=10_000.0)
    held = {
        key: replace(group, placed=tuple(_saving(one, checkpoint_s) for one in group.placed))
        for key, group in snapshot.running.items()
    }

    # 4 GPUs x 60 s are lost at most; 8 GPUs have waited for 31 s.
    assert len(after(replace(snapshot, running=held), 29.0).evictions) == 0
    assert len(after(replace(snapshot, running=held), 31.0).evictions) == moves


def _saving(one: Placed, checkpoint_s: float) -> Placed:
    return replace(one, pod=replace(one.pod, checkpoint_s=checkpoint_s))


HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("queue", "holder"),
    [(QUEUES[1], "owed"), (QUEUES[1], "lender"), (given.queue("owed", deserved=16), "owed")],
)
def test_a_pod_that_has_run_for_days_is_not_moved_for_a_pod_that_has_waited_for_minutes(
    queue: Queue, holder: str
) -> None:
    snapshot = in_two_halves(ran_s=69 * HOUR_S, queue=queue, holder=holder)

    assert [len(after(snapshot, waited_s).evictions) for waited_s in (0.0, 360.0, 20 * HOUR_S)] == [0, 0, 0]


def test_reclaim_moves_a_pod_at_once_for_a_queue_below_its_deserved_share() -> None:
    snapshot = in_two_halves(ran_s=69 * HOUR_S, queue=given.queue("owed", deserved=16), holder="lender")

    assert [each.action for each in plan(snapshot, PATIENT, now=START).evictions] == [Action.RECLAIM]


def test_a_pod_moves_once_the_other_has_waited_for_a_day() -> None:
    assert len(after(in_two_halves(ran_s=1000 * HOUR_S), 24 * HOUR_S).evictions) == 1


def test_the_youngest_of_several_pods_moves() -> None:
    snapshot = in_two_halves(ran_s=69 * HOUR_S)
    young = running("h1", "owed", gpus=4, since=START - 60.0, on="n1")
    snapshot = replace(snapshot, running={**snapshot.running, young.key: young})

    assert [each.group for each in after(snapshot, 120.0).evictions] == [young.key]


def test_pods_move_at_once_where_patience_is_off() -> None:
    assert len(plan(in_two_halves(ran_s=69 * HOUR_S), Policy(), now=START).evictions) == 1


def test_a_move_that_does_not_pay_costs_no_whatif_and_is_searched_again_later() -> None:
    snapshot = in_two_halves(ran_s=69 * HOUR_S)
    first = plan(snapshot, PATIENT, now=START)
    later = plan(snapshot, PATIENT, now=START + 400.0, memory=first.memory)

    assert later.whatifs == 0
    assert later.memory.conditions is not None
    assert START + 400.0 < later.memory.conditions.changes_at <= START + 800.0


def test_the_message_of_a_pod_for_which_no_move_pays_says_so() -> None:
    snapshot = in_two_halves(ran_s=69 * HOUR_S)
    made = plan(snapshot, PATIENT, now=START)

    (refusal,) = (made.refusals[key] for key in snapshot.groups)
    assert (
        "no running pod is moved to another node for it until it has waited for as long as the work that moved pods "
        "would lose" in refusal.sentence
    )


def test_a_pod_that_is_like_it_and_new_does_not_hide_how_long_a_pod_has_waited() -> None:
    snapshot, policy = in_two_halves(), replace(PATIENT, ageing_s=None)
    (key,) = snapshot.groups
    new = replace(waiting("new", "owed", gpus=8), created_at=START - 1000.0)
    both = replace(snapshot, groups={**snapshot.groups, new.key: new})
    memory = replace(NO_MEMORY, waiting_since={key: (START - 500.0, False), new.key: (START, False)})

    alone = plan(
        snapshot, policy, now=START + 1.0, memory=replace(NO_MEMORY, waiting_since={key: (START - 500.0, False)})
    )

    assert len(alone.evictions) == 1
    assert len(plan(both, policy, now=START + 1.0, memory=memory).evictions) == 1


def test_a_min_runtime_is_not_reported_as_work_that_is_too_dear() -> None:
    snapshot, policy = in_two_halves(ran_s=1.0), replace(PATIENT, consolidate_min_runtime_s=3600.0)
    first = plan(snapshot, policy, now=START)
    made = plan(snapshot, policy, now=START + 400.0, memory=first.memory)

    (refusal,) = (made.refusals[key] for key in snapshot.groups)
    assert "no pod is moved" not in refusal.sentence


def test_a_plan_without_memory_starts_to_count_the_time_waited() -> None:
    made = plan(in_two_halves(), PATIENT, now=START + 5000.0, memory=NO_MEMORY)

    assert made.evictions == ()
    assert isinstance(made.memory, PlanMemory)
    assert list(made.memory.waiting_since.values()) == [(START + 5000.0, False)]


@settings(max_examples=60)
@for_all(worlds)
def test_reclaim_and_consolidation_start_with_no_loss_except_for_deserved_shares(world: World) -> None:
    snapshot = world.snapshot()
    # No queue deserves anything, and no time has passed: running pods have worked longer than any group has waited.
    queues = {name: replace(queue, gpu_milli=NOTHING_DESERVED) for name, queue in snapshot.queues.items()}

    made = plan(replace(snapshot, queues=queues), PATIENT, now=world.now)

    costly = {key for key, group in snapshot.running.items() if group.started_at is not None and gpus(group)}
    taken = (each for each in made.evictions if each.action in {Action.RECLAIM, Action.CONSOLIDATE})
    gaining = {key for key, group in snapshot.groups.items() if any(pod.request.gpu_milli for pod in group.pending)}
    assert not [each for each in taken if each.group in costly and each.beneficiary in gaining]


NOTHING_DESERVED = Entitlement(deserved=0)


def gpus(group: PodGroup) -> bool:
    return all(one.pod.request.gpu_milli > 0 for one in group.placed)
