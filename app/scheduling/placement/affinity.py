"""Judges required inter-pod affinity and anti-affinity, as far as `Near` states these terms."""

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
"""The number of pods by the column of their node."""

MOST_REMEMBERED = 64
"""The most terms whose matching pods are remembered. Each remembered term is compared with every pod that moves."""


class Neighbours(Copied):
    """The labelled pods of a placement state, counted at the first question. `add` and `remove` change them."""

    _nodes: Value[NodeTable]
    _standing: Common["_Standing"]
    _is_counted: Value[bool]
    _labelled: Owned["_Tallies[Pairs]"]
    """Pods by their labels. Pods of one template have equal labels."""
    _apart: Owned["_Tallies[Near]"]
    """Pods by the anti-affinity that they require."""
    _found: Owned["_Tallies[Near]"]
    """The pods that match a term, for the first terms that were looked up."""
    _moves: Owned[list[tuple[Pod, int, int]]]

    def __init__(self, snapshot: Snapshot) -> None:
        """Store the snapshot. Nothing is counted yet, because most plans need no affinity."""
        self._nodes = snapshot.nodes
        self._standing = _Standing(snapshot)
        self._is_counted = False
        self._labelled, self._apart, self._found = _Tallies(), _Tallies(), _Tallies()
        self._moves = []

    def add(self, pod: Pod, column: int) -> None:
        """Add a pod to a node."""
        if pod.labels is not None or pod.near:
            self._moves.append((pod, column, 1))

    def remove(self, pod: Pod, column: int) -> None:
        """Remove a pod from a node."""
        if pod.labels is not None or pod.near:
            self._moves.append((pod, column, -1))

    def mask(self, pod: Pod) -> Mask:
        """Return the nodes that satisfy the pod's terms, and the terms of other pods about this pod, shape [node]."""
        self._count()
        mask = np.ones(len(self._nodes.nodes), dtype=np.bool_)
        # Keyed by the label of the domains, so that all nodes are read once for any number of terms.
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
            # The first pod of a self-affine group may use any node with the topology key (Kubernetes' rule).
            known: Mask = label_codes(near.topology_key, self._nodes) >= 0
            return known
        return _domain(self._nodes, near.topology_key, columns)

    def _columns(self, near: Near) -> Tally:
        """Return the columns of the pods that match a term. Callers must not keep the result."""
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
    """Pod locations by what the pods have in common. A copy shares each tally until either side changes it."""

    _of: Owned[dict[K, dict[int, int]]]
    _own: Claims[set[K]]

    def __init__(self) -> None:
        self._of, self._own = {}, set()

    def get(self, key: K) -> Tally | None:
        """Return the locations of the pods with this key. Callers must not keep the result."""
        return self._of.get(key)

    def items(self) -> Iterable[tuple[K, Tally]]:
        """Return all tallies with their keys. Callers must not keep the result."""
        return self._of.items()

    def keys(self) -> Iterable[K]:
        """Return the keys."""
        return self._of.keys()

    def __len__(self) -> int:
        return len(self._of)

    def put(self, key: K, tally: dict[int, int]) -> None:
        """Take over a tally that no other object changes."""
        self._of[key] = tally
        self._own.add(key)

    def add(self, key: K, column: int, number: int) -> None:
        """Add a number of pods to a node; a negative number removes pods."""
        # Copy the tally once and not for each pod, because thousands of pods share one template.
        if key not in self._own:
            self.put(key, dict(self._of.get(key, {})))
        tally = self._of[key]
        left = tally.get(column, 0) + number
        if left > 0:
            tally[column] = left
        else:
            tally.pop(column, None)


class _Standing:
    """The pods that a snapshot shows on nodes. They are counted once for all copies of a placement state."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._counted: tuple[_Tallies[Pairs], _Tallies[Near]] | None = None

    def counted(self) -> tuple[_Tallies[Pairs], _Tallies[Near]]:
        """Return the pods by their labels, and the pods by their anti-affinity. Callers must not change either."""
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
    """Return the nodes whose label has the same value as on one of the columns."""
    codes = label_codes(key, nodes)
    held = np.zeros(int(codes.max(initial=-1)) + 2, dtype=np.bool_)
    held[codes[list(columns)]] = True
    held[-1] = False  # the last entry is for nodes without the label (code -1)
    mask: Mask = held[codes]
    return mask
