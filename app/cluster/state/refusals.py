"""Keeps which nodes kube-scheduler's own filters refuse for which pod, for causes that Leeboard cannot see."""

from collections.abc import Collection, Mapping
from functools import lru_cache

from app.model.names import NodeName, PodUid

NONE: frozenset[NodeName] = frozenset()


class RefusedNodes:
    """Refused nodes by pod; pods without refused nodes are not in it."""

    def __init__(self) -> None:
        """Start without refused nodes."""
        self._by_pod: dict[PodUid, frozenset[NodeName]] = {}

    def of(self, pod: PodUid) -> frozenset[NodeName]:
        """Return the nodes that are refused for a pod."""
        return self._by_pod.get(pod, NONE)

    def set(self, pod: PodUid, nodes: frozenset[NodeName]) -> bool:
        """Set the refused nodes of a pod; return whether they are new."""
        if self.of(pod) == nodes:
            return False
        if nodes:
            self._by_pod[pod] = _shared(nodes)
        else:
            del self._by_pod[pod]
        return True

    def pods(self) -> Collection[PodUid]:
        """Return the pods with any refused node; a copy."""
        return list(self._by_pod)

    def freeze(self) -> Mapping[PodUid, frozenset[NodeName]]:
        """Return a copy that does not change."""
        return dict(self._by_pod)


@lru_cache(maxsize=64)
def _shared(nodes: frozenset[NodeName]) -> frozenset[NodeName]:
    """Return one set for equal sets: the pods of a template have the same thousand refused nodes."""
    return nodes
