"""Which running pods move so that a pending pod finds room: those that lose the least work, and no others."""

from dataclasses import replace

import pytest

from app.model.decision import Action, Plan
from app.model.names import NodeName
from app.model.node import Node
from app.model.pod import Constraint, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.snapshot import PART, SharedDevice
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.scheduling.preemption import moves
from app.scheduling.preemption.victims import VictimBatch, VictimCandidates
from tests import given

PATIENT = Policy(actions=(Action.ALLOCATE, Action.CONSOLIDATE), patience_s=300.0)
QUEUES = [given.queue("q", deserved=1000)]
NOW = 10_000.0
MIB = 10_000


def runs(name: str, on: str, *, ran_s: float = 0.0, gpus: int = 1, cpu: int = 1) -> PodGroup:
    held = given.placed(given.pod(name, gpus=gpus, cpu=cpu), on)
    return replace(given.group(running=[held]), started_at=NOW - 100 - ran_s)


def waits(name: str, *, gpus: int = 1, cpu: int = 1, pods: int = 1) -> PodGroup:
    gang = [given.pod(f"{name}{index}", gang=name, gpus=gpus, cpu=cpu) for index in range(pods)]
    return given.group(*gang, min_member=pods, created_at=NOW)


def planned(nodes: list[Node], *groups: PodGroup, waited_s: float = 1e6) -> Plan:
    made = given.snapshot(nodes, QUEUES, groups)
    first = plan(made, replace(PATIENT, actions=(Action.ALLOCATE,)), now=NOW)
    pending = {group.key: (NOW - waited_s, False) for group in groups if group.pending}
    return plan(made, PATIENT, now=NOW, memory=replace(first.memory, waiting_since=pending))


def moved(found: Plan) -> dict[str, str | None]:
    return {each.pod.removeprefix("uid-"): each.moves_to for each in found.evictions}


def started(found: Plan) -> set[str]:
    return {one.node for start in found.starts for one in start.placements}


def test_the_pod_moves_that_has_worked_for_the_shortest_time_whatever_its_node() -> None:
    nodes = [given.node(name, gpus=2) for name in ("n0", "n1", "n2")]
    held = [runs(name, on, ran_s=s) for name, on, s in (("a", "n0", 500.0), ("b", "n1", 20.0), ("c", "n2", 900.0))]

    found = planned(nodes, *held, waits("w", gpus=2))

    assert (moved(found), started(found)) == ({"b": "n0"}, {"n1"})


def test_one_large_young_pod_moves_rather_than_two_small_old_ones() -> None:
    nodes = [given.node("n0", gpus=4), given.node("n1", gpus=4), given.node("n2", gpus=4)]
    old = [runs(f"old{index}", "n0", ran_s=5000.0) for index in range(2)]
    held = [*old, runs("young", "n1", gpus=2), *(runs(f"c{index}", "n2", ran_s=9000.0) for index in range(2))]

    found = planned(nodes, *held, waits("w", gpus=4))

    assert (set(moved(found)), started(found)) == ({"young"}, {"n1"})


def test_a_pod_without_gpus_moves_where_only_cpu_is_missing() -> None:
    nodes = [given.node("n0", gpus=2, cpu=8), given.node("n1", gpus=0, cpu=8)]
    held = [runs("gpu", "n0", cpu=1), runs("cpu", "n0", gpus=0, cpu=6, ran_s=9000.0)]

    found = planned(nodes, *held, waits("w", cpu=4))

    assert (moved(found), started(found)) == ({"cpu": "n1"}, {"n0"})


def test_a_pod_stays_that_turns_out_not_to_be_needed() -> None:
    # By what they free for their price, "few" comes first; then "many" is chosen, and it suffices alone.
    nodes = [given.node("n0", gpus=4), given.node("n1", gpus=4)]
    held = [runs("few", "n0", gpus=1), runs("many", "n0", gpus=2, ran_s=20.0)]
    held += [runs("full", "n1", gpus=2, ran_s=9000.0)]

    found = planned(nodes, *held, waits("w", gpus=3))

    assert (set(moved(found)), started(found)) == ({"many"}, {"n0"})


def _part(name: str, ppm: int) -> Pod:
    return given.pod(name, gpus=0, sharing=Sharing(portion_ppm=ppm))


def test_a_shared_gpu_becomes_whole_where_its_last_small_part_fits_elsewhere() -> None:
    nodes = [replace(given.node(name, gpus=1), device_memory_mib=MIB, shares_devices=True) for name in ("n0", "n1")]
    held = [given.group(running=[given.placed(_part("large", 600_000), "n0", "g")])]
    held += [given.group(running=[given.placed(_part("small", 300_000), "n1", "g")])]
    free = {name: [SharedDevice("g", MIB * PART * left // 10)] for name, left in (("n0", 4), ("n1", 7))}
    made = given.snapshot(nodes, QUEUES, [*held, waits("w")], shared=free)
    empty = made.free.copy()
    empty[2] = 0

    found = plan(replace(made, free=empty), replace(PATIENT, patience_s=1.0), now=NOW)
    later = plan(replace(made, free=empty), replace(PATIENT, patience_s=1.0), now=NOW + 1000, memory=found.memory)

    assert (moved(later), started(later)) == ({"small": "n0"}, {"n1"})


def test_a_gang_gets_the_moves_of_several_nodes_together_or_none() -> None:
    nodes = [given.node(f"n{index}", gpus=4) for index in range(6)]
    held = [runs(f"p{index}", f"n{index}", ran_s=100.0 * index) for index in range(4)]
    held += [runs(f"q{index}", f"n{index}", gpus=2, ran_s=9000.0) for index in (4, 5)]

    found = planned(nodes, *held, waits("w", gpus=4, pods=3))

    assert (len(moved(found)), len(started(found))) == (3, 3)
    assert planned(nodes, *held, waits("w", gpus=4, pods=5)).evictions == ()


def test_no_pod_moves_where_its_work_is_more_than_the_group_has_waited_for() -> None:
    nodes = [given.node(name, gpus=2) for name in ("n0", "n1")]
    held = [runs("a", "n0", ran_s=900.0), runs("b", "n1", ran_s=900.0)]

    assert planned(nodes, *held, waits("w", gpus=2), waited_s=400.0).evictions == ()
    assert len(planned(nodes, *held, waits("w", gpus=2), waited_s=600.0).evictions) == 1


@pytest.mark.parametrize("nodes", [100, 2000])
def test_the_work_of_a_search_in_vain_does_not_grow_with_the_cluster(nodes: int) -> None:
    # On each node one GPU is free and one pod could move, but a pod of two GPUs finds no other node.
    here = [given.node(f"n{index:04}", gpus=3) for index in range(nodes)]
    held = [runs(f"p{index}", one.name, gpus=2) for index, one in enumerate(here)]

    found = planned(here, *held, waits("w", gpus=3))

    assert (found.starts, found.evictions) == ((), ())
    assert found.whatifs <= 2 * moves.MOST_TRIALS
    assert not found.unfinished


def test_many_tiny_pods_move_together() -> None:
    nodes = [given.node("n0", gpus=1, cpu=100), given.node("n1", gpus=0, cpu=100)]
    tiny = [runs(f"t{index}", "n0", gpus=0, cpu=1) for index in range(12)]
    held = [*tiny, runs("fixed", "n0", gpus=0, cpu=88, ran_s=1e5)]

    found = planned(nodes, *held, waits("w", cpu=12), waited_s=5000.0)

    assert (set(moved(found)), started(found)) == ({f"t{index}" for index in range(12)}, {"n0"})


def test_a_running_pod_with_a_resource_that_no_node_has_any_more_does_not_end_the_plan() -> None:
    nodes = [given.node(name, gpus=2) for name in ("n0", "n1")]
    odd = replace(given.pod("odd", scalars=(("example.com/gone", 1),)), group=given.pod("a", gang="a").group)
    pair = given.group(running=[given.placed(given.pod("a", gang="a"), "n0"), given.placed(odd, "n0")], min_member=2)
    held = [replace(pair, started_at=NOW - 100), runs("b", "n1", ran_s=500.0)]

    found = planned(nodes, *held, waits("w", gpus=2))

    assert found.refusals


def stays(group: PodGroup) -> PodGroup:
    return replace(group, preemptible=False)


def test_all_pods_of_an_elastic_group_on_one_node_move_together() -> None:
    nodes = [given.node("n0", gpus=4), given.node("n1", gpus=4)]
    pods = [given.placed(given.pod(f"e{index}", gang="e"), "n0") for index in range(2)]
    elastic = replace(given.group(running=pods, min_member=1), started_at=NOW - 100)

    found = planned(nodes, elastic, stays(runs("full", "n1", gpus=2)), waits("w", gpus=4))

    assert (moved(found), started(found)) == ({"e0": "n1", "e1": "n1"}, {"n0"})


def test_a_pod_of_an_elastic_group_moves_although_another_one_would_be_evicted_first() -> None:
    nodes = [given.node("n0", gpus=2, cpu=64), given.node("n1", gpus=2, cpu=8), given.node("n2", gpus=2, cpu=8)]
    pods = [given.placed(given.pod("a", gang="e"), "n0"), given.placed(given.pod("z", gang="e"), "n1")]
    elastic = replace(given.group(running=pods, min_member=1), started_at=NOW - 100)

    found = planned(nodes, elastic, stays(runs("full", "n2")), waits("w", gpus=2, cpu=40))

    assert started(found) == {"n0"}


def behind_others(*nearer: PodGroup) -> tuple[list[Node], list[PodGroup]]:
    """Build a node for each nearer group, and two more nodes: one where a pod can move, and one with room for it."""
    nodes = [given.node(f"n{index:03}", gpus=4, labels={"at": f"n{index:03}"}) for index in range(len(nearer))]
    nodes += [given.node("old", gpus=4), given.node("room", gpus=4)]
    return nodes, [*nearer, runs("o", "old", gpus=2, ran_s=500.0), stays(runs("f", "room", gpus=2))]


def test_a_pod_moves_rather_than_one_that_a_disruption_budget_protects_on_a_nearer_node() -> None:
    guarded = [runs(f"g{index}", f"n{index:03}") for index in range(moves.MOST_NODES)]
    nodes, held = behind_others(*guarded)
    made = given.snapshot(nodes, QUEUES, [*held, waits("w", gpus=4)], guarded=frozenset(one.key for one in guarded))

    found = plan(made, replace(PATIENT, patience_s=1.0), now=NOW)
    found = plan(made, replace(PATIENT, patience_s=1.0), now=NOW + 1000, memory=found.memory)

    assert set(moved(found)) == {"o"}


def test_pods_that_fit_nowhere_else_do_not_hide_one_that_does() -> None:
    pinned = []
    for index in range(20):
        here = Constraint(node_selector=(("at", f"n{index:03}"),))
        one = given.placed(given.pod(f"p{index}", gpus=2, constraint=here), f"n{index:03}")
        pinned.append(replace(given.group(running=[one]), started_at=NOW - 100))
    nodes, held = behind_others(*pinned)

    assert set(moved(planned(nodes, *held, waits("w", gpus=4)))) == {"o"}


def test_for_a_pod_without_gpus_the_lost_work_of_pods_without_gpus_counts() -> None:
    nodes = [given.node(name, gpus=0, cpu=cpu) for name, cpu in (("n0", 8), ("n1", 8), ("n2", 12))]
    held = [runs("old", "n0", gpus=0, cpu=4, ran_s=9e5), runs("young", "n1", gpus=0, cpu=5)]

    found = planned(nodes, *held, stays(runs("f", "n2", gpus=0, cpu=7)), waits("w", gpus=0, cpu=8))

    assert set(moved(found)) == {"young"}


def test_as_many_gpus_become_free_as_an_overcommitted_node_lacks() -> None:
    nodes = [given.node("n0", gpus=4, cpu=64), given.node("n1", gpus=8, cpu=14)]
    held = [runs(f"p{index}", "n0", ran_s=float(index)) for index in range(6)]

    found = planned(nodes, *held, stays(runs("f", "n1", gpus=4)), waits("w", cpu=40))

    assert (len(moved(found)), started(found)) == (3, {"n0"})


@pytest.mark.parametrize(("pods", "looks"), [(100, moves.MOST_NODES), (5000, 6)])
def test_a_search_looks_at_fewer_nodes_the_more_pods_a_group_has(
    pods: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [given.node(f"n{index:04}", gpus=8) for index in range(pods)]
    spread = [given.placed(given.pod(f"e{index}", gang="e"), one.name) for index, one in enumerate(nodes)]
    elastic = replace(given.group(running=spread, min_member=1), started_at=NOW - 100)
    made = given.snapshot(nodes, QUEUES, [elastic, waits("w", gpus=8)])
    seen, original = list[str](), VictimCandidates.chunks_on

    def chunks_on(roster: VictimCandidates, group: PodGroup, node: NodeName) -> list[VictimBatch]:
        seen.append(node)
        return original(roster, group, node)

    monkeypatch.setattr(VictimCandidates, "chunks_on", chunks_on)
    plan(made, replace(PATIENT, patience_s=0.0, most_whatifs=300), now=NOW)

    assert 0 < len(seen) <= looks
