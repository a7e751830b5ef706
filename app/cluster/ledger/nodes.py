"""Keeps the nodes, by name and as the columns of a table that is built anew only after one of them has changed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from app.model.layout import Layout
from app.model.names import NodeName
from app.model.node import Node
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import Memo, NodeTable, device_mib


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What a node's agent adds to what the Node object says."""

    opens_devices: bool = False
    """Whether a device can be opened for sharing: the agent must tell which one it is."""
    memory_mib: int = 0
    """Of the smallest of its devices; counts where no label tells."""
    layout: Layout | None = None


NO_AGENT = AgentFacts()

UNAPPLIED = "this version of Leeboard cannot take over what is said of it; its log says why"


class NodeSource(Enum):
    """Who says something of a node."""

    KUBELET = "Node"
    AGENT = "GpuNode"


class Nodes:
    """All nodes that are known. Only `ClusterCache` calls what changes them."""

    def __init__(self) -> None:
        """Start with none."""
        self._stated: dict[NodeName, Node] = {}
        """As the Node objects say."""
        self._facts: dict[NodeName, AgentFacts] = {}
        self._closed: dict[NodeName, str] = {}
        """Nodes that give out nothing more, with why; known or not."""
        self._failed: dict[NodeName, set[NodeSource]] = {}
        """Nodes that give out nothing more because what was said of them last could not be taken over."""
        self._by_name: dict[NodeName, Node] = {}
        self._sizes = Counter[int]()
        """How many nodes have GPUs of each size: asked at every change of a node, which must not cost a table."""
        self._table: NodeTable | None = None
        self._changed: set[NodeName] = set()
        """Nodes that are otherwise than in the table."""
        self._scalars: Mapping[str, Amounts] = {}
        """What the nodes of the table have of extended resources; replaced, never written to."""

    def put(self, node: Node) -> bool:
        """Take over a node; return whether anything changed, which a heartbeat does not."""
        has_failed = self.recover(node.name, NodeSource.KUBELET)
        if self._stated.get(node.name) == node and not has_failed:
            return False
        self._stated[node.name] = node
        self._combine(node.name)
        return True

    def put_facts(self, name: NodeName, facts: AgentFacts) -> bool:
        """Take over what the agent of a node says; return whether anything changed."""
        if self.facts(name) == facts:
            return False
        self._facts[name] = facts
        if facts == NO_AGENT:
            del self._facts[name]
        return name in self._stated and self._combine(name)

    def facts(self, name: NodeName) -> AgentFacts:
        """Return what was taken over last of what the agent of a node says."""
        return self._facts.get(name, NO_AGENT)

    def close(self, name: NodeName, problem: str) -> bool:
        """Have a node give out nothing more for this reason, or as before for none; return whether that is news."""
        if self._closed.get(name, "") == problem:
            return False
        self._closed[name] = problem
        if not problem:
            del self._closed[name]
        return name in self._stated and self._combine(name)

    def fail(self, name: NodeName, source: NodeSource) -> None:
        """Have a node give out nothing more until this source says something that can be taken over.

        Shares no code with `_combine`, in which the mistake of ours may be.
        """
        self._failed.setdefault(name, set()).add(source)
        if name in self._by_name:
            self._by_name[name] = replace(self._by_name[name], problem=UNAPPLIED)
            self._changed.add(name)

    def recover(self, name: NodeName, source: NodeSource) -> bool:
        """Take that back, for when the node is put together next; return whether it was so."""
        sources = self._failed.get(name, set())
        has_failed = source in sources
        sources.discard(source)
        if not sources:
            self._failed.pop(name, None)
        return has_failed

    def reopen(self, name: NodeName) -> bool:
        """Put a node together anew; return whether that changes anything."""
        return name in self._stated and self._combine(name)

    def drop(self, name: NodeName) -> bool:
        """Forget a node; return whether it was known."""
        self.recover(name, NodeSource.KUBELET)
        self._count(self._by_name.pop(name, None), -1)
        if self._stated.pop(name, None) is None:
            return False
        self._table = None
        self._changed.discard(name)
        return True

    def get(self, name: NodeName) -> Node | None:
        """Return the node of this name."""
        return self._by_name.get(name)

    def shown(self, name: NodeName) -> Node | None:
        """Return the node of this name as its object says."""
        return self._stated.get(name)

    def is_lost(self, name: NodeName) -> bool:
        """Whether nobody there can end a pod: the node is gone, or its kubelet does not answer."""
        node = self._by_name.get(name)
        return node is None or not node.ready

    def device_mib(self, name: NodeName | None) -> int:
        """Return the memory of each GPU of a node; of the smallest there is where there is no such node."""
        node = self._by_name.get(name) if name is not None else None
        return min(self._sizes, default=1) if node is None else device_mib(node)

    def gpus(self, name: NodeName) -> tuple[int, int]:
        """Return the memory of each GPU of a node as it is accounted, in MiB, and how many its device plugin offers."""
        node = self._by_name.get(name)
        return (1, 0) if node is None else (device_mib(node), node.allocatable.gpu_milli // GPU_MILLI)

    def divides(self, name: NodeName) -> bool:
        """Whether the labels of a node let its GPUs be shared, whatever its agent says."""
        stated = self._stated.get(name)
        return stated is None or stated.shares_devices

    def table(self) -> NodeTable:
        """Return the columns; the same table as long as no node has changed."""
        if self._table is None:
            self._table = NodeTable.of(self._by_name.values())
            self._scalars = allocatable_scalars(self._table)
        elif self._changed:
            self._renew(self._table, [self._by_name[name] for name in self._changed])
        self._changed.clear()
        return self._table

    def scalars(self) -> Mapping[str, Amounts]:
        """Return what each node has of every extended resource that any of them has, shape [node] each."""
        self.table()
        return self._scalars

    def _renew(self, before: NodeTable, changed: Sequence[Node]) -> None:
        self._table = _renewed(before, changed)
        # Hardly ever: who repartitions a GPU. Looking at all nodes for it costs more than the rest of a snapshot.
        if any(before.nodes[before.index[node.name]].scalars != node.scalars for node in changed):
            self._scalars = allocatable_scalars(self._table)

    def _combine(self, name: NodeName) -> bool:
        """Put a node together anew; return whether that changes anything."""
        node, facts = self._stated[name], self._facts.get(name, NO_AGENT)
        combined = replace(
            node,
            shares_devices=node.shares_devices and facts.opens_devices,
            device_memory_mib=node.device_memory_mib or facts.memory_mib,
            layout=facts.layout,
            problem=node.problem or self._closed.get(name, "") or (UNAPPLIED if name in self._failed else ""),
        )
        if self._by_name.get(name) == combined:
            return False
        self._count(self._by_name.get(name), -1)
        self._count(combined, 1)
        if name not in self._by_name:
            self._table = None
        self._by_name[name] = combined
        self._changed.add(name)
        return True

    def _count(self, node: Node | None, number: int) -> None:
        if node is not None and node.device_memory_mib:
            self._sizes[node.device_memory_mib] += number
            if not self._sizes[node.device_memory_mib]:
                del self._sizes[node.device_memory_mib]


def _renewed(table: NodeTable, changed: Sequence[Node]) -> NodeTable:
    """Return the table with other facts about some of its nodes: as long as none comes or goes, columns stay.

    Who shares the index of one table with another knows that from it.
    """
    nodes, columns = list(table.nodes), [table.index[node.name] for node in changed]
    allocatable, takes_work = table.allocatable.copy(), table.takes_work.copy()
    memory_mib, shares = table.device_memory_mib.copy(), table.shares_devices.copy()
    same_labels = True
    for column, node in zip(columns, changed, strict=True):
        same_labels = same_labels and nodes[column].labels == node.labels
        nodes[column] = node
        allocatable[:, column] = node.allocatable.amounts
        takes_work[column], shares[column] = node.takes_work, node.shares_devices
        memory_mib[column] = device_mib(node)
    return NodeTable(
        nodes=tuple(nodes),
        index=table.index,
        allocatable=allocatable,
        takes_work=takes_work,
        device_memory_mib=memory_mib,
        shares_devices=shares,
        label_memo=table.label_memo if same_labels else Memo(),
    )


def allocatable_scalars(table: NodeTable) -> Mapping[str, Amounts]:
    """Return what each node of a table has of every extended resource that any of them has, shape [node] each."""
    found: dict[str, Amounts] = {}
    for column, node in enumerate(table.nodes):
        for name, amount in node.scalars:
            if name not in found:
                found[name] = np.zeros(len(table.nodes), dtype=np.int64)
            found[name][column] = amount
    return found
