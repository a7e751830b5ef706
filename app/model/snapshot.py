"""The cluster at one moment, frozen, as the planner sees it. Reservations are included.

Amounts over nodes are columns (int64, shape [resource, node]). Nothing is written after a snapshot was built, except
the two `Memo` of a `NodeTable`, which only cache values derived from the table itself.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.model.dra import ClaimKey
from app.model.mix import TypicalMix
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.past import NO_PAST, Past
from app.model.pod import Pod, ResourceClaim, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.reason import Refusal
from app.model.resources import AXES, GPU, NOTHING, Amounts, Resources, is_gpu
from app.model.topology import Topology

Mask = NDArray[np.bool_]
"""One boolean per node, shape [node]."""


MOST_DEVICE_MIB = 1 << 33
"""More than any GPU has (8 PiB). The parts of this many MiB, times a thousand, are still below 2^63."""

PART = 1_000_000
"""The number of parts of one MiB of device memory.

A device of M MiB has M * PART parts. A fraction in millionths and a number of MiB are both whole numbers of parts, so
three thirds of a device add up exactly.
"""


def parts_of(sharing: Sharing, memory_mib: int) -> int:
    """Return how many parts of a device with this memory a request holds, including its overhead."""
    if sharing.memory_mib:
        return min(sharing.memory_mib + sharing.overhead_mib, MOST_DEVICE_MIB + 1) * PART
    return memory_mib * sharing.portion_ppm + sharing.overhead_mib * PART


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device of which pods hold fractions. A device without such pods is idle and not listed."""

    name: str
    """Unique on its node."""
    free: int
    """Parts that are free (see `PART`); minus all parts when no further pod may be placed on the device."""
    releasing: int = 0
    """Parts that terminating pods hold."""


class Memo(dict[Hashable, Any]):
    """Answers that were worked out from a table, by their questions.

    The event loop and the threads of the planner use one memo at the same time, without a lock. That is safe because:

    * an answer follows from the table and the question alone, so it does not matter who writes it, or how often. One
      that follows from a snapshot, too, is stored with what it follows from, and is used again only for the same;
    * an answer is never changed once it is here. One that grows adds, replaces or drops such answers, each by one step;
    * an answer may be forgotten at any time. So it is read by `get`, once, and kept by the reader; `memo[...]` after
      `in` would fail when another thread forgets in between, and is refused.

    Whether an answer is known, however, does depend on who asked before. The event loop decides by that what it does at
    once. So a thread, or a reader of the service, gets a memo of its own (`apart`), and the event loop learns from it
    when the result of the thread has arrived.
    """

    def __getitem__(self, question: Hashable) -> Any:
        raise TypeError(f"read {question!r} by get(): another thread may forget it at any time")

    def __setitem__(self, question: Hashable, answer: Any) -> None:
        raise TypeError(f"write {question!r} by remember() or setdefault()")

    def remember(self, question: Hashable, answer: object, *, most: int | None = None) -> None:
        """Remember an answer; before there are more than `most`, all are forgotten."""
        if most is not None and len(self) >= most:
            self.clear()
        super().__setitem__(question, answer)

    def apart(self) -> "Memo":
        """Return a memo that knows the same from now on, whatever this one learns or forgets."""
        return Memo((question, _apart(answer)) for question, answer in self.items())

    def learn(self, other: "Memo") -> None:
        """Learn what another memo knows. The other one is not used any more."""
        for question, answer in other.items():
            known = self.setdefault(question, answer)
            if isinstance(known, dict):
                known.update({key: each for key, each in answer.items() if key not in known})
            elif isinstance(known, Growing):
                known.learn(answer)


class Growing:
    """A remembered answer that further questions extend."""

    __slots__ = ()

    def apart(self) -> Self:
        """Return one that knows the same from now on."""
        raise NotImplementedError

    def learn(self, other: Self) -> None:
        """Learn what another one knows, which had the same beginning."""
        raise NotImplementedError


def _apart(answer: Any) -> Any:
    if isinstance(answer, dict):
        return dict(answer)
    return answer.apart() if isinstance(answer, Growing) else answer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTable:
    """The nodes, sorted by name, without the usage of pods."""

    nodes: tuple[Node, ...]
    index: Mapping[NodeName, int]
    allocatable: Amounts
    """Shape [resource, node]."""
    takes_work: Mask
    """`Node.takes_work` of each."""
    device_memory_mib: NDArray[np.int64]
    """Shape [node]: the memory of each GPU of the node; 1 when unknown, so that fractions still add up."""
    shares_devices: Mask
    """`Node.shares_devices` of each."""
    by_claim_only: Mask | None = None
    """`Node.by_claim_only` of each; None when it is true of none."""
    memo: Memo = field(default_factory=Memo)
    """Cached columns by key, such as the mask of a `Constraint`. They are valid as long as this table."""
    label_memo: Memo = field(default_factory=Memo)
    """The same for values that depend on node labels only. Tables with the same labels share it."""

    @staticmethod
    def of(nodes: Iterable[Node]) -> "NodeTable":
        """Build the columns from nodes in any order."""
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        amounts = np.array([node.allocatable.amounts for node in ordered], dtype=np.int64)
        return NodeTable(
            nodes=ordered,
            index={node.name: column for column, node in enumerate(ordered)},
            allocatable=amounts.reshape(len(ordered), len(AXES)).T.copy(),
            takes_work=np.array([node.takes_work for node in ordered], dtype=np.bool_),
            shares_devices=np.array([node.shares_devices for node in ordered], dtype=np.bool_),
            by_claim_only=by_claim_only(ordered),
            device_memory_mib=np.array([device_mib(node) for node in ordered], dtype=np.int64),
        )

    def apart(self) -> "NodeTable":
        """Return the same table with memos of its own."""
        return replace(self, memo=self.memo.apart(), label_memo=self.label_memo.apart())

    def learn(self, other: "NodeTable") -> None:
        """Learn what the table that was taken `apart` knows."""
        self.memo.learn(other.memo)
        self.label_memo.learn(other.label_memo)

    @property
    def smallest_device_mib(self) -> int:
        """The memory of the smallest GPU. `usage` counts requests by memory on it until they have a node (KAI)."""
        smallest: int | None = self.memo.get("smallest_device_mib")
        if smallest is None:
            smallest = min((node.device_memory_mib for node in self.nodes if node.device_memory_mib), default=1)
            self.memo.remember("smallest_device_mib", smallest)
        return smallest

    @property
    def has_gpus(self) -> Mask:
        """The nodes with GPUs of any kind, shape [node]: whole GPUs, MIG slices, or GPUs of another vendor.

        A node whose GPUs are not allocatable now, because all are unhealthy or their plugin is starting, counts as
        well.
        """
        found: Mask | None = self.memo.get("has_gpus")
        if found is None:
            known = [
                node.names_gpus or node.device_memory_mib > 0 or any(map(is_gpu, dict(node.scalars)))
                for node in self.nodes
            ]
            found = np.array(known, dtype=np.bool_) | (self.allocatable[GPU] > 0)
            self.memo.remember("has_gpus", found)
        return found

    @property
    def capacity(self) -> Resources:
        """The sum of all nodes that take pods."""
        # Selecting columns first takes ten times as long at 15,000 nodes.
        return Resources.of(self.allocatable.sum(axis=1, where=self.takes_work))

    def columns(self, names: Iterable[NodeName]) -> list[int]:
        """Return the column of every known name. Unknown names are left out."""
        return [column for column in map(self.index.get, names) if column is not None]

    def mask(self, names: Iterable[NodeName]) -> Mask:
        """Return the mask that is true at the given names. Unknown names are left out."""
        mask = np.zeros(len(self.nodes), dtype=np.bool_)
        mask[self.columns(names)] = True
        return mask


def by_claim_only(nodes: Sequence[Node]) -> Mask | None:
    """Return which nodes give their GPUs by ResourceClaims only; None when none does."""
    found = [node.by_claim_only for node in nodes]
    return np.array(found, dtype=np.bool_) if any(found) else None


def device_mib(node: Node) -> int:
    """Return the memory of each GPU of a node for the accounting of fractions; 1 when unknown."""
    return min(node.device_memory_mib, MOST_DEVICE_MIB) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the pods directly in one queue hold (reserved, binding, bound, releasing) and request."""

    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING
    """`allocated` plus the requests of pending pods."""
    claimed_milli: int = 0
    """The part of the GPUs in `allocated` that ResourceClaims hold."""


class ClaimUsers(NamedTuple):
    """How many pods of one queue use a claim that pods share."""

    placed: int = 0
    """With a place: while there is one, the queue pays for the claim."""
    firm: int = 0
    """Those of them that are non-preemptible."""
    known: int = 0
    """The placed ones and the pending ones: while there is one, the queue requests the claim."""


NO_USERS = ClaimUsers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsatisfiable:
    """The pods of one PodGroup that can never run in the current cluster."""

    queue: QueueName
    request: Resources
    """Their part of the queue's `Usage.requested`. It is ignored when fair shares are divided."""
    refusal: Refusal | None
    """Why; None when the queue takes no pods at all, which the ledger reports."""
    claims: tuple[ResourceClaim, ...] = ()
    """The shared claims of these pods, as often as pods use them: requested as well, while other pods use them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The complete input of one plan."""

    version: int
    """It grows with every change of the cache or the reservations."""
    nodes: NodeTable
    free: Amounts
    """Shape [resource, node]: allocatable minus the pods on the node and all reservations; negative when overcommitted.
    """
    queues: Mapping[QueueName, Queue]
    usage: Mapping[QueueName, Usage]
    """By queue, for its own pods only. Code that needs ancestors sums them up."""
    groups: Mapping[GroupKey, PodGroup]
    """The managed PodGroups with pending pods."""
    total: Resources
    """What the queues divide: allocatable of Ready nodes minus what pods outside every queue hold."""
    running: Mapping[GroupKey, PodGroup] = field(default_factory=dict)
    """The managed PodGroups that hold places. A PodGroup that also has pending pods is in `groups` as well."""
    releasing: Amounts | None = None
    """Shape [resource, node]: held by terminating pods, not part of `free`; None when there are none."""
    scalars: Mapping[str, Amounts] = field(default_factory=dict)
    """Free extended resources by name, shape [node] each; negative when overcommitted."""
    releasing_scalars: Mapping[str, Amounts] = field(default_factory=dict)
    shared: Mapping[NodeName, tuple[SharedDevice, ...]] = field(default_factory=dict)
    """The shared devices. They are not part of `free`. A device whose last pod is leaving is part of `releasing`."""
    idle_devices: NDArray[np.int64] | None = None
    """Shape [node]: bit i is set when device i of the node's `Layout` is idle; 0 when unknown.

    None when this is unknown for all nodes.
    """
    blocked_devices: Mapping[NodeName, int] = field(default_factory=dict)
    """Whole GPUs by node that no pod has but that take no new pods. They are not part of `free`."""
    unusable_devices: Mapping[PodUid, tuple[NodeName, int]] = field(default_factory=dict)
    """Pods with whole GPUs that take no pods after them: their node, and how many of its GPUs stay taken."""
    claimed: Mapping[ClaimKey, tuple[NodeName, int]] = field(default_factory=dict)
    """The allocated claims that pods may share: the node, and the number of pods."""
    claim_users: Mapping[tuple[QueueName, ClaimKey], ClaimUsers] = field(default_factory=dict)
    """The pods of each queue that use such a claim."""
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    labelled: tuple[tuple[Mapping[str, str], NodeName], ...] = ()
    """Labels and nodes of pods outside `running` to which an affinity may refer."""
    past: Past = NO_PAST
    """The past usage for which fair shares compensate."""
    guarded: frozenset[GroupKey] = frozenset()
    """Running groups for which a PodDisruptionBudget allows no disruption now. They are the last victims, not excluded.
    """
    unsatisfiable: Mapping[GroupKey, Unsatisfiable] = field(default_factory=dict)
    """The waiting PodGroups with pods that can never run in the current cluster, as far as this was checked."""
    residents: Amounts | None = None
    """Shape [resource, node]: held by DaemonSet pods and mirror pods, which stay as long as their nodes.

    None when there are none. The object is the same as long as its values are.
    """
    overstated: Mapping[QueueName, Resources] = field(default_factory=dict)
    """By how much `usage` overstates the cost of a queue's waiting pods, as far as this was checked.

    `usage` counts requests by GPU memory on the smallest GPU of the cluster.
    """
    refused: Mapping[PodUid, frozenset[NodeName]] = field(default_factory=dict)
    """Nodes that kube-scheduler's own filters refuse for a pod, for causes that Leeboard cannot see."""
    mix: TypicalMix | None = None
    """The typical pods by which placements are judged; None when no node has GPUs."""

    def apart(self) -> "Snapshot":
        """Return the same for a thread or a reader of the service: what is found out about it is remembered apart."""
        return replace(self, nodes=self.nodes.apart())

    def without(self, places: Iterable[tuple[Pod, NodeName]]) -> "Snapshot":
        """Return the snapshot without these pods on these nodes."""
        free = self.free.copy()
        for pod, node in places:
            column = self.nodes.index.get(node)
            if column is not None:
                free[:, column] += pod.request.amounts
        return replace(self, free=free)

    def __repr__(self) -> str:
        return f"<Snapshot {self.version}: {len(self.nodes.nodes)} nodes, {len(self.groups)} groups waiting>"
