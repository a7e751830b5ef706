"""Computes how long a running PodGroup is safe from eviction: until it has run for its queue's min-runtime.

Rules: KAI v0.13 (minruntime plugin). Preemption looks at the victim's queue, then up its ancestors. Reclaim does the
same (`queue`), or begins at the victim's ancestor just below the lowest common ancestor with the reclaimer (`lca`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from app.model.names import QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.scheduling.preemption.victims import Safety
from app.scheduling.queues.accounts import line
from app.settings import ResolveMethod


class MinRuntimeDefaults(Protocol):
    """Defaults for queues without a min-runtime, if their ancestors have none either; a policy provides them."""

    @property
    def preempt_min_runtime_s(self) -> float:
        """How long a PodGroup is safe from preemption inside its queue."""

    @property
    def reclaim_min_runtime_s(self) -> float:
        """How long a PodGroup is safe from reclaim by other queues."""

    @property
    def consolidate_min_runtime_s(self) -> float:
        """How long a PodGroup is safe from being moved; queues cannot override it."""


class Protection:
    """Answers for one plan, made at `now` (seconds since the epoch)."""

    def __init__(
        self,
        queues: Mapping[QueueName, Queue],
        defaults: MinRuntimeDefaults,
        now: float,
        *,
        method: ResolveMethod = ResolveMethod.LCA,
    ) -> None:
        self._queues = queues
        self._defaults = defaults
        self._now = now
        self._method = method
        # Only the two lookups write these: there are few queues, but many pairs of PodGroups.
        self._preempt_s: dict[QueueName, float] = {}
        self._reclaim_s: dict[tuple[QueueName, QueueName], float] = {}

    def from_preempt(self, _group: PodGroup, victim: PodGroup) -> Safety:
        """Return how far the victim is safe from a group of its own queue."""
        return self._safety(victim, self.preempt_s(victim.queue))

    def from_reclaim(self, group: PodGroup, victim: PodGroup) -> Safety:
        """Return how far the victim is safe from a group of another queue."""
        return self._safety(victim, self.reclaim_s(group.queue, victim.queue))

    def from_consolidate(self, _group: PodGroup, victim: PodGroup) -> Safety:
        """Return how far the victim is safe from being moved, for any group."""
        return self._safety(victim, self._defaults.consolidate_min_runtime_s)

    def preempt_s(self, victim: QueueName) -> float:
        """Return how long running PodGroups of this queue are safe from preemption."""
        if victim not in self._preempt_s:
            stated = (self._queues[name].preempt_min_runtime_s for name in line(self._queues, victim).names)
            self._preempt_s[victim] = _first(stated, self._defaults.preempt_min_runtime_s)
        return self._preempt_s[victim]

    def reclaim_s(self, reclaimer: QueueName, victim: QueueName) -> float:
        """Return how long running PodGroups of the victim's queue are safe from the reclaimer's queue."""
        pair = (reclaimer, victim)
        if pair not in self._reclaim_s:
            names = self._asked(reclaimer, victim)
            stated = (self._queues[name].reclaim_min_runtime_s for name in names)
            self._reclaim_s[pair] = _first(stated, self._defaults.reclaim_min_runtime_s)
        return self._reclaim_s[pair]

    def _asked(self, reclaimer: QueueName, victim: QueueName) -> Sequence[QueueName]:
        """Return the queues that are consulted, in order; the first with a value decides."""
        names = line(self._queues, victim).names
        if self._method is ResolveMethod.QUEUE:
            return names
        shared = set(line(self._queues, reclaimer).names)
        above = sum(name in shared for name in names)
        # The last queue that is not an ancestor of both; if there is none, the line begins at its own end.
        return names[max(0, len(names) - above - 1) :]

    def _safety(self, victim: PodGroup, min_runtime_s: float) -> Safety:
        if victim.started_at is None or self._now >= victim.started_at + min_runtime_s:
            return Safety.NONE
        return Safety.MINIMUM if is_elastic(victim) else Safety.ALL


def runtimes(queues: Iterable[Queue], defaults: MinRuntimeDefaults) -> tuple[float, ...]:
    """Return every min-runtime that may protect a PodGroup, each once."""
    stated = ((queue.preempt_min_runtime_s, queue.reclaim_min_runtime_s) for queue in queues)
    every = (*(each for pair in stated for each in pair if each), *_of(defaults))
    return tuple(dict.fromkeys(every))


def _of(defaults: MinRuntimeDefaults) -> tuple[float, ...]:
    return defaults.preempt_min_runtime_s, defaults.reclaim_min_runtime_s, defaults.consolidate_min_runtime_s


def is_elastic(group: PodGroup) -> bool:
    """Return whether the group has more pods, running or pending, than some pod set needs."""
    there = Counter(group.held()) + Counter(group.pod_set(pod) for pod in group.pending)
    return any(there[leaf.name] > leaf.min_member for leaf in group.tree.leaves())


def _first(stated: Iterable[float | None], default: float) -> float:
    return next((seconds for seconds in stated if seconds is not None), default)
