"""Ageing: nodes are kept for one PodGroup that has waited long, if the policy says so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.model.decision import Action, Plan
from app.model.memory import KeptIdle
from app.model.names import NodeName
from app.model.pod import Sharing
from app.model.podgroup import FOREVER_S, PodGroup
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.policy import Policy
from app.scheduling.preemption.ageing import LONGEST_PAUSE_S, MOST_IDLE
from tests import given

AGEING = Policy(ageing_s=3600.0)
NOW = 10_000.0


def started(made: Plan) -> list[str]:
    return sorted(start.group.name.removeprefix("uid-") for start in made.starts)


def cluster(busy: Sequence[PodGroup] = ()) -> Snapshot:
    """Build two nodes, one of them half empty; an old large pod and a young small one wait."""
    busy = busy or [running("r0", "a", gpus=8), running("r1", "b", gpus=4)]
    waiting = [given.group(given.pod("big", gpus=8)), given.group(given.pod("small", gpus=1), created_at=NOW)]
    return given.snapshot([given.node("a"), given.node("b")], [given.queue("q", deserved=16)], [*busy, *waiting])


def running(name: str, on: str, *, gpus: int, **more: Any) -> PodGroup:
    pod = given.pod(name, gpus=gpus, **more)
    return given.group(running=[given.placed(pod, on)], min_member=1, preemptible=False)


def test_without_ageing_small_pods_start_on_the_gpus_that_a_large_pod_waits_for() -> None:
    assert started(plan(cluster(), Policy(ageing_s=None), now=NOW)) == ["small"]


def test_the_nodes_that_become_empty_soonest_are_kept_for_an_aged_podgroup() -> None:
    made = plan(cluster(), AGEING, now=NOW)

    assert started(made) == []
    assert made.withheld == ("b",)


@pytest.mark.parametrize(
    "asked",
    [{"sharing": Sharing(portion_ppm=500_000, devices=9)}, {"scalars": (("nvidia.com/mig-3g.40gb", 1),)}],
    ids=["parts of more GPUs than any node has", "a slice that no node has"],
)
def test_no_node_is_kept_for_a_pod_that_does_not_fit_an_empty_node(asked: dict[str, Any]) -> None:
    first = given.group(given.pod("first", gpus=0, **asked), priority=1000)
    big = given.group(given.pod("big", gpus=8))
    busy = [running("r0", "a", gpus=8), running("r1", "b", gpus=4)]
    sizes = {"a": 8, "b": 8, "c": 6}
    nodes = [given.node(name, gpus=gpus, device_memory_mib=80_000) for name, gpus in sizes.items()]

    made = plan(given.snapshot(nodes, [given.queue("q", deserved=16)], [*busy, first, big]), AGEING, now=NOW)

    assert made.withheld == ("b",)


def test_no_node_is_kept_for_a_podgroup_that_is_not_aged_yet() -> None:
    made = plan(cluster(), AGEING, now=3599.0)

    assert (started(made), made.withheld) == (["small"], ())


def test_a_pod_that_is_decided_outside_a_plan_does_not_start_on_a_kept_node() -> None:
    snapshot = cluster()
    small = given.pod("small").group

    assert started(plan_some(snapshot, [small], AGEING)) == ["small"]
    assert started(plan_some(snapshot, [small], AGEING, withheld=[NodeName("b")])) == []


def after_the_next_has_come(first: Plan, later_s: float) -> Plan:
    """Plan when another old large pod waits instead of the one for which nodes were kept."""
    snapshot = cluster()
    groups = [each for key, each in snapshot.groups.items() if key.name != "uid-big"]
    next_big = given.group(given.pod("next", gpus=8))
    waiting = {each.key: each for each in (next_big, *groups)}
    return plan(replace(snapshot, groups=waiting), AGEING, now=NOW + later_s, memory=first.memory)


def kept(snapshot: Snapshot, first: Plan, later_s: float) -> Plan:
    """Plan again some time later."""
    return plan(snapshot, AGEING, now=NOW + later_s, memory=first.memory)


def test_kept_nodes_are_opened_to_other_pods_when_nothing_becomes_free_there_for_ten_minutes() -> None:
    first = plan(cluster(), AGEING, now=NOW)
    before, after = (kept(cluster(), first, later_s) for later_s in (599, 601))

    assert (started(before), before.withheld) == ([], ("b",))
    assert (started(after), after.withheld) == (["small"], ())
    assert first.memory.conditions is not None
    assert first.memory.conditions.changes_at == NOW + 600  # a plan is made then although nothing else has changed


def test_nodes_are_kept_for_ten_more_minutes_when_more_became_free_there() -> None:
    first = plan(cluster(), AGEING, now=NOW)
    emptier = cluster([running("r0", "a", gpus=8), running("r1", "b", gpus=3)])
    second = kept(emptier, first, 599)

    assert [kept(emptier, second, later_s).withheld for later_s in (601, 1198, 1200)] == [("b",), ("b",), ()]


def test_nodes_are_kept_until_the_last_pod_on_them_is_expected_to_end() -> None:
    ending = replace(running("r1", "b", gpus=4, runs_at_most_s=4000.0), started_at=NOW)
    busy = cluster([running("r0", "a", gpus=8), ending])
    first = plan(busy, AGEING, now=NOW)

    assert [kept(busy, first, later_s).withheld for later_s in (3999, 4001)] == [("b",), ()]


def test_a_partially_bound_gang_that_can_never_be_complete_does_not_end_the_keeping_of_nodes() -> None:
    made = cluster()
    bound = given.placed(given.pod("bound", gang="torn"), "c")
    rest = [given.pod(f"rest-{index}", gang="torn") for index in range(399)]
    torn = given.group(*rest, running=[bound], min_member=400, stale_grace_s=FOREVER_S, torn_since=0.0)
    nodes = [*made.nodes.nodes, given.node("c", gpus=1)]

    beside = given.snapshot(nodes, made.queues.values(), [*made.running.values(), *made.groups.values(), torn])

    assert plan(beside, AGEING, now=NOW).withheld == ("b",)


@pytest.mark.parametrize("kept_s", [10.0, 60.0])
def test_idle_kept_nodes_are_kept_for_the_next_podgroup_once_their_cost_is_paid_back(kept_s: float) -> None:
    first = plan(cluster(), AGEING, now=NOW)  # a quarter of the cluster is idle
    paid_back_after_s = kept_s * (0.25 / MOST_IDLE - 1)
    pause_s = min(paid_back_after_s, LONGEST_PAUSE_S)

    soon = after_the_next_has_come(first, later_s=kept_s)
    later = [after_the_next_has_come(soon, later_s=kept_s + pause_s * part) for part in (0.99, 1.01)]

    assert (soon.withheld, started(soon)) == ((), ["small"])
    assert [each.withheld for each in later] == [(), ("b",)]


def test_nodes_kept_in_vain_are_kept_after_a_pause_for_other_podgroups_but_not_for_the_same_one() -> None:
    first = plan(cluster(), AGEING, now=NOW)
    over = kept(cluster(), first, 601)  # nothing has become free

    assert over.memory.conditions is not None
    assert over.memory.conditions.changes_at == NOW + 601 + LONGEST_PAUSE_S
    assert kept(cluster(), over, 601 + LONGEST_PAUSE_S).withheld == ()
    assert after_the_next_has_come(over, 601 + LONGEST_PAUSE_S).withheld == ("b",)


def test_nodes_kept_while_no_other_podgroup_waits_cost_nothing() -> None:
    snapshot = cluster()
    alone = replace(snapshot, groups={key: each for key, each in snapshot.groups.items() if key.name == "uid-big"})
    first = plan(alone, AGEING, now=NOW)

    assert first.withheld == ("b",)
    assert after_the_next_has_come(first, later_s=60).withheld == ("b",)


def test_a_plan_for_some_podgroups_keeps_no_nodes_before_the_last_cost_is_paid_back() -> None:
    first = plan(cluster(), AGEING, now=NOW)
    soon = after_the_next_has_come(first, later_s=60)
    snapshot = cluster()

    some = plan_some(snapshot, list(snapshot.groups), AGEING, now=NOW + 61, memory=soon.memory)

    assert started(some) == ["small"]


def stream(queue: str = "other", *, deserved: int = 0, **more: Any) -> Snapshot:
    """Build a node with a free GPU; an old large pod waits, and a young small pod of another queue."""
    queues = [given.queue("q"), given.queue("other", deserved=deserved)]
    busy = [given.group(running=[given.placed(given.pod(f"r{index}", queue=queue), "a")]) for index in range(7)]
    big = given.group(given.pod("big", gpus=4))
    small = given.group(given.pod("small", queue=queue, created_at=NOW, **more), created_at=NOW)
    return given.snapshot([given.node("a")], queues, [*busy, big, small])


def test_nodes_are_kept_before_pods_of_another_queue_start_on_them() -> None:
    only = Policy(ageing_s=3600.0, borrow_last=False, actions=(Action.ALLOCATE,))

    assert started(plan(stream(), replace(only, ageing_s=None), now=NOW)) == ["small"]
    assert started(plan(stream(), only, now=NOW)) == []


def test_nodes_are_not_kept_from_a_queue_below_its_deserved_share() -> None:
    assert started(plan(stream(deserved=8), Policy(ageing_s=3600.0, actions=(Action.ALLOCATE,)), now=NOW)) == ["small"]


def test_a_pod_that_is_expected_to_end_in_time_starts_on_kept_nodes() -> None:
    only = Policy(ageing_s=60.0, borrow_last=False, actions=(Action.ALLOCATE,))

    assert started(plan(stream(runs_at_most_s=100.0), only, now=499.0)) == ["small"]
    assert started(plan(stream(runs_at_most_s=100.0), only, now=501.0)) == []


def test_a_queue_borrows_all_idle_gpus_although_its_pods_have_waited_long() -> None:
    gang = given.group(*(given.pod(f"x{index}", gpus=8, gang="gang", queue="a") for index in range(2)))
    pods = [given.pod(f"b{index:02}", queue="b", created_at=float(index)) for index in range(16)]
    groups = [gang, *(given.group(pod, created_at=pod.created_at) for pod in pods)]
    snapshot = given.snapshot([given.node("n0"), given.node("n1")], [given.queue("a"), given.queue("b")], groups)

    for made in (plan(snapshot, AGEING, now=NOW), plan_some(snapshot, snapshot.groups, AGEING, now=NOW)):
        assert (len(made.starts), made.withheld) == (16, ())


def own_stream(**more: Any) -> Snapshot:
    """Build two nodes and two queues with a share of one node each; small pods of one queue use the share of its gang.

    The gang of eight pods is old. Seven small pods of its queue run on one GPU each. A young small pod waits for the
    eighth GPU.
    """
    queues = [given.queue("q"), given.queue("other")]
    held = [given.group(running=[given.placed(given.pod(f"r{index}"), "a")]) for index in range(7)]
    others = [given.group(running=[given.placed(given.pod(f"o{index}", queue="other"), "b")]) for index in range(8)]
    gang = [given.pod(f"g{index}", gang="gang", gpus=4) for index in range(2)]
    small = given.group(given.pod("small", created_at=NOW, **more), created_at=NOW)
    asking = given.group(given.pod("x", gpus=8, queue="other", created_at=NOW), created_at=NOW)
    nodes = [given.node("a"), given.node("b"), given.node("c", gpus=0)]
    return given.snapshot(nodes, queues, [*held, *others, given.group(*gang), small, asking])


def test_small_pods_do_not_use_the_share_that_is_kept_for_an_aged_gang_of_their_queue() -> None:
    snapshot = own_stream()
    made = plan(snapshot, AGEING, now=NOW)

    assert (started(plan(snapshot, replace(AGEING, ageing_s=None), now=NOW)), started(made)) == (["small"], [])
    assert made.aged == given.pod("g0", gang="gang").group
    assert made.refusals[given.pod("small").group].sentence == (
        "Queue q reserves the rest of its fair share for a PodGroup that is ahead of this one and "
        "has waited for a long time."
    )


def test_a_small_pod_that_is_decided_outside_a_plan_does_not_use_the_kept_share() -> None:
    snapshot = own_stream()
    small, gang = given.pod("small").group, given.pod("g0", gang="gang").group
    elsewhere = [NodeName("b")]

    assert started(plan_some(snapshot, [small], AGEING, withheld=elsewhere, now=NOW)) == ["small"]
    assert started(plan_some(snapshot, [small], AGEING, withheld=elsewhere, aged=gang, now=NOW)) == []


def test_a_small_pod_that_is_expected_to_end_in_time_uses_the_kept_share() -> None:
    snapshot, only = own_stream(runs_at_most_s=100.0), Policy(ageing_s=60.0)

    assert started(plan(snapshot, only, now=499.0)) == ["small"]
    assert started(plan(snapshot, only, now=501.0)) == []


def test_no_pod_is_evicted_for_a_small_pod_whose_queue_keeps_its_share_for_an_aged_gang() -> None:
    snapshot = own_stream()
    full = replace(snapshot, free=snapshot.free * 0)

    assert not [each for each in plan(full, AGEING, now=NOW).evictions if each.beneficiary == given.pod("small").group]


def test_victims_are_evicted_for_a_pod_as_soon_as_no_share_is_kept_from_it() -> None:
    queues = [given.queue("q"), given.queue("other")]
    held = [given.group(running=[given.placed(given.pod(f"r{index}"), "a")]) for index in range(7)]
    others = [
        given.group(running=[given.placed(given.pod(f"o{index}", queue="other"), "b" if index else "a")])
        for index in range(9)
    ]
    gang = given.group(*(given.pod(f"g{index}", gang="gang", gpus=4) for index in range(2)))
    small = given.group(given.pod("small", created_at=NOW), created_at=NOW)
    asking = given.group(given.pod("x", gpus=8, queue="other", created_at=NOW), created_at=NOW)
    full = given.snapshot([given.node("a"), given.node("b")], queues, [*held, *others, gang, small, asking])
    first = plan(full, AGEING, now=NOW)
    in_debt = replace(first.memory, kept_idle=KeptIdle(debt_s=1000.0, at=NOW, pause_until=NOW + 100))

    made = plan(full, AGEING, now=NOW + 1, memory=in_debt)

    assert (first.evictions, first.aged, made.aged) == ((), gang.key, None)
    assert [each.beneficiary for each in made.evictions] == [small.key]


def test_the_message_does_not_say_that_a_younger_podgroup_of_higher_priority_has_waited_longer() -> None:
    first = given.group(given.pod("first", gpus=2), created_at=NOW - 500.0, priority=100)
    older = given.group(given.pod("older"), created_at=NOW - 900.0)
    firm = given.group(running=[given.placed(given.pod("firm"), "a")], preemptible=False, min_member=1)
    snapshot = given.snapshot([given.node("a", gpus=2)], [given.queue("q", deserved=2)], [older, first, firm])

    made = plan(snapshot, replace(AGEING, ageing_s=120.0), now=NOW)

    assert made.aged == first.key
    assert made.refusals[older.key].sentence == (
        "Queue q reserves the rest of its fair share for a PodGroup that is ahead of this one and "
        "has waited for a long time."
    )


@pytest.mark.parametrize("queue", ["q", "other"])
def test_a_pod_without_room_has_the_same_cause_while_nodes_are_kept_and_afterwards(queue: str) -> None:
    queues = [given.queue("q", deserved=2), given.queue("other")]
    first = given.group(given.pod("first", gpus=2), created_at=0.0)
    second = given.group(given.pod("second", queue=queue), created_at=NOW)
    full = given.snapshot([given.node("a", gpus=2)], queues, [running("r", "a", gpus=2), first, second])

    before = plan(full, AGEING, now=NOW)
    after = kept(full, before, 601)

    assert (before.aged, after.aged) == (first.key, None)
    assert before.refusals[second.key].cause == after.refusals[second.key].cause
    assert "too few GPUs (requested 1, at most 0 free)" in before.refusals[second.key].sentence
