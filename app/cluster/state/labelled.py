"""Keeps labels and nodes of pods that an affinity may select and that no PodGroup of a snapshot contains."""

from collections.abc import Mapping

from app.model.names import NodeName, PodUid
from app.model.pod import Pod

Labelled = tuple[Mapping[str, str], NodeName]


class LabelledPods:
    """Pods of other schedulers, and pods that are being deleted: both still count for affinity and anti-affinity.

    Only `Settlement` calls `put`.
    """

    def __init__(self) -> None:
        """Start without pods."""
        self._by_pod: dict[PodUid, Labelled] = {}
        self._standing = set[PodUid]()
        self._frozen: tuple[Labelled, ...] | None = None

    def put(self, uid: PodUid, pod: Pod | None, node: NodeName | None) -> None:
        """Store a pod and its node; None when the pod is gone."""
        if pod is not None and node is not None and (pod.labels is not None or pod.near):
            self._standing.add(uid)
        else:
            self._standing.discard(uid)
        if pod is None or pod.labels is None or node is None or (pod.managed and not pod.deleting):
            if self._by_pod.pop(uid, None) is not None:
                self._frozen = None
        elif self._by_pod.get(uid) != (pod.labels, node):
            self._by_pod[uid] = (pod.labels, node)
            self._frozen = None

    @property
    def number(self) -> int:
        """The number of pods with a node and with labels that an affinity may select, including pods of PodGroups."""
        return len(self._standing)

    def freeze(self) -> tuple[Labelled, ...]:
        """Return labels and nodes; the same value as long as none has changed."""
        if self._frozen is None:
            self._frozen = tuple(self._by_pod.values())
        return self._frozen
