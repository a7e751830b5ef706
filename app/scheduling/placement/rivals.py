"""Records which PodGroups come first for the room of a plan: started ones, ones with kept room, and reserved nodes.

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
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Shape, Timing

MOST_LOOKS = 100
"""For how many PodGroups of a unique kind one plan finds out whether they are behind others. Each needs a copy of the
free resources of all nodes (about 0.3 ms at 5,000 nodes).
"""


class ReservedRoom:
    """Room that is reserved on nodes for pods that do not use it yet, with the names of these pods."""

    def __init__(self, snapshot: Snapshot, groups: Iterable[PodGroup]) -> None:
        """Read every pod that holds a place. Most of these pods are bound."""
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
        # Keep the first by name, so that the result does not depend on the order of the pods.
        known = self._names.get(column)
        if known is None or (name.namespace, name.name) < (known.namespace, known.name):
            self._names[column] = name

    def in_the_way(self, pod: Pod, board: PlacementState) -> Mask:
        """Return the nodes that have no room now, but would have it, now or later, without reservations.

        Shape [node]. Later counts too, because a reserved place may still be used by a terminating pod.
        """
        stock = board.stock
        if not self._names or pod.sharing is not None or pod.scalars or pod.claims:
            return np.zeros(self.amounts.shape[1], dtype=np.bool_)
        there = stock.future[: len(AXES)] + self.amounts
        without = fit.room(pod.request.amounts, there)
        return board.eligible(pod) & without & ~board.allowed(pod) & self.amounts.any(axis=0)

    def first(self, mask: Mask) -> Name | str:
        """Return the name of a PodGroup or lone pod with a reservation on one of these nodes; "" when there is none."""
        return next((self._names[column] for column in np.flatnonzero(mask).tolist() if column in self._names), "")


class Rivals:
    """The PodGroups that come first for room; local to one plan."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Start empty."""
        self._snapshot = snapshot
        self._strategy = strategy
        self._served: dict[GroupKey, int] = {}
        """The numbers of the PodGroups."""
        self._seats: Amounts = np.zeros((2, 64), dtype=np.int64)
        """The PodGroup's number and the column of each place, shape [2, place]. The array grows by doubling."""
        self._taken = 0
        self._running: Iterable[PodGroup] = ()
        self._promises: ReservedRoom | None = None
        self._untouched: PlacementState | None = None
        self._open: dict[tuple[Shape, int], Mask | None] = {}
        """Where this number of plain pods of one shape would find room before this plan; None where they would find
        none.
        """
        self._looks = 0

    def note(self, key: GroupKey, seats: Iterable[Assignment]) -> None:
        """Record where a PodGroup starts, or where room is kept for its remaining pods."""
        number = self._served.setdefault(key, len(self._served))
        for seat in seats:
            if self._taken == self._seats.shape[1]:
                self._seats = np.hstack([self._seats, np.zeros_like(self._seats)])
            self._seats[:, self._taken] = number, seat.column
            self._taken += 1

    def forget(self, key: GroupKey) -> None:
        """Record that room is no longer kept for a PodGroup."""
        number = self._served.get(key)
        if number is not None:
            left = self._seats[:, : self._taken][:, self._seats[0, : self._taken] != number]
            self._taken = left.shape[1]
            self._seats[:, : self._taken] = left

    def look_into(self, running: Iterable[PodGroup]) -> None:
        """Include reservations, which requires a look at all running PodGroups."""
        self._running, self._promises = running, None

    def has_served(self, key: GroupKey) -> bool:
        """Return whether pods of this PodGroup start in this plan, or have room kept in it."""
        return key in self._served

    @property
    def promises(self) -> ReservedRoom:
        """The reservations, as far as `look_into` was called."""
        if self._promises is None:
            self._promises = ReservedRoom(self._snapshot, self._running)
        return self._promises

    def ahead(self, group: PodGroup, pods: Sequence[Pod]) -> int:
        """Return how many PodGroups took places first where the pods would have found room; 0 if the pods had none."""
        # For a group that has started in part, its own pods and the pods of others cannot be told apart.
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

        A PodGroup of a unique kind is looked at by itself, at most `MOST_LOOKS` of them in one plan.
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
    """Return the name that people use for a group; for a lone pod the name of the pod."""
    if pod.names_group:
        return Name(pod.namespace, group.key.name)
    return Name(pod.namespace, pod.name, "a pod in another namespace")
