"""Binds a gang as a whole: a member's bind waits here until all members that the minimum still needs wait here too.

kube-scheduler runs each bind in its own goroutine, after it has accepted and assumed the pod. So a delayed answer
delays no other pod.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, PodUid

PROMISE_GONE = "the node is no longer reserved for the pod; kube-scheduler will try again"


@dataclass(frozen=True, slots=True)
class _Member:
    """A waiting member: the node for its binding, and the future for the answer."""

    node: NodeName
    answer: asyncio.Future[str]

    def tell(self, answer: str) -> None:
        """Answer, unless the member has just stopped waiting: its time-out runs a moment before it is removed."""
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(slots=True)
class _Gang:
    """The waiting members of one gang, and the result of the last look at all of them."""

    members: dict[PodUid, _Member] = field(default_factory=dict)
    revision: int = -1
    """The revision of the group at that look."""
    owed: int = 1
    """The members that must still arrive before the gang can be bound, if the group does not change; a lower bound."""


class GangBarrier:
    """The members that wait. A member is removed when its gang is complete, by `fail`, or by cancellation.

    A look at a gang takes time in proportion to its size. So arriving members are only counted until the last one may
    be there, and `review` looks only at gangs that have changed.
    """

    def __init__(self, cache: ClusterCache) -> None:
        """Start with no waiting member. Only `stand` and what ends it change `_gangs`."""
        self._cache = cache
        self._gangs: dict[GroupKey, _Gang] = {}

    async def stand(self, key: GroupKey, uid: PodUid, node: NodeName, *, within_s: float | None = None) -> str:
        """Wait for the rest of the gang; return "" if this member may be bound, else the reason why not.

        A member that may be bound is already marked Binding: nothing can take its place away any more.
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
            if member.answer.done():
                return member.answer.result()  # Most gangs have one member, which needs no timer.
            async with asyncio.timeout(within_s):
                return await member.answer
        finally:
            self._leave(key, uid)

    def review(self) -> None:
        """Look at the gangs that have changed: a reservation may be gone, or a gang may need fewer members."""
        for key, gang in list(self._gangs.items()):
            if gang.revision != self._cache.groups.touched.revision(key):
                self._open_if_complete(key)

    def fail(self, key: GroupKey, error: str) -> None:
        """Answer all waiting members of this gang with an error."""
        for member in self._taken(key).values():
            member.tell(error)

    def fail_all(self, error: str) -> None:
        """Answer all waiting members with an error: the service stops, and kube-scheduler asks another replica."""
        for key in list(self._gangs):
            self.fail(key, error)

    def standing(self, key: GroupKey) -> int:
        """Return how many members of the gang wait here."""
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
        # A reservation may end or be replaced while its pod waits here: its node was deleted, or the plan has changed.
        for uid, member in list(gang.members.items()):
            if not self._is_promised(uid, member.node):
                member.tell(PROMISE_GONE)
                del gang.members[uid]

    def _is_promised(self, uid: PodUid, node: NodeName) -> bool:
        held = self._cache.reservations.promised(uid)
        return held is not None and held.node == node

    def _taken(self, key: GroupKey) -> Mapping[PodUid, _Member]:
        """Remove and return the waiting members."""
        gang = self._gangs.pop(key, None)
        return gang.members if gang else {}

    def _leave(self, key: GroupKey, uid: PodUid) -> None:
        gang = self._gangs.get(key)
        if gang is not None:
            gang.members.pop(uid, None)
            if not gang.members:
                del self._gangs[key]
