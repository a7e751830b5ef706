"""Learns the typical mix of pods with GPUs, from those that start and those that wait.

Nothing is stored: after a restart the listed pods are counted again. Pods that never start count little: the waiting
pods of a queue weigh no more than its running pods and a few more, and those of all queues no more than all started
pods and a few more. Pods without a valid queue, and kinds of pods that no node could hold, do not count.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from app.model.mix import TypicalMix, TypicalPod
from app.model.names import QueueName
from app.model.pod import Pod
from app.model.resources import CPU, GPU, GPU_MILLI, MEMORY, Amounts
from app.model.snapshot import PART, NodeTable, Snapshot, Usage

FEW = 20
"""The weight in pods of the assumed kind, and of the waiting pods of a queue of which no pod runs."""

MOST_COUNTED = 8192
"""The number of started pods after which all counts are halved, so that old pods count less and less."""

MOST_KINDS = 128
"""The most kinds of pods that are counted. Tenants choose the requests."""

MOST_GROUPS, MOST_OF_QUEUE = 2000, 200
"""The most waiting PodGroups that are looked at for one mix, and that are read of one queue."""

_ONE = 1024
"""One pod, in the unit of the counts."""


class PodArrivals:
    """Counts the pods that start, and knows when their number, or that of the nodes, has grown enough for a new mix.

    Only a planning step makes a mix: from a frozen input, beside the event loop. All others read the last one.
    """

    def __init__(self) -> None:
        """Start without pods."""
        self._started = Counter[TypicalPod]()
        self._seen = 0
        self._due = 0
        self._gpu_nodes = 0
        self.last: TypicalMix | None = None
        """The last mix that was made; None before the first."""

    def note_start(self, pod: Pod, device_memory_mib: int) -> None:
        """Count a managed pod that has a node now, given the memory of the node's GPUs."""
        kind = TypicalPod.of(pod, device_memory_mib)
        if kind is None:
            return
        self._started[kind] += _ONE
        self._seen += 1
        if self._seen % MOST_COUNTED == 0:
            self._started = Counter({each: count // 2 for each, count in self._started.items() if count > 1})
        if len(self._started) > 2 * MOST_KINDS:
            self._started = Counter(dict(self._started.most_common(MOST_KINDS)))

    def is_due(self, nodes: NodeTable) -> bool:
        """Whether a tenth more pods have started, or the number of GPU nodes has changed by a tenth."""
        gpu_nodes = _gpu_nodes(nodes)
        if not gpu_nodes:
            return False
        return self._seen >= self._due or 10 * abs(gpu_nodes - self._gpu_nodes) > self._gpu_nodes

    def freeze(self, snapshot: Snapshot) -> "MixInput":
        """Return what a new mix is made from. None is due then for a while, whether or not this one is made."""
        self._due = self._seen + max(min(self._seen, MOST_COUNTED) // 10, FEW)
        self._gpu_nodes = _gpu_nodes(snapshot.nodes)
        return MixInput(self._started.copy(), snapshot)

    def assume(self, nodes: NodeTable) -> None:
        """Have a mix of the assumed kind alone, of which every GPU node has room for one. A new mix stays due."""
        gpu_nodes = _gpu_nodes(nodes)
        if gpu_nodes:
            self.last = TypicalMix((_assumed(nodes),), (FEW * _ONE,), (gpu_nodes,), gpu_nodes)

    def learn(self, snapshot: Snapshot) -> TypicalMix | None:
        """Make the mix at once if it is due, and return the last one; for replays, which have no event loop."""
        if self.is_due(snapshot.nodes):
            self.last = self.freeze(snapshot).mix()
        return self.last


@dataclass(frozen=True, slots=True)
class MixInput:
    """The input of one mix, which nobody changes any more."""

    started: Counter[TypicalPod]
    snapshot: Snapshot

    def mix(self) -> TypicalMix:
        """Make the mix. The cluster has GPU nodes."""
        snapshot, counts = self.snapshot, self.started.copy()
        most, asked = counts.total() + FEW * _ONE, _waiting(snapshot)
        total = max(asked.total(), 1)
        for kind, count in asked.items():
            counts[kind] += count * min(most, total) // total
        counts[_assumed(snapshot.nodes)] += FEW * _ONE
        return _mix_of(counts, snapshot)


def _gpu_nodes(nodes: NodeTable) -> int:
    return int(np.count_nonzero(nodes.allocatable[GPU]))


def _assumed(nodes: NodeTable) -> TypicalPod:
    """Return the kind of pod that is assumed as long as few are known. There are GPU nodes.

    It requests one GPU, with half of the CPU and memory that GPU nodes have per GPU.
    """
    cpu_milli, memory_bytes, gpu_milli, _ = (
        int(amount) for amount in nodes.allocatable[:, nodes.allocatable[GPU] > 0].sum(axis=1)
    )
    gpus = max(gpu_milli // GPU_MILLI, 1)
    return TypicalPod(cpu_milli // 2 // gpus, memory_bytes // 2 // gpus, 1, GPU_MILLI)


def _waiting(snapshot: Snapshot) -> Counter[TypicalPod]:
    """Return how much each kind of waiting pods counts."""
    queues, device_memory_mib = snapshot.queues, snapshot.nodes.smallest_device_mib
    by_queue: dict[QueueName, Counter[TypicalPod]] = {}
    read = Counter[QueueName]()
    for group in islice(snapshot.groups.values(), MOST_GROUPS):
        read[group.queue] += 1
        if group.refusal is None and group.pending and group.queue in queues and read[group.queue] <= MOST_OF_QUEUE:
            # The first pod stands for all pending pods of its group: a large gang costs as much as a small one.
            kind = TypicalPod.of(group.pending[0], device_memory_mib)
            if kind is not None:
                by_queue.setdefault(group.queue, Counter())[kind] += len(group.pending)
    found = Counter[TypicalPod]()
    for queue, counts in by_queue.items():
        running = snapshot.usage.get(queue, Usage()).allocated.pods
        total = counts.total()
        for kind, count in counts.items():
            found[kind] += _ONE * count * min(running + FEW, total) // total
    return found


def _mix_of(counts: Counter[TypicalPod], snapshot: Snapshot) -> TypicalMix:
    nodes = snapshot.nodes
    # Sorted, because the order of equal counts depends on the order of the events.
    ordered = sorted((-count, kind) for kind, count in counts.items() if count > 0)
    empty: NDArray[np.int64] = np.where(nodes.allocatable[GPU] >= GPU_MILLI, np.int64(GPU_MILLI), np.int64(0))
    known = [(count, kind) for count, kind in ordered if _rooms(kind, nodes.allocatable, empty)][:MOST_KINDS]
    largest = _largest_parts(snapshot)
    return TypicalMix(
        pods=tuple(kind for _, kind in known),
        counts=tuple(-count for count, _ in known),
        rooms=tuple(_rooms(kind, snapshot.free, largest) for _, kind in known),
        gpu_nodes=_gpu_nodes(nodes),
    )


def _largest_parts(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return the largest free part of a GPU of each node, in milli-GPUs, shape [node]."""
    nodes = snapshot.nodes
    largest: NDArray[np.int64] = np.where(snapshot.free[GPU] >= GPU_MILLI, np.int64(GPU_MILLI), np.int64(0))
    for name, devices in snapshot.shared.items():
        column = nodes.index.get(name)
        if column is not None and devices and largest.item(column) < GPU_MILLI:
            whole = nodes.device_memory_mib.item(column) * PART
            most = min(max((each.free for each in devices), default=0), whole)
            largest[column] = max(largest.item(column), most * GPU_MILLI // whole)
    return largest


def _rooms(kind: TypicalPod, free: Amounts, largest: NDArray[np.int64]) -> int:
    """Return the number of nodes with room for a pod of this kind."""
    room = (free[CPU] >= kind.cpu_milli) & (free[MEMORY] >= kind.memory_bytes)
    if kind.part_milli == GPU_MILLI or kind.devices > 1:
        room &= free[GPU] >= kind.devices * GPU_MILLI
    else:
        room &= largest >= kind.part_milli
    return int(np.count_nonzero(room))
