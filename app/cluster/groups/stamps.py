"""Counts the records on the pods of each PodGroup of how they started: as preemptible, and in which queue."""

from collections import Counter
from typing import TypeVar

from app.model.names import NO_QUEUE, GroupKey, QueueName
from app.model.pod import Pod


class Stamps:
    """The records by group. Only `StartedTerms` calls `replace`."""

    def __init__(self) -> None:
        """Start without pods."""
        self._preemptible = Counter[GroupKey]()
        self._queues: dict[GroupKey, Counter[QueueName]] = {}

    def replace(self, before: Pod | None, pod: Pod | None) -> None:
        """Replace the old version of a group's pod by the new one; None where there is no such version."""
        for one, change in ((before, -1), (pod, 1)):
            # A record on a pod that is not bound yet counts for this pod alone, not for the other pods of its group.
            if one is None or (one.node is None and one.names_group):
                continue
            if one.started_preemptible:
                _add(self._preemptible, one.group, change)
            if one.bound_queue:
                _add(self._queues.setdefault(one.group, Counter()), one.bound_queue, change)
                if not self._queues[one.group]:
                    del self._queues[one.group]

    def preemptible(self, key: GroupKey) -> int:
        """Return how many pods of a group started as preemptible: they may run over quota."""
        return self._preemptible[key]

    def queue(self, key: GroupKey) -> QueueName:
        """Return the queue with which the pods of a group were bound; empty without a record.

        After a move of the PodGroup, records may differ: the most frequent queue counts, and among equals the first by
        name.
        """
        queues = self._queues.get(key)
        return min(queues, key=lambda name: (-queues[name], name)) if queues else NO_QUEUE


K = TypeVar("K")


def _add(counts: Counter[K], key: K, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
