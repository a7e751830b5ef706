"""A PodGroup that can be helped does not wait long behind hopeless ones: counted in plans and what-ifs."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from app.model.decision import Action, Plan
from app.model.memory import NO_MEMORY, Searched
from app.model.names import GroupKey, NodeName, QueueName
from app.model.node import Taint
from app.model.pod import Constraint, Near, Toleration
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.queue import Queue
from app.model.resources import CPU, NOTHING, Resources
from app.model.snapshot import NodeTable, Snapshot, Usage
from app.model.topology import Topology
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.scheduling.preemption.budget import Budget
from app.scheduling.preemption.searches import Searches
from loadtest.crowds import crowded
from loadtest.snapshots import GPUS, NOW, full, node, queue, rigid, running, snapshot, waiting
from tests.scheduling.worlds import world

ONLY_CONSOLIDATE = Policy(actions=(Action.ALLOCATE, Action.CONSOLIDATE))

PLANS = 5
"""Every PodGroup that can be helped is helped within this number of plans."""


def plans(made: Snapshot, policy: Policy, count: int = PLANS) -> list[Plan]:
    """Plan repeatedly in a cluster that does not change, which is the worst case."""
    found, memory = list[Plan](), NO_MEMORY
    for _ in range(count):
        found.append(plan(made, policy, now=NOW, memory=memory))
        memory = found[-1].memory
    return found


def helped(found: Iterable[Plan]) -> set[str]:
    return {start.group.name for each in found for start in each.starts if start.action is not Action.ALLOCATE}


def borrowed(nodes: int, gangs: int) -> Snapshot:
    """Build nodes with a 5-GPU pod each of a queue that deserves nothing, and queues that deserve a gang each."""
    held = (running(f"r{index:03}", "rich", f"n{index:05}", gpus=5, at=index) for index in range(nodes))
    asking = (waiting(f"w{index:02}", f"q{index}", pods=4, gpus=8, at=NOW + index) for index in range(gangs))
    return snapshot(nodes, [*held, *asking], {"rich": 0, **{f"q{index}": 4 * GPUS for index in range(gangs)}})


def test_every_gang_gets_the_deserved_share_of_its_queue_although_nothing_can_be_consolidated() -> None:
    first, *_ = plans(borrowed(200, 40), Policy())

    assert len(helped([first])) == 40


def test_all_pods_of_a_gang_are_placed_in_one_what_if() -> None:
    first, *_ = plans(borrowed(20, 1), Policy(actions=(Action.ALLOCATE, Action.RECLAIM)), 1)

    assert (len(helped([first])), len(first.evictions), first.whatifs) == (1, 4, 1)


def unlike(groups: Iterable[PodGroup]) -> list[PodGroup]:
    """Give every PodGroup its own shape, so that a result for one says nothing about another."""
    return [
        replace(group, pending=tuple(replace(pod, request=pod.request + _cpu(index)) for pod in group.pending))
        for index, group in enumerate(groups)
    ]


def _cpu(index: int) -> Resources:
    return Resources(cpu_milli=index)


def beside_hopeless(nodes: int, hopeless: int) -> Snapshot:
    """Build a cluster with non-preemptible pods on half of all nodes but one, and large gangs that have no room."""
    gangs = [waiting(f"w{index:04}", "poor", pods=2, gpus=8, at=index) for index in range(hopeless)]
    last = waiting("last", "poor", pods=1, gpus=8, at=NOW)
    made = full(nodes, [*unlike(gangs), last])
    firm = {
        key: replace(one, preemptible=False)
        for key, one in made.running.items()
        if key.name.startswith("r0-") and key.name != "r0-00000"
    }
    return replace(made, running={**made.running, **firm})


@pytest.mark.parametrize("hopeless", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_a_podgroup_that_can_be_helped_is_searched_for_behind_any_number_of_hopeless_podgroups(hopeless: int) -> None:
    assert "last" in helped(plans(beside_hopeless(50, hopeless), Policy(actions=(Action.ALLOCATE, Action.RECLAIM))))


def test_a_gang_is_helped_in_the_same_plan_in_which_searches_for_larger_like_gangs_fail() -> None:
    made = beside_larger(1000, 40)
    first, *_ = plans(made, Policy(actions=(Action.ALLOCATE, Action.RECLAIM)), 1)

    assert helped([first]) == {"last"}


def beside_larger(nodes: int, larger: int) -> Snapshot:
    """Build a cluster with non-preemptible pods on all nodes but two; gangs of 3 nodes wait before one of 2 nodes."""
    gangs = [waiting(f"w{index:04}", "poor", pods=3, gpus=8, at=index) for index in range(larger)]
    made = full(nodes, [*gangs, waiting("last", "poor", pods=2, gpus=8, at=NOW)])
    free = {"r0-00000", "r0-00001"}
    firm = {
        key: replace(one, preemptible=False)
        for key, one in made.running.items()
        if key.name.startswith("r0-") and key.name not in free
    }
    return replace(made, running={**made.running, **firm})


def tight(nodes: int) -> Snapshot:
    """Build nodes with two 4-GPU pods each, and two with 4 GPUs free, one of which has no CPU left."""
    held = [
        running(f"r{slot}-{index:03}", "q", f"n{index:05}", gpus=4, at=index)
        for slot in (0, 1)
        for index in range(nodes)
    ]
    firm = [
        replace(running(f"firm{index}", "q", f"n{nodes + index:05}", gpus=4, at=0), preemptible=False)
        for index in (0, 1)
    ]
    asking = [waiting(f"w{index}", "q", pods=1, gpus=8, at=NOW + index) for index in range(3)]
    made = snapshot(nodes + 2, [*held, *firm, *asking], {"q": nodes * GPUS})
    free = made.free.copy()
    free[CPU, -1] = 0
    return replace(made, free=free)


def test_a_failed_search_is_not_repeated_while_nothing_changes() -> None:
    found = plans(tight(20), ONLY_CONSOLIDATE, 3)

    assert found[0].whatifs > 0
    assert [each.whatifs for each in found[1:]] == [0, 0]


def test_a_failed_search_is_repeated_when_there_is_more_room() -> None:
    made = tight(20)
    before = plan(made, ONLY_CONSOLIDATE, now=NOW)
    free = made.free.copy()
    free[CPU, -1] += 4 * 4000

    assert helped([before]) == set()
    assert helped([plan(replace(made, free=free), ONLY_CONSOLIDATE, now=NOW, memory=before.memory)]) == {"w0"}


def test_a_failed_search_is_not_repeated_when_other_pods_take_room() -> None:
    made = tight(20)
    before = plan(made, ONLY_CONSOLIDATE, now=NOW)
    free = made.free.copy()
    free[CPU, -2] -= 1000

    assert before.whatifs > 0
    assert plan(replace(made, free=free), ONLY_CONSOLIDATE, now=NOW, memory=before.memory).whatifs == 0


def test_no_what_if_moves_a_pod_that_fits_on_no_other_node() -> None:
    assert plan(rigid(20), ONLY_CONSOLIDATE, now=NOW).whatifs == 0


def test_a_gang_moves_although_one_of_its_pods_needs_the_place_of_another_of_its_pods() -> None:
    whole = running("moved", "q", "n00000", gpus=2, at=0)
    (small,) = running("small", "q", "n00001", gpus=1, at=0).placed
    small = replace(small, pod=replace(small.pod, group=whole.key))
    firm = [
        replace(running(f"firm{index}", "q", f"n{index:05}", gpus=gpus, at=0), preemptible=False)
        for index, gpus in enumerate((5, 6, 7))
    ]
    moved = replace(whole, min_member=2, placed=(*whole.placed, small))
    last = waiting("last", "q", pods=1, gpus=3, at=NOW)

    found = plan(snapshot(3, [moved, *firm, last], {"q": 24}), ONLY_CONSOLIDATE, now=NOW)

    assert {each.pod: each.moves_to for each in found.evictions} == {"moved": "n00001", "small": "n00002"}


def test_no_what_if_takes_pods_from_a_queue_within_its_deserved_share() -> None:
    deserved = {"rich": 100, "q0": 32, "q1": 32}
    just = replace(borrowed(20, 2), queues={QueueName(name): queue(name, gpus) for name, gpus in deserved.items()})

    assert plan(just, Policy(), now=NOW).whatifs == 0


def test_a_failed_search_is_repeated_when_a_min_runtime_has_ended() -> None:
    made = borrowed(20, 1)
    young = {key: replace(one, started_at=NOW - 50) for key, one in made.running.items()}
    made, policy = replace(made, running=young), Policy(reclaim_min_runtime_s=60)
    before = plan(made, policy, now=NOW)

    assert helped([before]) == set()
    assert helped([plan(made, policy, now=NOW + 9, memory=before.memory)]) == set()
    assert helped([plan(made, policy, now=NOW + 11, memory=before.memory)]) == {"w00"}


def test_a_failed_search_is_repeated_when_an_evictable_pod_runs_in_place_of_a_non_evictable_one() -> None:
    urgent = replace(waiting("urgent", "q", pods=1, gpus=8, at=NOW), priority=60)
    higher = replace(running("higher", "q", "n00000", gpus=8, at=0), priority=70)
    made = snapshot(1, [higher, urgent], {"q": 8})
    before = plan(made, Policy(), now=NOW)
    lower = running("lower", "q", "n00000", gpus=8, at=0)
    then = replace(made, running={lower.key: lower})

    assert helped([before]) == set()
    assert helped([plan(then, Policy(), now=NOW, memory=before.memory)]) == {"urgent"}


def test_a_failed_search_is_repeated_when_a_podgroup_that_grew_in_the_same_plan_becomes_evictable() -> None:
    urgent = replace(waiting("urgent", "q", pods=1, gpus=8, at=NOW), priority=60)
    grows = running("grows-0", "q", "n00000", gpus=4, at=0)
    (more,) = running("grows-1", "q", "n00000", gpus=4, at=0).placed
    more = replace(more, pod=replace(more.pod, group=grows.key))
    made = snapshot(1, [replace(grows, pending=(replace(more.pod, node=None),)), urgent], {"q": 16})
    before = plan(made, Policy(), now=NOW)
    grown = replace(grows, placed=(*grows.placed, more))
    then = replace(snapshot(1, [grown, urgent], {"q": 16}), nodes=made.nodes, queues=made.queues)

    assert [start.group for start in before.starts] == [grows.key]
    assert helped([plan(then, Policy(), now=NOW, memory=before.memory)]) == {"urgent"}


def test_a_failed_search_is_repeated_when_the_fair_share_of_its_queue_grows() -> None:
    made = borrowed(20, 1)
    poor = replace(made, queues={**made.queues, QueueName("q0"): queue("q0", 8)}, total=NOTHING)
    before = plan(poor, Policy(), now=NOW)

    assert helped([before]) == set()
    assert helped([plan(made, Policy(), now=NOW, memory=before.memory)]) == {"w00"}


def test_pods_move_for_a_podgroup_as_soon_as_no_other_podgroup_waits_for_its_deserved_share() -> None:
    held = running("moved", "q", "n00001", gpus=4, at=1)
    firm = replace(running("firm", "q", "n00002", gpus=4, at=2), preemptible=False)
    last = waiting("last", "q", pods=1, gpus=8, at=NOW)
    owed = replace(waiting("owed", "owed", pods=1, gpus=8, at=NOW), preemptible=False)
    served = replace(running("owed", "owed", "n00000", gpus=8, at=NOW), preemptible=False)
    rich = running("rich", "rich", "n00000", gpus=8, at=0)
    made = snapshot(3, [rich, held, firm, owed, last], {"rich": 0, "owed": 8, "q": 8})
    same = {name: _without_surplus(each) for name, each in made.queues.items()}
    made = replace(made, queues=same)
    before = plan(made, Policy(), now=NOW)
    then = snapshot(3, [served, held, firm, last], {"rich": 0, "owed": 8, "q": 8})
    then = replace(then, nodes=made.nodes, queues=same)

    assert helped([before]) == {"owed"}
    assert helped([plan(then, Policy(), now=NOW, memory=before.memory)]) == {"last"}


def test_room_left_over_by_preemption_is_consolidated_in_the_next_plan() -> None:
    moved = running("moved", "q", "n00000", gpus=1, at=1)
    firm = replace(running("firm", "q", "n00001", gpus=7, at=2), preemptible=False)
    last = waiting("last", "q", pods=1, gpus=5, at=NOW)
    urgent = replace(waiting("urgent", "p", pods=1, gpus=3, at=NOW), preemptible=False)
    served = replace(running("urgent", "p", "n00000", gpus=3, at=NOW), preemptible=False)
    victim = replace(running("victim", "p", "n00000", gpus=6, at=0), priority=10)
    made = snapshot(2, [victim, moved, firm, urgent, last], {"p": 20, "q": 20})
    before = plan(made, Policy(), now=NOW)
    then = replace(snapshot(2, [served, moved, firm, last], {"p": 20, "q": 20}), nodes=made.nodes)

    assert helped([before]) == {"urgent"}
    assert helped([plan(then, Policy(), now=NOW, memory=before.memory)]) == {"last"}


def _without_surplus(one: Queue) -> Queue:
    return replace(one, gpu_milli=replace(one.gpu_milli, over_quota_weight_micro=0))


def beside_a_crowd(seed: int, asking: str) -> Snapshot:
    """Build a crowded cluster, and a node that one PodGroup can get: its queue deserves it, or others rank below."""
    own = Constraint(node_selector=(("own", "own"),), tolerations=(Toleration("own", "Exists"),))
    made = crowded(12, waiting=300, seed=seed)
    queues = {
        **made.queues,
        **{QueueName(name): queue(name, GPUS if name == "owed" else 0) for name in ("owed", "owes")},
    }
    held = replace(running("held", "owes", "own", gpus=8, at=0), priority=10)
    (one,) = waiting("last", asking, pods=1, gpus=8, at=NOW + 1000).pending
    last = replace(waiting("last", asking, pods=1, gpus=8, at=NOW + 1000), pending=(replace(one, constraint=own),))
    alone = replace(node(0), name=NodeName("own"), labels={"own": "own"}, taints=(Taint("own"),))
    free = np.column_stack([made.free, np.array(alone.allocatable.amounts) - held.placed[0].pod.request.amounts])
    charge = one.charge(1)
    usage = {QueueName("owes"): Usage(allocated=charge, requested=charge)}
    before = usage.get(last.queue, Usage())
    usage[last.queue] = replace(before, requested=before.requested + charge)
    return replace(
        made,
        nodes=NodeTable.of([*made.nodes.nodes, alone]),
        free=free,
        queues=queues,
        usage={**made.usage, **usage},
        groups={**made.groups, last.key: last},
        running={**made.running, held.key: held},
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("asking", "action"), [("owed", Action.RECLAIM), ("owes", Action.PREEMPT)])
def test_a_podgroup_that_can_be_helped_is_helped_within_5_plans_whatever_else_waits(
    seed: int, asking: str, action: Action
) -> None:
    found = plans(beside_a_crowd(seed, asking), Policy(most_whatifs=300))

    helping = {start.action for each in found for start in each.starts if start.group.name == "last"}
    assert helping == {action}


def test_a_plan_of_a_crowded_cluster_finishes_with_few_what_ifs() -> None:
    made = crowded(30, waiting=200)
    found = plan(made, Policy(), now=NOW)

    assert not found.unfinished
    assert len(helped([found])) > 10
    assert found.whatifs < 10 * len(made.groups)


NOWHERE_NEAR = Near(labels=(("app", "gone"),), topology_key="rack")
"""Affinity to a pod that does not exist: no count refuses the pod, and every victim is tried."""


def behind(count: int, last: PodGroup, held: Iterable[PodGroup], queues: dict[str, int]) -> Snapshot:
    """Build 4 nodes and many hopeless PodGroups like the last pending one, each of which tries every victim."""
    (pod,) = last.pending
    hopeless = list[PodGroup]()
    for index in range(count):
        one = replace(waiting(f"w{index:04}", last.queue, pods=1, gpus=1, at=index), priority=last.priority)
        (own,) = one.pending
        own = replace(own, request=pod.request, near=(NOWHERE_NEAR,))
        hopeless.append(replace(one, pending=(own,)))
    return snapshot(4, [*held, *hopeless, last], queues)


def held_by(name: str, *, each: int, gpus: int = 1) -> list[PodGroup]:
    """Build the pods of a queue on 4 nodes, with the given number on each."""
    return [
        replace(running(f"r{slot}-{index}", name, f"n{index:05}", gpus=gpus, at=slot), priority=10)
        for slot in range(each)
        for index in range(4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("action", [Action.CONSOLIDATE, Action.RECLAIM, Action.PREEMPT])
def test_a_podgroup_that_an_action_can_help_is_helped_within_5_plans_behind_2000_hopeless_ones(action: Action) -> None:
    made = {
        Action.CONSOLIDATE: lambda: behind(
            1999, waiting("last", "rich", pods=1, gpus=2, at=NOW), held_by("rich", each=7), {"rich": 32}
        ),
        Action.RECLAIM: lambda: behind(
            1999, waiting("last", "poor", pods=1, gpus=7, at=NOW), held_by("rich", each=8), {"rich": 16, "poor": 16}
        ),
        Action.PREEMPT: lambda: behind(
            1999,
            replace(waiting("last", "rich", pods=1, gpus=7, at=NOW), priority=60),
            held_by("rich", each=8),
            {"rich": 32},
        ),
    }[action]()
    policy = Policy(actions=(action,), most_whatifs=600)
    found, memory = set[str](), NO_MEMORY
    for _ in range(PLANS):
        then = plan(made, policy, now=NOW, memory=memory)
        found, memory = helped([then]), then.memory
        if found:
            break

    assert found == {"last"}


RACKS = Topology(name="t", levels=("zone", "rack"))


def in_one(level: str) -> PodGroup:
    """Build a gang of two pods that must be in one domain."""
    gang = waiting("w", "poor", pods=2, gpus=8, at=0)
    root = SubGroup(topology=TopologyConstraint("t", required=level), pod_sets=(PodSet(name="all", min_member=2),))
    return replace(gang, root=root, pending=tuple(replace(pod, subgroup="all") for pod in gang.pending))


def of_sizes(*gpus: int) -> PodGroup:
    """Build a gang of unlike pods."""
    gang = waiting("w", "poor", pods=len(gpus), gpus=0, at=0)
    sized = zip(gang.pending, gpus, strict=True)
    return replace(gang, pending=tuple(replace(pod, request=pod.request + _gpus(size)) for pod, size in sized))


def _gpus(count: int) -> Resources:
    return Resources(gpu_milli=1000 * count)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(in_one("rack"), in_one("zone"), id="a wider domain"),
        pytest.param(of_sizes(8, 8, 1), of_sizes(8, 7, 1), id="smaller pods"),
    ],
)
def test_a_failed_search_is_repeated_at_once_when_the_pending_podgroup_is_edited(
    before: PodGroup, after: PodGroup
) -> None:
    held = [replace(each, preemptible=each.key.name not in {"r0-1", "r0-2"}) for each in held_by("rich", each=8)]
    made = replace(snapshot(4, [*held, after], {"rich": 8, "poor": 24}), topologies={"t": RACKS})
    labelled = (
        replace(each, labels={"zone": "z", "rack": f"r{index // 2}"}) for index, each in enumerate(made.nodes.nodes)
    )
    made = replace(made, nodes=NodeTable.of(labelled))
    found = plan(replace(made, groups={before.key: before}), Policy(), now=NOW)
    then = plan(made, Policy(), now=NOW, memory=found.memory)

    assert (helped([found]), helped([then])) == (set(), {"w"})


def test_a_failed_search_is_repeated_at_once_when_kube_scheduler_refuses_fewer_nodes_to_the_pod() -> None:
    last = waiting("last", "poor", pods=1, gpus=8, at=0)
    made = snapshot(4, [*held_by("rich", each=8), last], {"rich": 16, "poor": 16})
    names, (pod,) = frozenset(each.name for each in made.nodes.nodes), last.pending
    found = plan(replace(made, refused={pod.uid: names}), Policy(), now=NOW)
    fewer = replace(made, refused={pod.uid: names - {NodeName("n00002")}})

    assert helped([found]) == set()
    assert helped([plan(fewer, Policy(), now=NOW, memory=found.memory)]) == {"last"}


def test_gangs_with_more_large_pods_than_nodes_that_could_be_emptied_need_no_what_if() -> None:
    gangs = [replace(of_sizes(8, 8, 1, 1), key=GroupKey("bench", f"w{index}"), created_at=index) for index in range(20)]
    held = [
        replace(each, preemptible=each.key.name not in {"r0-1", "r0-2", "r0-3"}) for each in held_by("rich", each=8)
    ]
    made = snapshot(4, [*held, *gangs], {"rich": 16, "poor": 16})

    assert plan(made, Policy(), now=NOW).whatifs == 0


# The parts of the budget


def searched(searches: Searches, whole: Budget, names: Iterable[str], *, needs: int) -> list[str]:
    """Let each search that is due try this number of what-ifs; return which searches ended."""
    ended = list[str]()
    for name in [each for each in names if searches.is_due((each,), 1)]:
        part = searches.wide(1, whole, 1)
        if all(part.take() for _ in range(needs)):
            searches.ended_in_vain((name,), 1)
            ended.append(name)
        else:
            searches.was_cut_off((name,), 1, part, whole)
    return ended


def test_the_next_plan_begins_with_the_podgroups_that_the_last_plan_did_not_reach() -> None:
    names = [f"g{index}" for index in range(10)]
    searches, whole = Searches(40), Budget(40)
    first = searched(searches, whole, names, needs=8)
    again = Searches(40, searches.frozen({((each,), 1) for each in names}))

    assert first == names[:5]
    assert [each for each in names if again.is_due((each,), 1)] == names[5:]


def test_the_budget_of_a_search_that_was_cut_off_doubles_each_time_up_to_that_of_a_whole_plan() -> None:
    searches, had = Searches(100), list[int]()
    searches.was_cut_off(("g",), 1, Budget(10), Budget(100))
    while searches.is_unfinished:
        searches.begin_deep_cycle()
        part = searches.deep(("g",), 1, Budget(100))
        had.append(part.most)
        searches.was_cut_off(("g",), 1, part, Budget(100))

    assert had == [20, 40, 80, 100]
    assert searches.is_hopeless(("g",), 1)


def test_a_gang_that_needs_more_than_the_budget_of_a_plan_is_not_first_in_the_next_plan_too() -> None:
    searches, whole = Searches(100), Budget(100)
    part = searches.wide(1000, whole, 1)
    while part.take():
        pass
    searches.was_cut_off(("large",), 1000, part, whole)

    assert not searches.is_due(("large",), 1000)
    assert searches.is_due(("small",), 1)


def test_a_failed_search_for_a_gang_also_holds_for_larger_gangs_of_its_kind() -> None:
    searches = Searches(100)
    searches.ended_in_vain(("g",), 4)

    assert [searches.is_hopeless(("g",), pods) for pods in (3, 4, 5)] == [False, True, True]


def test_a_search_for_fewer_pods_of_a_kind_is_due_and_gets_a_larger_budget_than_the_one_for_more_pods() -> None:
    searches = Searches(100)
    for pods in (4, 2):
        searches.was_cut_off(("g",), pods, Budget(10), Budget(100))
        assert [searches.is_due(("g",), each) for each in (pods - 1, pods)] == [True, False]
    searches.begin_deep_cycle()
    assert [searches.is_due_deeper(("g",), each) for each in (2, 3, 4)] == [True, False, True]

    searches.ended_in_vain(("g",), 4)
    assert [searches.is_due_deeper(("g",), each) for each in (2, 4)] == [True, False]

    searches.ended_in_vain(("g",), 2)
    assert not searches.is_unfinished


def test_a_search_is_due_again_when_the_podgroup_with_fewer_pods_whose_search_was_cut_off_is_gone() -> None:
    searches = Searches(100)
    searches.was_cut_off(("g",), 2, Budget(10), Budget(100))

    again = Searches(100, searches.frozen({(("g",), 4)}))
    again.begin_cycle()

    assert (again.is_due(("g",), 4), again.is_unfinished) == (True, False)


def test_the_memory_of_searches_drops_podgroups_that_no_longer_wait() -> None:
    searches = Searches(100)
    searches.ended_in_vain(("gone",), 1)
    searches.was_cut_off(("cut",), 1, Budget(10), Budget(100))

    assert searches.frozen(set()) == Searched()


def test_room_made_by_one_action_helps_a_podgroup_for_which_the_next_action_failed_before() -> None:
    cluster = world(Random(47))
    before = cluster.snapshot()
    firm = next(group for group in before.groups.values() if group.key.name == "g0")
    after = replace(before, groups={**before.groups, firm.key: replace(firm, preemptible=True)})
    first = plan(before, now=cluster.now)

    known, fresh = (plan(after, now=cluster.now + 1, memory=each) for each in (first.memory, NO_MEMORY))

    assert first.starts == ()
    assert [(start.group.name, start.action) for start in known.starts] == [
        ("g0", Action.RECLAIM),
        ("g3", Action.PREEMPT),
    ]
    assert known.starts == fresh.starts
