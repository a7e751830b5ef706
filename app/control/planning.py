"""Keeps everything that waits decided: plans when something changed, turns plans into promises, and ends promises.

What was refused stays refused until there is relief (a pod went, a node came, a quota grew), since free space only
shrinks in between. So without relief only the groups that changed are planned, in the webhook itself when they are few;
with relief everything that waits is planned anew, beside the event loop when that takes long.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from app.cluster.cache import ClusterCache
from app.cluster.reservations import Reservation, State
from app.control.activity import Activity
from app.control.backoff import Backoff
from app.control.barrier import GangBarrier
from app.control.waker import Waker
from app.model.decision import Plan, Start
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason, Refusal
from app.model.resources import Resources
from app.scheduling.planner import Policy, plan, plan_some
from app.settings import Settings
from app.telemetry import Metrics, PlanOutcome

log = structlog.get_logger()

FEW = 64
"""Groups that are planned on the spot (a few ms); more are planned in a thread while the loop goes on."""

GATHER_S = 0.01
"""How long changes are gathered before a plan: a burst of pods is ordered as one."""

REFUSED_NODES_FOR_S = 120.0
"""How long a node that kube-scheduler refused for a pod is left out for it, unless its next question says more."""

TICK_S = 1.0
"""How often expired promises and ended backoffs are looked for."""


class Planning:
    """The planning loop and its results. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        activity: Activity,
        barrier: GangBarrier,
        waker: Waker,
        metrics: Metrics,
        settings: Settings,
        *,
        clock: Callable[[], float],
        unready: Callable[[], str],
    ) -> None:
        """`clock` is monotonic. `refusals` and `_planned_relief` are what the last plans left behind."""
        self._cache = cache
        self._activity = activity
        self._barrier = barrier
        self._waker = waker
        self._metrics = metrics
        self._settings = settings
        self._policy = Policy(placement=settings.placement)
        self._clock = clock
        self._unready = unready
        self._backoff = Backoff()
        self.refusals: dict[GroupKey, Refusal] = {}
        """Why each waiting group waits, as of the last plan that considered it."""
        self._news: set[GroupKey] = set()
        self._planned_relief = -1
        self._forget_at = clock() + REFUSED_NODES_FOR_S
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """Note that the cache has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Plan whenever something changed, and end what has expired, for ever."""
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()
                    await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
            self._changed.clear()
            if self._activity.failure():
                self._stand_down()
                continue
            if self._unready():
                # What is not listed yet, or no longer seen, would look like free space and unused quota.
                continue
            self._end_what_expired()
            for uid in self._cache.take_bereft():
                self._waker.revoke(uid)
            self._barrier.review()
            await self._plan_or_say()

    def _stand_down(self) -> None:
        """Give up every promise: another replica decides, and what it has decided shows in the watch only later."""
        for held in [held for held in self._cache.reservations if held.state is State.PROMISED]:
            self._cache.drop_promise(held.pod)
        self._barrier.fail_all("this replica is no longer active")

    async def _plan_or_say(self) -> None:
        # One plan at a time: in a busy cluster there is always another to make, and promises must still expire.
        try:
            if self._is_due():
                await self._plan_once()
                self.poke()
        except Exception:
            # One object that the planner cannot take must not end the service; it is tried again, not at once.
            log.exception("planning failed")
            self._metrics.plans[PlanOutcome.ERROR].inc()
            await asyncio.sleep(TICK_S)

    async def settle(self) -> None:
        """Return when everything that waits has been decided as things are now."""
        while self._is_due():
            await self._plan_once()

    async def consider(self, uid: PodUid) -> None:
        """Return when a pod has a promise, or a plan that began after this question has considered it."""
        if self._running is not None:
            await asyncio.shield(self._running)
        if self._cache.reservations.get(uid) is None and self._is_due():
            await self._plan_once()

    def plan_now(self) -> None:
        """Decide on the spot for the groups that changed, or for all that wait when there was relief."""
        if not self._is_due():
            return
        relief = self._cache.relief
        snapshot = self._cache.snapshot()
        keys: Collection[GroupKey] = snapshot.groups if self._has_relief() else tuple(self._cache.unsettled)
        with self._metrics.plan_duration.time():
            result = plan_some(snapshot, keys, self._policy)
        self._planned_relief = relief
        self._take_over(result, keys)

    def can_decide_now(self) -> bool:
        """Whether `plan_now` is allowed: no plan is being computed beside the loop, and the work is small."""
        return self._running is None and self._can_plan_now()

    def answered_expiry(self) -> float:
        """Return until when a promise holds with which filter is answered now, on the monotonic clock."""
        return self._clock() + self._settings.answered_ttl_s

    def dissolve(self, key: GroupKey, error: str) -> None:
        """End a gang's attempt: no promise is kept, whoever stands at the barrier is sent away, and it backs off."""
        delay_s = self._backoff.failed(key, self._clock())
        sentence = f"{error[:1].upper()}{error[1:]}; tried again in {delay_s:.0f} s."
        self._cache.set_aside(key, Refusal(reason=Reason.BACKING_OFF, sentence=sentence))
        self._release(key, error)
        self.poke()

    def give_up(self, uid: PodUid) -> None:
        """End one pod's promise: kube-scheduler refuses its node, or did not ask for it in time."""
        self._cache.drop_promise(uid)
        self._waker.revoke(uid)
        self.poke()

    def take_news(self) -> set[GroupKey]:
        """Return, once, the groups whose reason to wait has changed since last asked; new numbers are no news."""
        news, self._news = self._news, set()
        return news

    # Planning -------------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        self._cache.waiting()  # forms the groups that changed, which fills `unsettled`
        return self._has_relief() or bool(self._cache.unsettled)

    def _has_relief(self) -> bool:
        return self._cache.relief != self._planned_relief

    def _can_plan_now(self) -> bool:
        waiting = self._cache.waiting()
        return len(waiting if self._has_relief() else self._cache.unsettled) <= FEW

    async def _plan_once(self) -> None:
        if self.can_decide_now():
            self.plan_now()
            await asyncio.sleep(0)
            return
        if self._running is None:
            self._running = asyncio.create_task(self._plan_aside(), name="plan")
            self._running.add_done_callback(self._plan_ended)
        await asyncio.shield(self._running)

    async def _plan_aside(self) -> None:
        relief = self._cache.relief
        snapshot = self._cache.snapshot()
        with self._metrics.plan_duration.time():
            result = await asyncio.to_thread(plan, snapshot, self._policy)
        self._planned_relief = relief
        self._take_over(result, snapshot.groups)

    def _plan_ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # whoever waits in `settle` raises it; this only marks it as seen

    # Taking over what was decided -----------------------------------------------------------------------------------

    def _take_over(self, result: Plan, considered: Collection[GroupKey]) -> None:
        self._metrics.plans[PlanOutcome.APPLIED].inc()
        unchanged = self._cache.version == result.snapshot_version
        self._cache.considered(considered, result.snapshot_version)
        before = {key: self.refusals.pop(key, None) for key in considered}
        for start in result.starts:
            if unchanged or self._still_possible(start):
                self._promise(start)
            else:
                self._metrics.plans[PlanOutcome.STALE].inc()
                # What these would have held is free for others, whom the plan refused for it: all are planned anew.
                self._planned_relief = -1
        for key, refusal in result.refusals.items():
            self._refuse(key, refusal)
        self._news.update(key for key, old in before.items() if _reason(old) is not _reason(self.refusals.get(key)))

    def _promise(self, start: Start) -> None:
        expires_at = self._clock() + self._settings.promise_ttl_s
        for placement in start.placements:
            self._cache.promise(placement.pod, placement.node, expires_at=expires_at)
            self._waker.wake(placement.pod)

    def _still_possible(self, start: Start) -> bool:
        """Check a plan made beside the loop against what is known now: pods still waiting, nodes still with room."""
        wanted: dict[NodeName, Resources] = {}
        for placement in start.placements:
            pod = self._cache.pod(placement.pod)
            if pod is None or pod.node is not None or pod.deleting or self._cache.reservations.get(pod.uid):
                return False
            wanted[placement.node] = wanted.get(placement.node, Resources()) + pod.request
        return all(self._cache.has_room(node, request) for node, request in wanted.items())

    def _refuse(self, key: GroupKey, refusal: Refusal) -> None:
        group = self._cache.waiting().get(key)
        if group is None:
            return
        self.refusals[key] = refusal
        if group.owed > 0 and group.started:
            # The rest of the gang has nowhere to go: what it holds would only keep others out.
            self._release(key, "the gang cannot start as a whole")

    def _release(self, key: GroupKey, error: str) -> None:
        for held in self._cache.reservations.of_group(key):
            if held.state is State.PROMISED:
                self.give_up(held.pod)
        self._barrier.fail(key, error)

    # Ending what is over --------------------------------------------------------------------------------------------

    def _end_what_expired(self) -> None:
        now = self._clock()
        for held in self._cache.reservations.expired(now):
            self._expire(held)
        if now >= self._forget_at:
            self._forget_at = now + REFUSED_NODES_FOR_S
            self._cache.forget_refused_nodes()
            self._waker.forget_gone()
        for key in self._backoff.over(now):
            self._cache.readmit(key)
        waiting = self._cache.waiting()
        for key in [key for key in self.refusals if key not in waiting]:
            del self.refusals[key]

    def _expire(self, held: Reservation) -> None:
        self._metrics.promises_expired.inc()
        log.info("promise expired", pod=held.pod, node=held.node)
        pod = self._cache.pod(held.pod)
        if pod is not None and (pod.refused_by_scheduler or pod.nominated == held.node):
            # It was looked at, or woken to be, and nobody asked: kube-scheduler's own filters refuse that node.
            self._cache.refuse_node(held.pod, held.node)
        self._waker.park(held.pod)
        self.give_up(held.pod)


def _reason(refusal: Refusal | None) -> Reason | None:
    return refusal.reason if refusal else None
