"""Keeps which pods of other schedulers name which queue: they are charged to the queue as long as it exists."""

from collections.abc import Collection

from app.model.names import PodUid, QueueName
from app.model.pod import Pod


class Payers:
    """Pods of other schedulers, by the queue that they name. Only `ClusterCache` calls `replace`."""

    def __init__(self) -> None:
        """Start without pods."""
        self._by_queue: dict[QueueName, dict[PodUid, None]] = {}

    def of(self, queue: QueueName) -> Collection[PodUid]:
        """Return the pods that name a queue; the caller must not keep the value."""
        return self._by_queue.get(queue, ())

    def replace(self, before: Pod | None, pod: Pod | None) -> None:
        """Replace the old version of a pod by the new one; None where there is no such version."""
        if before is not None and (pods := self._by_queue.get(before.queue)):
            pods.pop(before.uid, None)
            if not pods:
                del self._by_queue[before.queue]
        if pod is not None and pod.queue and not pod.managed:
            self._by_queue.setdefault(pod.queue, {})[pod.uid] = None
