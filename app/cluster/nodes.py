"""Keeps the nodes, by name and as the columns of a table that is built anew only after one of them has changed."""

from app.model.names import NodeName
from app.model.node import Node
from app.model.snapshot import NodeTable


class Nodes:
    """All nodes that are known. Only `ClusterCache` calls `put` and `drop`."""

    def __init__(self) -> None:
        """Start with none."""
        self._by_name: dict[NodeName, Node] = {}
        self._table: NodeTable | None = None

    def put(self, node: Node) -> bool:
        """Take over a node; return whether anything changed, which a heartbeat does not."""
        if self._by_name.get(node.name) == node:
            return False
        self._by_name[node.name] = node
        self._table = None
        return True

    def drop(self, name: NodeName) -> bool:
        """Forget a node; return whether it was known."""
        if self._by_name.pop(name, None) is None:
            return False
        self._table = None
        return True

    def get(self, name: NodeName) -> Node | None:
        """Return the node of this name."""
        return self._by_name.get(name)

    def table(self) -> NodeTable:
        """Return the columns; the same table as long as no node has changed."""
        if self._table is None:
            self._table = NodeTable.of(self._by_name.values())
        return self._table
