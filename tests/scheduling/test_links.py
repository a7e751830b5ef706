"""Room released on other nodes: the bound on slots is never below the real number."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.model.podgroup import PodGroup
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import Mask, Snapshot
from app.scheduling.placement.links import MANY, MOST_NODES, Links
from app.scheduling.placement.rows import Rows
from app.scheduling.placement.slots import SIZES
from app.scheduling.policy import DEFAULT_POLICY
from app.scheduling.preemption.whatif import WhatIf
from tests import given

NODES = 4


def cluster(*gangs: list[tuple[int, int]], nodes: int = NODES) -> Snapshot:
    """Build gangs whose pods are pairs of a node and a number of GPUs."""
    groups = [_gang(f"g{number}", pods) for number, pods in enumerate(gangs)]
    return given.snapshot([given.node(f"n{each}", gpus=64) for each in range(nodes)], [given.queue("q")], groups)


def _gang(name: str, pods: list[tuple[int, int]]) -> PodGroup:
    placed = [
        given.placed(given.pod(f"{name}-{index}", gang=name, gpus=gpus), f"n{node}")
        for index, (node, gpus) in enumerate(pods)
    ]
    return given.group(running=placed, min_member=len(placed))


def _rows(made: Snapshot) -> Rows:
    return WhatIf(made, DEFAULT_POLICY.strategy).evictable.rows


def gained(made: Snapshot, free: list[int], lost: list[bool], changed: Sequence[int] = ()) -> Amounts:
    """Return the bound for all PodGroups, some of which may be evicted; the changed ones were on other nodes before."""
    rows, groups = _rows(made), len(made.running)
    mask = np.zeros(groups, dtype=np.bool_)
    mask[list(changed)] = True
    before, after = (replace(rows, node=np.where(mask[rows.group], there, rows.node)) for there in (0, rows.node))
    links = Links(before, groups, len(free))
    links.change(mask, Rows(**{each.name: _of(after, each.name, mask) for each in fields(Rows)}))
    every = np.ones(groups, dtype=np.bool_)
    return links.gained(np.array(lost, dtype=np.bool_), every, np.array(free) * GPU_MILLI)


def test_a_terminating_pod_beside_a_free_gpu_makes_a_slot_for_two_gpus() -> None:
    made = cluster([(0, 2), (1, 1)])

    assert gained(made, [0, 1, 0, 0], [False])[:, 0].tolist()[:3] == [0, 1, 0]


def test_an_evicted_pod_makes_slots_that_it_does_not_take_again() -> None:
    made = cluster([(0, 2), (1, 4)])

    assert gained(made, [0, 0, 0, 0], [True])[:, 0].tolist()[:4] == [4, 2, 1, 1]


def test_links_are_not_computed_for_a_podgroup_on_many_nodes() -> None:
    nodes = MOST_NODES + 1
    made = cluster([(node, 1) for node in range(nodes)], nodes=nodes)

    assert (gained(made, [0] * nodes, [False]) == MANY).all()


def test_the_room_that_a_moved_podgroup_releases_on_other_nodes_is_counted() -> None:
    before, after = (cluster([(0, 2), (there, 3)]) for there in (1, 2))
    links = Links(_rows(before), 1, NODES)
    links.change(np.ones(1, dtype=np.bool_), _rows(after))
    lost, nobody = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.bool_)

    assert (links.freed(lost) // GPU_MILLI).tolist() == [3, 0, 2, 0]
    assert links.freed(nobody).tolist() == [0] * NODES
    assert links.gained(lost, lost, np.zeros(NODES, dtype=np.int64))[0].tolist() == [3, 0, 2, 0]


def _of(rows: Rows, name: str, groups: Mask) -> Any:
    column = getattr(rows, name)
    return column[groups[rows.group]] if len(column) == len(rows.group) else column


pods = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(1, 8)), min_size=1, max_size=4)


@for_all(
    st.lists(st.tuples(pods, st.booleans(), st.booleans(), st.booleans()), max_size=4),
    st.lists(st.integers(0, 8), min_size=4),
)
def test_no_more_slots_become_free_than_the_bound(
    asked: list[tuple[list[tuple[int, int]], bool, bool, bool]], free: list[int]
) -> None:
    free, gangs = free[:NODES], [each[:3] for each in asked]
    changed = [number for number, (*_, has_changed) in enumerate(asked) if has_changed]
    bound = gained(cluster(*(each for each, _, _ in gangs)), free, [lost for _, lost, _ in gangs], changed)
    leaving = [(each, lost) for each, lost, leaves in gangs if leaves and any(node == 0 for node, _ in each)]

    for index, size in enumerate(SIZES):
        freed = [sum(gpus for each, _ in leaving for node, gpus in each if node == there) for there in range(NODES)]
        slots = sum((free[there] + freed[there]) // size - free[there] // size for there in range(1, NODES))
        taken = sum(gpus // size for each, lost in leaving if not lost for node, gpus in each if node != 0)
        assert slots - taken <= bound[index, 0]
