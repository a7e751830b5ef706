"""Who is made to leave for whom, and where they go: the smallest cases in which it once went wrong, and the rules."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.model.decision import Action, Plan
from app.model.pod import Constraint, Placed, Pod, Sharing
from app.model.podgroup import PodGroup, PodSet, SubGroup
from app.model.queue import Queue
from app.scheduling.budget import PARTS, VICTIMS, Budget
from app.scheduling.planner import DEFAULT_POLICY, Policy, plan
from tests import given

RIVALS = (given.queue("p", deserved=2), given.queue("q", deserved=2))
ONE_QUEUE = (given.queue("q", deserved=8),)


def elastic(name: str, *on: str, least: int, queue: str = "q", gpus: int = 1, **more: Any) -> PodGroup:
    """Build a group that runs one pod on each of the nodes."""
    pods = [given.pod(f"{name}{index}", gang=name, queue=queue, gpus=gpus) for index in range(len(on))]
    running = [given.placed(pod, node) for pod, node in zip(pods, on, strict=True)]
    return given.group(running=running, min_member=least, **more)


def waits(name: str, gpus: int, *, queue: str = "q", **more: Any) -> PodGroup:
    return given.group(given.pod(name, gang=name, queue=queue, gpus=gpus), **more)


def planned(
    *groups: PodGroup, gpus: Sequence[int], queues: Sequence[Queue] = ONE_QUEUE, policy: Policy = DEFAULT_POLICY
) -> Plan:
    nodes = [given.node(f"n{index}", gpus=each) for index, each in enumerate(gpus)]
    return plan(given.snapshot(nodes, queues, groups), policy)


def leaving(found: Plan) -> dict[str, str | None]:
    """Return who leaves, and where to."""
    return {each.pod.removeprefix("uid-"): each.moves_to for each in found.evictions}


def starting(found: Plan) -> list[str]:
    return [one.pod.removeprefix("uid-") for start in found.starts for one in start.placements]


def test_a_queue_takes_back_what_it_is_owed_from_who_holds_more_and_no_more_than_that() -> None:
    found = planned(elastic("e", "n0", "n0", "n0", "n0", least=1, queue="p"), waits("w", 1), gpus=[4], queues=RIVALS)

    assert (starting(found), leaving(found)) == (["w"], {"e3": None})
    assert [(each.action, each.beneficiary and each.beneficiary.name) for each in found.evictions] == [
        (Action.RECLAIM, "w")
    ]


def test_a_victim_that_fits_elsewhere_moves_there() -> None:
    low = elastic("low", "n0", least=1)

    found = planned(low, waits("high", 2, priority=1), gpus=[2, 1], policy=Policy(actions=(Action.PREEMPT,)))

    assert (starting(found), leaving(found)) == (["high"], {"low0": "n1"})


def test_nobody_moves_for_one_who_would_still_not_fit() -> None:
    found = planned(elastic("low", "n0", least=1), waits("big", 3), gpus=[2, 1])

    assert (starting(found), leaving(found)) == ([], {})


def test_a_gang_that_leaves_one_node_as_a_whole_takes_its_spare_pod_elsewhere_with_it() -> None:
    found = planned(elastic("low", "n0", "n0", "n1", least=2), waits("high", 2, priority=1), gpus=[2, 1])

    assert (starting(found), leaving(found)) == (["high"], {"low0": None, "low1": None, "low2": None})


def test_a_spare_pod_that_need_not_leave_still_counts_when_others_of_its_group_have_to() -> None:
    low, east = elastic("low", "n0", "n0", "n0", "n1", least=2), Constraint(node_selector=(("zone", "east"),))
    nodes = [given.node("n0", gpus=3, labels={"zone": "east"}), given.node("n1", gpus=1)]
    first = given.group(given.pod("first", constraint=east), priority=2)
    second = given.group(given.pod("second", gpus=2, constraint=east), priority=1)

    found = plan(given.snapshot(nodes, ONE_QUEUE, [low, first, second]))

    assert starting(found) == ["first", "second"]
    assert leaving(found) == {"low0": None, "low1": None, "low2": None, "low3": None}


def test_a_group_that_grows_in_this_plan_loses_nobody_in_it() -> None:
    low = replace(elastic("low", "n0", "n0", least=2), pending=(given.pod("more", gang="low"),))

    found = planned(low, waits("high", 2, priority=1), gpus=[2, 1])

    assert (starting(found), leaving(found)) == (["more"], {})


def test_a_group_that_has_lost_pods_asks_again_only_when_it_knows_what_it_has_left() -> None:
    low = replace(elastic("low", "n0", "n0", least=2), pending=(given.pod("more", gang="low"),))

    found = planned(low, given.group(shared("high", 500_000), priority=1), gpus=[2])

    assert (starting(found), leaving(found)) == (["high"], {"low0": None, "low1": None})


def test_pods_beyond_the_minimum_find_their_places_after_the_gang_has_found_its_own() -> None:
    # Once the gang was counted as if none of it had been placed again: its next pods were never found, for ever.
    sets = SubGroup(pod_sets=(PodSet(name="a"), PodSet(name="b")))
    low = elastic("low", "n0", "n1", "n2", least=2, root=sets)
    low = replace(low, placed=tuple(_of(one, name) for one, name in zip(low.placed, "aba", strict=True)))

    found = planned(low, waits("high", 2, priority=1), gpus=[2, 2, 2])

    assert (starting(found), list(leaving(found))) == (["high"], ["low2"])


def _of(one: Placed, name: str) -> Placed:
    return replace(one, pod=replace(one.pod, subgroup=name))


def shared(name: str, portion_ppm: int) -> Pod:
    return given.pod(name, gpus=0, sharing=Sharing(portion_ppm=portion_ppm))


def test_a_search_may_walk_over_a_number_of_victims_for_every_what_if_and_then_stops() -> None:
    whole = Budget(PARTS)
    part = whole.part()

    assert [part.walk() for _ in range(VICTIMS + 1)] == [True] * VICTIMS + [False]
    assert part.spent
    assert whole.spent
    assert not whole.is_over


def test_searches_that_use_up_their_parts_leave_some_of_the_budget_to_those_after_them() -> None:
    whole = Budget(1000)

    for _ in range(2 * PARTS):
        part = whole.part()
        while part.take():
            pass

    assert not whole.is_over
    assert whole.part().take()
