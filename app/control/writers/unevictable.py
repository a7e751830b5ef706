"""Remembers pods that could not be evicted, and excludes their gangs from victim searches for a while."""

import asyncio
from collections.abc import Callable, Collection

from app.cluster.state.cache import ClusterCache
from app.control.journal.backoff import Backoff
from app.model.names import PodUid


class UnevictablePods:
    """The victims that stay. The evictor reports them; groups that wait for their room learn that it stays taken."""

    def __init__(self, cache: ClusterCache, *, clock: Callable[[], float], changed: asyncio.Event) -> None:
        """`clock` is monotonic; `changed` is set when a pod is added."""
        self._cache = cache
        self._clock = clock
        self._changed = changed
        self._pods: set[PodUid] = set()
        self._gangs = Backoff()

    def add(self, victim: PodUid) -> None:
        """Note that a pod cannot be evicted; no plan chooses a pod of its gang until the pause is over."""
        self._pods.add(victim)
        if (pod := self._cache.pods.get(victim)) is not None:
            self._gangs.failed(pod.group, self._clock())
            self._cache.groups.staleness.spare(pod.group)
        self._changed.set()

    def overlaps(self, victims: Collection[PodUid]) -> bool:
        """Return whether any of these pods was reported since `forget_pods`."""
        return not self._pods.isdisjoint(victims)

    def forget_pods(self) -> None:
        """Forget the pods, since the waiting groups have been told; the pauses of the pods' gangs continue."""
        self._pods.clear()

    def end_pauses(self) -> None:
        """Let plans choose victims again from gangs whose pause is over."""
        for key in self._gangs.over(self._clock()):
            self._cache.groups.staleness.unspare(key)
