"""Lets a question wait for its pod: the watch may lag behind kube-scheduler's, and owners come after their pods."""

import asyncio

from app.cluster.state.cache import ClusterCache
from app.model.names import PodUid
from app.model.pod import Pod


class Arrivals:
    """The pods that questions wait for. Only the event loop calls in here."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start with no question waiting."""
        self._cache = cache
        self._awaited: dict[PodUid, set[asyncio.Future[None]]] = {}

    async def pod(self, uid: PodUid, *, within_s: float) -> Pod | None:
        """Return the pod of this uid, waiting a moment until it is there and its owners are known."""
        known = self._cache.pods.get(uid)
        if known is not None and not known.ungrouped:
            return known
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(uid, set()).add(arrival)
        try:
            async with asyncio.timeout(within_s):
                await arrival
        except TimeoutError:
            pass
        finally:
            self._give_up_waiting(uid, arrival)
        return self._cache.pods.get(uid)

    def note(self, pod: Pod) -> None:
        """Note that the cache has a pod; a question goes on once the pod is in its group."""
        if not pod.ungrouped:
            self._end_wait(pod.uid)

    def note_regrouped(self) -> None:
        """Note that pods may belong to their groups now."""
        for uid in list(self._awaited):
            pod = self._cache.pods.get(uid)
            if pod is not None and not pod.ungrouped:
                self._end_wait(uid)

    def _end_wait(self, uid: PodUid) -> None:
        for arrival in self._awaited.pop(uid, ()):
            if not arrival.done():
                arrival.set_result(None)

    def _give_up_waiting(self, uid: PodUid, arrival: asyncio.Future[None]) -> None:
        waiting = self._awaited.get(uid, set())
        waiting.discard(arrival)
        if not waiting:
            self._awaited.pop(uid, None)
