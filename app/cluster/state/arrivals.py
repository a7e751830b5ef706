"""Learns the typical mix of pods from those that start and those that wait.

Nothing is stored: after a restart the listed pods are counted again. A queue cannot distort the mix with pods that
never start: its waiting pods weigh no more than its running pods, and a few more.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from app.model.mix import TypicalMix, TypicalPod
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import CPU, GPU, GPU_MILLI, MEMORY, Amounts
from app.model.snapshot import PART, NodeTable, SharedDevice, Usage

FEW = 20
"""The weight in pods of the assumed kind, and of the waiting pods of a queue of which no pod has started yet."""

MOST_COUNTED = 8192
"""The number of started pods after which all counts are halved, so that old pods count less and less."""

MOST_KINDS = 256
"""The most kinds of pods that are counted. Tenants choose the requests."""

MOST_GROUPS = 1000
"""The most waiting PodGroups that are read for one mix."""

_ONE = 1024
"""One pod, in the unit of the counts."""


class Arrivals:
    """Counts the pods that start, and makes a new mix each time the number has grown by a tenth."""

    def __init__(self) -> None:
        """Start without pods."""
        self._started = Counter[TypicalPod]()
        self._seen = 0
        self._due = 0
        self.last: TypicalMix | None = None
        """The last mix that was made; None before the first."""

    def note_start(self, pod: Pod, device_memory_mib: int) -> None:
        """Count a managed pod that has a node now, given the memory of the node's GPUs."""
        self._started[TypicalPod.of(pod, device_memory_mib)] += _ONE
        self._seen += 1
        if len(self._started) > MOST_KINDS or self._seen % MOST_COUNTED == 0:
            kept = self._started.most_common(MOST_KINDS // 2)
            self._started = Counter({kind: count // 2 for kind, count in kept if count > 1})

    @property
    def is_due(self) -> bool:
        """Whether `mix` would make a new mix."""
        return self._seen >= self._due or self.last is None

    def mix(
        self,
        waiting: Mapping[GroupKey, PodGroup],
        usage: Mapping[QueueName, Usage],
        nodes: NodeTable,
        free: Amounts,
        shared: Mapping[NodeName, tuple[SharedDevice, ...]],
    ) -> TypicalMix | None:
        """Return the typical mix; None without GPU nodes. It stays the same object until it is due again."""
        if self.is_due:
            assumed = _assumed(nodes)
            if assumed is None:
                return None
            self._due = self._seen + max(self._seen // 10, FEW)
            counts = self._started + _waiting(waiting, usage, nodes.smallest_device_mib)
            counts[assumed] += FEW * _ONE
            self.last = _mix_of(counts, nodes, free, shared)
        return self.last


def _assumed(nodes: NodeTable) -> TypicalPod | None:
    """Return the kind of pod that is assumed as long as few are known; None without GPU nodes.

    It requests one GPU, with half of the CPU and memory that GPU nodes have per GPU.
    """
    cpu_milli, memory_bytes, gpu_milli, _ = (int(amount) for amount in nodes.allocatable[:, nodes.has_gpus].sum(axis=1))
    gpus = gpu_milli // GPU_MILLI
    return TypicalPod(cpu_milli // 2 // gpus, memory_bytes // 2 // gpus, 1, GPU_MILLI, 0) if gpus else None


def _waiting(
    waiting: Mapping[GroupKey, PodGroup], usage: Mapping[QueueName, Usage], device_memory_mib: int
) -> Counter[TypicalPod]:
    """Return how much each kind of waiting pods counts."""
    by_queue: dict[QueueName, Counter[TypicalPod]] = {}
    for group in islice(waiting.values(), MOST_GROUPS):
        if group.pending:
            # The first pod stands for all pending pods of its group: a large gang costs as much as a small one.
            kind = TypicalPod.of(group.pending[0], device_memory_mib)
            by_queue.setdefault(group.queue, Counter())[kind] += len(group.pending)
    found = Counter[TypicalPod]()
    for queue, counts in by_queue.items():
        running = usage[queue].allocated.pods if queue in usage else 0
        weight = _ONE * min(running + FEW, counts.total()) // counts.total()
        for kind, count in counts.items():
            found[kind] += count * weight
    return found


def _mix_of(
    counts: Counter[TypicalPod],
    nodes: NodeTable,
    free: Amounts,
    shared: Mapping[NodeName, tuple[SharedDevice, ...]],
) -> TypicalMix:
    # Sorted, because the order of equal counts depends on the order of the events.
    known = sorted((-count, kind) for kind, count in counts.items() if count > 0)[:MOST_KINDS]
    largest = _largest_parts(nodes, free, shared)
    return TypicalMix(
        pods=tuple(kind for _, kind in known),
        counts=tuple(-count for count, _ in known),
        rooms=tuple(_rooms(kind, free, largest) for _, kind in known),
        gpu_nodes=int(np.count_nonzero(nodes.has_gpus)),
    )


def _largest_parts(
    nodes: NodeTable, free: Amounts, shared: Mapping[NodeName, tuple[SharedDevice, ...]]
) -> NDArray[np.int64]:
    """Return the largest free part of a GPU of each node, in milli-GPUs, shape [node]."""
    largest: NDArray[np.int64] = np.where(free[GPU] >= GPU_MILLI, np.int64(GPU_MILLI), np.int64(0))
    for name, devices in shared.items():
        column = nodes.index.get(name)
        if column is not None:
            whole = nodes.device_memory_mib.item(column) * PART
            most = min(max((each.free for each in devices), default=0), whole)
            largest[column] = max(largest.item(column), most * GPU_MILLI // whole)
    return largest


def _rooms(kind: TypicalPod, free: Amounts, largest: NDArray[np.int64]) -> int:
    """Return the number of nodes with room for a pod of this kind. Other forms of GPUs are not checked."""
    room = (free[CPU] >= kind.cpu_milli) & (free[MEMORY] >= kind.memory_bytes)
    if kind.part_milli == GPU_MILLI or kind.devices > 1:
        room &= free[GPU] >= kind.devices * GPU_MILLI
    elif kind.devices:
        room &= largest >= kind.part_milli
    return int(np.count_nonzero(room))
