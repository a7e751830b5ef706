"""The planner: which pending pods start where when all are decided at once, and why the others stay pending."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.decision import Action, Plan
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Constraint, Pod
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import GPU, NOTHING, QUOTA_AXES
from app.model.snapshot import Snapshot, Usage
from app.scheduling.planner.planner import fitting, move_one, plan, plan_some, scores
from app.scheduling.policy import Policy
from app.scheduling.queues.quota import QueueLedger
from app.settings import PlacementStrategy
from tests import given

QUEUE = [given.queue("q")]
REFUSAL = Refusal(reason=Reason.MEMBERS_MISSING, sentence="Waiting for 2 pods, currently 1 exists, 0 are gated.")


def gang(name: str, *gpus: int, queue: str = "q", min_member: int | None = None, **more: object) -> PodGroup:
    """Build a gang with one pod for each of `gpus`."""
    pods = [given.pod(f"{name}-{index}", gang=name, queue=queue, gpus=each) for index, each in enumerate(gpus)]
    return given.group(*pods, min_member=min_member, **more)  # type: ignore[arg-type] # free-form by design


def cluster(*groups: PodGroup, gpus: Sequence[int] = (4,)) -> Snapshot:
    nodes = [given.node(f"n{index}", gpus=each) for index, each in enumerate(gpus)]
    return given.snapshot(nodes, QUEUE, groups)


def starts(found: Plan) -> list[tuple[str, int]]:
    """Return the groups that start, in order, with their numbers of pods."""
    return [(start.group.name, len(start.placements)) for start in found.starts]


def refusals(found: Plan) -> dict[str, Reason]:
    return {key.name: refusal.reason for key, refusal in found.refusals.items()}


def crowded(snapshot: Snapshot, *gpus: int) -> Snapshot:
    """Return the cluster with this number of free GPUs on each node; the owner of the others does not matter."""
    free = snapshot.free.copy()
    free[GPU] = [each * 1000 for each in gpus]
    return replace(snapshot, free=free)


def lacking(*, cpu: int = 0, gpus: int = 0, free: int) -> dict[str, int]:
    return {"cpu_milli": cpu, "gpu_milli": gpus, "pods": 0, "most_free_gpu_milli": free * 1000}


def test_queues_start_their_deserved_share_and_the_surplus_by_weight() -> None:
    tree = [
        given.queue("p", deserved=8),
        given.queue("a", "p", deserved=4, weight=1),
        given.queue("b", "p", deserved=4, weight=3),
        given.queue("q", deserved=0),
        given.queue("c", "q", deserved=0),
    ]
    crowd = [gang(f"{queue}{number}", 1, queue=queue) for queue in "abc" for number in range(24)]

    found = plan(given.snapshot([given.node(f"n{index}") for index in range(3)], tree, crowd))

    assert Counter(start.group.name[0] for start in found.starts) == {"a": 6, "b": 10, "c": 8}
    assert Counter(refusals(found).values()) == {Reason.NO_NODE_FITS: 72 - 24}


def test_a_gang_that_does_not_fit_as_a_whole_starts_nothing_and_takes_nothing() -> None:
    groups = gang("whole", 1, 1, 1, 1, 1, created_at=1.0), gang("late", 1, created_at=2.0)
    found = plan(crowded(cluster(*groups, gpus=(8,)), 4))

    assert starts(found) == [("late", 1)]
    assert found.refusals == {
        GroupKey("default", "whole"): Refusal(
            reason=Reason.GANG_DOES_NOT_FIT,
            sentence=(
                "Only 4 of 5 pods that start together find room now; "
                "for the next pod, the only node has too few GPUs (requested 1, at most 0 free)."
            ),
            details={"fitting": 4, "needed": 5, "nodes": 1, "excluded": 0, **lacking(gpus=1, free=0)},
        )
    }


def test_pods_of_an_elastic_podgroup_beyond_its_minimum_start_one_by_one_as_far_as_there_is_room() -> None:
    found = plan(cluster(gang("elastic", 1, 1, 1, 1, 1, 1, min_member=2)))

    assert starts(found) == [("elastic", 2), ("elastic", 1), ("elastic", 1)]
    assert refusals(found) == {"elastic": Reason.NO_NODE_FITS}


def test_pods_of_an_elastic_podgroup_beyond_its_minimum_wait_for_podgroups_below_their_minimum() -> None:
    found = plan(cluster(gang("elastic", 1, 1, 1, 1, min_member=2, created_at=1.0), gang("late", 1, 1, created_at=2.0)))

    assert starts(found) == [("elastic", 2), ("late", 2)]


def test_a_partially_started_gang_is_completed_before_anything_else_starts() -> None:
    half = gang("half", 1, 1, min_member=3, active=1, created_at=9.0)

    found = plan(cluster(gang("urgent", 4, priority=100), half))

    assert starts(found) == [("half", 2)]
    assert refusals(found) == {"urgent": Reason.NO_NODE_FITS}


def test_finished_pods_count_as_started() -> None:
    assert starts(plan(cluster(gang("ending", 4, 1, min_member=3, active=1, succeeded=1)))) == [("ending", 1)]


def test_podgroups_start_by_priority_then_age_then_name() -> None:
    groups = [gang("b", 2), gang("a", 2, created_at=1.0), gang("urgent", 2, priority=1, created_at=2.0)]

    assert starts(plan(cluster(*groups))) == [("urgent", 1), ("b", 1)]


def test_a_queue_stops_at_its_limit_however_much_is_free() -> None:
    snapshot = replace(cluster(gang("x", 2), gang("y", 2)), queues={QueueName("q"): given.queue("q", limit=3)})

    found = plan(snapshot)

    assert starts(found) == [("x", 1)]
    assert found.refusals[GroupKey("default", "y")].sentence == (
        "Queue q would exceed its limit of 3 GPUs: it holds 2 GPUs, and 2 GPUs are requested."
    )


def test_non_preemptible_pods_stay_within_the_deserved_share_of_their_queue() -> None:
    groups = [gang("firm", 2, preemptible=False), gang("firmer", 1, preemptible=False), gang("soft", 1)]
    snapshot = replace(cluster(*groups), queues={QueueName("q"): given.queue("q", deserved=2)})

    found = plan(snapshot)

    assert starts(found) == [("firm", 1), ("soft", 1)]
    assert refusals(found) == {"firmer": Reason.NON_PREEMPTIBLE_OVER_QUOTA}


def test_a_podgroup_that_cannot_be_considered_is_refused_with_its_own_reason() -> None:
    found = plan(cluster(gang("short", 1, refusal=REFUSAL), gang("lost", 1, queue="nowhere")))

    assert starts(found) == []
    assert found.refusals[GroupKey("default", "short")] == REFUSAL
    assert (
        found.refusals[GroupKey("default", "lost")].sentence
        == "Queue nowhere does not exist; create it, or name another queue."
    )


def test_the_message_of_a_pod_without_room_names_what_each_node_lacks() -> None:
    pod = given.pod("p", gpus=6, cpu=32)
    nodes = [
        given.node("a", gpus=4, ready=False),
        given.node("b", gpus=4, cpu=32),
        given.node("c", gpus=5, cpu=8),
        given.node("d"),
    ]
    snapshot = given.snapshot(nodes, QUEUE, [given.group(pod)], refused={pod.uid: frozenset([NodeName("d")])})

    assert plan(snapshot).refusals[pod.group] == Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=(
            "No node has room: 1 of 4 nodes has too little CPU (requested 32 cores, at most 8 free), "
            "2 have too few GPUs (requested 6, at most 5 free), 1 is not ready, "
            "1 is refused by the filters of kube-scheduler."
        ),
        details={"nodes": 4, "excluded": 2, "not_ready": 1, "refused": 1, **lacking(cpu=1, gpus=2, free=5)},
    )


def test_the_message_of_a_gang_names_the_pod_that_fits_on_no_node() -> None:
    snapshot = crowded(cluster(gang("mixed", 1, 8), gpus=(8, 8)), 4, 4)
    refusal = plan(snapshot).refusals[GroupKey("default", "mixed")]

    assert refusal.details == {"fitting": 1, "needed": 2, "nodes": 2, "excluded": 0, **lacking(gpus=2, free=4)}
    assert refusal.sentence == (
        "Only 1 of 2 pods that start together find room now; "
        "for pod mixed-1, 2 of 2 nodes have too few GPUs (requested 8, at most 4 free)."
    )


def test_the_message_of_a_pod_that_no_node_may_take_says_so() -> None:
    snapshot = given.snapshot([given.node("n", unschedulable=True)], QUEUE, [gang("x", 1)])

    assert plan(snapshot).refusals[GroupKey("default", "x")].sentence == (
        "No node has room: the only node is cordoned."
    )


def test_unlike_podgroups_get_messages_with_their_own_numbers() -> None:
    pinned = given.group(given.pod("pinned", gpus=3, constraint=Constraint(node_selector=(("zone", "east"),))))
    groups = [gang("one", 3), gang("two", 3, 3), gang("three", 3, 3, 3), gang("four", 3, 2), gang("five", 4, 3), pinned]

    sentences = {refusal.sentence for refusal in plan(crowded(cluster(*groups, gpus=(20, 20)), 2, 2)).refusals.values()}

    assert len(sentences) == len(groups)


@pytest.mark.parametrize(("strategy", "best"), [(PlacementStrategy.BINPACK, "n1"), (PlacementStrategy.SPREAD, "n0")])
def test_the_policy_sets_the_strategy(strategy: PlacementStrategy, best: str) -> None:
    policy, groups = Policy(placement=strategy), [gang("x", 1), gang("y", 1)]
    snapshot, pod, both = cluster(*groups, gpus=(4, 2)), groups[0].pending[0], [NodeName("n0"), NodeName("n1")]

    assert plan(snapshot, policy).starts[0].placements[0].node == best
    assert plan_some(snapshot, snapshot.groups, policy).starts[0].placements[0].node == best
    assert move_one(snapshot, pod, both[0], both, policy) == best
    assert both[scores(snapshot, pod, both, policy).argmax()] == best


def test_a_plan_for_some_podgroups_does_not_consider_the_others() -> None:
    snapshot = cluster(gang("x", 1, priority=9), gang("y", 1), gang("z", 4))

    found = plan_some(snapshot, [GroupKey("default", name) for name in ("y", "z", "gone")])

    assert (starts(found), refusals(found)) == ([("y", 1)], {"z": Reason.NO_NODE_FITS})
    assert plan_some(snapshot, []) == Plan(snapshot_version=1)


def test_a_single_pod_is_placed_on_the_best_offered_node_with_room() -> None:
    snapshot, pod = cluster(gpus=(1, 4, 8)), given.pod("p", gpus=2)
    offered = [NodeName(name) for name in ("n2", "n1", "n0", "gone")]

    assert move_one(snapshot, pod, offered[3], offered) == "n1"
    assert move_one(snapshot, pod, offered[3], offered[:1]) == "n2"
    assert move_one(snapshot, pod, offered[3], offered[2:]) is None


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (gang("x", 2), None),
        (gang("x", 2, refusal=REFUSAL), Reason.MEMBERS_MISSING),
        (gang("x", 2, queue="nowhere"), Reason.QUEUE_DOES_NOT_EXIST),
    ],
)
def test_a_pod_that_does_not_exist_yet_has_room_on_nodes_or_is_refused(group: PodGroup, reason: Reason | None) -> None:
    found = fitting(cluster(gpus=(1, 3, 4)), group, group.pending[0])

    assert (found.reason if isinstance(found, Refusal) else found.tolist()) == (reason or [False, True, True])


def test_a_pod_that_does_not_exist_yet_is_scored_on_the_offered_nodes() -> None:
    offered = [NodeName(name) for name in ("n0", "n2", "n3", "n4", "gone")]

    assert scores(cluster(gpus=(1, 3, 4, 8, 4)), given.pod("p", gpus=2), offered).tolist() == [0, 0, 10, 1, 10]


PARENTS = {"p": None, "q": None, "a": "p", "b": "p", "c": "q"}
amounts = st.integers(0, 6)
trees = st.fixed_dictionaries(
    {name: st.tuples(amounts, amounts | st.none(), st.integers(0, 2)) for name in PARENTS}
).map(
    lambda wishes: [
        given.queue(name, PARENTS[name], deserved=deserved, limit=limit, weight=weight)
        for name, (deserved, limit, weight) in wishes.items()
    ]
)
like_pods = st.builds(lambda gpus, count: [gpus] * count, st.integers(0, 3), st.integers(1, 4))
mixed_pods = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def crowds(pods: st.SearchStrategy[list[int]]) -> st.SearchStrategy[list[PodGroup]]:
    terms: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {
            "queue": st.sampled_from(["a", "b", "c", "p", "nowhere"]),
            "min_member": st.integers(1, 4),
            "active": st.sampled_from([0, 0, 1]),
            "preemptible": st.booleans(),
            "priority": st.integers(0, 1),
        }
    )
    return st.lists(st.tuples(pods, terms), max_size=8).map(
        lambda crowd: [
            # A group with fewer pods than its minimum is never pending without a refusal.
            gang(
                f"g{index}", *gpus, **wish, refusal=REFUSAL if len(gpus) + wish["active"] < wish["min_member"] else None
            )
            for index, (gpus, wish) in enumerate(crowd)
        ]
    )


def clusters(pods: st.SearchStrategy[list[int]]) -> st.SearchStrategy[Snapshot]:
    sizes = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8), st.sampled_from([True, True, False])), max_size=3)
    nodes = sizes.map(
        lambda each: [given.node(f"n{index}", gpus=g, cpu=c, ready=ready) for index, (g, c, ready) in enumerate(each)]
    )
    return st.builds(given.snapshot, nodes, trees, crowds(pods))


def outcome(snapshot: Snapshot, found: Plan) -> Snapshot:
    """Return the snapshot after everything planned has happened."""
    free, usage, groups = snapshot.free.copy(), dict(snapshot.usage), dict(snapshot.groups)
    for start in found.starts:
        group = groups[start.group]
        on = {one.pod: snapshot.nodes.index[one.node] for one in start.placements}
        placed = [pod for pod in group.pending if pod.uid in on]
        for pod in placed:
            free[:, on[pod.uid]] -= pod.request.amounts
        usage[group.queue] = charged(usage[group.queue], group, placed)
        rest = tuple(pod for pod in group.pending if pod.uid not in on)
        held = tuple(given.placed(pod, snapshot.nodes.nodes[on[pod.uid]].name) for pod in placed)
        groups[start.group] = replace(group, pending=rest, placed=group.placed + held)
    return replace(snapshot, free=free, usage=usage, groups={key: one for key, one in groups.items() if one.pending})


def charged(usage: Usage, group: PodGroup, placed: Sequence[Pod]) -> Usage:
    held = sum((pod.request for pod in placed), NOTHING)
    firm = NOTHING if group.preemptible else held
    return replace(
        usage, allocated=usage.allocated + held, allocated_non_preemptible=usage.allocated_non_preemptible + firm
    )


@settings(deadline=None)
@for_all(clusters(mixed_pods))
def test_no_node_is_filled_beyond_its_capacity_and_no_unschedulable_node_is_used(snapshot: Snapshot) -> None:
    after = outcome(snapshot, plan(snapshot))

    idle = ~snapshot.nodes.takes_work
    assert (after.free >= 0).all()
    assert np.array_equal(after.free[:, idle], snapshot.nodes.allocatable[:, idle])


@settings(deadline=None)
@for_all(clusters(mixed_pods))
def test_no_queue_exceeds_its_limit_or_its_deserved_share_with_non_preemptible_pods(snapshot: Snapshot) -> None:
    after = outcome(snapshot, plan(snapshot))

    for account in QueueLedger(after).accounts.values():
        for axis in QUOTA_AXES:
            assert account.allocated[axis] <= account.limit[axis]
            assert account.non_preemptible[axis] <= account.deserved[axis]


@settings(deadline=None)
@for_all(clusters(mixed_pods))
def test_gangs_start_whole_or_not_at_all_and_every_pending_podgroup_gets_a_reason(snapshot: Snapshot) -> None:
    found = plan(snapshot)
    after = outcome(snapshot, found)

    started = {start.group for start in found.starts}
    assert all(after.groups[key].owed == 0 for key in started & after.groups.keys())
    assert found.refusals.keys() == after.groups.keys()


@settings(deadline=None)
@for_all(clusters(mixed_pods))
def test_a_plan_depends_only_on_its_snapshot(snapshot: Snapshot) -> None:
    groups = dict(reversed(list(snapshot.groups.items())))
    queues = dict(reversed(list(snapshot.queues.items())))

    assert plan(replace(snapshot, groups=groups, queues=queues)) == plan(snapshot)


@settings(deadline=None)
@for_all(clusters(mixed_pods))
def test_a_plan_for_one_podgroup_equals_the_plan_for_all_if_it_waits_alone_and_nothing_is_evicted(
    snapshot: Snapshot,
) -> None:
    for key, group in snapshot.groups.items():
        alone = replace(snapshot, groups={key: group})

        assert plan_some(snapshot, [key]) == plan(alone, Policy(actions=(Action.ALLOCATE,)))


# Pods of one gang are alike here: with unlike pods, less room may lead to a better greedy choice.
@settings(deadline=None)
@for_all(clusters(like_pods))
def test_another_plan_on_the_outcome_changes_nothing(snapshot: Snapshot) -> None:
    found = plan(snapshot)

    again = plan(outcome(snapshot, found))

    assert starts(again) == []
    assert again.refusals.keys() == found.refusals.keys()


def test_a_podgroup_that_a_disruption_budget_protects_is_evicted_last() -> None:
    rich = [given.group(running=[given.placed(given.pod(f"r{i}", queue="rich"), "a")], min_member=1) for i in range(2)]
    poor = given.group(given.pod("w", queue="poor"))
    queues = [given.queue("rich", deserved=1), given.queue("poor", deserved=1)]
    snapshot = given.snapshot([given.node("a", gpus=2)], queues, [*rich, poor])

    def evicted(*guarded: PodGroup) -> list[str]:
        made = plan(replace(snapshot, guarded=frozenset(one.key for one in guarded)))
        return [each.pod.removeprefix("uid-") for each in made.evictions]

    assert evicted() == ["r1"]
    assert evicted(rich[1]) == ["r0"]
    assert evicted(*rich) == ["r1"]


def test_no_pod_is_evicted_for_room_that_a_stale_gang_releases() -> None:
    lost = replace(
        given.group(running=[given.placed(given.pod("l0", gang="l", queue="rich"), "a")], min_member=2), stale_since=0.0
    )
    rich = given.group(running=[given.placed(given.pod("r0", queue="rich"), "a")], min_member=1, created_at=9.0)
    poor = given.group(given.pod("w", queue="poor"))
    queues = [given.queue("rich", deserved=1), given.queue("poor", deserved=1)]

    made = plan(given.snapshot([given.node("a", gpus=2)], queues, [lost, rich, poor]), now=100.0)

    assert [(each.pod, each.action) for each in made.evictions] == [("uid-l0", Action.EVICT_STALE)]
    assert [start.group for start in made.starts] == [poor.key]


def test_no_pod_is_evicted_for_room_that_a_gang_releases_if_it_is_not_completed_in_time() -> None:
    waits = given.pod("s1", gpus=2, gang="stale")
    stale = replace(
        given.group(waits, running=[given.placed(given.pod("s0", gpus=2, gang="stale"), "a")], min_member=2),
        stale_since=0.0,
    )
    low = given.group(running=[given.placed(given.pod("low", gpus=2), "a")], min_member=1, created_at=9.0)
    urgent = given.group(given.pod("urgent", gpus=2), priority=90)

    made = plan(given.snapshot([given.node("a", gpus=4)], [given.queue("q")], [stale, low, urgent]), now=100.0)

    assert [(each.pod, each.action) for each in made.evictions] == [("uid-s0", Action.EVICT_STALE)]
    assert [start.group for start in made.starts] == [urgent.key]


def test_a_partially_started_gang_evicts_no_pod_ahead_of_its_priority() -> None:
    half = given.group(
        given.pod("h1", gang="h"), running=[given.placed(given.pod("h0", gang="h"), "b")], min_member=2, priority=75
    )
    urgent = given.group(given.pod("u"), priority=90)
    low = given.group(running=[given.placed(given.pod("l"), "a")], min_member=1)
    nodes = [given.node("a", gpus=1), given.node("b", gpus=1)]

    made = plan(given.snapshot(nodes, [given.queue("q", deserved=2)], [half, urgent, low]))

    assert [start.group for start in made.starts] == [urgent.key]


def test_no_victims_are_taken_for_a_pod_that_a_growing_podgroup_of_higher_priority_would_evict_again() -> None:
    grows = given.group(*(given.pod(f"g{index}", gang="g") for index in range(2)), min_member=1, priority=90)
    lower = given.group(given.pod("l"), priority=60)
    low = given.group(running=[given.placed(given.pod("r", gpus=2), "a")], min_member=1, priority=50)

    made = plan(given.snapshot([given.node("a", gpus=2)], [given.queue("q", deserved=2)], [grows, lower, low]))

    assert [[placement.pod for placement in start.placements] for start in made.starts] == [["uid-g0"]]


@pytest.mark.parametrize(("bare", "moved"), [(False, ["uid-r"]), (True, [])])
def test_no_pod_is_moved_that_its_controller_would_not_create_again(bare: bool, moved: list[str]) -> None:  # noqa: FBT001 # parametrized
    runs = given.group(running=[given.placed(given.pod("r", bare=bare), "a")], min_member=1)
    firm = given.group(running=[given.placed(given.pod("f"), "b")], min_member=1, preemptible=False)
    waits = given.group(given.pod("w", gpus=2))
    nodes = [given.node("a", gpus=2), given.node("b", gpus=2)]

    made = plan(given.snapshot(nodes, [given.queue("q", deserved=4)], [runs, firm, waits]))

    assert [each.pod for each in made.evictions if each.action is Action.CONSOLIDATE] == moved


@pytest.mark.parametrize(("bare", "moved"), [(False, ["uid-r"]), (True, [])])
def test_reclaim_moves_no_pod_that_its_controller_would_not_create_again(bare: bool, moved: list[str]) -> None:  # noqa: FBT001 # parametrized
    runs = given.group(running=[given.placed(given.pod("r", queue="right", bare=bare), "a")], min_member=1)
    firm = given.group(running=[given.placed(given.pod("f", queue="right"), "b")], min_member=1, preemptible=False)
    waits = given.group(given.pod("w", queue="left", gpus=2))
    nodes = [given.node("a", gpus=2), given.node("b", gpus=2)]
    queues = [given.queue("left", deserved=2), given.queue("right", deserved=2)]

    made = plan(given.snapshot(nodes, queues, [runs, firm, waits]), Policy(actions=(Action.ALLOCATE, Action.RECLAIM)))

    assert [each.pod for each in made.evictions if each.action is Action.RECLAIM] == moved


@pytest.mark.parametrize(("bare", "gone"), [(False, ["uid-r0", "uid-r1"]), (True, [])])
def test_a_queue_pays_for_pods_that_nobody_creates_for_another_place(bare: bool, gone: list[str]) -> None:  # noqa: FBT001 # parametrized
    pods = [given.pod(f"r{number}", queue="right", bare=bare) for number in range(2)]
    runs = [given.group(running=[given.placed(pod, "a")], min_member=1) for pod in pods]
    firm = given.group(running=[given.placed(given.pod("f", queue="left"), "b")], min_member=1, preemptible=False)
    waits = given.group(given.pod("w", queue="left", gpus=2))
    nodes = [given.node("a", gpus=2), given.node("b", gpus=2)]
    queues = [given.queue("left", deserved=3), given.queue("right", deserved=1)]

    made = plan(given.snapshot(nodes, queues, [*runs, firm, waits]), Policy(actions=(Action.ALLOCATE, Action.RECLAIM)))

    assert sorted(each.pod for each in made.evictions) == gone
