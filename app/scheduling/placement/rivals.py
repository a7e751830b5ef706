"""Remembers who has a better claim on the room of a plan: who starts or is kept room in it, who is promised a node.

Only `note`, `forget` and `look_into` change it.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import AXES, Amounts
from app.model.sentence import Name
from app.model.snapshot import Mask, Snapshot
from app.scheduling.placement import fit, gang
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.state import PlacementState, Shape, Strategy, Timing

MOST_LOOKS = 100
"""Of how many PodGroups that are like no other one plan finds out whether they are behind others: each takes a copy of
what all nodes have left (some 0.3 ms at 5,000 nodes)."""


class ReservedRoom:
    """What is promised on which node, and to whom: room that the pods do not use yet."""

    def __init__(self, snapshot: Snapshot, groups: Iterable[PodGroup]) -> None:
        """Look at every pod that holds a place; most are bound."""
        nodes = snapshot.nodes
        self.amounts: Amounts = np.zeros((len(AXES), len(nodes.nodes)), dtype=np.int64)
        """Shape [resource, node]."""
        self._names: dict[int, Name] = {}
        for group in groups:
            for one in group.placed:
                column = nodes.index.get(one.node)
                if column is not None and one.pod.node is None:
                    self.amounts[:, column] += one.pod.request.amounts
                    self._name(column, name_of(group, one.pod))

    def _name(self, column: int, name: Name) -> None:
        # The first by name, so that the same is told whoever came first.
        known = self._names.get(column)
        if known is None or (name.namespace, name.name) < (known.namespace, known.name):
            self._names[column] = name

    def in_the_way(self, pod: Pod, board: PlacementState) -> Mask:
        """Return the nodes that have no room now and would have it, now or later, if nothing were promised there.

        Shape [node]. Later counts, since a place may be promised from which somebody else has yet to leave.
        """
        stock = board.stock
        if not self._names or pod.sharing is not None or pod.scalars or pod.claims:
            return np.zeros(self.amounts.shape[1], dtype=np.bool_)
        there = stock.future[: len(AXES)] + self.amounts
        without = fit.room(pod.request.amounts, there)
        return board.eligible(pod) & without & ~board.allowed(pod) & self.amounts.any(axis=0)

    def first(self, mask: Mask) -> Name | str:
        """Name a PodGroup, or a pod alone, to which one of these nodes is promised; "" when none is."""
        return next((self._names[column] for column in np.flatnonzero(mask).tolist() if column in self._names), "")


class Rivals:
    """Local to one plan."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Begin with nobody."""
        self._snapshot = snapshot
        self._strategy = strategy
        self._served: dict[GroupKey, int] = {}
        """Their numbers."""
        self._seats: Amounts = np.zeros((2, 64), dtype=np.int64)
        """The number and the column of each seat, shape [2, seat]; it grows by doubling."""
        self._taken = 0
        self._running: Iterable[PodGroup] = ()
        self._promises: ReservedRoom | None = None
        self._untouched: PlacementState | None = None
        self._open: dict[tuple[Shape, int], Mask | None] = {}
        """Where so many plain pods of one shape would have found room before this plan; None where they had none."""
        self._looks = 0

    def note(self, key: GroupKey, seats: Iterable[Assignment]) -> None:
        """Note where a PodGroup starts, or where room is kept for its rest."""
        number = self._served.setdefault(key, len(self._served))
        for seat in seats:
            if self._taken == self._seats.shape[1]:
                self._seats = np.hstack([self._seats, np.zeros_like(self._seats)])
            self._seats[:, self._taken] = number, seat.column
            self._taken += 1

    def forget(self, key: GroupKey) -> None:
        """Note that no room is kept for a PodGroup any more."""
        number = self._served.get(key)
        if number is not None:
            left = self._seats[:, : self._taken][:, self._seats[0, : self._taken] != number]
            self._taken = left.shape[1]
            self._seats[:, : self._taken] = left

    def look_into(self, running: Iterable[PodGroup]) -> None:
        """Have promises told of as well, which takes a look at everybody who runs."""
        self._running, self._promises = running, None

    def has_served(self, key: GroupKey) -> bool:
        """Return whether pods of this PodGroup start, or are kept room, in this plan."""
        return key in self._served

    @property
    def promises(self) -> ReservedRoom:
        """What is promised, as far as it was looked into."""
        if self._promises is None:
            self._promises = ReservedRoom(self._snapshot, self._running)
        return self._promises

    def ahead(self, group: PodGroup, pods: Sequence[Pod]) -> int:
        """Return how many PodGroups came before the pods to where they would have found room; 0 if they had none."""
        # Of a group that has started in part nobody can tell whether its own pods or those of others took the room.
        if not self._taken or self.has_served(group.key):
            return 0
        open_to_them = self._open_to(group, pods)
        if open_to_them is None:
            return 0
        numbers, columns = self._seats[:, : self._taken]
        is_ahead = np.zeros(len(self._served), dtype=np.bool_)
        is_ahead[numbers[open_to_them[columns]]] = True
        return int(is_ahead.sum())

    def _open_to(self, group: PodGroup, pods: Sequence[Pod]) -> Mask | None:
        """Return where the pods would have found room before this plan, shape [node]; None where they had none.

        Who is like nobody else is looked at one by one: none after `MOST_LOOKS`.
        """
        if self._untouched is None:
            self._untouched = PlacementState(self._snapshot, self._strategy)
        board = self._untouched
        shape = board.common_shape(pods) if group.root is None else None
        if shape is None:
            self._looks += 1
            return _open_to(board, group, pods) if self._looks <= MOST_LOOKS else None
        question = shape, len(pods)
        if question not in self._open:
            self._open[question] = _open_to(board, group, pods)
        return self._open[question]


def _open_to(board: PlacementState, group: PodGroup, pods: Sequence[Pod]) -> Mask | None:
    if len(pods) == 1 and group.root is None:
        fits = board.find(pods[0]) is not None
    else:
        fits = gang.place(board.copy(), group, pods, timing=Timing.NOW_OR_LATER) is not None
    if not fits:
        return None
    found: Mask = np.logical_or.reduce([board.allowed(pod) for pod in board.unlike(pods)])
    return found


def name_of(group: PodGroup, pod: Pod) -> Name:
    """Return the name by which people know a group: of a pod alone its own."""
    if pod.names_group:
        return Name(pod.namespace, group.key.name)
    return Name(pod.namespace, pod.name, "a pod in another namespace")
