"""Has the pods leave that a plan has chosen: says why on the pod, then evicts it, once.

1. the condition `DisruptionTarget` in our words: owners then do not count the end of the pod as its own failure
2. the Eviction API, which honours PodDisruptionBudgets; the pod leaves after its own grace period
3. a budget that forbids it is overridden by a plain delete, counted and told: whom a plan evicts is decided by quotas,
   which a tenant must not escape by a budget of its own (kube-scheduler's preemption does the same). Where others will
   do, `budgets` has had them chosen instead
4. our words once more, since the Eviction API has put its own in their place
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import structlog

from app.cluster.cache import ClusterCache
from app.control.activity import Activity
from app.control.references import group_reference, pod_reference
from app.model.decision import Action, Eviction
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.seam import (
    BudgetError,
    Cluster,
    KubeError,
    NotFoundError,
    PodRef,
    RawObject,
    RejectedError,
    UnavailableError,
)
from app.telemetry import Metrics

log = structlog.get_logger()

WRITERS = 8
"""Evictions in flight at once: a plan may evict hundreds of pods, and binds must not wait behind them."""

PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Between the tries of one write; an API server that has just started forbids everything for a while."""

DISRUPTION_REASON = "PreemptionByScheduler"
"""The reason of the condition, as kube-scheduler gives it for its own victims."""

EVICTED = "Evict"
STALE = "StaleJob"
BUDGET_OVERRIDDEN = "DisruptionBudgetOverridden"
"""Reasons of events, the first two as KAI words them."""


class NoLongerActiveError(KubeError):
    """Another replica decides now."""


class Evictor:
    """Whose eviction is on its way. A pod leaves this when it is surely told to leave, or cannot be."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        activity: Activity,
        metrics: Metrics,
        *,
        on_failure: Callable[[PodUid], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_failure` is told of a pod that stays for good.

        `_in_flight` and `_unbegun`, a part of it, are changed by `order`, `recall` and `_evict`.
        """
        self._cache = cache
        self._cluster = cluster
        self._activity = activity
        self._metrics = metrics
        self._on_failure = on_failure
        self._sleep = sleep
        self._in_flight: set[PodUid] = set()
        self._unbegun: set[PodUid] = set()
        self._orders: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    def order(self, evictions: Iterable[Eviction]) -> None:
        """Have these pods leave; from here on they count as leaving, before the watch shows it."""
        told: set[GroupKey] = set()
        for eviction in evictions:
            pod = self._cache.pod(eviction.pod)
            if pod is None or pod.node is None or pod.deleting or pod.uid in self._in_flight:
                continue
            if eviction.action is Action.EVICT_STALE and pod.group not in told:
                told.add(pod.group)
                self._orders.put_nowait(self._telling_of_stale(pod.group))
            self._in_flight.add(pod.uid)
            self._unbegun.add(pod.uid)
            self._cache.mark_leaving(pod.uid)
            # Worded now: by the time of its turn the beneficiary may be gone.
            self._orders.put_nowait(partial(self._evict, eviction, pod, self._message(eviction, pod)))

    def recall(self, victims: Iterable[PodUid]) -> None:
        """Let those of these pods stay whose eviction has not begun: nobody waits for their room any more."""
        for uid in self._unbegun.intersection(victims):
            self._unbegun.discard(uid)
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
            await order()

    # One pod --------------------------------------------------------------------------------------------------------

    async def _evict(self, eviction: Eviction, pod: Pod, message: str) -> None:
        if pod.uid not in self._unbegun:
            return
        self._unbegun.discard(pod.uid)
        name = f"{pod.namespace}/{pod.name}"
        try:
            await self._have_it_leave(pod, message)
        except KubeError as error:
            log.warning("pod not evicted", pod=name, action=eviction.action.value, error=str(error))
            self._metrics.evictions_failed.inc()
            self._cache.unmark_leaving(pod.uid)
            self._on_failure(pod.uid)
        else:
            log.info("pod evicted", pod=name, podgroup=repr(pod.group), action=eviction.action.value, reason=message)
            self._metrics.pod_evicted(eviction.action.value)
            regarding = group_reference(self._cache.groups, pod.group) or pod_reference(pod)
            await self._tell(regarding, EVICTED, message)
        finally:
            self._in_flight.discard(pod.uid)

    async def _have_it_leave(self, pod: Pod, message: str) -> None:
        """Carry out the steps of this module for one pod; raises `KubeError` when it stays for good."""
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        mark = partial(self._cluster.mark_disrupted, ref, reason=DISRUPTION_REASON, message=message)
        await self._insist(ref, mark)
        try:
            await self._insist(ref, partial(self._cluster.evict, ref))
        except BudgetError as error:
            self._metrics.budgets_overridden.inc()
            await self._insist(ref, partial(self._cluster.delete_pod, ref))
            note = f"Pod {pod.namespace}/{pod.name} was evicted although a PodDisruptionBudget forbids it: {error}"
            await self._tell(pod_reference(pod), BUDGET_OVERRIDDEN, note)
            return
        if self._activity.failure():
            return
        try:
            await mark()
        except NotFoundError:
            return  # It had no grace period: what was said of it before it left is all there can be.
        except KubeError as error:
            log.warning("condition of an evicted pod not written", pod=pod.name, error=str(error))

    async def _insist(self, pod: PodRef, write: Callable[[], Awaitable[None]]) -> None:
        """Write until it is done, or needless because the pod is gone; raises what it failed by at last.

        A write whose outcome is unknown is simply repeated: each of them may be done twice.
        """
        pauses = iter(PAUSES_S)
        while self._is_needed(pod):
            try:
                await write()
            except NotFoundError:
                return
            except (BudgetError, RejectedError):
                raise
            except KubeError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                await self._sleep(max(pause_s, error.retry_after_s if isinstance(error, UnavailableError) else 0))
            else:
                return

    def _is_needed(self, ref: PodRef) -> bool:
        if self._activity.failure():
            raise NoLongerActiveError("this replica is no longer active")
        return self._cache.pod(ref.uid) is not None

    # What is said of it ---------------------------------------------------------------------------------------------

    def _message(self, eviction: Eviction, pod: Pod) -> str:
        """Say why, in KAI's words (`unschedule_info.go`)."""
        name = f"{pod.namespace}/{pod.name}"
        match eviction.action:
            case Action.PREEMPT:
                return f"Pod {name} was preempted by higher priority workload {self._workload(eviction)}"
            case Action.CONSOLIDATE:
                return f"Pod {name} was preempted and rescheduled due to bin packing (resource consolidation) procedure"
            case Action.EVICT_STALE:
                least = f"({self._cache.groups.min_member(pod.group)})"
                return (
                    f"Workload doesn't meet the minimum required number of pods {least}, evicting remaining pod: {name}"
                )
            case Action.RECLAIM | Action.ALLOCATE:
                return f"Pod {name} was preempted by workload {self._workload(eviction)}"

    def _workload(self, eviction: Eviction) -> str:
        key = eviction.beneficiary
        reference = None if key is None else group_reference(self._cache.groups, key)
        return f"{reference['namespace']}/{reference['name']}" if reference else f"{key}"

    def _telling_of_stale(self, key: GroupKey) -> Callable[[], Awaitable[None]]:
        regarding, least = group_reference(self._cache.groups, key), self._cache.groups.min_member(key)
        note = f"Job is stale. {self._cache.groups.bound(key)} pods are active, minMember is {least}"
        return partial(self._tell, regarding or {}, STALE, note)

    async def _tell(self, regarding: RawObject, reason: str, note: str) -> None:
        try:
            await self._cluster.record_event(regarding, warning=reason == BUDGET_OVERRIDDEN, reason=reason, note=note)
        except KubeError as error:
            log.warning("event not recorded", object=regarding.get("name"), error=str(error))
