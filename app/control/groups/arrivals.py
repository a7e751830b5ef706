"""Lets a webhook question wait for its pod: our watch may lag behind kube-scheduler's, and owners may arrive later."""

import asyncio

from app.cluster.state.cache import ClusterCache
from app.model.names import PodUid
from app.model.pod import Pod


class Arrivals:
    """The pods that questions wait for. Only the event loop calls this class."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start without waiting questions."""
        self._cache = cache
        self._awaited: dict[PodUid, dict[asyncio.Future[None], None]] = {}

    def known(self, uid: PodUid) -> Pod | None:
        """Return the pod of this uid, if it is in the cache and its owners are known."""
        pod = self._cache.pods.get(uid)
        return None if pod is None or pod.ungrouped else pod

    async def pod(self, uid: PodUid, *, within_s: float) -> Pod | None:
        """Return the pod of this uid; wait a moment until the pod is in the cache and its owners are known."""
        known = self.known(uid)
        if known is not None:
            return known
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(uid, {})[arrival] = None
        try:
            async with asyncio.timeout(within_s):
                await arrival
        except TimeoutError:
            pass
        finally:
            self._give_up_waiting(uid, arrival)
        return self._cache.pods.get(uid)

    def note(self, pod: Pod) -> None:
        """Note that the cache has a pod; its question continues once the pod is in its group."""
        if not pod.ungrouped:
            self._end_wait(pod.uid)

    def note_regrouped(self) -> None:
        """Note that pods may be in their groups now."""
        for uid in list(self._awaited):
            pod = self._cache.pods.get(uid)
            if pod is not None and not pod.ungrouped:
                self._end_wait(uid)

    def _end_wait(self, uid: PodUid) -> None:
        for arrival in self._awaited.pop(uid, ()):
            if not arrival.done():
                arrival.set_result(None)

    def _give_up_waiting(self, uid: PodUid, arrival: asyncio.Future[None]) -> None:
        waiting = self._awaited.get(uid, {})
        waiting.pop(arrival, None)
        if not waiting:
            self._awaited.pop(uid, None)
