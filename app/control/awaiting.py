"""Holds room for pods until those have left who are still in it, and makes promises of it then.

Nobody is nominated before: kube-scheduler sees a full node, refuses the pod and clears the nomination with it. What
holds the room meanwhile is our own promise, in the state Awaiting.

Whoever does not use what others were evicted from backs off for long: a pod that kube-scheduler's own filters refuse
must not have one node after the other emptied.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from app.cluster.cache import ClusterCache
from app.cluster.reservations import Reservation, State
from app.control.evictor import Evictor
from app.control.recheck import is_open
from app.control.waker import Waker
from app.model.decision import Start
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class _Wait:
    """Pods of one group that start together once all of their room is free, and the victims that have to leave it."""

    group: GroupKey
    pods: tuple[PodUid, ...]
    nodes: frozenset[NodeName]
    victims: frozenset[PodUid]
    since: float
    relief: int
    """What the cache counted when it began: more than that, and there may be free room elsewhere."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A group whose room will not be free, and why."""

    group: GroupKey
    error: str
    least_s: float = 0.0
    """For how long to leave the group out at the least."""


RECONSIDERED_AFTER_S = 10.0
"""How long somebody waits at the least for pods that are leaving anyhow before free room elsewhere is looked for."""

WASTED_S = 60.0
"""How long a group is left out at the least for which pods were evicted to no purpose."""

JUDGED_EVERY_S = 1.0
"""How often everybody who waits is looked at although nothing was freed: the room may have been taken, too."""


class Awaiting:
    """Who waits for room that is being freed. Only `hold`, `review` and `stand_down` change it."""

    def __init__(
        self, cache: ClusterCache, waker: Waker, evictor: Evictor, settings: Settings, *, clock: Callable[[], float]
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._waker = waker
        self._evictor = evictor
        self._settings = settings
        self._clock = clock
        self._waits: list[_Wait] = []
        self._served: dict[PodUid, GroupKey] = {}
        """Pods for which others were evicted, until they are bound."""
        self._staying: set[PodUid] = set()
        self._judged_at = clock()

    def hold(self, starts: Sequence[Start], victims: Collection[PodUid]) -> None:
        """Hold the places of these starts, which are of one group, until their room is free."""
        expires_at = self._clock() + self._settings.eviction_ttl_s
        for start in starts:
            for placement in start.placements:
                self._cache.await_release(placement.pod, placement.node, expires_at=expires_at)
            pods = tuple(placement.pod for placement in start.placements)
            nodes = frozenset(placement.node for placement in start.placements)
            now, relief = self._clock(), self._cache.relief
            self._waits.append(_Wait(start.group, pods, nodes, frozenset(victims), since=now, relief=relief))

    def note_failure(self, victim: PodUid) -> None:
        """Note that a victim cannot be evicted: whoever waits for it waits in vain."""
        self._staying.add(victim)

    def stand_down(self) -> None:
        """Forget everybody: another replica decides, also about who has not been told to leave yet."""
        self._evictor.recall({victim for wait in self._waits for victim in wait.victims})
        self._waits.clear()
        self._served.clear()
        self._staying.clear()

    def review(self) -> list[Failure]:
        """Promise what is free by now; return whose room will not be, whose places are still held."""
        failures = [*self._failures(), *self._unused()]
        self._staying.clear()
        relieved, is_due = self._cache.take_relieved(), self._clock() >= self._judged_at + JUDGED_EVERY_S
        looked_at = [wait for wait in self._waits if is_due or not relieved.isdisjoint(wait.nodes)]
        self._end({wait for wait in looked_at if self._is_over(wait)})
        if is_due:
            self._judged_at = self._clock()
            failures += filter(None, map(self._judge, self._waits))
        return failures

    def _failures(self) -> Iterator[Failure]:
        now = self._clock()
        failures: dict[GroupKey, Failure] = {}
        for wait in self._waits:
            held = self._held(wait)
            if held and wait.victims & self._staying:
                failures[wait.group] = Failure(wait.group, "a pod that was to make room for it cannot be evicted")
            elif any(one.expires_at <= now for one in held):
                failures[wait.group] = Failure(wait.group, "the room it waited for was not freed in time")
        yield from failures.values()

    def _unused(self) -> Iterator[Failure]:
        for uid, group in list(self._served.items()):
            pod = self._cache.pod(uid)
            if pod is None or pod.node is not None:
                del self._served[uid]
            elif self._cache.reservations.get(uid) is None and not self._is_refused(group):
                del self._served[uid]
                yield Failure(group, "the room that others were evicted from was of no use to it", WASTED_S)

    def _is_refused(self, group: GroupKey) -> bool:
        # kube-scheduler may have looked a moment before the room was free: nobody searches until it offers nodes again.
        waiting = self._cache.waiting().get(group)
        refusal = waiting.refusal if waiting else None
        return refusal is not None and refusal.reason is Reason.REFUSED_BY_SCHEDULER

    def _is_over(self, wait: _Wait) -> bool:
        held = self._held(wait)
        if len(held) == len(wait.pods):
            if self._fulfil(held):
                self._served.update(dict.fromkeys(wait.pods if wait.victims else (), wait.group))
                return True
            if not self._may_fare_better(wait):
                return False
        # One of them is gone, or what was held for it, or there may be room elsewhere: they are planned anew.
        for one in held:
            self._cache.drop_promise(one.pod)
        return True

    def _end(self, over: Collection[_Wait]) -> None:
        """Forget those who wait no more; have nobody leave any more for whom only those waited who got nothing."""
        if not over:
            return
        self._waits = [wait for wait in self._waits if wait not in over]
        in_vain = [wait for wait in over if not any(map(self._cache.reservations.get, wait.pods))]
        needless = {victim for wait in in_vain for victim in wait.victims}
        self._evictor.recall(needless.difference(*(wait.victims for wait in self._waits)))

    def _judge(self, wait: _Wait) -> Failure | None:
        """Say whose room others have taken or its node will not give: nobody's leaving makes it free any more."""
        if not wait.victims or self._will_be_free(wait):
            return None
        have_left = any(self._cache.pod(victim) is None for victim in wait.victims)
        return Failure(wait.group, "the room it waited for will not be free", WASTED_S if have_left else 0.0)

    def _may_fare_better(self, wait: _Wait) -> bool:
        """Whether those who only wait for somebody who was leaving anyhow should be planned anew."""
        if wait.victims:
            return False
        is_due = self._clock() >= wait.since + RECONSIDERED_AFTER_S
        return (is_due and self._cache.relief != wait.relief) or not self._will_be_free(wait)

    def _will_be_free(self, wait: _Wait) -> bool:
        """Whether the places held are free, and still open to these pods, when everybody has left who is leaving."""
        if not self._cache.room.suffices_later(wait.pods):
            return False
        return self._are_open(self._held(wait))

    def _are_open(self, held: Collection[Reservation]) -> bool:
        return all(is_open(self._cache, one.pod, one.node) for one in held)

    def _fulfil(self, waiting: Collection[Reservation]) -> bool:
        """Make promises of all of these, or of none; return whether they are."""
        if not self._cache.room.suffices([one.pod for one in waiting]) or not self._are_open(waiting):
            return False
        for one in waiting:
            self._cache.fulfil(one.pod)
            self._cache.reservations.extend(one.pod, self._clock() + self._settings.promise_ttl_s)
            self._waker.nominate(one.pod)
        return True

    def _held(self, wait: _Wait) -> list[Reservation]:
        held = (self._cache.reservations.get(uid) for uid in wait.pods)
        return [one for one in held if one is not None and one.state is State.AWAITING]
