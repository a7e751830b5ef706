"""Counts the records on the pods of each PodGroup of how they started: as preemptible, and in which queue."""

from typing import TypeVar

from app.model.names import NO_QUEUE, GroupKey, QueueName
from app.model.pod import Pod


class Stamps:
    """The records by group. Only `StartedTerms` calls `replace`."""

    def __init__(self) -> None:
        """Start without pods."""
        self._preemptible: dict[GroupKey, int] = {}
        self._queues: dict[GroupKey, dict[QueueName, int]] = {}

    def replace(self, before: Pod | None, pod: Pod | None) -> None:
        """Replace the old version of a group's pod by the new one; None where there is no such version."""
        was, now = _noted(before), _noted(pod)
        if was == now:
            return
        for noted, change in ((was, -1), (now, 1)):
            if noted is None:
                continue
            key, queue, is_preemptible = noted
            if is_preemptible:
                _add(self._preemptible, key, change)
            if queue:
                _add(self._queues.setdefault(key, {}), queue, change)
                if not self._queues[key]:
                    del self._queues[key]

    def preemptible(self, key: GroupKey) -> int:
        """Return how many pods of a group started as preemptible: they may run over quota."""
        return self._preemptible.get(key, 0)

    def queue(self, key: GroupKey) -> QueueName:
        """Return the queue with which the pods of a group were bound; empty without a record.

        After a move of the PodGroup, records may differ: the most frequent queue counts, and among equals the first by
        name.
        """
        queues = self._queues.get(key)
        return min(queues, key=lambda name: (-queues[name], name)) if queues else NO_QUEUE


def _noted(pod: Pod | None) -> tuple[GroupKey, QueueName, bool] | None:
    # A record on a pod that is not bound yet counts for this pod alone, not for the other pods of its group.
    if pod is None or not (pod.bound_queue or pod.started_preemptible) or (pod.node is None and pod.names_group):
        return None
    return pod.group, pod.bound_queue, pod.started_preemptible


K = TypeVar("K")


def _add(counts: dict[K, int], key: K, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
