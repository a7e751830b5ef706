"""Required inter-pod affinity and anti-affinity, as far as `Near` states it: who must be near whom, and who apart."""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Self

import numpy as np

from app.model.pod import Near, Pod
from app.model.snapshot import Mask, NodeTable, Snapshot

Labels = Mapping[str, str]


class Neighbours:
    """The pods with labels on a board, found when somebody first asks. `add` and `remove` change it."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Remember the snapshot; most plans never look."""
        self._snapshot = snapshot
        self._seated: list[tuple[Pod, int]] | None = None
        self._moves: list[tuple[Pod, int, bool]] = []

    def copy(self) -> Self:
        """Return a twin that may be changed."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing with the neighbours that these were copied from."""
        self._seated = None if self._seated is None else list(self._seated)
        self._moves = list(self._moves)

    def add(self, pod: Pod, column: int) -> None:
        """Note that a pod sits on a node."""
        if pod.labels is not None or pod.near:
            self._moves.append((pod, column, True))

    def remove(self, pod: Pod, column: int) -> None:
        """Note that a pod leaves a node."""
        if pod.labels is not None or pod.near:
            self._moves.append((pod, column, False))

    def mask(self, pod: Pod) -> Mask:
        """Return the nodes where the pod's terms hold, and those of the pods there towards it, shape [node]."""
        nodes = self._snapshot.nodes
        mask = np.ones(len(nodes.nodes), dtype=np.bool_)
        for near in pod.near:
            mask &= self._apart(near) if near.apart else self._together(near, pod)
        for other, column in self._others():
            for near in other.near:
                if near.apart and _matches(near, pod.labels):
                    mask &= ~_domain(nodes, near.topology_key, [column])
        return mask

    def _together(self, near: Near, pod: Pod) -> Mask:
        columns = self._columns(near)
        nodes = self._snapshot.nodes
        if not columns and _matches(near, pod.labels):
            # The first of a group that wants to be together may go anywhere the key is known (Kubernetes' rule).
            return np.array([near.topology_key in node.labels for node in nodes.nodes], dtype=np.bool_)
        return _domain(nodes, near.topology_key, columns)

    def _apart(self, near: Near) -> Mask:
        return ~_domain(self._snapshot.nodes, near.topology_key, self._columns(near))

    def _columns(self, near: Near) -> list[int]:
        index = self._snapshot.nodes.index
        outside = (index[node] for labels, node in self._snapshot.labelled if node in index and _matches(near, labels))
        return [*outside, *(column for other, column in self._others() if _matches(near, other.labels))]

    def _others(self) -> list[tuple[Pod, int]]:
        if self._seated is None:
            index = self._snapshot.nodes.index
            self._seated = [
                (placed.pod, index[placed.node])
                for group in self._snapshot.running.values()
                for placed in group.placed
                if (placed.pod.labels is not None or placed.pod.near) and placed.node in index
            ]
        for pod, column, comes in self._moves:
            if comes:
                self._seated.append((pod, column))
            elif (pod, column) in self._seated:
                self._seated.remove((pod, column))
        self._moves.clear()
        return self._seated


def _matches(near: Near, labels: Labels | None) -> bool:
    return labels is not None and all(labels.get(key) == value for key, value in near.labels)


def _domain(nodes: NodeTable, key: str, columns: Iterable[int]) -> Mask:
    """Return the nodes that share the label's value with one of the columns."""
    values = {value for column in columns if (value := nodes.nodes[column].labels.get(key)) is not None}
    return np.array([node.labels.get(key) in values for node in nodes.nodes], dtype=np.bool_)
