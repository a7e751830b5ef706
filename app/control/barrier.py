"""Makes a gang atomic at bind: a member's bind stands here until all members owed to the minimum stand here too.

kube-scheduler runs each bind in a goroutine of its own, after it has accepted and assumed the pod, so holding the
answer holds nobody else.
"""

import asyncio
from dataclasses import dataclass

from app.cluster.cache import ClusterCache
from app.cluster.reservations import State
from app.model.names import GroupKey, NodeName, PodUid


@dataclass(frozen=True, slots=True)
class _Member:
    """One who stands: the node it is to be written to, and who waits for the answer."""

    node: NodeName
    answer: asyncio.Future[str]

    def tell(self, answer: str) -> None:
        """Answer, unless it has just stopped waiting: its time-out runs a moment before it leaves."""
        if not self.answer.done():
            self.answer.set_result(answer)


class GangBarrier:
    """Who stands where. A member leaves by the gate opening, by `fail`, or by being cancelled."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start with nobody standing. `_standing` is changed by `stand` and by what ends it."""
        self._cache = cache
        self._standing: dict[GroupKey, dict[PodUid, _Member]] = {}

    async def stand(self, key: GroupKey, uid: PodUid, node: NodeName) -> str:
        """Wait for the rest of the gang; return "" when this member may be written, else why it may not.

        Whoever may be written is already marked Binding: nothing can take its place away any more.
        """
        member = _Member(node, asyncio.get_running_loop().create_future())
        self._standing.setdefault(key, {})[uid] = member
        self._open_if_complete(key)
        try:
            return await member.answer
        finally:
            self._leave(key, uid)

    def review(self) -> None:
        """Look at everybody who stands, since something has changed: a promise is gone, or a gang owes less."""
        for key in list(self._standing):
            self._open_if_complete(key)

    def fail(self, key: GroupKey, error: str) -> None:
        """Send away everybody of this gang who still stands."""
        for member in self._standing.pop(key, {}).values():
            member.tell(error)

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
        held = self._cache.reservations.of_group(key)
        writing = {one.pod for one in held if one.state is State.BINDING}
        if self._cache.groups.owes(key, writing | standing.keys()):
            return
        for uid, member in self._standing.pop(key, {}).items():
            self._cache.reservations.binding(uid)
            member.tell("")

    def _send_away_without_promise(self, key: GroupKey) -> None:
        # A promise may end while its pod stands here, or be replaced: its node was deleted, or the plan has changed.
        for uid, member in list(self._standing.get(key, {}).items()):
            held = self._cache.reservations.get(uid)
            if held is None or held.node != member.node or held.state is State.AWAITING:
                member.tell("the place promised to the pod is gone")
                del self._standing[key][uid]

    def _leave(self, key: GroupKey, uid: PodUid) -> None:
        standing = self._standing.get(key)
        if standing is not None:
            standing.pop(uid, None)
            if not standing:
                del self._standing[key]
