"""Makes a gang atomic at bind: a member's bind stands here until all members owed to the minimum stand here too.

kube-scheduler runs each bind in a goroutine of its own, after it has accepted and assumed the pod, so holding the
answer holds nobody else.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, PodUid

PROMISE_GONE = "the place reserved for the pod is gone"


@dataclass(frozen=True, slots=True)
class _Member:
    """One who stands: the node it is to be written to, and who waits for the answer."""

    node: NodeName
    answer: asyncio.Future[str]

    def tell(self, answer: str) -> None:
        """Answer, unless it has just stopped waiting: its time-out runs a moment before it leaves."""
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(slots=True)
class _Gang:
    """The members of one gang who stand, and what the last look at all of them has shown."""

    members: dict[PodUid, _Member] = field(default_factory=dict)
    revision: int = -1
    """Of the group, as of that look."""
    owed: int = 1
    """At least so many more have to come before the gate can open, while nothing about the group changes."""


class GangBarrier:
    """Who stands where. A member leaves by the gate opening, by `fail`, or by being cancelled.

    A look at a gang takes time in proportion to its size. So who comes is only counted until the last one may be there,
    and `review` looks at those gangs alone about which something has changed.
    """

    def __init__(self, cache: ClusterCache) -> None:
        """Start with nobody standing. `_gangs` is changed by `stand` and by what ends it."""
        self._cache = cache
        self._gangs: dict[GroupKey, _Gang] = {}

    async def stand(self, key: GroupKey, uid: PodUid, node: NodeName) -> str:
        """Wait for the rest of the gang; return "" when this member may be written, else why it may not.

        Whoever may be written is already marked Binding: nothing can take its place away any more.
        """
        if not self._is_promised(uid, node):
            return PROMISE_GONE
        member = _Member(node, asyncio.get_running_loop().create_future())
        gang = self._gangs.setdefault(key, _Gang())
        gang.members[uid] = member
        gang.owed -= 1
        if gang.owed <= 0:
            self._open_if_complete(key)
        try:
            return await member.answer
        finally:
            self._leave(key, uid)

    def review(self) -> None:
        """Look at the gangs about which something has changed: a promise may be gone, or a gang owe less."""
        for key, gang in list(self._gangs.items()):
            if gang.revision != self._cache.groups.touched.revision(key):
                self._open_if_complete(key)

    def fail(self, key: GroupKey, error: str) -> None:
        """Send away everybody of this gang who still stands."""
        for member in self._taken(key).values():
            member.tell(error)

    def fail_all(self, error: str) -> None:
        """Send away everybody: the service stops, and kube-scheduler asks again elsewhere."""
        for key in list(self._gangs):
            self.fail(key, error)

    def standing(self, key: GroupKey) -> int:
        """Return how many members of the gang stand here."""
        return len(self._gangs[key].members) if key in self._gangs else 0

    def _open_if_complete(self, key: GroupKey) -> None:
        gang = self._gangs[key]
        gang.revision = self._cache.groups.touched.revision(key)
        self._send_away_without_promise(gang)
        held = self._cache.reservations.of_group(key)
        writing = {one.pod for one in held if one.state is ReservationState.BINDING}
        gang.owed = self._cache.groups.progress.owes(key, writing | gang.members.keys())
        if gang.owed:
            return
        for uid, member in self._taken(key).items():
            self._cache.reservations.binding(uid)
            member.tell("")

    def _send_away_without_promise(self, gang: _Gang) -> None:
        # A promise may end while its pod stands here, or be replaced: its node was deleted, or the plan has changed.
        for uid, member in list(gang.members.items()):
            if not self._is_promised(uid, member.node):
                member.tell(PROMISE_GONE)
                del gang.members[uid]

    def _is_promised(self, uid: PodUid, node: NodeName) -> bool:
        held = self._cache.reservations.promised(uid)
        return held is not None and held.node == node

    def _taken(self, key: GroupKey) -> Mapping[PodUid, _Member]:
        """Return who stands, and forget that they do."""
        gang = self._gangs.pop(key, None)
        return gang.members if gang else {}

    def _leave(self, key: GroupKey, uid: PodUid) -> None:
        gang = self._gangs.get(key)
        if gang is not None:
            gang.members.pop(uid, None)
            if not gang.members:
                del self._gangs[key]
