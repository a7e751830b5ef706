"""Required inter-pod affinity and anti-affinity, as far as `Near` states it: who must be near whom, and who apart."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import numpy as np

from app.model.pod import Near, Pod
from app.model.snapshot import Mask, NodeTable, Snapshot
from app.scheduling.copies import Claims, Common, Copied, Owned, Value
from app.scheduling.placement.fit import label_codes

K = TypeVar("K", bound=Hashable)

Labels = Mapping[str, str]
Pairs = frozenset[tuple[str, str]]
Tally = Mapping[int, int]
"""How many pods by the column of their node."""

MOST_REMEMBERED = 64
"""Terms of which it is remembered where the pods are that they speak of: each is compared with every pod that moves."""


class Neighbours(Copied):
    """The pods with labels on a board, counted when somebody first asks. `add` and `remove` change it."""

    _nodes: Value[NodeTable]
    _standing: Common["_Standing"]
    _is_counted: Value[bool]
    _labelled: Owned["_Tallies[Pairs]"]
    """Who carries which labels: pods of one template are alike."""
    _apart: Owned["_Tallies[Near]"]
    """Who keeps which others away."""
    _found: Owned["_Tallies[Near]"]
    """The pods that the first terms speak of which were asked about."""
    _moves: Owned[list[tuple[Pod, int, int]]]

    def __init__(self, snapshot: Snapshot) -> None:
        """Remember the snapshot; most plans never look."""
        self._nodes = snapshot.nodes
        self._standing = _Standing(snapshot)
        self._is_counted = False
        self._labelled, self._apart, self._found = _Tallies(), _Tallies(), _Tallies()
        self._moves = []

    def add(self, pod: Pod, column: int) -> None:
        """Note that a pod sits on a node."""
        if pod.labels is not None or pod.near:
            self._moves.append((pod, column, 1))

    def remove(self, pod: Pod, column: int) -> None:
        """Note that a pod leaves a node."""
        if pod.labels is not None or pod.near:
            self._moves.append((pod, column, -1))

    def mask(self, pod: Pod) -> Mask:
        """Return the nodes where the pod's terms hold, and those of the pods there towards it, shape [node]."""
        self._count()
        mask = np.ones(len(self._nodes.nodes), dtype=np.bool_)
        # By the label of the domains: however many terms there are, the nodes are looked at once.
        avoided: dict[str, set[int]] = {}
        for near in pod.near:
            if near.apart:
                avoided.setdefault(near.topology_key, set()).update(self._columns(near))
            else:
                mask &= self._together(near, pod)
        if pod.labels is not None:
            pairs = _pairs(pod.labels)
            for near, columns in self._apart.items():
                if pairs.issuperset(near.labels):
                    avoided.setdefault(near.topology_key, set()).update(columns)
        for key, held in avoided.items():
            mask &= ~_domain(self._nodes, key, held)
        return mask

    def _together(self, near: Near, pod: Pod) -> Mask:
        columns = self._columns(near)
        if not columns and pod.labels is not None and _pairs(pod.labels).issuperset(near.labels):
            # The first of a group that wants to be together may go anywhere the key is known (Kubernetes' rule).
            known: Mask = label_codes(near.topology_key, self._nodes) >= 0
            return known
        return _domain(self._nodes, near.topology_key, columns)

    def _columns(self, near: Near) -> Tally:
        """Return where the pods are that a term speaks of; not to be kept."""
        known = self._found.get(near)
        if known is not None:
            return known
        tally: dict[int, int] = {}
        for pairs, columns in self._labelled.items():
            if pairs.issuperset(near.labels):
                for column, number in columns.items():
                    tally[column] = tally.get(column, 0) + number
        if len(self._found) < MOST_REMEMBERED:
            self._found.put(near, tally)
        return tally

    def _count(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            labelled, apart = self._standing.counted()
            self._labelled, self._apart = labelled.copy(), apart.copy()
        for pod, column, number in self._moves:
            _add(self._labelled, self._apart, pod, column, number)
            if pod.labels is not None and self._found:
                pairs = _pairs(pod.labels)
                for near in list(self._found.keys()):
                    if pairs.issuperset(near.labels):
                        self._found.add(near, column, number)
        self._moves.clear()


class _Tallies(Copied, Generic[K]):
    """Where pods are, by what they have in common. A copy shares what neither has changed since."""

    _of: Owned[dict[K, dict[int, int]]]
    _own: Claims[set[K]]

    def __init__(self) -> None:
        self._of, self._own = {}, set()

    def get(self, key: K) -> Tally | None:
        """Return where the pods are that have this in common; not to be kept."""
        return self._of.get(key)

    def items(self) -> Iterable[tuple[K, Tally]]:
        """Return all of them; not to be kept."""
        return self._of.items()

    def keys(self) -> Iterable[K]:
        """Return what pods have in common."""
        return self._of.keys()

    def __len__(self) -> int:
        return len(self._of)

    def put(self, key: K, tally: dict[int, int]) -> None:
        """Take over a tally that nobody else changes."""
        self._of[key] = tally
        self._own.add(key)

    def add(self, key: K, column: int, number: int) -> None:
        """Count pods that have come to a node, or have left it."""
        # Copied once and not for each pod: thousands of pods are of one template.
        if key not in self._own:
            self.put(key, dict(self._of.get(key, {})))
        tally = self._of[key]
        left = tally.get(column, 0) + number
        if left > 0:
            tally[column] = left
        else:
            tally.pop(column, None)


class _Standing:
    """The pods that a snapshot shows on nodes, counted once for all copies of a board."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._counted: tuple[_Tallies[Pairs], _Tallies[Near]] | None = None

    def counted(self) -> tuple[_Tallies[Pairs], _Tallies[Near]]:
        """Return the pods by their labels, and those that keep others away; neither is to be changed."""
        if self._counted is None:
            labelled, apart = _Tallies[Pairs](), _Tallies[Near]()
            index = self._snapshot.nodes.index
            for labels, node in self._snapshot.labelled:
                if node in index:
                    labelled.add(_pairs(labels), index[node], 1)
            for group in self._snapshot.running.values():
                for one in group.placed:
                    if one.node in index:
                        _add(labelled, apart, one.pod, index[one.node], 1)
            self._counted = labelled, apart
        return self._counted


def _add(labelled: _Tallies[Pairs], apart: _Tallies[Near], pod: Pod, column: int, number: int) -> None:
    if pod.labels is not None:
        labelled.add(_pairs(pod.labels), column, number)
    for near in pod.near:
        if near.apart:
            apart.add(near, column, number)


def _pairs(labels: Labels) -> Pairs:
    return frozenset(labels.items())


def _domain(nodes: NodeTable, key: str, columns: Iterable[int]) -> Mask:
    """Return the nodes that share the label's value with one of the columns."""
    codes = label_codes(key, nodes)
    held = np.zeros(int(codes.max(initial=-1)) + 2, dtype=np.bool_)
    held[codes[list(columns)]] = True
    held[-1] = False  # the place to which the code of nodes without the label points
    mask: Mask = held[codes]
    return mask
