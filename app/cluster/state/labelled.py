"""Keeps the labels and places of pods to which an affinity may refer and which no PodGroup of a snapshot shows."""

from collections.abc import Mapping

from app.model.names import NodeName, PodUid
from app.model.pod import Pod

Labelled = tuple[Mapping[str, str], NodeName]


class LabelledPods:
    """Pods of other schedulers, and pods that are leaving: both still count to those that want to be near or apart.

    Only `Settlement` calls `put`.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._by_pod: dict[PodUid, Labelled] = {}
        self._standing = set[PodUid]()
        self._frozen: tuple[Labelled, ...] | None = None

    def put(self, uid: PodUid, pod: Pod | None, node: NodeName | None) -> None:
        """Take over a pod and where it is, None when it is gone."""
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
        """How many pods have a place and labels to which an affinity may refer, those of PodGroups included."""
        return len(self._standing)

    def freeze(self) -> tuple[Labelled, ...]:
        """Return labels and nodes; the same value as long as none has changed."""
        if self._frozen is None:
            self._frozen = tuple(self._by_pod.values())
        return self._frozen
