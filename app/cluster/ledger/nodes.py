"""Keeps the nodes, by name and as the columns of a table. The table is rebuilt only after a node has changed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from app.model.layout import Layout
from app.model.names import NodeName
from app.model.node import NO_DEVICES, Node, NodeDevices
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import Memo, NodeTable, by_claim_only, device_mib


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What a node's agent reports beyond the Node object."""

    opens_devices: bool = False
    """Whether a device can be opened for sharing: this needs an agent that reports which device a pod gets."""
    memory_mib: int = 0
    """Memory of the smallest device; used where no label states it."""
    layout: Layout | None = None


NO_AGENT = AgentFacts()

UNAPPLIED = "this version of Leeboard cannot process its latest state; the log of Leeboard says why"


class NodeSource(Enum):
    """The source of a statement about a node."""

    KUBELET = "Node"
    AGENT = "GpuNode"


class Nodes:
    """All known nodes. Only `ClusterCache` calls the methods that change them."""

    def __init__(self) -> None:
        """Start without nodes."""
        self._stated: dict[NodeName, Node] = {}
        """Nodes as their Node objects state them."""
        self._facts: dict[NodeName, AgentFacts] = {}
        self._claimable: dict[NodeName, NodeDevices] = {}
        """The devices that claims can get."""
        self._closed: dict[NodeName, str] = {}
        """Nodes that accept no new pods, with the reason; they may be unknown."""
        self._failed: dict[NodeName, set[NodeSource]] = {}
        """Nodes that accept no new pods because the last statement about them could not be processed, with its sources.
        """
        self._by_name: dict[NodeName, Node] = {}
        self._sizes = Counter[int]()
        """How many nodes have GPUs of each size. Every change of a node reads it, and must not build a table for it."""
        self._table: NodeTable | None = None
        self._changed: dict[NodeName, None] = {}
        """Nodes that differ from the table."""
        self._scalars: Mapping[str, Amounts] = {}
        """Extended resources of the nodes of the table; replaced, never written to."""

    def put(self, node: Node) -> bool:
        """Store a node; return whether anything changed, which a heartbeat does not."""
        has_failed = self.recover(node.name, NodeSource.KUBELET)
        if self._stated.get(node.name) == node and not has_failed:
            return False
        self._stated[node.name] = node
        self._combine(node.name)
        return True

    def put_facts(self, name: NodeName, facts: AgentFacts) -> bool:
        """Store what the agent of a node reports; return whether anything changed."""
        if self.facts(name) == facts:
            return False
        self._facts[name] = facts
        if facts == NO_AGENT:
            del self._facts[name]
        return name in self._stated and self._combine(name)

    def facts(self, name: NodeName) -> AgentFacts:
        """Return the last stored report of the agent of a node."""
        return self._facts.get(name, NO_AGENT)

    def put_devices(self, name: NodeName, devices: NodeDevices) -> bool:
        """Store the devices of a node that claims can get; return whether anything changed."""
        if self._claimable.get(name, NO_DEVICES) == devices:
            return False
        self._claimable[name] = devices
        if devices == NO_DEVICES:
            del self._claimable[name]
        return name in self._stated and self._combine(name)

    def close(self, name: NodeName, problem: str) -> bool:
        """Close a node for new pods for this reason, or open it without a reason; return whether that is a change."""
        if self._closed.get(name, "") == problem:
            return False
        self._closed[name] = problem
        if not problem:
            del self._closed[name]
        return name in self._stated and self._combine(name)

    def fail(self, name: NodeName, source: NodeSource) -> None:
        """Close a node for new pods until this source makes a statement that can be processed.

        It shares no code with `_combine`: the fault may be in `_combine`.
        """
        self._failed.setdefault(name, set()).add(source)
        if name in self._by_name:
            self._by_name[name] = replace(self._by_name[name], problem=UNAPPLIED)
            self._changed[name] = None

    def recover(self, name: NodeName, source: NodeSource) -> bool:
        """Remove that mark, which counts when the node is combined next; return whether the mark was set."""
        sources = self._failed.get(name, set())
        has_failed = source in sources
        sources.discard(source)
        if not sources:
            self._failed.pop(name, None)
        return has_failed

    def reopen(self, name: NodeName) -> bool:
        """Combine a node again; return whether that changes anything."""
        return name in self._stated and self._combine(name)

    def drop(self, name: NodeName) -> bool:
        """Forget a node; return whether it was known."""
        self.recover(name, NodeSource.KUBELET)
        self._count(self._by_name.pop(name, None), -1)
        if self._stated.pop(name, None) is None:
            return False
        self._table = None
        self._changed.pop(name, None)
        return True

    def get(self, name: NodeName) -> Node | None:
        """Return the node of this name."""
        return self._by_name.get(name)

    def shown(self, name: NodeName) -> Node | None:
        """Return the node of this name as its object states it."""
        return self._stated.get(name)

    def is_lost(self, name: NodeName) -> bool:
        """Whether no kubelet there can end a pod: the node is gone, or its kubelet does not answer."""
        node = self._by_name.get(name)
        return node is None or not node.ready

    def device_mib(self, name: NodeName | None) -> int:
        """Return the memory of each GPU of a node in MiB; for an unknown node, of the smallest GPU of the cluster."""
        node = self._by_name.get(name) if name is not None else None
        return min(self._sizes, default=1) if node is None else device_mib(node)

    def gpus(self, name: NodeName) -> tuple[int, int]:
        """Return the accounted memory of each GPU of a node, in MiB, and the number of GPUs of its device plugin."""
        node = self._by_name.get(name)
        return (1, 0) if node is None else (device_mib(node), node.allocatable.gpu_milli // GPU_MILLI)

    def divides(self, name: NodeName) -> bool:
        """Whether the labels of a node let its GPUs be shared, whatever its agent reports."""
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
        """Return what each node has of every extended resource that any node has, shape [node] each."""
        self.table()
        return self._scalars

    def _renew(self, before: NodeTable, changed: Sequence[Node]) -> None:
        self._table = _renewed(before, changed)
        # This is rare: it needs a GPU that is repartitioned. Looking at all nodes for it costs more than the rest of a
        # snapshot.
        if any(before.nodes[before.index[node.name]].scalars != node.scalars for node in changed):
            self._scalars = allocatable_scalars(self._table)

    def _combine(self, name: NodeName) -> bool:
        """Combine the sources of a node again; return whether that changes anything."""
        node, facts = self._stated[name], self._facts.get(name, NO_AGENT)
        devices = self._claimable.get(name)
        if devices is not None:
            node = _with_devices(node, devices)
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
        self._changed[name] = None
        return True

    def _count(self, node: Node | None, number: int) -> None:
        if node is not None and node.device_memory_mib:
            self._sizes[node.device_memory_mib] += number
            if not self._sizes[node.device_memory_mib]:
                del self._sizes[node.device_memory_mib]


def _with_devices(node: Node, devices: NodeDevices) -> Node:
    """Return a node with the devices that claims can get there."""
    # GPUs that a device plugin offers as well are the same GPUs.
    has_plugin = node.allocatable.gpu_milli > 0
    gpu_milli = node.allocatable.gpu_milli if has_plugin else devices.gpu_milli
    return replace(
        node,
        allocatable=replace(node.allocatable, gpu_milli=gpu_milli),
        scalars=tuple(sorted((dict(node.scalars) | dict(devices.scalars)).items())),
        labels={**node.labels, **dict(devices.labels)},
        names_gpus=True,
        # No reservation pod can hold a part of such a GPU (KAI offers no parts there either).
        shares_devices=node.shares_devices and has_plugin,
        by_claim_only=not has_plugin and not devices.by_name,
    )


def _renewed(table: NodeTable, changed: Sequence[Node]) -> NodeTable:
    """Return the table with other facts about some nodes. The columns stay as long as no node is added or removed.

    Two tables that share one index object have the same nodes in the same order; readers rely on that.
    """
    nodes, columns = list(table.nodes), [table.index[node.name] for node in changed]
    allocatable, takes_work = table.allocatable.copy(), table.takes_work.copy()
    memory_mib, shares = table.device_memory_mib.copy(), table.shares_devices.copy()
    same_labels = True
    gives_by_claim = table.by_claim_only is not None or any(node.by_claim_only for node in changed)
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
        by_claim_only=by_claim_only(nodes) if gives_by_claim else None,
        label_memo=table.label_memo if same_labels else Memo(),
    )


def allocatable_scalars(table: NodeTable) -> Mapping[str, Amounts]:
    """Return what each node of a table has of every extended resource that any node has, shape [node] each."""
    found: dict[str, Amounts] = {}
    for column, node in enumerate(table.nodes):
        for name, amount in node.scalars:
            if name not in found:
                found[name] = np.zeros(len(table.nodes), dtype=np.int64)
            found[name][column] = amount
    return found
