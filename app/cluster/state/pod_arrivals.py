"""Learns the typical mix of pods with GPUs, from those that start and those that wait.

Nothing is stored: after a restart the listed pods are counted again. Only a planning step makes a mix: from a frozen
input, beside the event loop. All others read the last one.
"""

from collections import Counter

from app.cluster.state.mix_input import FEW, MOST_KINDS, ONE, MixInput, assumed, gpu_nodes_of
from app.model.mix import TypicalMix, TypicalPod
from app.model.names import QueueName
from app.model.pod import Pod
from app.model.snapshot import NodeTable, Snapshot

MOST_COUNTED = 8192
"""The number of started pods of a queue after which its counts are halved, so that old pods count less and less."""

MOST_QUEUES = 20_000
"""The most queues whose pods are counted. Tenants choose the names."""


class PodArrivals:
    """Counts the pods that start, and knows when their number, or that of the nodes, has grown enough for a new mix."""

    def __init__(self) -> None:
        """Start without pods."""
        self._started: dict[QueueName, _Started] = {}
        self._seen = 0
        self._due = 0
        self._gpu_nodes = 0
        self.last: TypicalMix | None = None
        """The last mix that was made; None before the first."""

    def note_start(self, pod: Pod, queue: QueueName, device_memory_mib: int) -> None:
        """Count a managed pod that has a node now, given the queue that pays for it and the memory of the node's GPUs.

        After a restart the queue may be listed later than the pod.
        """
        kind = TypicalPod.of(pod, device_memory_mib)
        if kind is None:
            return
        started = self._started.get(queue)
        if started is None:
            if len(self._started) >= MOST_QUEUES:
                return
            started = self._started[queue] = _Started()
        started.note(kind)
        self._seen += 1

    def is_due(self, nodes: NodeTable) -> bool:
        """Whether a tenth more pods have started, or the number of GPU nodes has changed by a tenth."""
        gpu_nodes = gpu_nodes_of(nodes)
        if not gpu_nodes:
            return False
        return self._seen >= self._due or 10 * abs(gpu_nodes - self._gpu_nodes) > self._gpu_nodes

    def note_begun(self, nodes: NodeTable) -> None:
        """Note that a mix is being made. No other is due for a while, also if making this one fails."""
        self._due = self._seen + max(min(self._seen, MOST_COUNTED) // 10, FEW)
        self._gpu_nodes = gpu_nodes_of(nodes)

    def freeze(self, snapshot: Snapshot) -> MixInput:
        """Return what a new mix is made from; started pods of queues that do not exist are forgotten."""
        self._started = {name: each for name, each in self._started.items() if name in snapshot.queues}
        return MixInput({name: dict(each.counts) for name, each in self._started.items()}, snapshot)

    def assume(self, nodes: NodeTable) -> None:
        """Have a mix of the assumed kind alone, of which every GPU node has room for one. A new mix stays due."""
        gpu_nodes = gpu_nodes_of(nodes)
        if gpu_nodes:
            self.last = TypicalMix((assumed(nodes),), (FEW * ONE,), (gpu_nodes,), gpu_nodes)

    def learn(self, snapshot: Snapshot) -> TypicalMix | None:
        """Make the mix at once if it is due, and return the last one; for replays, which have no event loop."""
        if self.is_due(snapshot.nodes):
            self.note_begun(snapshot.nodes)
            self.last = self.freeze(snapshot).mix()
        return self.last


class _Started:
    """How often pods of one queue have started. Old pods, and rare kinds where there are many, count less."""

    __slots__ = ("_seen", "counts")

    def __init__(self) -> None:
        self.counts = Counter[TypicalPod]()
        self._seen = 0

    def note(self, kind: TypicalPod) -> None:
        self.counts[kind] += ONE
        self._seen += 1
        if self._seen % MOST_COUNTED == 0:
            self.counts = Counter({each: count // 2 for each, count in self.counts.items() if count > 1})
        if len(self.counts) > 2 * MOST_KINDS:
            self.counts = Counter(dict(self.counts.most_common(MOST_KINDS)))
