"""Required inter-pod affinity and anti-affinity, as far as `Near` states it: who must be near whom, and who apart."""

from collections.abc import Hashable, Iterable, Mapping
from copy import copy
from typing import Self, TypeVar

import numpy as np

from app.model.pod import Near, Pod
from app.model.snapshot import Mask, NodeTable, Snapshot
from app.scheduling.fit import label_codes

K = TypeVar("K", bound=Hashable)

Labels = Mapping[str, str]
Tally = Mapping[int, int]
"""How many pods by the column of their node; never changed, but replaced."""


class Neighbours:
    """The pods with labels on a board, counted when somebody first asks. `add` and `remove` change it."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Remember the snapshot; most plans never look."""
        self._snapshot = snapshot
        self._is_counted = False
        # Pods of one template are alike: who carries which labels, and who keeps which others away.
        self._labelled: dict[tuple[tuple[str, str], ...], Tally] = {}
        self._apart: dict[Near, Tally] = {}
        self._moves: list[tuple[Pod, int, int]] = []

    def copy(self) -> Self:
        """Return a twin that may be changed."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing with the neighbours that these were copied from."""
        self._labelled, self._apart, self._moves = dict(self._labelled), dict(self._apart), list(self._moves)

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
        nodes = self._snapshot.nodes
        mask = np.ones(len(nodes.nodes), dtype=np.bool_)
        for near in pod.near:
            mask &= ~self._domain_of(near) if near.apart else self._together(near, pod)
        for near, columns in self._apart.items():
            if columns and _matches(near, pod.labels):
                mask &= ~_domain(nodes, near.topology_key, columns)
        return mask

    def _together(self, near: Near, pod: Pod) -> Mask:
        if not self._columns(near) and _matches(near, pod.labels):
            # The first of a group that wants to be together may go anywhere the key is known (Kubernetes' rule).
            known: Mask = label_codes(near.topology_key, self._snapshot.nodes) >= 0
            return known
        return self._domain_of(near)

    def _domain_of(self, near: Near) -> Mask:
        return _domain(self._snapshot.nodes, near.topology_key, self._columns(near))

    def _columns(self, near: Near) -> set[int]:
        found = set[int]()
        for labels, columns in self._labelled.items():
            if columns and _matches(near, dict(labels)):
                found.update(columns)
        return found

    def _count(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            index = self._snapshot.nodes.index
            for labels, node in self._snapshot.labelled:
                if node in index:
                    _add(self._labelled, _key(labels), index[node], 1)
            for group in self._snapshot.running.values():
                for one in group.placed:
                    if one.node in index:
                        self._move(one.pod, index[one.node], 1)
        for move in self._moves:
            self._move(*move)
        self._moves.clear()

    def _move(self, pod: Pod, column: int, number: int) -> None:
        if pod.labels is not None:
            _add(self._labelled, _key(pod.labels), column, number)
        for near in pod.near:
            if near.apart:
                _add(self._apart, near, column, number)


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _add(tallies: dict[K, Tally], key: K, column: int, number: int) -> None:
    tally = dict(tallies.get(key, {}))
    left = tally.get(column, 0) + number
    if left > 0:
        tally[column] = left
    else:
        tally.pop(column, None)
    tallies[key] = tally


def _matches(near: Near, labels: Labels | None) -> bool:
    return labels is not None and all(labels.get(key) == value for key, value in near.labels)


def _domain(nodes: NodeTable, key: str, columns: Iterable[int]) -> Mask:
    """Return the nodes that share the label's value with one of the columns."""
    codes = label_codes(key, nodes)
    held = np.zeros(int(codes.max(initial=-1)) + 2, dtype=np.bool_)
    held[codes[list(columns)]] = True
    held[-1] = False  # the place to which the code of nodes without the label points
    mask: Mask = held[codes]
    return mask
