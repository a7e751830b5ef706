"""Evicts pods that a plan or `overuse` has chosen: evicts each pod once, then writes the reason to the pod.

1. the Eviction API, which honours PodDisruptionBudgets; the pod ends after its own grace period. The API sets the
   condition `DisruptionTarget`, so that owners do not count the end of the pod as its own failure
2. a budget that forbids the eviction is overridden by a plain delete, with that condition, a metric and an event.
   Quotas decide which pods a plan evicts, and a tenant must not escape them by a budget of its own (kube-scheduler's
   preemption does the same). Where other victims suffice, `disruption_budgets` has made the plan choose them
3. the condition in our words instead of the Eviction API's, if the pod still exists, and an event

Other pods wait for the room. So conditions and events are written after all ordered evictions, of which there may be
hundreds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from functools import partial
from itertools import count
from typing import NamedTuple

import structlog

from app.cluster.state.cache import ClusterCache
from app.control.journal.decisions import Decisions
from app.control.journal.records import after_noun, eviction_of, workload_name
from app.control.journal.references import group_reference, pod_reference
from app.control.leadership.leadership import Leadership
from app.control.writers.unevictable import UnevictablePods
from app.model.decision import Action, Eviction
from app.model.explanation import Decision
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.retry import RetryPolicy, no_sooner_than_asked
from app.model.seam import (
    BudgetError,
    Cluster,
    KubeError,
    NotFoundError,
    PodRef,
    RawObject,
    RejectedError,
)
from app.model.sentence import EVERYTHING, Name, counted, say, tenant, told
from app.telemetry import Metrics

log = structlog.get_logger()

WRITERS = 48
"""Evictions in flight at once. A plan may evict hundreds of pods. Each eviction takes the API server a tenth of a
second, in which it only waits to be sure that it knows all budgets (a consistent list from its watch cache).
"""

RETRY = RetryPolicy(first_s=0.5, pauses_until_given_up=4)
"""The pauses between the tries of one write. An API server that has just started forbids everything for a while."""

DISRUPTION_REASON = "PreemptionByScheduler"
"""The reason of the condition, the same that kube-scheduler writes for its own victims."""

EVICTED = "Evict"
STALE = "StaleJob"
BUDGET_OVERRIDDEN = "DisruptionBudgetOverridden"
"""Reasons of events; the first two are KAI's."""


class NoLongerActiveError(KubeError):
    """Another replica decides now."""


class _Turn(IntEnum):
    """The order of the work, whatever was ordered first."""

    EVICT = 0
    SAY = 1


class _Order(NamedTuple):
    """One task; sorted by turn, then by number."""

    turn: _Turn
    number: int
    carry_out: Callable[[], Awaitable[None]]


class Evictor:
    """The evictions under way. A pod is removed when its eviction is certain, or impossible."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        leadership: Leadership,
        metrics: Metrics,
        *,
        decisions: Decisions,
        unevictable: UnevictablePods,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with nothing ordered; a pod that stays for good is added to `unevictable`.

        `_in_flight` and `_unbegun`, a part of it, are changed by `_order`, `recall` and `_evict`.
        """
        self._cache = cache
        self._cluster = cluster
        self._leadership = leadership
        self._metrics = metrics
        self._decisions = decisions
        self._unevictable = unevictable
        self._sleep = sleep
        self._in_flight: set[PodUid] = set()
        self._unbegun: dict[PodUid, Decision] = {}
        """The records of evictions that have not begun. A recalled eviction stays in the queue; its missing record
        shows that it was recalled.
        """
        self._orders: asyncio.PriorityQueue[_Order] = asyncio.PriorityQueue()
        self._ordered = count()

    def order(self, evictions: Iterable[Eviction], *, generation: int = 0) -> None:
        """Evict these pods; from now on they count as terminating, before the watch shows it.

        `generation` is the version of the snapshot that the decision was made on.
        """
        ended: set[GroupKey] = set()
        for eviction in evictions:
            pod = self._staying(eviction.pod)
            if pod is None:
                continue
            if eviction.action is Action.EVICT_STALE and pod.group not in ended:
                ended.add(pod.group)
                self._put(_Turn.SAY, self._telling_of_stale(pod.group))
            # Write the message now: the beneficiary may be gone when the eviction starts.
            message = self._message(eviction, pod)
            record = eviction_of(
                pod,
                cause=eviction.action.value,
                message=message,
                beneficiary=self._beneficiary(eviction),
                generation=generation,
            )
            self._order(pod, message, record)

    def dismiss(self, uid: PodUid, *, cause: str, message: str) -> None:
        """Evict a pod that no plan has chosen; the metric counts it under its cause."""
        pod = self._staying(uid)
        if pod is not None:
            generation = self._cache.changes.version
            self._order(
                pod, message, eviction_of(pod, cause=cause, message=message, beneficiary=None, generation=generation)
            )

    def _staying(self, uid: PodUid) -> Pod | None:
        """Return the pod; None if it is gone, has no node, or is terminating anyway."""
        pod = self._cache.pods.get(uid)
        return None if pod is None or pod.node is None or pod.deleting or uid in self._in_flight else pod

    def _order(self, pod: Pod, message: str, record: Decision) -> None:
        self._in_flight.add(pod.uid)
        self._unbegun[pod.uid] = record
        # Looked up now: for a gang without an object, the event would be about another pod after this pod is gone.
        regarding = group_reference(self._cache.groups, pod.group) or pod_reference(pod)
        self._cache.mark_leaving(pod.uid)
        self._put(_Turn.EVICT, partial(self._evict, pod, message, record, regarding))

    def _put(self, turn: "_Turn", carry_out: Callable[[], Awaitable[None]]) -> None:
        self._orders.put_nowait(_Order(turn, next(self._ordered), carry_out))

    def recall(self, victims: Iterable[PodUid]) -> None:
        """Cancel the evictions of these pods that have not begun: their room is not needed any more."""
        for uid in victims:
            if self._unbegun.pop(uid, None) is None:
                continue
            self._in_flight.discard(uid)
            self._cache.unmark_leaving(uid)

    async def run(self) -> None:
        """Evict for ever, several pods at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            order = await self._orders.get()
            await order.carry_out()

    # One pod --------------------------------------------------------------------------------------------------------

    async def _evict(self, pod: Pod, message: str, record: Decision, regarding: RawObject) -> None:
        if self._unbegun.get(pod.uid) is not record:
            return
        del self._unbegun[pod.uid]
        name, cause = f"{pod.namespace}/{pod.name}", record.cause
        try:
            await self._have_it_leave(pod, message)
        except KubeError as error:
            log.warning("pod not evicted", pod=name, action=cause, error=str(error))
            self._metrics.evictions_failed.inc()
            self._cache.unmark_leaving(pod.uid)
            self._unevictable.add(pod.uid)
        else:
            log.info("pod evicted", pod=name, podgroup=repr(pod.group), action=cause, reason=told(message, EVERYTHING))
            self._metrics.pod_evicted(cause)
            self._decisions.record(record)
            self._put(_Turn.SAY, partial(self._say, pod, message, regarding))
        finally:
            self._in_flight.discard(pod.uid)

    async def _have_it_leave(self, pod: Pod, message: str) -> None:
        """Make the API server end the pod after its grace period; raises `KubeError` if the pod stays."""
        ref = _ref(pod)
        try:
            await self._insist(ref, partial(self._cluster.evict, ref))
        except BudgetError as error:
            self._metrics.budgets_overridden.inc()
            await self._insist(ref, self._marking(pod, message))
            await self._insist(ref, partial(self._cluster.delete_pod, ref))
            note = f"Pod {pod.namespace}/{pod.name} was evicted although a PodDisruptionBudget forbids it: {error}"
            self._put(_Turn.SAY, partial(self._tell, pod_reference(pod), BUDGET_OVERRIDDEN, note))

    async def _insist(self, pod: PodRef, write: Callable[[], Awaitable[None]]) -> None:
        """Write until it succeeds or the pod is gone; raises the error of the last try.

        A write with unknown outcome is repeated: each of these writes may be done twice.
        """
        pauses = RETRY.pauses()
        while self._is_needed(pod):
            try:
                await self._leadership.while_sure(write())
            except NotFoundError:
                return
            except (BudgetError, RejectedError):
                raise
            except KubeError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                await self._sleep(no_sooner_than_asked(pause_s, error))
            else:
                return

    def _is_needed(self, ref: PodRef) -> bool:
        if self._leadership.failure():
            raise NoLongerActiveError("this replica is no longer active")
        return self._cache.pods.get(ref.uid) is not None

    # What is said of it ---------------------------------------------------------------------------------------------

    async def _say(self, pod: Pod, message: str, regarding: RawObject) -> None:
        """Write why the pod was evicted: on the pod, and as an event."""
        try:
            if self._cache.pods.get(pod.uid) is not None and not self._leadership.failure():
                await self._marking(pod, message)()
        except NotFoundError:
            pass  # The pod is gone already: the event gives the reason.
        except KubeError as error:
            log.warning("condition of an evicted pod not written", pod=pod.name, error=str(error))
        await self._tell(regarding, EVICTED, told(message, tenant(pod.namespace)))

    def _marking(self, pod: Pod, message: str) -> Callable[[], Awaitable[None]]:
        said = told(message, tenant(pod.namespace))
        return partial(self._cluster.mark_disrupted, _ref(pod), reason=DISRUPTION_REASON, message=said)

    def _message(self, eviction: Eviction, pod: Pod) -> str:
        """Return why the pod is evicted, and for which workload."""
        name, beneficiary = f"{pod.namespace}/{pod.name}", self._beneficiary(eviction)
        by = say("workload {name}", name=after_noun(beneficiary)) if beneficiary else "another workload"
        match eviction.action:
            case Action.PREEMPT:
                return say("Pod {name} was evicted for {by}, which has a higher priority", name=name, by=by)
            case Action.CONSOLIDATE:
                return f"Pod {name} was evicted to move to another node, so that a PodGroup finds room (consolidation)"
            case Action.EVICT_STALE:
                least = self._cache.groups.progress.min_member(pod.group)
                return f"Pod {name} was evicted because its gang is incomplete: fewer than {least} of its pods run"
            case Action.RECLAIM | Action.ALLOCATE:
                return say("Pod {name} was evicted for {by}, whose queue is below its fair share", name=name, by=by)

    def _beneficiary(self, eviction: Eviction) -> Name | None:
        return workload_name(self._cache.groups, eviction.beneficiary)

    def _telling_of_stale(self, key: GroupKey) -> Callable[[], Awaitable[None]]:
        regarding, least = group_reference(self._cache.groups, key), self._cache.groups.progress.min_member(key)
        active = self._cache.groups.progress.bound(key)
        run = "runs" if active == 1 else "run"
        note = f"The gang is incomplete: {counted(active, 'pod')} {run}, and at least {least} must"
        return partial(self._tell, regarding or {}, STALE, note)

    async def _tell(self, regarding: RawObject, reason: str, note: str) -> None:
        try:
            await self._cluster.record_event(regarding, warning=reason == BUDGET_OVERRIDDEN, reason=reason, note=note)
        except KubeError as error:
            log.warning("event not recorded", object=regarding.get("name"), error=str(error))


def _ref(pod: Pod) -> PodRef:
    return PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
