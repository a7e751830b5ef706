"""Removes our scheduling gate from pods with a reservation, in the plan's order and at kube-scheduler's speed.

A held pod costs kube-scheduler nothing, and a released pod can never be held again. So a pod stays held until it is
needed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count

import structlog

from app.cluster.state.cache import ClusterCache
from app.control.cycle.group_cycles import GroupCycles
from app.control.cycle.parked_pods import ParkedPods
from app.control.leadership.readiness import Precondition
from app.control.writers.in_flight import InFlightLimiter
from app.control.writers.unwritten import unwritten
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.retry import RetryPolicy
from app.model.seam import (
    Cluster,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    PodRef,
    RejectedError,
    UnavailableError,
    WebhookFailedError,
)
from app.telemetry import Metrics

log = structlog.get_logger()

WRITERS = 16
"""Patches in flight at once: as fast as kube-scheduler takes pods, without delaying bindings."""

WINDOW = 32
"""The most released pods that kube-scheduler has not asked about yet. They are enough to keep kube-scheduler busy while
we plan. They are few enough that its other pods do not queue behind ours, and that a pod that the next plan passes
over is still held. Sizes from 16 to 256 gave no more speed: unlike nominations, pods released at once cost
kube-scheduler nothing.
"""

BURST = WINDOW // 2
"""The number of pods that are released together. Releasing them one by one, as kube-scheduler asks, costs all programs
a fifth more CPU.
"""

SPAN = 128
"""How many pods may be released after the oldest unanswered one. kube-scheduler asks first about the pods that it saw
first. Without this limit it would reach the last pod of a gang after thousands of others: half of 100 gangs of 20
were complete at the barrier only at the end.
"""

ALWAYS_COMPLETE_BELOW = 100
"""kube-scheduler stops its search once it has found this many nodes (`numFeasibleNodesToFind`). In a smaller cluster it
sees all nodes, in a larger one it may see a sample.
"""

REFUSED_FOR_GOOD = 3
"""So many refusals in a row are no passing state of the API server. An API server that has just started forbids
everything until it has read its own roles.
"""

FAILED_FOR_GOOD = 2 * REFUSED_FOR_GOOD
"""So many other failures in a row are no passing state either. An example is a failing webhook, which returns 500 each
time.
"""

RETRY = RetryPolicy(first_s=1.0, factor=1.0)
"""How long a writer waits after a failed patch: by then the watch shows the result."""


@dataclass(frozen=True, slots=True)
class ReleaseNews:
    """The results of releases since the last review."""

    sent: Collection[PodUid]
    """The pods for which a patch was sent for the first time."""
    refused: Mapping[PodUid, str]
    """The pods whose patch failed repeatedly, with the cause."""


class _ReleasedPods(InFlightLimiter):
    """The released pods that kube-scheduler has not asked about yet."""

    def __init__(self, cache: ClusterCache) -> None:
        super().__init__(WINDOW, burst=BURST, span=SPAN)
        self._cache = cache

    def is_over(self, uid: PodUid) -> bool:
        pod = self._cache.pods.get(uid)
        return pod is None or pod.node is not None or pod.deleting or pod.said.by_scheduler


class Releases:
    """The pods to be released. Only `add` and the writers change them."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        metrics: Metrics,
        leadership: Precondition,
        parked: ParkedPods,
        cycles: GroupCycles,
        *,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Start with nothing to release. A pod that is parked after its release is woken."""
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._leadership = leadership
        self._parked = parked
        self._cycles = cycles
        self._sleep = sleep
        self._queue: asyncio.PriorityQueue[tuple[int, int, PodUid]] = asyncio.PriorityQueue()
        """By priority, highest first, then in the order of the plans."""
        self._numbers = count()
        self._queued: set[PodUid] = set()
        """The pods in `_queue`, or handled by a writer."""
        self._tried: set[PodUid] = set()
        """The pods of `_queued` for which a patch has been sent."""
        self._sent: dict[PodUid, None] = {}
        """The pods that were tried for the first time, until the next review."""
        self._opened: set[PodUid] = set()
        """The pods without gate, or gone, although the watch may not show it yet."""
        self._failures: dict[PodUid, int] = {}
        """For pods in `_queued`: how often in a row their patch failed; a refusal counts twice."""
        self._refused: dict[PodUid, str] = {}
        """The API server's errors, until the next review."""
        self._window = _ReleasedPods(cache)

    def holds(self, pod: Pod) -> bool:
        """Whether our gate is still on the pod, as far as is known."""
        return pod.held and pod.uid not in self._opened

    def add(self, uid: PodUid) -> None:
        """Queue the pod for release; it is released only if a place is reserved for it at its turn."""
        if uid not in self._queued:
            self._queued.add(uid)
            self._put(uid)

    def stands(self, uid: PodUid) -> bool:
        """Whether the pod is queued and no patch was sent: kube-scheduler cannot have asked about it."""
        return uid in self._queued and uid not in self._tried

    def review(self) -> ReleaseNews:
        """Return the results of releases since the last call."""
        news = ReleaseNews(self._sent, self._refused)
        self._sent, self._refused = {}, {}
        return news

    def note_asked(self, uid: PodUid) -> None:
        """Note that kube-scheduler has asked about the pod."""
        self._window.answer(uid)

    def forget_gone(self) -> None:
        """Forget the pods in `_opened` for which the watch shows the change by now."""
        self._opened = {uid for uid in self._opened if (pod := self._cache.pods.get(uid)) is not None and pod.held}

    async def run(self) -> None:
        """Write patches for ever, several at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._write())

    async def _write(self) -> None:
        while True:
            _, _, uid = await self._queue.get()
            pod = self._due(uid)
            # kube-scheduler asks about no member of such a group before all are released.
            if pod is not None and not self._cycles.include(pod):
                await self._window.room()
            await self._release(uid)

    def _due(self, uid: PodUid) -> Pod | None:
        """Return the pod if we still must release it: it is held, and a place that is free now is reserved for it.

        For a pod that kube-scheduler schedules together with others, a place of any of them suffices.
        """
        pod = None if self._leadership.failure() else self._cache.pods.get(uid)
        if pod is None or not self.holds(pod):
            return None
        return pod if self._cache.reservations.promised(uid) or self._cycles.are_due(pod) else None

    async def _release(self, uid: PodUid) -> None:
        pod = self._due(uid)
        if pod is None:
            self._end(uid)
            return
        if uid not in self._tried:
            # Only at the first try: a pod that is tried again may really be released already, and asked about and
            # parked since.
            self._parked.forget(uid)
            self._tried.add(uid)
            self._sent[uid] = None
        if not self._cycles.include(pod):
            self._window.send(uid)
        pause_s = await self._try(pod)
        if pause_s is None:
            self._opened.add(uid)
            self._end(uid)
            return
        self._window.withdraw(uid)
        await self._sleep(pause_s)
        # At the end of the queue: a pod that cannot be released must not delay pods that can.
        self._put(uid)

    def _put(self, uid: PodUid) -> None:
        pod = self._cache.pods.get(uid)
        on = self._cache.groups.terms.of(pod.group) if pod else None
        self._queue.put_nowait((-on.priority if on else 0, next(self._numbers), uid))

    def _end(self, uid: PodUid) -> None:
        self._queued.discard(uid)
        self._tried.discard(uid)
        self._failures.pop(uid, None)
        self._refused.pop(uid, None)
        # While another replica may decide, the pod may still be held and have a reservation. It would be queued here
        # for ever.
        if not self._leadership.failure():
            self._parked.wake(uid)

    def _is_tied(self, pod: Pod) -> bool:
        """Whether only few nodes suit the pod, for causes that kube-scheduler does not know.

        A GPU was prepared for a pod that shares it, and a pod with topology constraints must run where its gang was
        planned. The places of pods that kube-scheduler schedules together do not move.
        """
        if pod.sharing is not None or self._cycles.include(pod):
            return True
        return bool(self._cache.groups.constraints(pod))

    async def _nominate(self, pod: PodRef) -> bool:
        """Nominate the reserved node, since kube-scheduler's sample of a large cluster may lack that node.

        A refusal for that cause would cost two writes and another attempt instead of this one write. Return whether the
        pod is still to be released: meanwhile its reservation may have ended, or this replica may not decide any more.
        """
        held = self._cache.reservations.promised(pod.uid)
        if held is None or len(self._cache.snapshots.table().nodes) < ALWAYS_COMPLETE_BELOW:
            return True
        await self._cluster.nominate(pod, held.node)
        if self._leadership.failure():
            return False
        now = self._cache.reservations.promised(pod.uid)
        if now is not None and now.node == held.node:
            return True
        # kube-scheduler does not schedule a held pod, so the nomination would count against that node until the
        # release.
        await self._cluster.nominate(pod, None)
        return False

    async def _try(self, pod: Pod) -> float | None:
        """Remove the gate; return None if it is removed or the pod is gone, else the pause until the next try."""
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        try:
            if self._is_tied(pod) and not await self._nominate(ref):
                return 0.0
            await self._cluster.release(ref)
        except NotFoundError:
            return None
        except KubeError as error:
            # If the outcome is unknown, the watch shows it later. A repeated patch changes nothing.
            if not isinstance(error, ConflictError):
                log.warning("scheduling gate not removed", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            # An API server that is unreachable or overloaded says nothing about the pod.
            if not isinstance(error, UnavailableError) or isinstance(error, WebhookFailedError):
                self._note_failure(pod.uid, error)
            return RETRY.asked_or_after(1, error)
        self._metrics.releases.inc()
        return None

    def _note_failure(self, uid: PodUid, error: KubeError) -> None:
        """Count a failed release. After too many the pod is reported, and its place is free for other pods."""
        weight = 2 if isinstance(error, RejectedError | ForbiddenError) else 1
        self._failures[uid] = self._failures.get(uid, 0) + weight
        if self._failures[uid] >= FAILED_FOR_GOOD:
            self._refused[uid] = unwritten("the removal of the scheduling gate", error)
