"""Placing a gang: every sub-group inside its topology domain, all pods or none."""

from dataclasses import replace

import pytest

from app.model.node import Node
from app.model.pod import Near, Pod
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import Reason
from app.model.topology import Topology
from app.scheduling.placement import gang
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Timing
from tests import given

IN_A_RACK = TopologyConstraint("t", required="rack")
TOPOLOGIES = {"t": Topology(name="t", levels=("zone", "rack"))}


def node(name: str, rack: str, gpus: int = 2) -> Node:
    return given.node(name, gpus=gpus, labels={"zone": "z", "rack": rack})


def board(*nodes: Node) -> PlacementState:
    return PlacementState(given.snapshot(nodes, [], [], topologies=TOPOLOGIES), Strategy())


def pods(name: str, count: int, gpus: int = 2) -> list[Pod]:
    return [replace(given.pod(f"{name}{index}", gang="g", gpus=gpus), subgroup=name) for index in range(count)]


def group(*wanted: Pod, root: SubGroup | None) -> PodGroup:
    return given.group(*wanted, root=root)


def seats(on: PlacementState, wanted: PodGroup) -> dict[str, str] | None:
    found = gang.place(on, wanted, wanted.pending, timing=Timing.NOW_OR_LATER)
    return None if found is None else {seat.pod.name: on.snapshot.nodes.nodes[seat.column].name for seat in found}


def test_a_gang_with_a_required_rack_is_placed_in_one_rack() -> None:
    root = SubGroup(topology=IN_A_RACK, pod_sets=(PodSet(name="w", min_member=2),))
    on = board(node("a", "r0", gpus=3), node("b", "r1"), node("c", "r1"))

    assert seats(on, group(*pods("w", 2), root=root)) == {"w0": "b", "w1": "c"}


def test_a_gang_that_fits_in_no_rack_takes_nothing() -> None:
    root = SubGroup(topology=IN_A_RACK, pod_sets=(PodSet(name="w", min_member=2),))
    on = board(node("a", "r0"), node("b", "r1"))
    before = on.stock.free.copy()

    assert seats(on, group(*pods("w", 2), root=root)) is None
    assert (on.stock.free == before).all()


def test_each_pod_set_gets_its_own_rack() -> None:
    sets = (PodSet(name="v", min_member=2, topology=IN_A_RACK), PodSet(name="w", min_member=2, topology=IN_A_RACK))
    on = board(node("a", "r0"), node("b", "r0"), node("c", "r1"), node("d", "r1"))

    found = seats(on, group(*pods("v", 2), *pods("w", 2), root=SubGroup(pod_sets=sets)))

    assert found == {"v0": "a", "v1": "b", "w0": "c", "w1": "d"}


def test_pods_that_are_hard_to_place_are_placed_first_when_their_own_order_fails() -> None:
    on = board(node("a", "r0", gpus=2), node("b", "r0", gpus=1))
    wanted = group(*pods("s", 1, gpus=1), *pods("l", 1, gpus=2), root=None)

    assert seats(on, wanted) == {"s0": "b", "l0": "a"}


def test_the_refusal_names_the_topology_level_at_which_no_domain_is_large_enough() -> None:
    root = SubGroup(topology=IN_A_RACK, pod_sets=(PodSet(name="w", min_member=2),))
    wanted = group(*pods("w", 2), root=root)

    found = gang.refusal(board(node("a", "r0"), node("b", "r1")), wanted, wanted.pending)

    assert found is not None
    assert (found.reason, found.details["level"]) == (Reason.GANG_DOES_NOT_FIT, "rack")


def test_a_pod_set_with_all_its_pods_is_not_named_as_the_cause() -> None:
    sets = (PodSet(name="v", min_member=1, topology=IN_A_RACK), PodSet(name="w", min_member=1))
    wanted = group(*pods("w", 1), root=SubGroup(pod_sets=sets))

    assert gang.refusal(board(node("a", "r0")), wanted, wanted.pending) is None


@pytest.mark.parametrize(("running", "whole"), [((), False), (("v",), False), (("v", "w"), True)])
def test_a_podgroup_is_complete_when_every_pod_set_has_its_minimum(running: tuple[str, ...], whole: bool) -> None:  # noqa: FBT001 # what is asserted
    root = SubGroup(pod_sets=(PodSet(name="v"), PodSet(name="w")))
    held = [given.placed(pod, "a") for name in running for pod in pods(name, 1)]

    assert gang.is_whole(given.group(*pods("w", 1), running=held, root=root)) is whole


APART = (Near((("app", "web"),), "zone", apart=True),)
NEAR_HOSTS = TopologyConstraint("t", preferred="rack")


def nested(levels: int) -> PodGroup:
    """Two pods that must be in different zones, in nested sub-groups that prefer one rack."""
    wanted = [replace(each, near=APART, labels={"app": "web"}) for each in pods("w", 2, gpus=1)]
    branch = SubGroup(topology=NEAR_HOSTS, pod_sets=(PodSet(name="w", min_member=2, topology=NEAR_HOSTS),))
    for level in range(levels - 1):
        branch = SubGroup(name=f"s{level}", topology=NEAR_HOSTS, groups=(branch,))
    return group(*wanted, root=branch)


@pytest.fixture(name="copies")
def _copies(monkeypatch: pytest.MonkeyPatch) -> list[PlacementState]:
    """Return the placement states that were copied: one for each domain that is tried, and each set of pods."""
    made, copy = list[PlacementState](), PlacementState.copy

    def counted(board: PlacementState) -> PlacementState:
        made.append(board)
        return copy(board)

    monkeypatch.setattr(PlacementState, "copy", counted)
    return made


def trials(levels: int, copies: list[PlacementState]) -> int:
    copies.clear()
    assert seats(board(*(node(f"n{number}", f"r{number // 2}") for number in range(4))), nested(levels)) is None
    return len(copies)


def test_nested_sub_groups_are_not_tried_in_every_combination(copies: list[PlacementState]) -> None:
    assert trials(16, copies) <= 4 * trials(4, copies)


def test_an_attempt_ends_whatever_the_number_of_domains(
    copies: list[PlacementState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "MOST_TRIALS", 10 * gang.IN_VAIN)

    assert seats(board(*(node(f"n{number}", f"r{number}") for number in range(50))), nested(8)) is None
    assert len(copies) <= 2 * 10


def test_a_gang_with_a_long_failed_attempt_gets_shorter_attempts_in_the_same_plan(
    copies: list[PlacementState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "MOST_TRIALS", 10 * gang.IN_VAIN)
    monkeypatch.setattr(gang, "FEW_TRIALS", gang.IN_VAIN)
    on, wanted = board(*(node(f"n{number}", f"r{number}") for number in range(50))), nested(8)
    assert seats(on, wanted) is None
    copies.clear()

    assert seats(on.copy(), wanted) is None
    # Of this state, of one domain at each of the eight levels, and for the two pods.
    assert len(copies) <= 1 + 8 + 2
