"""Keeps which nodes kube-scheduler's own filters refuse for which pod, for causes that we cannot see."""

from collections.abc import Collection, Mapping
from functools import lru_cache

from app.model.names import NodeName, PodUid

NONE: frozenset[NodeName] = frozenset()


class RefusedNodes:
    """Nodes by pod; a pod of which nothing is known is not in it."""

    def __init__(self) -> None:
        """Start with nothing refused."""
        self._by_pod: dict[PodUid, frozenset[NodeName]] = {}

    def of(self, pod: PodUid) -> frozenset[NodeName]:
        """Return the nodes that are refused for a pod."""
        return self._by_pod.get(pod, NONE)

    def set(self, pod: PodUid, nodes: frozenset[NodeName]) -> bool:
        """Have just these nodes refused for a pod; return whether that is news."""
        if self.of(pod) == nodes:
            return False
        if nodes:
            self._by_pod[pod] = _shared(nodes)
        else:
            del self._by_pod[pod]
        return True

    def pods(self) -> Collection[PodUid]:
        """Return the pods for which any node is refused, as they are now."""
        return list(self._by_pod)

    def freeze(self) -> Mapping[PodUid, frozenset[NodeName]]:
        """Return a copy that stays as it is."""
        return dict(self._by_pod)


@lru_cache(maxsize=64)
def _shared(nodes: frozenset[NodeName]) -> frozenset[NodeName]:
    """Return one set for equal sets: the pods of a template are refused by the same thousand nodes."""
    return nodes
