"""Makes a typical mix, and bounds how much the pods of one queue weigh in it.

A tenant chooses what its pods request, how many there are, and how soon they end. So the pods of a queue weigh no more
than its share, which is its part of the GPUs that queues hold now. For started pods it is `MOST_TIMES` the share, since
the pods of an honest queue may be smaller or shorter than others. Both limits hold for each measure of a kind of pod:

- the number of pods
- the number of pods, divided by the number of nodes with room for them
- their GPUs
- their GPUs, times the square of how much more CPU (or memory) a pod requests than nodes have for its GPUs
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from app.model.mix import TypicalMix, TypicalPod, competing
from app.model.names import QueueName
from app.model.resources import CPU, GPU, GPU_MILLI, MEMORY, Amounts
from app.model.snapshot import PART, NodeTable, Snapshot, Usage

FEW = 20
"""The weight in pods of the assumed kind."""

MOST_TIMES = 4
"""Started pods weigh at most so many times the share of their queue."""

MOST_KINDS = 128
"""The most kinds of pods in a mix. Tenants choose the requests."""

MOST_GROUPS, MOST_OF_QUEUE = 2000, 200
"""The most waiting PodGroups that are looked at for one mix, and that are read of one queue."""

ONE = 1024
"""One pod, in the unit of the counts."""

_ROUNDS = 32
"""The most times that the limits are worked out again, since less of one queue lowers the limits of all."""

Counts = Mapping[TypicalPod, float]
"""How many pods of each kind, sorted by kind: sums do not depend on the order of events."""

Measures = tuple[float, ...]
MEASURES = 5

Measure = Callable[[TypicalPod], Measures]


@dataclass(frozen=True, slots=True)
class MixInput:
    """The input of one mix. It never changes. The cluster has GPU nodes."""

    started: Mapping[QueueName, Mapping[TypicalPod, int]]
    """How often pods of each kind have started, by queue."""
    snapshot: Snapshot

    def mix(self) -> TypicalMix:
        """Make the mix."""
        snapshot = self.snapshot
        started = _by_queue(self.started, snapshot)
        waiting = _by_queue(_waiting(snapshot), snapshot)
        shares = _shares(snapshot, dict.fromkeys((*started, *waiting)))
        base: Counts = {assumed(snapshot.nodes): float(FEW * ONE)}
        # First by the number of pods alone: the nodes are looked at for common kinds only.
        common = _most_common(_merged(started, waiting, shares, base, _one_pod), 2 * MOST_KINDS)
        rooms = _Rooms(snapshot, dict.fromkeys((*common, *base)))
        counts = _merged(
            {name: rooms.possible(kinds) for name, kinds in started.items()},
            {name: rooms.with_room(kinds) for name, kinds in waiting.items()},
            shares,
            base,
            rooms.measures,
        )
        kinds = [kind for kind in _most_common(counts, MOST_KINDS) if counts[kind] >= 1 and kind in rooms.now]
        return TypicalMix(
            pods=tuple(kinds),
            counts=tuple(int(counts[kind]) for kind in kinds),
            rooms=tuple(rooms.now[kind] for kind in kinds),
            gpu_nodes=rooms.gpu_nodes,
        )


def gpu_nodes_of(nodes: NodeTable) -> int:
    """Return the number of nodes with GPUs."""
    return int(np.count_nonzero(nodes.allocatable[GPU]))


def assumed(nodes: NodeTable) -> TypicalPod:
    """Return the kind of pod that is assumed as long as few are known. There are GPU nodes.

    It requests one GPU, with half of the CPU and memory that GPU nodes have per GPU.
    """
    cpu_milli, memory_bytes = _for_one_gpu(nodes)
    return TypicalPod(cpu_milli // 2, memory_bytes // 2, 1, GPU_MILLI)


def _for_one_gpu(nodes: NodeTable) -> tuple[int, int]:
    """Return the CPU and memory that GPU nodes have per GPU."""
    cpu_milli, memory_bytes, gpu_milli, _ = (
        int(amount) for amount in nodes.allocatable[:, nodes.allocatable[GPU] > 0].sum(axis=1)
    )
    gpus = max(gpu_milli // GPU_MILLI, 1)
    return cpu_milli // gpus, memory_bytes // gpus


# How much the pods of each queue weigh -------------------------------------------------------------------------------


def _by_queue(counts: Mapping[QueueName, Mapping[TypicalPod, int]], snapshot: Snapshot) -> dict[QueueName, Counts]:
    """Return the counts of the queues that exist, in one order whatever the order of the events was."""
    return {name: dict(sorted(counts[name].items())) for name in sorted(counts) if name in snapshot.queues}


def _waiting(snapshot: Snapshot) -> Mapping[QueueName, Counter[TypicalPod]]:
    """Return how many pods of each kind wait, by queue."""
    device_memory_mib = snapshot.nodes.smallest_device_mib
    found: dict[QueueName, Counter[TypicalPod]] = {}
    read = Counter[QueueName]()
    for group in islice(snapshot.groups.values(), MOST_GROUPS):
        read[group.queue] += 1
        if group.refusal is None and group.pending and read[group.queue] <= MOST_OF_QUEUE:
            # The first pod stands for all pending pods of its group: a large gang costs as much as a small one.
            kind = TypicalPod.of(group.pending[0], device_memory_mib)
            if kind is not None:
                found.setdefault(group.queue, Counter())[kind] += len(group.pending) * ONE
    return found


def _shares(snapshot: Snapshot, names: Iterable[QueueName]) -> Mapping[QueueName, float]:
    """Return each queue's part of the GPUs that these queues hold. Each counts as if it held one more."""
    held = {name: snapshot.usage.get(name, Usage()).allocated.gpu_milli + GPU_MILLI for name in names}
    total = sum(held.values())
    return {name: amount / total for name, amount in held.items()}


def _merged(
    started: Mapping[QueueName, Counts],
    waiting: Mapping[QueueName, Counts],
    shares: Mapping[QueueName, float],
    base: Counts,
    measure: Measure,
) -> Counts:
    """Return how much each kind weighs: `base`, and the pods of all queues within their limits."""
    weights = {name: _weights(kinds, measure) for name, kinds in started.items()}
    parts, most = _parts(weights, shares, _weights(base, measure))
    counts = dict(base)
    for name, kinds in started.items():
        _add(counts, kinds, parts[name])
    for name, kinds in waiting.items():
        _add(counts, kinds, _part(_weights(kinds, measure), most, shares[name]))
    return counts


def _parts(
    weights: Mapping[QueueName, Measures], shares: Mapping[QueueName, float], base: Measures
) -> tuple[Mapping[QueueName, float], Measures]:
    """Return which part of its started pods each queue has in the mix, and how much all these weigh with `base`."""
    parts = dict.fromkeys(weights, 1.0)
    for _ in range(_ROUNDS):
        most, before = _total(weights, parts, base), parts
        parts = {name: min(parts[name], _part(each, most, MOST_TIMES * shares[name])) for name, each in weights.items()}
        if parts == before:
            break
    return parts, _total(weights, parts, base)


def _part(weights: Measures, most: Measures, share: float) -> float:
    """Return which part of these weights is within a share of the most by every measure; at most 1."""
    return min(
        (share * whole / weight for weight, whole in zip(weights, most, strict=True) if weight > share * whole),
        default=1.0,
    )


def _total(weights: Mapping[QueueName, Measures], parts: Mapping[QueueName, float], base: Measures) -> Measures:
    rows = [base, *([parts[name] * weight for weight in each] for name, each in weights.items())]
    return tuple(map(sum, zip(*rows, strict=True)))


def _weights(kinds: Counts, measure: Measure) -> Measures:
    """Return how much these pods weigh by each measure."""
    weights = [0.0] * MEASURES
    for kind, count in kinds.items():
        for index, each in enumerate(measure(kind)):
            weights[index] += count * each
    return tuple(weights)


def _add(counts: dict[TypicalPod, float], kinds: Counts, part: float) -> None:
    for kind, count in kinds.items():
        counts[kind] = counts.get(kind, 0.0) + part * count


def _one_pod(_: TypicalPod) -> Measures:
    return 1.0, 0.0, 0.0, 0.0, 0.0


def _most_common(counts: Counts, most: int) -> list[TypicalPod]:
    return sorted(counts, key=lambda kind: (-counts[kind], kind))[:most]


# The nodes with room for each kind ------------------------------------------------------------------------------------


class _Rooms:
    """The number of nodes with room for one more pod of each kind."""

    def __init__(self, snapshot: Snapshot, kinds: Iterable[TypicalPod]) -> None:
        """Look at all nodes for each kind. Kinds that no node could hold, also when it is empty, are left out."""
        nodes, largest = snapshot.nodes, _largest_parts(snapshot)
        empty: NDArray[np.int64] = np.where(nodes.allocatable[GPU] >= GPU_MILLI, np.int64(GPU_MILLI), np.int64(0))
        self.gpu_nodes = gpu_nodes_of(nodes)
        self._for_one_gpu = _for_one_gpu(nodes)
        self.now = {
            kind: _rooms(kind, snapshot.free, largest) for kind in kinds if _rooms(kind, nodes.allocatable, empty)
        }

    def possible(self, kinds: Counts) -> Counts:
        """Return the counts of kinds that a node could hold."""
        return {kind: count for kind, count in kinds.items() if kind in self.now}

    def with_room(self, kinds: Counts) -> Counts:
        """Return the counts of kinds for which a node has room now. Other waiting pods say nothing about free GPUs."""
        return {kind: count for kind, count in kinds.items() if self.now.get(kind)}

    def measures(self, kind: TypicalPod) -> Measures:
        """Return how much one pod weighs by each measure."""
        gpus, offers = kind.gpu_milli / GPU_MILLI, 1 / competing(self.now.get(kind, 0), self.gpu_nodes)
        # A pod that requests less counts as if it requested that: a queue may be the only one that states its memory.
        more = (
            max(amount / max(gpus * each, 1), 1.0)
            for amount, each in zip((kind.cpu_milli, kind.memory_bytes), self._for_one_gpu, strict=True)
        )
        by_cpu, by_memory = (gpus * each * each for each in more)
        return 1.0, offers, gpus, by_cpu, by_memory


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
