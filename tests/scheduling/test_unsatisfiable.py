"""PodGroups that can never run in the current cluster: they cost no other group a turn, and say so at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.model.decision import Plan
from app.model.names import GroupKey
from app.model.node import Node
from app.model.pod import Constraint, Near, Pod, Sharing
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import Reason
from app.model.resources import AXES, CPU
from app.model.snapshot import NodeTable, Snapshot
from app.model.topology import Topology
from app.scheduling.explain.position import position
from app.scheduling.explain.unsatisfiable import judged
from app.scheduling.placement.emptied import Emptied, most_together
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Timing
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.order import next_chunk
from tests import given
from tests.scheduling.worlds import World, worlds

MIB = 80_000
RACKS = {"t": Topology(name="t", levels=("rack",))}
NODES = [
    given.node(name, device_memory_mib=MIB, labels={"rack": f"rack-{name}"}, scalars=(("nvidia.com/mig-1g.10gb", 2),))
    for name in "ab"
]
QUEUES = [
    given.queue("top", deserved=16),
    given.queue("a", "top", deserved=8),
    given.queue("b", "top", deserved=8),
    given.queue("none", "top", deserved=8, limit=0),
    given.queue("tight", deserved=2, limit=4),
    given.queue("small", deserved=2, limit=4),
    given.queue("below-small", "small", deserved=8),
]


def pods(number: int, *, gang: str = "never", name: str = "", queue: str = "a", **more: Any) -> list[Pod]:
    return [given.pod(f"{name or gang}-{index}", gang=gang, queue=queue, **more) for index in range(number)]


def sharing(**more: int) -> PodGroup:
    return given.group(replace(given.pod("never", gpus=0, queue="a", gang="never"), sharing=Sharing(**more)))


def tree(group: PodGroup, *sets: PodSet, topology: TopologyConstraint | None = None) -> PodGroup:
    root = SubGroup(topology=topology, pod_sets=sets or group.tree.pod_sets)
    return replace(group, root=root)


RACK, BLOCK = TopologyConstraint("t", required="rack"), TopologyConstraint("t", required="block")
UNKNOWN = TopologyConstraint("u", required="rack")
NOWHERE = Constraint(node_selector=(("zone", "nowhere"),))
HERE = Constraint(node_selector=(("rack", "rack-a"),))

NEVER: Mapping[str, PodGroup] = {
    "pod larger than any node": given.group(*pods(1, gpus=9)),
    "pod with more CPU than any node": given.group(*pods(1, cpu=65)),
    "gang larger than the cluster": given.group(*pods(17)),
    "gang of pods of which each node holds one": given.group(*pods(3, gpus=5)),
    "gang of two sizes of which each node holds one": given.group(*pods(2, gpus=5), *pods(1, gpus=6, name="x")),
    "gang of pods that are too many for the nodes they select": given.group(*pods(9, constraint=HERE)),
    "elastic group with a minimum that does not fit": given.group(*pods(30), min_member=17),
    "sub-group whose minimum does not fit": tree(
        given.group(*pods(3, gpus=8, subgroup="x"), *pods(1, name="y", subgroup="y")),
        PodSet(name="x", min_member=3),
        PodSet(name="y"),
    ),
    "gang that fits no rack": tree(given.group(*pods(9)), topology=RACK),
    "gang with a level that no node is in": tree(given.group(*pods(2)), topology=BLOCK),
    "gang with a topology that does not exist": tree(given.group(*pods(2)), topology=UNKNOWN),
    "sub-group that fits no rack": tree(
        given.group(*pods(9, subgroup="x")), PodSet(name="x", min_member=9, topology=RACK)
    ),
    "three sub-groups of which each needs most of a rack, and two racks": tree(
        given.group(*(pod for name in "xyz" for pod in pods(5, name=name, subgroup=name))),
        *(PodSet(name=name, min_member=5, topology=RACK) for name in "xyz"),
    ),
    "sub-groups of a leader and workers that need a rack each": replace(
        given.group(
            *(pod for name in "xyz" for pod in pods(5, name=name, subgroup=name)),
            *(pod for name in "xyz" for pod in pods(1, name=f"{name}-leader", gpus=0, subgroup=f"{name}-leader")),
        ),
        root=SubGroup(
            groups=tuple(
                SubGroup(
                    name=name,
                    topology=RACK,
                    pod_sets=(
                        PodSet(name=name, min_member=5, topology=RACK),
                        PodSet(name=f"{name}-leader"),
                    ),
                )
                for name in "xyz"
            )
        ),
    ),
    "node selector that matches nothing": given.group(*pods(1, constraint=NOWHERE)),
    "gang of which one pod fits nowhere": given.group(*pods(3), *pods(1, name="x", gpus=16)),
    "MIG profile that no node has": given.group(*pods(1, gpus=0, scalars=(("nvidia.com/mig-7g.80gb", 1),))),
    "more MIG slices than there are": given.group(*pods(5, gpus=0, scalars=(("nvidia.com/mig-1g.10gb", 1),))),
    "parts of more GPUs than a node has": sharing(portion_ppm=500_000, devices=9),
    "GPU memory that no GPU has": sharing(memory_mib=MIB + 1),
    "part with its overhead larger than a GPU": sharing(portion_ppm=1_000_000, overhead_mib=1),
    "queue whose limit is zero": given.group(*pods(1, queue="none")),
    "gang beyond its queue's limit": given.group(*pods(5, queue="tight")),
    "gang beyond the limit of a parent": given.group(*pods(5, queue="below-small")),
    "non-preemptible gang beyond what its queue deserves": given.group(*pods(9, queue="a"), preemptible=False),
    "non-preemptible gang beyond what a parent deserves": given.group(*pods(3, queue="below-small"), preemptible=False),
    "high priority": given.group(*pods(17), priority=200),
    "rest of a gang beside what it holds": given.group(
        *pods(16), running=[given.placed(given.pod("runs", gang="never", queue="a"), "a")], min_member=17
    ),
}
every_kind = pytest.mark.parametrize("never", NEVER.values(), ids=NEVER.keys())


def apart(number: int, *, labels: Mapping[str, str]) -> PodGroup:
    near = (Near((("app", "x"),), "rack", apart=True),)
    return given.group(*pods(number, gpus=1, near=near, labels=labels), created_at=1.0)


@pytest.mark.parametrize(
    ("group", "lost"),
    [
        (apart(3, labels={"app": "x"}), 1),
        (apart(2, labels={"app": "x"}), 0),
        (apart(3, labels={"app": "y"}), 0),  # they have anti-affinity to other pods only
    ],
    ids=["more than domains", "as many as domains", "not from each other"],
)
def test_pods_with_anti_affinity_to_each_other_have_no_more_places_than_there_are_domains(
    group: PodGroup, lost: int
) -> None:
    snapshot = given.snapshot(NODES, QUEUES, [group])

    refusals = [each.refusal.sentence for each in judged(snapshot).unsatisfiable.values() if each.refusal]
    assert refusals == ["Even empty, all nodes together hold at most 2 of 3 pods that start together."] * lost


def test_pods_with_anti_affinity_may_share_a_node_without_the_topology_label() -> None:
    snapshot = given.snapshot([*NODES, given.node("c")], QUEUES, [apart(5, labels={"app": "x"})])

    assert not judged(snapshot).unsatisfiable


def waiting(number: int, queue: str) -> list[PodGroup]:
    return [given.group(given.pod(f"{queue}-{index}", queue=queue), created_at=5.0 + index) for index in range(number)]


def crowd(*more: PodGroup) -> Snapshot:
    """Two queues request 12 GPUs each of the 16 in the cluster."""
    return given.snapshot(NODES, QUEUES, [*more, *waiting(12, "a"), *waiting(12, "b")], topologies=RACKS)


def started(found: Plan) -> list[GroupKey]:
    return [start.group for start in found.starts]


@every_kind
def test_a_podgroup_that_can_never_run_costs_no_other_podgroup_a_turn(never: PodGroup) -> None:
    only_held = replace(never, pending=())

    with_it, without = crowd(never), crowd(*([only_held] if never.placed else []))

    assert started(plan(with_it)) == started(plan(without))
    assert started(plan_some(with_it, with_it.groups)) == started(plan_some(without, without.groups))


@every_kind
def test_a_podgroup_that_can_never_run_changes_no_fair_share(never: PodGroup) -> None:
    only_held = replace(never, pending=())

    with_it, without = crowd(never), crowd(*([only_held] if never.placed else []))

    found, expected = fair_shares(judged(with_it)), fair_shares(without)
    assert {name: each.fair_share for name, each in found.items()} == {
        name: each.fair_share for name, each in expected.items()
    }


@every_kind
def test_a_podgroup_that_can_never_run_says_so_at_once_and_no_victims_are_searched(never: PodGroup) -> None:
    rich = [given.placed(given.pod(f"r{name}", gpus=7, gang="rich", queue="rich"), name) for name in "ab"]
    queues = [*QUEUES, given.queue("rich")]
    full = given.snapshot(NODES, queues, [never, given.group(running=rich, min_member=1)], topologies=RACKS)

    found = plan(full)

    assert (found.starts, found.evictions) == ((), ())
    refusal = found.refusals[never.key]
    assert not refusal.may_find_victims
    assert "leave" not in refusal.sentence
    assert "behind" not in refusal.details


@every_kind
def test_a_podgroup_that_can_never_run_has_no_position_and_none_is_behind_it(never: PodGroup) -> None:
    early = replace(never, created_at=0.0, priority=1000)
    last = given.group(given.pod("last", queue=never.queue, gpus=2), created_at=9.0)
    snapshot = given.snapshot(NODES, QUEUES, [early, last], topologies=RACKS)

    behind = position(snapshot, last.key)

    assert position(snapshot, never.key) is None
    assert behind is None or (behind.ahead_in_queue, behind.ahead) == (0, 0)


@every_kind
def test_a_podgroup_that_waits_for_nodes_is_unmet_demand_and_one_that_waits_for_a_limit_is_not(
    never: PodGroup,
) -> None:
    snapshot = given.snapshot(NODES, QUEUES, [never], topologies=RACKS)

    reason = plan(snapshot).refusals[never.key].reason

    waits_for_limit = never.queue != "a" or not never.preemptible
    names_no_level = never.root is not None and never.root.topology not in {None, RACK}
    expected = {Reason.POD_GROUP_IS_INVALID} if names_no_level else {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT}
    assert reason in ({Reason.OVER_LIMIT, Reason.NON_PREEMPTIBLE_OVER_QUOTA} if waits_for_limit else expected)


def test_the_part_of_an_elastic_podgroup_that_can_run_runs_and_the_rest_is_told_why_not() -> None:
    mixed = given.group(given.pod("x", gpus=9, gang="e", queue="a"), *pods(2, gang="e"), min_member=2)
    snapshot = given.snapshot(NODES, QUEUES, [mixed])

    found = plan(snapshot)

    assert [len(start.placements) for start in found.starts] == [2]
    assert (
        found.refusals[mixed.key].sentence
        == "No node could hold the pod even when empty: 9 GPUs requested, the largest node has 8."
    )
    assert fair_shares(judged(snapshot))[mixed.queue].fair_share.gpu_milli == 2000  # and nothing for the third pod


@pytest.mark.parametrize("nodes", [[*NODES, given.node("c", gpus=16)], [replace(NODES[0], labels={"zone": "nowhere"})]])
def test_a_podgroup_is_judged_again_when_nodes_or_labels_change(nodes: list[Node]) -> None:
    large, elsewhere = given.group(*pods(1, gpus=16)), given.group(*pods(1, gang="other", constraint=NOWHERE))
    before = given.snapshot(NODES, QUEUES, [large, elsewhere])
    assert not plan(before).starts

    after = given.snapshot(nodes, QUEUES, [large, elsewhere])

    assert len(plan(after).starts) == 1


def test_the_rest_of_a_gang_may_share_the_gpu_that_a_pod_of_the_gang_uses() -> None:
    first, second = (replace(pod, sharing=Sharing(portion_ppm=500_000)) for pod in pods(2, gpus=0))
    gang = given.group(second, running=[given.placed(first, "one", "gpu-0")], min_member=2)
    node = given.node("one", gpus=1, device_memory_mib=MIB)

    assert not judged(given.snapshot([node], QUEUES, [gang])).unsatisfiable


def test_a_podgroup_is_judged_again_when_a_limit_changes() -> None:
    gang = given.group(*pods(5, queue="tight"))
    before = given.snapshot(NODES, QUEUES, [gang])
    assert (
        plan(before).refusals[gang.key].sentence
        == "It needs 5 GPUs to start, and the limit of queue tight is 4 GPUs; ask for less."
    )

    queues = {**before.queues, gang.queue: given.queue("tight", deserved=2, limit=5)}

    assert started(plan(replace(before, queues=queues))) == [gang.key]


def test_the_message_gives_the_limit_and_the_use_of_the_queue() -> None:
    gang = given.group(*pods(5, queue="below-small"))

    numbers = plan(given.snapshot(NODES, QUEUES, [gang])).refusals[gang.key].queue

    assert numbers is not None
    assert (numbers.name, numbers.limit.gpu_milli, numbers.asked.gpu_milli) == ("small", 4000, 5000)


def test_like_podgroups_are_judged_once_while_the_nodes_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[Snapshot]()

    def counted(snapshot: Snapshot, strategy: Strategy) -> PlacementState:
        built.append(snapshot)
        return PlacementState(snapshot, strategy)

    monkeypatch.setattr("app.scheduling.placement.emptied.PlacementState", counted)
    groups = [given.group(*pods(17, gang=f"g{number}")) for number in range(50)]
    snapshot = given.snapshot(NODES, QUEUES, groups)

    for _ in range(3):
        assert len(judged(snapshot).unsatisfiable) == len(groups)

    assert len(built) == 1


def test_a_question_about_a_few_podgroups_forgets_nothing_about_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [given.group(*pods(17, gang=f"g{number}")) for number in range(2000)]
    snapshot = given.snapshot(NODES, QUEUES, groups)
    judged(snapshot)
    monkeypatch.setattr("app.scheduling.explain.unsatisfiable._judge", None)  # no group is judged again

    few = replace(snapshot, groups={group.key: group for group in groups[:2]})

    assert len(judged(few).unsatisfiable) == 2
    assert len(judged(snapshot).unsatisfiable) == len(groups)


sizes = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=3)


@settings(max_examples=200)
@for_all(sizes, st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_a_podgroup_reported_as_too_large_has_no_place_in_any_packing(
    asked: list[tuple[int, int]], gpus: list[int]
) -> None:
    members = pods_of([size for size, count in asked for _ in range(count)])
    snapshot = given.snapshot([given.node(f"n{index}", gpus=each) for index, each in enumerate(gpus)], QUEUES, [])

    most = most_together(members, Emptied(snapshot).board)

    assert most >= best_packing([pod.request.gpu_milli // 1000 for pod in members], tuple(sorted(gpus)))


@settings(max_examples=150)
@for_all(worlds)
def test_a_podgroup_reported_as_never_able_to_run_has_no_place_after_all_other_pods_are_gone(cluster: World) -> None:
    for key in judged(cluster.snapshot()).unsatisfiable:
        (group,) = (each for each in cluster.groups if each.key == key)
        alone = replace(cluster, groups=(group,), leaving=()).snapshot()
        state, chunk = WhatIf(alone, Strategy()), next_chunk(group)

        over = state.check(group, chunk)

        assert over is not None or state.start(group, chunk, timing=Timing.NOW_OR_LATER) is None


def pods_of(sizes: list[int]) -> list[Pod]:
    return [given.pod(f"p{index}", gpus=size) for index, size in enumerate(sizes)]


def best_packing(pods: list[int], room: tuple[int, ...]) -> int:
    """Return the largest number of pods that fit, by trying all; it is never better to leave out a smaller one."""
    reachable = {room}
    for count, size in enumerate(sorted(pods)):
        reachable = {
            tuple(sorted((*left[:index], left[index] - size, *left[index + 1 :])))
            for left in reachable
            for index, free in enumerate(left)
            if free >= size
        }
        if not reachable:
            return count
    return len(pods)


def test_an_empty_cluster_holds_no_podgroup_and_requests_nodes() -> None:
    group = given.group(*pods(1))

    found = plan(given.snapshot([], QUEUES, [group])).refusals[group.key]

    assert found.reason is Reason.NO_NODE_FITS
    assert "the cluster has no nodes" in found.sentence
    assert NodeTable.of(()).allocatable.size == 0


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (8, 4, 4), (5, 3, 5, 3), (2, 3, 3, 8), (1, 7, 8)])
def test_sub_groups_that_each_fit_in_a_rack_are_not_refused(sizes: tuple[int, ...]) -> None:
    sets = [(f"s{number}", size) for number, size in enumerate(sizes)]
    members = [pod for name, size in sets for pod in pods(size, name=name, subgroup=name)]
    group = tree(given.group(*members), *(PodSet(name=name, min_member=size, topology=RACK) for name, size in sets))

    assert judged(given.snapshot(NODES, QUEUES, [group], topologies=RACKS)).groups[group.key].refusal is None


def residents(cpu: int) -> NDArray[np.int64]:
    """Return that pods which belong to their nodes hold this number of cores of each of two."""
    found = np.zeros((len(AXES), 2), dtype=np.int64)
    found[CPU] = cpu * 1000
    return found


SUBTRACTED = "; DaemonSet pods and static pods stay on their nodes, so what they request is not free."


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        (
            given.group(*pods(1, cpu=64)),
            f"No node could hold the pod even when empty: 64 cores requested, the largest node has 60{SUBTRACTED}",
        ),
        (
            given.group(*pods(4, cpu=32)),
            f"Even empty, all nodes together hold at most 2 of 4 pods that start together{SUBTRACTED}",
        ),
        (
            given.group(*pods(1, cpu=65)),
            "No node could hold the pod even when empty: 65 cores requested, the largest node has 60.",
        ),
    ],
    ids=["pod", "gang", "too large anyhow"],
)
def test_resources_of_pods_that_belong_to_their_nodes_are_not_counted_as_available(
    group: PodGroup, sentence: str
) -> None:
    snapshot = given.snapshot(NODES, QUEUES, [group])

    found = judged(replace(snapshot, residents=residents(4)))

    said = found.groups[group.key].refusal
    assert said is not None
    assert said.sentence == sentence


def test_a_podgroup_is_judged_again_when_a_daemon_set_is_removed_from_the_nodes() -> None:
    group = given.group(*pods(1, cpu=64))
    snapshot = given.snapshot(NODES, QUEUES, [group])

    found = [bool(judged(replace(snapshot, residents=residents(cpu))).unsatisfiable) for cpu in (4, 0)]
    found.append(bool(judged(snapshot).unsatisfiable))

    assert found == [True, False, False]


def test_no_room_is_kept_for_a_gang_that_needs_the_resources_of_daemon_sets() -> None:
    held = given.placed(given.pod("never-there", gang="never", queue="a", cpu=64), "a")
    torn = given.group(*pods(1, cpu=64), running=[held], min_member=2, torn_since=0.0)
    snapshot = given.snapshot(NODES, QUEUES, [torn])

    with_room, without = plan(snapshot), plan(replace(snapshot, residents=residents(4)))

    assert (len(with_room.starts), without.kept_for, without.starts) == (1, frozenset(), ())
    assert torn.key in without.refusals
