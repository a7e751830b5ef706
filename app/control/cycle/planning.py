"""Keeps everything that waits decided: plans when something changed, without victims; `search` looks for those.

What was refused stays refused until there is relief (a pod went, a node came, a quota grew), since free space only
shrinks in between. So without relief only the groups that changed are planned, in the webhook itself when they are few;
with relief everything that waits is planned anew, beside the event loop when that takes long.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.blocked import stalled
from app.control.cycle.kept_room import KeptRoom
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.reserver import Reserver
from app.control.gpus.shared_gpus import SharedGpus
from app.control.journal.backoff import Backoff, Setback
from app.control.leadership.readiness import Readiness
from app.control.writers.unevictable import UnevictablePods
from app.model.decision import Action, Plan
from app.model.explanation import Position
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import Amounts
from app.model.sentence import capital, say
from app.model.snapshot import NodeTable, Snapshot
from app.model.topology import Topology
from app.scheduling.explain.position import position
from app.scheduling.placement import effort
from app.scheduling.placement.effort import FEW_GROUPS
from app.scheduling.planner.planner import judges_all, plan_some
from app.scheduling.policy import Policy
from app.scheduling.preemption.victims import charge_at
from app.scheduling.queues.quota import QueueLedger
from app.settings import Settings
from app.telemetry import Metrics, PlanOutcome

log = structlog.get_logger()

GATHER_S = 0.01
"""How long changes are gathered before a plan: a burst of pods is ordered as one."""

TICK_S = 1.0
"""How often expired promises and ended backoffs are looked for."""


def policy_of(settings: Settings) -> Policy:
    """Return what the planner is told of the settings."""
    chosen = {Action.ALLOCATE, *(Action(one.value) for one in settings.actions)}
    return Policy(
        placement=settings.placement,
        actions=tuple(action for action in Action if action in chosen),
        stale_grace_s=settings.stale_grace_s,
        preempt_min_runtime_s=settings.preempt_min_runtime_s,
        reclaim_min_runtime_s=settings.reclaim_min_runtime_s,
        consolidate_min_runtime_s=settings.consolidate_min_runtime_s,
        reclaim_resolve_method=settings.reclaim_resolve_method,
        borrow_last=settings.borrow_last,
        patience_s=settings.patience_s,
        ageing_s=settings.ageing_s,
    )


class Planning:
    """The planning loop and its results. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        readiness: Readiness,
        promises: Reserver,
        awaiting: PendingPreemptions,
        takeover: PlanApplier,
        kept: KeptRoom,
        unevictable: UnevictablePods,
        gpus: SharedGpus,
        metrics: Metrics,
        settings: Settings,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        changed: asyncio.Event,
        search_due: asyncio.Event,
    ) -> None:
        """`clock` is monotonic, `wall_clock` seconds since the epoch; `changed` is set by what changes the cache.

        `search_due` is set after each turn: there may be another search for victims to make.

        `_planned_relief` is what the last plan saw, `_kept_for` the gangs for whose rest it kept room.
        """
        self._cache = cache
        self._readiness = readiness
        self._promises = promises
        self._awaiting = awaiting
        self._takeover = takeover
        self._kept_room = kept
        self._unevictable = unevictable
        self._gpus = gpus
        self._metrics = metrics
        self._policy = policy_of(settings)
        self._clock = clock
        self._wall_clock = wall_clock
        self._backoff = Backoff()
        self._planned_relief = -1
        self._aged_at = float("-inf")
        self._kept_for: frozenset[GroupKey] = frozenset()
        # Of the last plan that found out for all who wait whether they can run at all.
        self._judged: tuple[NodeTable, Mapping[QueueName, Queue], Mapping[str, Topology], Amounts | None] | None = None
        self._changed = changed
        self._search_due = search_due
        self._running: asyncio.Task[None] | None = None
        self._is_taking_over = False

    @property
    def refusals(self) -> Mapping[GroupKey, Refusal]:
        """Why each waiting group waits, as of the last plan that considered it."""
        return self._takeover.refusals

    @property
    def refusals_to_tell(self) -> Mapping[GroupKey, Refusal]:
        """The same; none while another replica decides, since nobody here knows why they wait now."""
        return {} if self._readiness.leadership.failure() else self.refusals

    def position(self, snapshot: Snapshot, key: GroupKey) -> Position | None:
        """Return the place of a waiting PodGroup in the order in which plans serve those that wait now."""
        return position(snapshot, key, self._policy, now=self._wall_clock())

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever anybody may wait, or wait for another reason than before."""
        return self._cache.version, self._takeover.taken

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
            self._spread_changes()
            self._takeover.forget_gone()
            if self._readiness.leadership.failure():
                self._gpus.stand_down()
                self._awaiting.stand_down()
                self._promises.stand_down()
                continue
            if self._readiness.freshness.failure():
                # What is not listed yet, or no longer seen, would look like free space and unused quota.
                continue
            self._end_what_is_over()
            await self._plan_or_say()
            self._search_due.set()

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
        """Return when no plan is being made, and one has considered a pod as it is now unless it has a promise."""
        if self._running is not None:
            await asyncio.shield(self._running)
        if self._cache.reservations.get(uid) is None and self._is_due():
            await self._plan_once()

    async def ended(self) -> None:
        """Return when the plan has ended that is being made beside the event loop, if there is one."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def plan_now(self) -> None:
        """Decide on the spot for the groups that changed, or for all that wait when there was relief."""
        if not self._is_due():
            return
        self._spread_changes()
        self._promises.make_way()
        relief = self._cache.relief
        if not self._cache.waiting():
            # As when pods come no faster than they are placed: each that is bound elsewhere is relief, for nobody.
            self._cache.considered(list(self._cache.unsettled), self._cache.version)
            self._planned_relief, self._kept_for = relief, frozenset()
            return
        snapshot = self._cache.glance()
        keys = self._due(snapshot)
        with self._metrics.plan_duration.time():
            (withheld, aged), now = self._kept(), self._wall_clock()
            result = plan_some(
                snapshot, keys, self._policy, withheld=withheld, aged=aged, now=now, memory=self._kept_room.memory
            )
        self._note_judged(snapshot, keys)
        if self._take_back(_rivals(self._torn(result.kept_for), self._policy)):
            # A promise that ends is relief, so that all who wait are to be planned.
            if self.can_decide_now():
                self.plan_now()
            else:
                self.poke()
            return
        # Until all of it is carried out: an error leaves some whom it has not come to, and who count as considered.
        self._planned_relief, self._kept_for = -1, result.kept_for
        self._takeover.take(result, keys)
        self._kept_room.note_plan(result)
        self._planned_relief = relief
        self._note_refusals(keys)
        self.poke()

    def can_decide_now(self) -> bool:
        """Whether `plan_now` is allowed: no plan is being computed beside the loop, and the work is small."""
        if self._running is not None:
            return False
        waiting, changed = self._cache.waiting(), self._cache.unsettled
        keys = waiting if self._has_relief() else changed
        if len(keys) > FEW_GROUPS:
            return False
        groups = [waiting[key] for key in {*keys, *self._kept_for} if key in waiting]
        if len(groups) < len(waiting) and judges_all(groups, len(waiting)) and not self._is_judged():
            return len(waiting) <= FEW_GROUPS and self.is_small(list(waiting.values()))
        return self.is_small(groups)

    def is_small(self, groups: Sequence[PodGroup]) -> bool:
        """Whether so little work decides for these groups that the event loop may do it."""
        table, topologies = self._cache.table(), self._cache.topologies
        return effort.is_small(
            groups,
            table,
            topologies,
            neighbours=self._cache.neighbours,
            queues=len(self._cache.queues()),
            keeps=self._kept_room.aged is not None,
        )

    def can_look_at(self, pod: Pod, constraints: Sequence[TopologyConstraint] = ()) -> bool:
        """Whether so little work finds the nodes to which one pod may go that the event loop may do it."""
        table, topologies, neighbours = self._cache.table(), self._cache.topologies, self._cache.neighbours
        return effort.of_one(pod, constraints, table, topologies, neighbours=neighbours) <= effort.MOST_AT_ONCE

    def is_settled(self, apart_from: set[GroupKey]) -> bool:
        """Whether nobody waits undecided as things are now, these groups aside."""
        self._cache.waiting()
        return self._running is None and not self._has_relief() and self._cache.unsettled.keys() <= apart_from

    @property
    def is_taking_over(self) -> bool:
        """Whether a plan is only promised in part so far: what looks free may be somebody's."""
        return self._is_taking_over

    def keeps_room_from(self, key: GroupKey) -> bool:
        """Whether free room is for others, which the cache does not show as taken."""
        return self._is_taking_over or bool(self._kept_room.withheld) or bool(self._kept_for - {key})

    def rehearse(self, snapshot: Snapshot, group: PodGroup) -> Plan | None:
        """Return what would be decided for a group that is not there yet; None where that is too much work.

        Nothing comes of it.
        """
        aged, withheld, now = self._kept_room.aged, self._kept_room.withheld, self._wall_clock()
        first = {key: each for key, each in snapshot.groups.items() if key in self._kept_for}
        kept = {key: each for key, each in snapshot.groups.items() if key == aged}
        alone = replace(snapshot, groups={**kept, **first, group.key: group})
        if not self.is_small(list(alone.groups.values())):
            return None
        plan = plan_some(alone, {*first, group.key}, self._policy, withheld=withheld, aged=aged, now=now)
        return replace(plan, starts=tuple(start for start in plan.starts if start.group == group.key))

    def reason(self, uid: PodUid) -> Reason:
        """Return why a pod waits, as of the last plan that considered it."""
        pod, held = self._cache.pod(uid), self._cache.reservations.get(uid)
        if held is not None and held.state is ReservationState.AWAITING:
            return Reason.WAITING_FOR_DEVICES if held.devices else Reason.WAITING_FOR_VICTIMS
        refusal = self.refusals.get(pod.group) if pod else None
        return refusal.reason if refusal else Reason.DECIDING

    def answered_expiry(self) -> float:
        """Return until when a promise holds with which filter is answered now, on the monotonic clock."""
        return self._promises.answered_expiry()

    def dissolve(self, key: GroupKey, error: str, least_s: float = 0.0) -> None:
        """End a gang's attempt: no promise is kept, whoever stands at the barrier is sent away, and it backs off."""
        setback = Setback(error, self._cache.groups.bound(key))
        delay_s = self._backoff.failed(key, self._clock(), least_s=least_s, setback=setback)
        sentence = say("{error}; tried again in {delay} s.", error=capital(error), delay=math.ceil(delay_s))
        self._cache.set_aside(key, Refusal(reason=Reason.BACKING_OFF, sentence=sentence))
        self._promises.release(key, error)
        self.poke()

    def stalled(self) -> Mapping[GroupKey, Refusal]:
        """Return what keeps those from starting who have places, or get them again, but cannot use them yet."""
        return stalled(self._cache, self._awaiting, self._backoff)

    def awaited(self, key: GroupKey) -> Mapping[PodUid, Refusal]:
        """Return what those pods of a group wait for whose room is held until it is free."""
        return self._awaiting.refusals_of(key)

    def give_up(self, uid: PodUid) -> None:
        """End one pod's promise: kube-scheduler refuses its node, or did not ask for it in time."""
        self._promises.give_up(uid)
        self.poke()

    # Planning -------------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        self._cache.waiting()  # forms the groups that changed, which fills `unsettled`
        return self._has_relief() or bool(self._cache.unsettled)

    def _has_relief(self) -> bool:
        if self._cache.relief != self._planned_relief:
            return True
        # What was kept for a gang is free for others when it needs it no more, or has had it for too long.
        waiting, changed, now = self._cache.waiting(), self._cache.unsettled, self._wall_clock()
        return any(
            key in changed or key not in waiting or not self._policy.keeps_room_for(waiting[key], now)
            for key in self._kept_for
        )

    async def _plan_once(self) -> None:
        if self.can_decide_now():
            self.plan_now()
            await asyncio.sleep(0)
            return
        if self._running is None:
            self._running = asyncio.create_task(self._plan_aside(), name="plan")
            self._running.add_done_callback(self._plan_ended)
        await asyncio.shield(self._running)

    def _due(self, snapshot: Snapshot) -> Collection[GroupKey]:
        """Return who is to be planned: all who wait when there was relief, else those that have changed."""
        return list(snapshot.groups) if self._has_relief() else {*self._cache.unsettled, *self._kept_for}

    def _is_judged(self) -> bool:
        """Whether it is remembered of all who wait whether they can run at all; else a plan of some finds it out."""
        known, cache = self._judged, self._cache
        if known is None or known[0] is not cache.table():
            return False
        return known[1] is cache.queues() and known[2] is cache.topologies and known[3] is cache.residents()

    def _note_judged(self, snapshot: Snapshot, keys: Collection[GroupKey]) -> None:
        groups = [snapshot.groups[key] for key in keys if key in snapshot.groups]
        if judges_all(groups, len(snapshot.groups)):
            self._judged = snapshot.nodes, snapshot.queues, snapshot.topologies, snapshot.residents

    def _kept(self) -> tuple[Collection[NodeName], GroupKey | None]:
        """Return the nodes that the last search keeps, and for which PodGroup.

        A plan for all that wait keeps nodes by itself. Given those of the search, it would refuse them to the queue
        that they are kept for as well, and keep them after the reason is gone.
        """
        return ((), None) if self._has_relief() else (self._kept_room.withheld, self._kept_room.aged)

    async def _plan_aside(self) -> None:
        self._spread_changes()
        self._promises.make_way()
        # Whom it refuses is known only later; until then promises may move.
        self._cache.note_refusals()
        relief = self._cache.relief
        snapshot = self._cache.snapshot()
        keys = self._due(snapshot)
        with self._metrics.plan_duration.time():
            (withheld, aged), now = self._kept(), self._wall_clock()
            result = await asyncio.to_thread(
                plan_some,
                snapshot,
                keys,
                self._policy,
                withheld=withheld,
                aged=aged,
                now=now,
                memory=self._kept_room.memory,
            )
            torn = self._torn(result.kept_for)
            rivals = await asyncio.to_thread(_rivals, torn, self._policy) if torn else ()
        self._note_judged(snapshot, keys)
        if self._readiness.failure() or self._take_back(rivals):
            return
        self._planned_relief, self._kept_for = -1, result.kept_for
        self._is_taking_over = True
        try:
            whole = await self._takeover.take_by_steps(result, keys, readiness=self._readiness)
        finally:
            self._is_taking_over = False
        self._kept_room.note_plan(result)
        self._note_refusals(keys)
        # What stale starts would have held is free for others, whom the plan refused for it: all are planned anew.
        self._planned_relief = relief if whole else -1

    def _note_refusals(self, considered: Collection[GroupKey]) -> None:
        if not self._cache.waiting().keys().isdisjoint(considered):
            self._cache.note_refusals()

    def _torn(self, keys: frozenset[GroupKey]) -> "Sequence[_Torn]":
        """Return the gangs that are bound in part, each with the pods alone whose promises may be in its way."""
        if not keys:
            return ()
        snapshot = self._cache.snapshot()
        gangs = [snapshot.groups[key] for key in sorted(keys & snapshot.groups.keys())]
        return [_Torn(gang, snapshot, self._promises.of_pods_alone(up_to=gang.priority)) for gang in gangs]

    def _take_back(self, rivals: Collection[tuple[Pod, NodeName]]) -> bool:
        """Take back promises in the way of gangs that are bound in part; return whether any was.

        A pod that loses its promise is planned again at once, after the gang.
        """
        taken = False
        for pod, node in rivals:
            held = self._cache.reservations.get(pod.uid)
            if held is not None and held.state is ReservationState.PROMISED and held.node == node:
                self._promises.give_up(pod.uid)
                taken = True
        return taken

    def _plan_ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # whoever waits in `settle` raises it; this only marks it as seen

    def _spread_changes(self) -> None:
        """Hand what has changed in the cache to the parts that follow it up."""
        changes = self._cache.drain_changes()
        self._takeover.note_changes(changes)
        self._promises.note_changes(changes)
        self._awaiting.note_changes(changes)

    # Ending what is over --------------------------------------------------------------------------------------------

    def _end_what_is_over(self) -> None:
        if self._clock() >= self._aged_at + TICK_S:
            self._aged_at = self._clock()
            self._cache.age_stale(self._wall_clock())
        for uid in self._gpus.review():
            self._promises.give_up(uid)
        self._spread_changes()
        for failure in self._awaiting.review():
            self.dissolve(failure.group, failure.error, failure.least_s)
        self._spread_changes()
        for key, error in self._promises.review().items():
            self.dissolve(key, error)
        for key in self._backoff.over(self._clock()):
            self._cache.readmit(key)
        self._unevictable.end_pauses()


@dataclass(frozen=True, slots=True)
class _Torn:
    """A gang that is bound in part, and the pods alone that have promises of nodes."""

    gang: PodGroup
    snapshot: Snapshot
    alone: Sequence[tuple[Pod, NodeName]]


def _rivals(torn: Iterable[_Torn], policy: Policy) -> list[tuple[Pod, NodeName]]:
    """Return the pods whose promises, taken back, complete one of the gangs.

    A promise within what another queue deserves is not taken back.
    """
    found: list[tuple[Pod, NodeName]] = []
    for one in torn:
        ledger = QueueLedger(one.snapshot)
        rivals = [(pod, node) for pod, node in one.alone if not _is_owed(pod, node, one.gang, one.snapshot, ledger)]
        starts = plan_some(one.snapshot.without(rivals), (one.gang.key,), policy).starts if rivals else ()
        nodes = {placement.node for start in starts for placement in start.placements}
        found += [(pod, node) for pod, node in rivals if node in nodes]
    return found


def _is_owed(pod: Pod, node: NodeName, gang: PodGroup, snapshot: Snapshot, ledger: QueueLedger) -> bool:
    """Whether the queue of a pod with a place would be below its deserved share without it, beside that of a gang."""
    group, charge = snapshot.running.get(pod.group), charge_at(snapshot, Placed(pod=pod, node=node))
    if group is None:
        return False
    ledger.refund(group, charge)
    is_below = ledger.is_below_deserved(group, charge, beside=gang.queue)
    ledger.charge(group, charge)
    return is_below
