"""Costs that are kept from snapshot to snapshot equal those worked out from nothing; only changed nodes are judged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.model.names import NodeName
from app.model.pod import Pod, Sharing
from app.model.resources import CPU, GPU, Amounts
from app.model.snapshot import PART, NodeTable, SharedDevice, Snapshot
from app.scheduling.placement import packing
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.kept_costs import MOST_KEPT
from app.scheduling.placement.packing import PackingCosts
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState
from tests import given

MIB, NODES = 1000, 4
MIG = "nvidia.com/mig-1g.10gb"
PODS = [
    given.pod("cpu", gpus=0, cpu=8),
    given.pod("whole", gpus=2, cpu=8),
    given.pod("half", gpus=0, sharing=Sharing(portion_ppm=500_000)),
    given.pod("parts", gpus=0, sharing=Sharing(portion_ppm=300_000, devices=2)),
    given.pod("slice", gpus=0, scalars=((MIG, 1),)),
]
MIXES = [given.mix(PODS), given.mix(PODS[1:2])]

parts = st.integers(0, MIB).map(lambda mib: mib * PART)
devices = st.lists(st.tuples(parts, parts), max_size=3)
steps = st.lists(
    st.tuples(
        st.sampled_from(range(NODES)),
        st.tuples(st.integers(-1, 8), st.integers(-1, 8), st.integers(-1, 7)),
        st.none() | devices,
        st.sampled_from([0, 0, 0, 1]),
        st.lists(st.sampled_from(PODS), min_size=1, max_size=3),
    ),
    min_size=3,
    max_size=8,
)


def table() -> NodeTable:
    nodes = [given.node(f"n{number}", device_memory_mib=MIB, scalars=((MIG, 7),)) for number in range(NODES)]
    return NodeTable.of(nodes)


def empty(nodes: NodeTable) -> Snapshot:
    slices = {MIG: np.full(NODES, 7, dtype=np.int64)}
    return replace(given.snapshot(nodes.nodes, [], []), nodes=nodes, scalars=slices, mix=MIXES[0])


def changed(before: Snapshot, column: int, cpu: int, gpus: int, slices: int = 7) -> Snapshot:
    """Return the next snapshot, with other amounts on one node. A snapshot never changes in place."""
    free, counts = before.free.copy(), before.scalars[MIG].copy()
    free[CPU, column], free[GPU, column], counts[column] = 8000 * cpu, 1000 * gpus, slices
    return replace(before, free=free, scalars={MIG: counts})


def sharing(before: Snapshot, column: int, told: list[tuple[int, int]]) -> Snapshot:
    """Return the next snapshot, with other shared GPUs on one node."""
    each = [SharedDevice(f"d{at}", free, min(leaving, MIB * PART - free)) for at, (free, leaving) in enumerate(told)]
    return replace(before, shared={**before.shared, NodeName(f"n{column}"): tuple(each)})


@pytest.mark.parametrize("most_alone", [0, NODES])
@for_all(steps)
def test_kept_costs_equal_those_worked_out_from_nothing(
    most_alone: int,
    steps: list[tuple[int, tuple[int, int, int], list[tuple[int, int]] | None, int, list[Pod]]],
) -> None:
    made = empty(table())
    for column, amounts, told, mix, pods in steps:
        made = replace(changed(made, column, *amounts), mix=MIXES[mix])
        made = made if told is None else sharing(made, column, told)
        kept, new = (PlacementState(each, Strategy()) for each in (made, replace(made, nodes=table())))
        for pod in pods:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(packing, "MOST_ALONE", most_alone)
                assert kept.costs(pod).tolist() == new.costs(pod).tolist()
            assert kept.place([pod]) == new.place([pod])


def judged(monkeypatch: pytest.MonkeyPatch) -> list[list[int] | None]:
    """Record which nodes are judged; `None` for all nodes."""
    found, everywhere, among = list[list[int] | None](), PackingCosts._everywhere, PackingCosts._among

    def note_all(costs: PackingCosts, *asked: Any) -> Amounts:
        found.append(None)
        return everywhere(costs, *asked)

    def note(costs: PackingCosts, columns: NDArray[np.int64], *asked: Any) -> Amounts | Sequence[int]:
        found.append(columns.tolist())
        return among(costs, columns, *asked)

    monkeypatch.setattr(PackingCosts, "_everywhere", note_all)
    monkeypatch.setattr(PackingCosts, "_among", note)
    return found


def test_only_nodes_that_have_changed_since_the_last_snapshot_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made, pod = judged(monkeypatch), empty(table()), PODS[2]
    changes: list[tuple[Callable[[Snapshot], Snapshot], list[list[int] | None]]] = [
        (lambda made: made, [None]),
        (lambda made: changed(made, 1, cpu=3, gpus=5), [[1]]),
        (lambda made: replace(made, version=2), []),
        (lambda made: sharing(made, 3, [(500 * PART, 0)]), [[3]]),
        (lambda made: sharing(changed(made, 0, cpu=3, gpus=5), 3, [(200 * PART, 0)]), [[0, 3]]),
        (lambda made: sharing(made, 2, [(500 * PART, 0), (500 * PART, 0)]), [[2]]),
        (lambda made: sharing(made, 3, []), [[3]]),
        (lambda made: replace(made, shared={}), [[2]]),
        (lambda made: replace(made, free=made.free - 1000), [None]),
        (lambda made: replace(made, mix=MIXES[1]), [None]),
    ]

    for change, expected in changes:
        made = change(made)
        PlacementState(made, Strategy()).costs(pod)
        assert found == expected
        found.clear()


def test_costs_include_the_changes_between_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    found, first = judged(monkeypatch), empty(table())
    second = changed(first, 1, cpu=3, gpus=5)
    third = changed(second, 2, cpu=3, gpus=5)

    for made, pod in ((first, PODS[0]), (first, PODS[1]), (second, PODS[0]), (third, PODS[1]), (second, PODS[1])):
        PlacementState(made, Strategy()).costs(pod)

    assert found == [None, None, [1], [1, 2], [2]]


def test_the_kinds_of_pods_asked_about_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = judged(monkeypatch), empty(table())
    pods = [given.pod(f"p{cpu}", cpu=cpu) for cpu in range(MOST_KEPT + 1)]

    for pod in (*pods[:-1], pods[0], pods[-1], pods[0], pods[1]):
        PlacementState(made, Strategy()).costs(pod)

    assert found == [None] * (MOST_KEPT + 2)


def test_what_a_plan_has_taken_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found, made, pod = judged(monkeypatch), empty(table()), PODS[1]
    state = PlacementState(made, Strategy())
    before = state.costs(pod)
    state.stock.take(Assignment(pod, 2, (), later=False))

    assert state.costs(pod).tolist() != before.tolist()
    assert PlacementState(made, Strategy()).costs(pod).tolist() == before.tolist()
    assert found == [None, None]


def test_callers_may_write_to_the_costs() -> None:
    made, pod = empty(table()), PODS[1]
    before = PlacementState(made, Strategy()).costs(pod).tolist()

    for _ in range(2):
        PlacementState(made, Strategy()).costs(pod)[:] = 7

    assert PlacementState(made, Strategy()).costs(pod).tolist() == before
