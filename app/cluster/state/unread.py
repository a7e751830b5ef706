"""Closes nodes with pods that hold amounts that Leeboard cannot read, as long as such a pod is there."""

from collections.abc import Collection
from dataclasses import replace

from app.cluster.ledger.nodes import Nodes
from app.model.names import NodeName, PodUid
from app.model.pod import Pod

UNREAD_PODS = "a pod on it holds amounts that cannot be read"


class UnreadPods:
    """The pods by node. Only `ClusterCache` calls `replace`."""

    def __init__(self, nodes: Nodes) -> None:
        """Start without pods; `nodes` are closed and opened."""
        self._nodes = nodes
        self._on: dict[NodeName, set[PodUid]] = {}

    def nodes(self) -> Collection[NodeName]:
        """Return the nodes that accept no new pods because of such pods; the caller must not keep the value."""
        return self._on

    def closed(self) -> list[NodeName]:
        """Return the nodes that would accept work without pods that cannot be read completely."""
        nodes = (self._nodes.get(name) for name in self._on)
        closed = [node for node in nodes if node is not None and node.problem == UNREAD_PODS]
        return [node.name for node in closed if replace(node, problem="").takes_work]

    def replace(self, before: Pod | None, pod: Pod | None) -> list[NodeName]:
        """Replace the old version of a pod by the new one; return the nodes that this closes or opens."""
        names: list[NodeName] = []
        for one, is_there in ((before, False), (pod, True)):
            if one is None or not one.unread or one.node is None:
                continue
            uids = self._on.setdefault(one.node, set())
            (uids.add if is_there else uids.discard)(one.uid)
            if not uids:
                del self._on[one.node]
            names.append(one.node)
        return [
            name for name in dict.fromkeys(names) if self._nodes.close(name, UNREAD_PODS if name in self._on else "")
        ]
