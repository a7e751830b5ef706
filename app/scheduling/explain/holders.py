"""Finds the running PodGroups that hold the room a pending PodGroup needs, and whether it fits without them.

The result serves explanations only: `search` decides which pods are evicted. Pods of other schedulers, unhealthy
devices and places that are kept for other PodGroups always count as taken.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from app.model.dra import ClaimKey
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import AXES, GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask, Snapshot
from app.scheduling.placement import domains, gang
from app.scheduling.placement.emptied import most_together, room
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState
from app.scheduling.preemption.whatif import WhatIf
from app.settings import Packing


@dataclass(frozen=True, slots=True)
class HolderKind:
    """Running PodGroups of one queue and one priority that hold some of the room."""

    queue: QueueName
    priority: int
    preemptible: bool
    started_at: float
    """When the youngest of these PodGroups started, in seconds since the epoch."""


class Holders:
    """The pods that hold places in a plan, with remembered answers.

    The plan must not change while this object is used.
    """

    def __init__(self, state: WhatIf) -> None:
        """Read all running pods."""
        self._state = state
        groups = [state.as_it_is(group) for group in state.snapshot.running.values()]
        kinds: dict[tuple[QueueName, int, bool], int] = {}
        self._kind = np.array([kinds.setdefault(_like(group), len(kinds)) for group in groups], dtype=np.int64)
        self._kinds = list(kinds)
        self._started = np.array([_started(group) for group in groups], dtype=np.float64)
        self._pods = _Columns(state, groups)
        self._known: dict[Hashable, tuple[HolderKind, ...]] = {}

    def of(self, group: PodGroup, pods: Sequence[Pod]) -> tuple[HolderKind, ...]:
        """Return the kinds of PodGroups that hold the room for pods that start together.

        The result is empty if the pods would not fit even without all these PodGroups.
        """
        if not pods:
            return ()
        board = self._state.board
        shape = board.common_shape(pods)
        is_plain = shape is not None and group.root is None and not group.placed
        question = (shape, len(pods), board.is_closed) if is_plain else (group.key, board.is_closed)
        if question not in self._known:
            self._known[question] = tuple(self._find(group, pods))
        return self._known[question]

    def _find(self, group: PodGroup, pods: Sequence[Pod]) -> Iterator[HolderKind]:
        board = self._beside(group)
        if not _may_fit(group, pods, board):
            return
        nodes: Mask = np.logical_or.reduce([room(pod, board) for pod in board.unlike(pods)])
        groups = self._pods.on(nodes, pods, self._state.board, group.key)
        kinds = self._kind[groups]
        newest = np.full(len(self._kinds), -inf)
        np.maximum.at(newest, kinds, self._started[groups])
        for kind in np.unique(kinds).tolist():
            queue, priority, preemptible = self._kinds[kind]
            yield HolderKind(queue, priority, preemptible, float(newest[kind]))

    def _beside(self, group: PodGroup) -> PlacementState:
        """Return the nodes without the pods that this scheduler manages, except the pods of the group."""
        board, now = self._cleared.copy(), self._state.board
        board.withheld, board.is_closed = now.withheld, now.is_closed
        # Pods that start in this plan keep their places: they are not victims.
        running = self._state.snapshot.running.get(group.key)
        for one in () if running is None else self._state.as_it_is(running).placed:
            column = board.stock.column(one.node)
            if column is not None and not one.pod.deleting and board.stock.amounts(one.pod) is not None:
                board.stock.take(Assignment(one.pod, column, one.devices, later=False))
        return board

    @cached_property
    def _cleared(self) -> PlacementState:
        return PlacementState(self._pods.cleared(), Strategy(packing=Packing.BEST_FIT))


def _like(group: PodGroup) -> tuple[QueueName, int, bool]:
    return group.queue, group.priority, group.preemptible


def _started(group: PodGroup) -> float:
    return -inf if group.started_at is None else group.started_at


def _may_fit(group: PodGroup, pods: Sequence[Pod], board: PlacementState) -> bool:
    """Return whether the pods might find places together on the board; False is certain."""
    if not all(room(pod, board).any() for pod in board.unlike(pods)):
        return False
    if gang.refusal(board, group, pods) is not None or domains.refusal(board, group, pods) is not None:
        return False
    return most_together(pods, board) >= len(pods)


class _Columns:
    """Pods that hold places and are not being deleted, as columns."""

    def __init__(self, state: WhatIf, groups: Sequence[PodGroup]) -> None:
        self._state = state
        self._rows = state.board.stock.rows
        self._numbers = {group.key: number for number, group in enumerate(groups)}
        self._shared: dict[tuple[int, str], None] = {}
        self._consumers = Counter[ClaimKey]()
        node, owner, sharer, amounts = list[int](), list[int](), list[bool](), list[Sequence[int]]()
        for number, group in enumerate(groups):
            for one in group.placed:
                column = state.board.stock.column(one.node)
                if column is None or one.pod.deleting:
                    continue
                self._shared.update(dict.fromkeys((column, name) for name in one.devices))
                node.append(column)
                owner.append(number)
                sharer.append(bool(one.devices))
                amounts.append(self._amounts(one.pod))
        self._node: NDArray[np.int64] = np.array(node, dtype=np.int64)
        self._owner: NDArray[np.int64] = np.array(owner, dtype=np.int64)
        self._sharer: Mask = np.array(sharer, dtype=np.bool_)
        width = state.board.stock.future.shape[0]
        self._amounts_of: Amounts = np.array(amounts, dtype=np.int64).reshape(len(node), width)

    def _amounts(self, pod: Pod) -> Sequence[int]:
        """Return how much a pod holds of each row. The first pod of a shared claim holds all devices of the claim."""
        row = [*pod.request.amounts, *(0 for _ in self._rows)]
        for name, count in pod.scalars:
            if name in self._rows:
                row[self._rows[name]] += count
        for claim in pod.claims:
            self._consumers[claim.key] += 1
            if self._consumers[claim.key] == 1 and claim.key in self._state.snapshot.claimed:
                row[GPU] += claim.gpu_milli
                for name, count in claim.scalars:
                    if name in self._rows:
                        row[self._rows[name]] += count
        return row

    def cleared(self) -> Snapshot:
        """Return the snapshot after all releasing pods have ended and all pods of these columns are gone."""
        snapshot = self._state.snapshot
        there = self._state.board.stock.future.copy()
        for axis in range(len(there)):
            np.add.at(there[axis], self._node, self._amounts_of[:, axis])
        for column, _ in self._shared:
            there[GPU, column] += GPU_MILLI
        others = {key: at for key, at in snapshot.claimed.items() if at[1] > self._consumers[key]}
        return replace(
            snapshot,
            free=there[: len(AXES)],
            scalars={name: there[row] for name, row in self._rows.items()},
            shared=dict[NodeName, tuple[()]](),
            claimed=others,
            running={},
            releasing=None,
            releasing_scalars={},
        )

    def on(self, nodes: Mask, pods: Sequence[Pod], board: PlacementState, but: GroupKey) -> NDArray[np.int64]:
        """Return the numbers of the PodGroups, except `but`, that hold scarce resources for the pods on these nodes."""
        there = nodes[self._node] & (self._owner != self._numbers.get(but, -1))
        scarce = there & self._holds(_scarce(pods, board))
        return np.unique(self._owner[scarce if scarce.any() else there])

    def _holds(self, scarce: Mask) -> Mask:
        """Return which pods hold a scarce resource on their nodes; `scarce` has shape [resource, node]."""
        holds = self._amounts_of > 0
        holds[:, GPU] |= self._sharer
        found: Mask = np.logical_or.reduce(holds & scarce[:, self._node].T, axis=1)
        return found


def _scarce(pods: Sequence[Pod], board: PlacementState) -> Mask:
    """Return for each node the resources that limit most how many of the pods fit, shape [resource, node]."""
    unlike, stock = board.unlike(pods), board.stock
    asked = np.max([stock.taken(pod) for pod in unlike], axis=0)[:, None]
    counts = np.where(asked > 0, np.maximum(stock.future, 0) // np.maximum(asked, 1), len(pods))
    for pod in unlike:
        if pod.sharing is not None:
            has_part = stock.room_later([0] * len(stock.future), pod.sharing)
            counts[GPU] = np.where(has_part, counts[GPU], 0)
    scarce: Mask = np.equal(counts, counts.min(axis=0))
    return scarce
