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
from app.scheduling import fit, gang
from app.scheduling.board import Board, Strategy, Timing
from app.scheduling.stock import Seat


class Promises:
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

    def in_the_way(self, pod: Pod, board: Board) -> Mask:
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
        self._seats: list[tuple[int, int]] = []
        """The number and the column of each seat."""
        self._running: Iterable[PodGroup] = ()
        self._promises: Promises | None = None
        self._untouched: Board | None = None

    def note(self, key: GroupKey, seats: Iterable[Seat]) -> None:
        """Note where a PodGroup starts, or where room is kept for its rest."""
        number = self._served.setdefault(key, len(self._served))
        self._seats += [(number, seat.column) for seat in seats]

    def forget(self, key: GroupKey) -> None:
        """Note that no room is kept for a PodGroup any more."""
        number = self._served.get(key)
        self._seats = [seat for seat in self._seats if seat[0] != number]

    def look_into(self, running: Iterable[PodGroup]) -> None:
        """Have promises told of as well, which takes a look at everybody who runs."""
        self._running, self._promises = running, None

    def has_served(self, key: GroupKey) -> bool:
        """Return whether pods of this PodGroup start, or are kept room, in this plan."""
        return key in self._served

    @property
    def promises(self) -> Promises:
        """What is promised, as far as it was looked into."""
        if self._promises is None:
            self._promises = Promises(self._snapshot, self._running)
        return self._promises

    def ahead(self, group: PodGroup, pods: Sequence[Pod]) -> int:
        """Return how many PodGroups came before the pods to where they would have found room; 0 if they had none."""
        # Of a group that has started in part nobody can tell whether its own pods or those of others took the room.
        if not self._seats or self.has_served(group.key):
            return 0
        if self._untouched is None:
            self._untouched = Board(self._snapshot, self._strategy)
        if gang.place(self._untouched.copy(), group, pods, timing=Timing.NOW_OR_LATER) is None:
            return 0
        open_to_them = np.logical_or.reduce([self._untouched.allowed(pod) for pod in self._untouched.unlike(pods)])
        numbers, columns = np.array(self._seats, dtype=np.int64).T
        return int(np.unique(numbers[open_to_them[columns]]).size)


def name_of(group: PodGroup, pod: Pod) -> Name:
    """Return the name by which people know a group: of a pod alone its own."""
    if pod.names_group:
        return Name(pod.namespace, group.key.name)
    return Name(pod.namespace, pod.name, "a pod in another namespace")
