"""Keeps all waiting groups decided: plans after each change, without victims; `search_loop` searches for victims.

A refused group stays refused until capacity is freed (a pod was deleted, a node was added, a quota grew), since free
space only shrinks in between. Without freed capacity only the changed groups are planned; a few groups are planned in
the webhook itself. After capacity was freed, all waiting groups are planned again. A long plan runs beside the event
loop.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.attempts import Attempts
from app.control.cycle.due_groups import DueGroups
from app.control.cycle.kept_room import KeptRoom
from app.control.cycle.learning import Learning
from app.control.cycle.plan_effort import PlanEffort
from app.control.cycle.policy_settings import policy_of
from app.control.cycle.reserver import Reserver
from app.control.cycle.rival_promises import RivalPromises, rivals_of
from app.control.leadership.readiness import Readiness
from app.model.decision import Plan
from app.model.explanation import Position
from app.model.names import GroupKey, NodeName, PodUid
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.snapshot import Snapshot
from app.scheduling.explain.position import position
from app.scheduling.placement.effort import FEW_GROUPS
from app.scheduling.planner.planner import plan_some
from app.settings import Settings
from app.telemetry import Metrics, PlanOutcome

log = structlog.get_logger()

GATHER_S = 0.01
"""How long changes are gathered before a plan: the pods of a burst are ordered together."""

TICK_S = 1.0
"""The interval between two checks for expired reservations and ended backoffs."""


class Planning:
    """The planning loop and its results. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        readiness: Readiness,
        reserver: Reserver,
        applier: PlanApplier,
        kept: KeptRoom,
        attempts: Attempts,
        metrics: Metrics,
        settings: Settings,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        changed: asyncio.Event,
        search_due: asyncio.Event,
    ) -> None:
        """`clock` is monotonic, `wall_clock` is in seconds since the epoch.

        `changed` is set by what changes the cache. `search_due` is set after each turn, since another search for
        victims may be due.
        """
        self._cache = cache
        self._readiness = readiness
        self._reserver = reserver
        self._applier = applier
        self._kept_room = kept
        self.attempts = attempts
        self._metrics = metrics
        self._policy = policy_of(settings)
        self._clock = clock
        self._wall_clock = wall_clock
        self._rivals = RivalPromises(cache, reserver)
        self._learning = Learning(cache)
        self.effort = PlanEffort(cache, kept)
        self._due = DueGroups(cache, self._policy, wall_clock=wall_clock)
        self._changed = changed
        self._search_due = search_due
        self._running: asyncio.Task[None] | None = None
        self._is_taking_over = False

    @property
    def refusals(self) -> Mapping[GroupKey, Refusal]:
        """The reason why each waiting group waits, from the last plan that considered the group."""
        return self._applier.refusals

    @property
    def refusals_to_tell(self) -> Mapping[GroupKey, Refusal]:
        """The same as `refusals`, but empty while another replica decides: the reasons here are old then."""
        return {} if self._readiness.leadership.failure() else self.refusals

    def position(self, snapshot: Snapshot, key: GroupKey) -> Position | None:
        """Return the position of a waiting PodGroup in the order in which plans serve the groups that wait now."""
        return position(snapshot, key, self._policy, now=self._wall_clock())

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes whenever a group may have started to wait, or may have another reason to wait."""
        return self._cache.changes.version, self._applier.taken

    def poke(self) -> None:
        """Note that the cache has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Plan after each change and end what has expired, for ever."""
        while True:
            if self._changed.is_set():
                # A busy cluster needs no timer for the tick.
                await asyncio.sleep(GATHER_S)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()
                        await asyncio.sleep(GATHER_S)
            self._changed.clear()
            if not self._readiness.freshness.failure():
                # Also on a stand-by: its first plan has the mix.
                await self._learning.learn()
            self.attempts.spread_changes()
            self._applier.forget_gone()
            if self._readiness.leadership.failure():
                self.attempts.stand_down()
                continue
            if self._readiness.freshness.failure():
                # Objects that are not listed yet, or no longer watched, would look like free space and unused quota.
                continue
            self.attempts.end_what_is_over()
            await self._plan_or_say()
            self._search_due.set()

    async def _plan_or_say(self) -> None:
        # One plan per turn: a busy cluster always has another plan to make, and reservations must still expire.
        try:
            if self._due.are_any():
                await self._plan_once()
                self.poke()
            self._metrics.planned(self._wall_clock())
        except Exception:
            # One object that the planner cannot handle must not end the service. It is tried again after a pause.
            log.exception("planning failed")
            self._metrics.plans[PlanOutcome.ERROR].inc()
            await asyncio.sleep(TICK_S)

    async def settle(self) -> None:
        """Return when all waiting groups have been decided for the current state."""
        await self._learning.learn()
        while self._due.are_any():
            await self._plan_once()

    async def consider(self, uid: PodUid) -> None:
        """Return when no plan is running, and the pod has a reservation or was considered as it is now."""
        if self._running is not None:
            await asyncio.shield(self._running)
        if self._cache.reservations.get(uid) is None and self._due.are_any():
            await self._plan_once()

    async def ended(self) -> None:
        """Return when the plan that runs beside the event loop has ended, if there is one."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def plan_now(self) -> None:
        """Plan the changed groups at once, or all waiting groups if capacity was freed."""
        if not self._due.are_any():
            return
        self.attempts.spread_changes()
        self._reserver.make_way()
        relief = self._cache.changes.relief
        if not self._cache.groups.waiting():
            # This happens when pods are placed as fast as they are created. A pod that is bound elsewhere frees
            # capacity that no group waits for.
            self._cache.groups.unsettled.considered(list(self._cache.groups.unsettled), self._cache.changes.version)
            self._due.note_begun(frozenset())
            self._due.note_planned(relief)
            return
        self._learning.begin()
        snapshot = self._cache.snapshot()
        keys = self._due.among(snapshot)
        with self._metrics.plan_duration.time():
            (withheld, aged), now = self._kept(), self._wall_clock()
            result = plan_some(
                snapshot, keys, self._policy, withheld=withheld, aged=aged, now=now, memory=self._kept_room.memory
            )
        self.effort.note_plan(result, snapshot)
        if self._rivals.give_up(rivals_of(self._rivals.torn(result.kept_for), self._policy)):
            # A dropped reservation frees capacity, so all waiting groups must be planned.
            if self.can_decide_now():
                self.plan_now()
            else:
                self.poke()
            return
        self._due.note_begun(result.kept_for)
        self._applier.take(result, keys)
        self._kept_room.note_plan(result)
        self._due.note_planned(relief)
        self._note_refusals(keys)
        self.poke()

    def can_decide_now(self) -> bool:
        """Whether `plan_now` is allowed: no plan runs beside the event loop, and the work is small."""
        if self._running is not None:
            return False
        waiting, changed = self._cache.groups.waiting(), self._cache.groups.unsettled
        keys = waiting if self._due.has_relief() else changed
        if not keys:
            return True  # `plan_now` has nothing to decide. Most questions come when this is so.
        if len(keys) > FEW_GROUPS:
            return False
        groups = [waiting[key] for key in dict.fromkeys((*keys, *sorted(self._due.kept_for))) if key in waiting]
        return self.effort.is_small_beside(groups, waiting)

    def is_settled(self, apart_from: set[GroupKey]) -> bool:
        """Whether no group waits undecided in the current state, apart from these groups."""
        self._cache.groups.form_waiting()
        return (
            self._running is None and not self._due.has_relief() and self._cache.groups.unsettled.keys() <= apart_from
        )

    @property
    def is_taking_over(self) -> bool:
        """Whether a plan is only partly applied so far: room that looks free may belong to a pod of the plan."""
        return self._is_taking_over

    def keeps_room_from(self, key: GroupKey) -> bool:
        """Whether free room is kept for other groups, which the cache does not show as taken."""
        return self._is_taking_over or bool(self._kept_room.withheld) or bool(self._due.kept_for - {key})

    def rehearse(self, snapshot: Snapshot, group: PodGroup) -> Plan | None:
        """Return the plan for a group that does not exist yet; None if that is too much work.

        The plan is not applied.
        """
        aged, withheld, now = self._kept_room.aged, self._kept_room.withheld, self._wall_clock()
        first = {key: each for key, each in snapshot.groups.items() if key in self._due.kept_for}
        kept = {key: each for key, each in snapshot.groups.items() if key == aged}
        alone = replace(snapshot, groups={**kept, **first, group.key: group})
        if not self.effort.is_small(list(alone.groups.values())):
            return None
        plan = plan_some(alone, [*first, group.key], self._policy, withheld=withheld, aged=aged, now=now)
        return replace(plan, starts=tuple(start for start in plan.starts if start.group == group.key))

    def reason(self, uid: PodUid) -> Reason:
        """Return why a pod waits, from the last plan that considered it."""
        pod, held = self._cache.pods.get(uid), self._cache.reservations.get(uid)
        if held is not None and held.state is ReservationState.AWAITING:
            return Reason.WAITING_FOR_DEVICES if held.devices else Reason.WAITING_FOR_VICTIMS
        refusal = self.refusals.get(pod.group) if pod else None
        return refusal.reason if refusal else Reason.DECIDING

    def answered_expiry(self) -> float:
        """Return the expiry time of a reservation that filter answers with now, on the monotonic clock."""
        return self._reserver.answered_expiry()

    # Planning -------------------------------------------------------------------------------------------------------

    async def _plan_once(self) -> None:
        if self.can_decide_now():
            self.plan_now()
            await asyncio.sleep(0)
            return
        if self._running is None:
            self._running = asyncio.create_task(self._plan_aside(), name="plan")
            self._running.add_done_callback(self._plan_ended)
        await asyncio.shield(self._running)

    def _kept(self) -> tuple[Collection[NodeName], GroupKey | None]:
        """Return the nodes that the last search keeps free, and the PodGroup that they are kept for.

        A plan for all waiting groups finds the nodes to keep by itself. If it got the nodes of the search, it would
        refuse them also to the queue that they are kept for, and would keep them after the reason is gone.
        """
        return ((), None) if self._due.has_relief() else (self._kept_room.withheld, self._kept_room.aged)

    async def _plan_aside(self) -> None:
        self.attempts.spread_changes()
        self._reserver.make_way()
        # The groups that this plan refuses are known only later. Until then reservations may move.
        self._cache.changes.note_refusals()
        relief = self._cache.changes.relief
        self._learning.begin()
        snapshot = self._cache.snapshot()
        keys = self._due.among(snapshot)
        with self._metrics.plan_duration.time():
            (withheld, aged), now, apart = self._kept(), self._wall_clock(), snapshot.apart()
            result = await asyncio.to_thread(
                plan_some,
                apart,
                keys,
                self._policy,
                withheld=withheld,
                aged=aged,
                now=now,
                memory=self._kept_room.memory,
            )
            snapshot.nodes.learn(apart.nodes)
            torn = self._rivals.torn(result.kept_for)
            rivals = await asyncio.to_thread(rivals_of, torn, self._policy) if torn else ()
        self.effort.note_plan(result, snapshot)
        if self._readiness.failure() or self._rivals.give_up(rivals):
            return
        self._due.note_begun(result.kept_for)
        self._is_taking_over = True
        try:
            whole = await self._applier.take_by_steps(result, keys, readiness=self._readiness)
        finally:
            self._is_taking_over = False
        self._kept_room.note_plan(result)
        self._note_refusals(keys)
        # The plan refused room to other groups for starts that turned out stale. That room is free now: plan all groups
        # again.
        if whole:
            self._due.note_planned(relief)

    def _note_refusals(self, considered: Collection[GroupKey]) -> None:
        if not self._cache.groups.waiting().keys().isdisjoint(considered):
            self._cache.changes.note_refusals()

    def _plan_ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # the caller of `settle` raises it; this only marks it as retrieved
