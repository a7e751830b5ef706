"""The rules of which pods are evicted for which pod, and where they move, with the smallest cases that once failed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.model.decision import Action, Plan
from app.model.pod import Constraint, Placed, Pod, Sharing
from app.model.podgroup import PodGroup, PodSet, SubGroup
from app.model.queue import Queue
from app.model.resources import GPU
from app.model.snapshot import PART, SharedDevice
from app.scheduling.planner.planner import plan
from app.scheduling.policy import DEFAULT_POLICY, Policy
from app.scheduling.preemption.budget import PARTS, VICTIMS, Budget
from app.scheduling.preemption.searches import Searches
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
    """Return the evicted pods, and where they move to."""
    return {each.pod.removeprefix("uid-"): each.moves_to for each in found.evictions}


def starting(found: Plan) -> list[str]:
    return [one.pod.removeprefix("uid-") for start in found.starts for one in start.placements]


def test_a_queue_reclaims_its_deserved_share_from_a_queue_above_its_share_and_no_more() -> None:
    found = planned(elastic("e", "n0", "n0", "n0", "n0", least=1, queue="p"), waits("w", 1), gpus=[4], queues=RIVALS)

    assert (starting(found), leaving(found)) == (["w"], {"e3": None})
    assert [(each.action, each.beneficiary and each.beneficiary.name) for each in found.evictions] == [
        (Action.RECLAIM, "w")
    ]


def test_a_podgroup_that_is_evicted_whole_does_not_lose_its_spare_pods_alone() -> None:
    whole = elastic("e", "n0", "n0", "n0", "n0", least=1, queue="p", evicted_whole=True)

    found = planned(whole, waits("w", 1), gpus=[4], queues=RIVALS)

    assert (starting(found), sorted(leaving(found))) == (["w"], ["e0", "e1", "e2", "e3"])


def test_a_victim_that_fits_on_another_node_moves_there() -> None:
    low = elastic("low", "n0", least=1)

    found = planned(low, waits("high", 2, priority=1), gpus=[2, 1], policy=Policy(actions=(Action.PREEMPT,)))

    assert (starting(found), leaving(found)) == (["high"], {"low0": "n1"})


def test_a_pod_whose_gpu_is_unhealthy_is_no_victim_where_its_healthy_gpus_are_too_few() -> None:
    groups = elastic("e", "n0", "n0", least=1, gpus=2, queue="p"), waits("w", 2)
    nodes, queues = [given.node("n0", gpus=4)], [given.queue("p"), given.queue("q", deserved=2)]

    found = [
        plan(given.snapshot(nodes, queues, groups, unusable_devices=unusable), DEFAULT_POLICY)
        for unusable in ({}, {"uid-e1": ("n0", 1)})
    ]

    assert [(starting(one), leaving(one)) for one in found] == [(["w"], {"e1": None}), (["w"], {"e0": None})]


def test_no_pod_moves_for_a_pod_that_still_does_not_fit() -> None:
    found = planned(elastic("low", "n0", least=1), waits("big", 3), gpus=[2, 1])

    assert (starting(found), leaving(found)) == ([], {})


def test_a_gang_evicted_from_one_node_as_a_whole_releases_its_spare_pod_on_another_node_too() -> None:
    found = planned(elastic("low", "n0", "n0", "n1", least=2), waits("high", 2, priority=1), gpus=[2, 1])

    assert (starting(found), leaving(found)) == (["high"], {"low0": None, "low1": None, "low2": None})


def test_a_gang_that_is_not_needed_after_the_other_evictions_stays() -> None:
    east = Constraint(node_selector=(("zone", "east"),))
    pods = [given.pod(f"g{index}", gang="g", constraint=east) for index in range(3)]
    gang = given.group(running=[given.placed(pod, f"e{index}") for index, pod in enumerate(pods)], min_member=3)
    nodes = [given.node(f"e{index}", gpus=1, labels={"zone": "east"}) for index in range(3)] + [given.node("w", gpus=4)]
    large = elastic("large", "w", least=1, gpus=4, priority=1)
    first, second = given.pod("first", gang="two", gpus=1), given.pod("second", gang="two", gpus=3)

    found = plan(given.snapshot(nodes, ONE_QUEUE, [gang, large, given.group(first, second, min_member=2, priority=2)]))

    assert starting(found) == ["first", "second"]
    assert leaving(found) == {"large0": None}


def test_four_pods_are_evicted_without_a_gang_of_three_where_four_suffice() -> None:
    east = Constraint(node_selector=(("zone", "east"),))
    pods = [given.pod(f"g{index}", gang="g", constraint=east) for index in range(3)]
    gang = given.group(running=[given.placed(pod, f"e{index}") for index, pod in enumerate(pods)], min_member=3)
    nodes = [given.node(f"e{index}", gpus=1, labels={"zone": "east"}) for index in range(3)] + [given.node("w", gpus=8)]
    lone = [elastic(name, "w", least=1, gpus=2, priority=1) for name in "abcd"]
    first, second = given.pod("first", gang="two", gpus=1), given.pod("second", gang="two", gpus=7)
    two = given.group(first, second, min_member=2, priority=2)

    found = plan(given.snapshot(nodes, ONE_QUEUE, [gang, *lone, two]))

    assert starting(found) == ["first", "second"]
    assert sorted(leaving(found)) == ["a0", "b0", "c0", "d0"]


def test_one_pod_is_evicted_for_a_gang_of_17_without_a_gang_of_three_where_one_suffices() -> None:
    east = Constraint(node_selector=(("zone", "east"),))
    pods = [given.pod(f"g{index}", gang="g", constraint=east) for index in range(3)]
    gang = given.group(running=[given.placed(pod, f"e{index}") for index, pod in enumerate(pods)], min_member=3)
    nodes = [given.node(f"e{index}", gpus=1, labels={"zone": "east"}) for index in range(3)] + [
        given.node("w", gpus=17)
    ]
    large = elastic("large", "w", least=1, gpus=17, priority=1)
    asking = given.group(*(given.pod(f"w{index:02}", gang="w") for index in range(17)), min_member=17, priority=2)

    found = plan(given.snapshot(nodes, ONE_QUEUE, [gang, large, asking]))

    assert len(starting(found)) == 17
    assert leaving(found) == {"large0": None}


def test_four_large_pods_are_evicted_instead_of_six_of_the_same_age() -> None:
    running = [
        elastic(f"{name}{node}", node, least=1, gpus=2 if name == "a" else 1)
        for node in ("n0", "n1")
        for name in "abcd"
    ]
    two = given.group(*(given.pod(f"w{index}", gang="w", gpus=3) for index in range(2)), min_member=2, priority=1)

    found = planned(*running, two, gpus=[5, 5], queues=[given.queue("q", deserved=10)])

    assert starting(found) == ["w0", "w1"]
    assert sorted(leaving(found)) == ["an00", "an10", "dn00", "dn10"]


def test_one_pod_is_evicted_instead_of_a_whole_gang_of_the_same_priority_and_age() -> None:
    gang = elastic("z", "n0", "n0", "n0", least=3)

    found = planned(gang, elastic("a", "n0", least=1), waits("high", 1, priority=1), gpus=[4])

    assert (starting(found), leaving(found)) == (["high"], {"a0": None})


def test_a_search_passes_over_a_gang_that_the_plan_has_evicted_for_another_pod() -> None:
    low = [elastic("z", "n0", "n0", least=2, priority=-1), *(elastic(name, "n0", least=1) for name in "bcd")]
    high = [waits("first", 2, priority=2), waits("second", 2, priority=1)]

    found = planned(*low, *high, gpus=[8], queues=[given.queue("q", deserved=5, limit=5)])

    assert starting(found) == ["first", "second"]
    assert sorted(leaving(found)) == ["c0", "d0", "z0", "z1"]


def test_a_spare_pod_that_may_stay_still_counts_when_other_pods_of_its_podgroup_are_evicted() -> None:
    low, east = elastic("low", "n0", "n0", "n0", "n1", least=2), Constraint(node_selector=(("zone", "east"),))
    nodes = [given.node("n0", gpus=3, labels={"zone": "east"}), given.node("n1", gpus=1)]
    first = given.group(given.pod("first", constraint=east), priority=2)
    second = given.group(given.pod("second", gpus=2, constraint=east), priority=1)

    found = plan(given.snapshot(nodes, ONE_QUEUE, [low, first, second]))

    assert starting(found) == ["first", "second"]
    assert leaving(found) == {"low0": None, "low1": None, "low2": None, "low3": None}


def test_a_podgroup_that_grows_in_a_plan_loses_no_pod_in_that_plan() -> None:
    low = replace(elastic("low", "n0", "n0", least=2), pending=(given.pod("more", gang="low"),))

    found = planned(low, waits("high", 2, priority=1), gpus=[2, 1])

    assert (starting(found), leaving(found)) == (["more"], {})


def test_a_podgroup_that_lost_pods_searches_again_only_after_its_remaining_pods_are_known() -> None:
    low = replace(elastic("low", "n0", "n0", least=2), pending=(given.pod("more", gang="low"),))

    found = planned(low, given.group(shared("high", 500_000), priority=1), gpus=[2])

    assert (starting(found), leaving(found)) == (["high"], {"low0": None, "low1": None})


def test_pods_beyond_the_minimum_are_placed_after_the_gang() -> None:
    # A past bug counted the gang as if none of it had been placed again: its next pods were never placed.
    sets = SubGroup(pod_sets=(PodSet(name="a"), PodSet(name="b")))
    low = elastic("low", "n0", "n1", "n2", least=2, root=sets)
    low = replace(low, placed=tuple(_of(one, name) for one, name in zip(low.placed, "aba", strict=True)))

    found = planned(low, waits("high", 2, priority=1), gpus=[2, 2, 2])

    assert (starting(found), list(leaving(found))) == (["high"], ["low2"])


def _of(one: Placed, name: str) -> Placed:
    return replace(one, pod=replace(one.pod, subgroup=name))


def shared(name: str, portion_ppm: int) -> Pod:
    return given.pod(name, gpus=0, sharing=Sharing(portion_ppm=portion_ppm))


def test_a_search_stops_after_a_limited_number_of_victims_per_what_if() -> None:
    whole = Budget(PARTS)
    part = whole.part(1)

    assert [part.walk() for _ in range(VICTIMS + 1)] == [True] * VICTIMS + [False]
    assert part.spent
    assert not whole.spent
    assert not whole.is_over


def test_searches_that_use_up_their_budget_leave_some_for_the_searches_after_them() -> None:
    whole, searches = Budget(1000), Searches(1000)

    for _ in range(2 * PARTS):
        part = searches.wide(1, whole, 1)
        while part.take():
            pass

    assert not whole.is_over
    assert searches.wide(1, whole, 1).take()


def test_a_gpu_becomes_whole_although_the_parts_of_other_pods_fit_together_only_in_another_order() -> None:
    mib = 10_000
    node = replace(given.node("n0", gpus=4), device_memory_mib=mib, shares_devices=True)
    held = [
        given.group(running=[given.placed(_part(f"{ppm}-{gpu}", ppm), "n0", gpu)])
        for gpu in ("g0", "g1", "g2", "g3")
        for ppm in (500_000, 100_000)
    ]
    shared = {node.name: [SharedDevice(gpu, mib * PART * 2 // 5) for gpu in ("g0", "g1", "g2", "g3")]}
    made = given.snapshot([node], ONE_QUEUE, [*held, waits("w", 1)], shared=shared)
    free = made.free.copy()
    free[GPU] = 0

    found = plan(replace(made, free=free), Policy(actions=(Action.ALLOCATE, Action.CONSOLIDATE)))

    assert [start.group.name for start in found.starts] == ["w"]


def _part(name: str, ppm: int) -> Pod:
    return replace(given.pod(name, gpus=0), sharing=Sharing(portion_ppm=ppm))
