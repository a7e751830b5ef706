"""Searches for victims for waiting groups: the full plan, beside all other decisions.

The webhooks and the planning loop only start what fits in the current state. A group that they refuse is considered
here soon after, once for each change of the cluster. A search among thousands of running pods takes longer than
kube-scheduler waits. So it runs in a thread, for at most a part of the time, and its result is checked before any
eviction.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Protocol

import structlog

from app.cluster.state.cache import ClusterCache
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.disruption_budgets import Budgets
from app.control.cycle.kept_room import KeptRoom
from app.control.cycle.planning import Planning
from app.control.leadership.readiness import Precondition
from app.model.decision import Action, Plan
from app.model.memory import PlanMemory
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan as full_plan
from app.scheduling.policy import Policy
from app.telemetry import Metrics, PlanOutcome

log = structlog.get_logger()

GATHER_S = 0.2
"""How long refusals are gathered before a search: the pods of a burst compete for the same victims."""

REST = 4
"""The rest after a search, as a multiple of the search's duration: the webhooks need the interpreter too."""

REST_IN_VAIN = 16
"""The same after a search without result, as long as no other group asks and no capacity is freed. Only a new running
pod that may be a victim, or shifted shares, can change the result then. A full cluster changes all the time.
"""

AT_MOST_IN_VAIN_S = 30.0
"""The longest rest after a search without result, unless `REST` gives a longer one."""

LOOK_AGAIN_S = 10.0
"""How long after a search without result the passing of time alone justifies another search, for example because a
min-runtime has ended.
"""


class Plans(Protocol):
    """The planner's own `plan`."""

    def __call__(self, snapshot: Snapshot, policy: Policy, *, now: float, memory: PlanMemory) -> Plan:
        """Decide for every waiting PodGroup, with victims."""
        ...


class SearchLoop:
    """Decides when to search for victims, and searches. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        applier: PlanApplier,
        metrics: Metrics,
        policy: Policy,
        planning: Planning,
        kept: KeptRoom,
        readiness: Precondition,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        due: asyncio.Event,
        budgets: Budgets | None = None,
        plan: Plans = full_plan,
    ) -> None:
        """`clock` is monotonic, `wall_clock` is in seconds since the epoch.

        `due` is set when another search may be useful. Without `budgets` the search does not prefer victims without a
        PodDisruptionBudget.

        `_considered` is the version of the cache that the last search has seen. `_in_vain` is set if that search found
        nothing: it is the state of `_hope` that must change before another search helps. Without such a change, no
        search is useful before `_rested_at`. `_nobody_waited_at` is the last state in which no waiting group could be
        helped. `_aged_at` is when the next waiting PodGroup will have waited for long.
        """
        self._cache = cache
        self._applier = applier
        self._metrics = metrics
        self._policy = policy
        self._clock = clock
        self._wall_clock = wall_clock
        self._readiness = readiness
        self._planning = planning
        self._kept = kept
        self._budgets = budgets
        self._plan = plan
        self._may_help = bool(set(policy.actions) - {Action.ALLOCATE})
        self._is_unfinished = False
        self._considered = -1
        self._look_again_at = clock()
        self._aged_at = inf
        self._in_vain: tuple[int, int] | None = None
        self._nobody_waited_at: tuple[int, int] | None = None
        self._rested_at = clock()
        self._due = due

    async def run(self) -> None:
        """Search when a search is useful, for ever."""
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S)
            self._due.clear()
            if self._is_due():
                await asyncio.sleep(await self._search_or_say())

    def _is_due(self) -> bool:
        if self._readiness.failure() or not self._may_help:
            return False
        if self._cache.changes.version == self._considered and not self._is_due_again():
            return False
        if self._somebody_is_stale():
            return True
        if self._in_vain == self._hope() and self._clock() < self._rested_at and not self._is_due_again():
            return False
        # Thousands of groups may wait that no victim helps: look at them after a change, not at every turn.
        seen = self._cache.changes.version, self._applier.taken
        if seen != self._nobody_waited_at and self._applier.somebody_waits():
            return True
        self._nobody_waited_at = seen
        return False

    def _hope(self) -> tuple[int, int]:
        """Return a value that changes when capacity was freed, or other groups ask for it than before."""
        return self._cache.changes.relief, self._applier.claims

    def _is_due_again(self) -> bool:
        """Whether the passing of time alone may start a group or make a stale gang due for eviction."""
        if self._clock() < self._look_again_at:
            return False
        if self._somebody_is_stale():
            return True
        changes_at = self._kept.memory.conditions.changes_at if self._kept.memory.conditions else inf
        return min(changes_at, self._aged_at) <= self._wall_clock()

    def _next_ageing(self, snapshot: Snapshot) -> float:
        """Return when the next PodGroup will have waited for long, in seconds since the epoch."""
        if self._policy.ageing_s is None:
            return inf
        now, ageing_s = self._wall_clock(), self._policy.ageing_s
        ages = (group.created_at + ageing_s for group in snapshot.groups.values())
        return min((each for each in ages if each > now), default=inf)

    def _somebody_is_stale(self) -> bool:
        if Action.EVICT_STALE not in self._policy.actions:
            return False
        now, groups = self._wall_clock(), self._cache.groups
        for key, since in groups.stale_since().items():
            spec = groups.specs.get(key)
            if now - since >= self._policy.grace_s(spec.stale_grace_s if spec else None):
                return True
        return False

    async def _search_or_say(self) -> float:
        """Search; return how long to rest after it, in seconds."""
        began = self._clock()
        try:
            await self._search()
        except Exception:
            # One object that the planner cannot handle must not end the service. It is tried again after a pause.
            log.exception("search for victims failed")
            self._metrics.plans[PlanOutcome.ERROR].inc()
            return LOOK_AGAIN_S
        ended = self._clock()
        rest_s = REST * (ended - began)
        self._rested_at = ended + max(rest_s, min(REST_IN_VAIN * (ended - began), AT_MOST_IN_VAIN_S))
        return rest_s

    async def _search(self) -> None:
        hope = self._hope()
        snapshot, result = await self._planned()
        if self._budgets is not None and await self._budgets.inquire(result.evictions):
            # Plan again once with the new protection. Victims that are still needed are evicted, whatever their budgets
            # say.
            snapshot, result = await self._planned()
        # Free room is preferred to victims: a waiting group may have a place in a plan that is not applied yet.
        await self._planning.ended()
        if self._readiness.failure():
            return
        if result.unfinished:
            # Log once, not for every part of a search that takes many plans.
            if not self._is_unfinished:
                log.warning("plan budget reached", waiting=len(snapshot.groups), evictions=len(result.evictions))
            self._metrics.plans_unfinished.inc()
        self._is_unfinished = result.unfinished
        # From here to the end there is no await: what is checked is what is reserved and evicted. A pod that has just
        # arrived must still be refused the free room by a short plan: a moving reservation relies on that.
        self._in_vain = None if result.starts or result.evictions or result.unfinished else hope
        whole = self._applier.take(result, snapshot.groups, settles=False)
        self._kept.note_search(result)
        self._look_again_at = self._clock() + LOOK_AGAIN_S
        self._aged_at = self._next_ageing(snapshot)
        # The search's own changes make another search due, since another group may be next. So does an interruption.
        self._considered = snapshot.version if whole and not result.unfinished else -1

    async def _planned(self) -> tuple[Snapshot, Plan]:
        """Return a plan, and the snapshot that it was made from."""
        self._cache.groups.age_stale(self._wall_clock())
        snapshot = self._cache.snapshot()
        if self._budgets is not None:
            snapshot = replace(snapshot, guarded=self._budgets.guarded())
        with self._metrics.plan_duration.time():
            now, memory, apart = self._wall_clock(), self._kept.memory, snapshot.apart()
            result = await asyncio.to_thread(self._plan, apart, self._policy, now=now, memory=memory)
            snapshot.nodes.learn(apart.nodes)
            return snapshot, result
