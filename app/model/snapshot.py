"""The cluster at one moment, frozen: what the planner sees, promises included.

Amounts over nodes are columns (int64, shape [resource, node]); nothing here is ever written again after it was built,
except `NodeTable.memo` and `label_memo`, which only remember values derived from the table itself.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.past import NO_PAST, Past
from app.model.pod import Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.reason import Refusal
from app.model.resources import AXES, GPU, NOTHING, Amounts, Resources, is_gpu
from app.model.topology import Topology

Mask = NDArray[np.bool_]
"""One truth value a node, shape [node]."""


MOST_DEVICE_MIB = 1 << 33
"""More than any GPU has (8 PiB); the parts of so many MiB, times a thousand, still are less than 2^63."""

PART = 1_000_000
"""Parts of a MiB of device memory: a device of M MiB has M * PART parts, of which both a fraction in millionths and a
number of MiB are whole numbers, so that thirds of a device add up exactly."""


def parts_of(sharing: Sharing, memory_mib: int) -> int:
    """Return how many parts of a device of this memory are held for who asks for this, what is set aside included."""
    if sharing.memory_mib:
        return min(sharing.memory_mib + sharing.overhead_mib, MOST_DEVICE_MIB + 1) * PART
    return memory_mib * sharing.portion_ppm + sharing.overhead_mib * PART


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device of which pods hold parts; a device that nobody holds a part of is idle and is not listed."""

    name: str
    """Unique on its node."""
    free: int
    """Parts nobody holds (see `PART`); minus all of them where nobody may come on it."""
    releasing: int = 0
    """Parts held by pods that are leaving."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTable:
    """The nodes, in the order of their names, without what pods use of them."""

    nodes: tuple[Node, ...]
    index: Mapping[NodeName, int]
    allocatable: Amounts
    """Shape [resource, node]."""
    takes_work: Mask
    """`Node.takes_work` of each."""
    device_memory_mib: NDArray[np.int64]
    """Shape [node]: of each GPU there; 1 where nothing tells, so that fractions still add up."""
    shares_devices: Mask
    """`Node.shares_devices` of each."""
    memo: dict[Hashable, Any] = field(default_factory=dict)
    """Derived columns by what they answer (such as the mask of a `Constraint`); valid as long as this table."""
    label_memo: dict[Hashable, Any] = field(default_factory=dict)
    """The same for what follows from the labels of the nodes alone; tables with the same labels share it."""

    @staticmethod
    def of(nodes: Iterable[Node]) -> "NodeTable":
        """Build the columns from the nodes, in any order."""
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        amounts = np.array([node.allocatable.amounts for node in ordered], dtype=np.int64)
        return NodeTable(
            nodes=ordered,
            index={node.name: column for column, node in enumerate(ordered)},
            allocatable=amounts.reshape(len(ordered), len(AXES)).T.copy(),
            takes_work=np.array([node.takes_work for node in ordered], dtype=np.bool_),
            shares_devices=np.array([node.shares_devices for node in ordered], dtype=np.bool_),
            device_memory_mib=np.array([device_mib(node) for node in ordered], dtype=np.int64),
        )

    @property
    def smallest_device_mib(self) -> int:
        """The memory of the smallest GPU: what `usage` measures a request by memory by until it has a node (KAI)."""
        smallest: int | None = self.memo.get("smallest_device_mib")
        if smallest is None:
            smallest = min((node.device_memory_mib for node in self.nodes if node.device_memory_mib), default=1)
            self.memo["smallest_device_mib"] = smallest
        return smallest

    @property
    def has_gpus(self) -> Mask:
        """The nodes with GPUs of any kind, shape [node]: whole ones, MIG slices, or those of another vendor.

        A node whose GPUs are not allocatable for a moment, since all are sick or their plugin starts, counts as well.
        """
        found: Mask | None = self.memo.get("has_gpus")
        if found is None:
            known = [
                node.names_gpus or node.device_memory_mib > 0 or any(map(is_gpu, dict(node.scalars)))
                for node in self.nodes
            ]
            found = np.array(known, dtype=np.bool_) | (self.allocatable[GPU] > 0)
            self.memo["has_gpus"] = found
        return found

    @property
    def capacity(self) -> Resources:
        """What all nodes that take work have together."""
        # Not by selecting columns first: at 15,000 nodes that takes ten times as long.
        return Resources.of(self.allocatable.sum(axis=1, where=self.takes_work))

    def columns(self, names: Iterable[NodeName]) -> list[int]:
        """Return the column of every name that is known; unknown names are left out."""
        index = self.index
        return [index[name] for name in names if name in index]

    def mask(self, names: Iterable[NodeName]) -> Mask:
        """Return the mask that is true at the given names; unknown names are left out."""
        mask = np.zeros(len(self.nodes), dtype=np.bool_)
        mask[self.columns(names)] = True
        return mask


def device_mib(node: Node) -> int:
    """Return the memory of each GPU of a node as parts of it are accounted; 1 where nothing tells."""
    return min(node.device_memory_mib, MOST_DEVICE_MIB) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the pods directly in one queue hold (promised, binding, bound, releasing) and wait for."""

    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING
    """`allocated` plus what pending pods ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsatisfiable:
    """The pods of one PodGroup that can never run as things are."""

    queue: QueueName
    request: Resources
    """Their part of the queue's `Usage.requested`: no fair share is divided for it."""
    refusal: Refusal | None
    """Why; None where the queue takes no pods at all, which the ledger says."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """Everything one plan is made from."""

    version: int
    """Grows with every change of the cache or the reservations."""
    nodes: NodeTable
    free: Amounts
    """Shape [resource, node]: allocatable minus every pod there and every promise; negative when overcommitted."""
    queues: Mapping[QueueName, Queue]
    usage: Mapping[QueueName, Usage]
    """Per queue, its own pods only; ancestors are summed by who needs them."""
    groups: Mapping[GroupKey, PodGroup]
    """The managed PodGroups that have pending pods; what the cache gives for a glance is its own mapping of them."""
    total: Resources
    """What the queues divide: allocatable of Ready nodes minus what pods outside every queue hold."""
    running: Mapping[GroupKey, PodGroup] = field(default_factory=dict)
    """The managed PodGroups that hold places; one that also has pending pods is in `groups` as well."""
    releasing: Amounts | None = None
    """Shape [resource, node]: held by pods that are leaving, not part of `free`; None when nobody is."""
    scalars: Mapping[str, Amounts] = field(default_factory=dict)
    """Free extended resources by name, shape [node] each; negative when overcommitted."""
    releasing_scalars: Mapping[str, Amounts] = field(default_factory=dict)
    shared: Mapping[NodeName, tuple[SharedDevice, ...]] = field(default_factory=dict)
    """The devices in shared use. They are not part of `free`; one whose last pod leaves is part of `releasing`."""
    idle_devices: NDArray[np.int64] | None = None
    """Shape [node]: bit i stands for device i of the node's `Layout` and is set when it is idle; 0 where nobody knows.

    None: nobody knows of any.
    """
    blocked_devices: Mapping[NodeName, int] = field(default_factory=dict)
    """Whole GPUs that take no new work although nobody has them, by node; not part of `free`."""
    claimed: Mapping[str, tuple[NodeName, int]] = field(default_factory=dict)
    """The DRA claims that are allocated, by key: where, and for how many pods."""
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    labelled: tuple[tuple[Mapping[str, str], NodeName], ...] = ()
    """Labels and nodes of pods outside `running` to which an affinity may refer."""
    past: Past = NO_PAST
    """What fair shares are to make up for."""
    guarded: frozenset[GroupKey] = frozenset()
    """Running groups of which a PodDisruptionBudget lets nobody leave now: asked last, not never."""
    unsatisfiable: Mapping[GroupKey, Unsatisfiable] = field(default_factory=dict)
    """The waiting PodGroups with pods that can never run as things are, as far as that was judged."""
    residents: Amounts | None = None
    """Shape [resource, node]: what pods of DaemonSets and mirror pods hold, which are there as long as their nodes.

    None when nobody knows of any; the same object as long as it says the same.
    """
    overstated: Mapping[QueueName, Resources] = field(default_factory=dict)
    """By how much less the waiting pods of a queue can cost than `usage` says, as far as that was judged: there, what
    is asked for by GPU memory counts by the smallest GPU of the cluster."""
    refused: Mapping[PodUid, frozenset[NodeName]] = field(default_factory=dict)
    """Nodes that kube-scheduler's own filters refuse for a pod, for causes that nothing here can see."""

    def without(self, places: Iterable[tuple[Pod, NodeName]]) -> "Snapshot":
        """Return the snapshot in which these pods do not hold their places on these nodes."""
        free = self.free.copy()
        for pod, node in places:
            column = self.nodes.index.get(node)
            if column is not None:
                free[:, column] += pod.request.amounts
        return replace(self, free=free)

    def __repr__(self) -> str:
        return f"<Snapshot {self.version}: {len(self.nodes.nodes)} nodes, {len(self.groups)} groups waiting>"
