"""Counts what is noted on the pods of each PodGroup about how they started: as preemptible, and in which queue."""

from collections import Counter
from typing import TypeVar

from app.model.names import NO_QUEUE, GroupKey, QueueName
from app.model.pod import Pod


class Stamps:
    """The notes by group. Only `StartedTerms` calls `replace`."""

    def __init__(self) -> None:
        """Start with no pods."""
        self._preemptible = Counter[GroupKey]()
        self._queues: dict[GroupKey, Counter[QueueName]] = {}

    def replace(self, before: Pod | None, pod: Pod | None) -> None:
        """Count a pod of a group as it is now instead of as it was; None where it is not there."""
        for one, change in ((before, -1), (pod, 1)):
            # On a pod that is not bound yet a note speaks for that pod alone, not for the others of a group.
            if one is None or (one.node is None and one.names_group):
                continue
            if one.started_preemptible:
                _add(self._preemptible, one.group, change)
            if one.bound_queue:
                _add(self._queues.setdefault(one.group, Counter()), one.bound_queue, change)
                if not self._queues[one.group]:
                    del self._queues[one.group]

    def preemptible(self, key: GroupKey) -> int:
        """Return how many pods of a group started as preemptible: they may run on what others lent them."""
        return self._preemptible[key]

    def queue(self, key: GroupKey) -> QueueName:
        """Return the queue with which the pods of a group were bound, empty when nobody noted it.

        After its PodGroup was moved they may differ: most of them decide, and of equals the first by name.
        """
        queues = self._queues.get(key)
        return min(queues, key=lambda name: (-queues[name], name)) if queues else NO_QUEUE


K = TypeVar("K")


def _add(counts: Counter[K], key: K, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
