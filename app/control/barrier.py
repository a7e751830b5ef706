"""Makes a gang atomic at bind: a member's bind stands here until all members owed to the minimum stand here too.

kube-scheduler runs each bind in a goroutine of its own, after it has accepted and assumed the pod, so holding the
answer holds nobody else.
"""

import asyncio

from app.cluster.cache import ClusterCache
from app.cluster.reservations import State
from app.model.names import GroupKey, PodUid


class GangBarrier:
    """Who stands where. A member leaves by the gate opening, by `fail`, or by being cancelled."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start with nobody standing. `_standing` is changed by `stand` and by what ends it."""
        self._cache = cache
        self._standing: dict[GroupKey, dict[PodUid, asyncio.Future[str]]] = {}

    async def stand(self, key: GroupKey, uid: PodUid) -> str:
        """Wait for the rest of the gang; return "" when this member may be written, else why it may not.

        Whoever may be written is already marked Binding: nothing can take its place away any more.
        """
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._standing.setdefault(key, {})[uid] = future
        self._open_if_complete(key)
        try:
            return await future
        finally:
            self._leave(key, uid)

    def fail(self, key: GroupKey, error: str) -> None:
        """Send away everybody of this gang who still stands."""
        for future in self._standing.pop(key, {}).values():
            if not future.done():
                future.set_result(error)

    def fail_all(self, error: str) -> None:
        """Send away everybody: the service stops, and kube-scheduler asks again elsewhere."""
        for key in list(self._standing):
            self.fail(key, error)

    def standing(self, key: GroupKey) -> int:
        """Return how many members of the gang stand here."""
        return len(self._standing.get(key, ()))

    def _open_if_complete(self, key: GroupKey) -> None:
        self._send_away_without_promise(key)
        standing = self._standing.get(key, {})
        writing = sum(held.state is State.BINDING for held in self._cache.reservations.of_group(key))
        if self._cache.groups.bound(key) + writing + len(standing) < self._cache.groups.min_member(key):
            return
        for uid, future in self._standing.pop(key, {}).items():
            self._cache.reservations.binding(uid)
            future.set_result("")

    def _send_away_without_promise(self, key: GroupKey) -> None:
        # A promise may end while its pod stands here: its node was deleted, or the plan has changed.
        for uid, future in list(self._standing.get(key, {}).items()):
            if self._cache.reservations.get(uid) is None:
                future.set_result("the place promised to the pod is gone")
                del self._standing[key][uid]

    def _leave(self, key: GroupKey, uid: PodUid) -> None:
        standing = self._standing.get(key)
        if standing is not None:
            standing.pop(uid, None)
            if not standing:
                del self._standing[key]
