"""Takes our scheduling gate off pods whose turn has come, in the plan's order and as fast as kube-scheduler goes.

A held pod costs kube-scheduler nothing, a released one can never be held again: who is not needed yet stays held.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count

import structlog

from app.cluster.state.cache import ClusterCache
from app.control.cycle.parked_pods import ParkedPods
from app.control.leadership.readiness import Precondition
from app.control.writers.in_flight import InFlightLimiter
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
"""Patches in flight at once: as fast as kube-scheduler takes pods, without crowding out bindings."""

WINDOW = 32
"""Released pods that kube-scheduler has not asked about yet: enough that it does not run dry while we plan, and few
enough that its other pods do not queue up behind ours, and that whom the next plan passes over is still held. From 16
to 256 no speed was to be gained: unlike nominations, pods released at once cost it nothing."""

BURST = WINDOW // 2
"""So many are released together: one by one, as kube-scheduler asks, each costs everybody a fifth more CPU."""

SPAN = 128
"""So far ahead of the oldest of them others are released: it asks about those first that it saw first, and would else
come to the last of a gang after thousands of others, so that half of 100 gangs of 20 stood complete only at the end."""

ALWAYS_COMPLETE_BELOW = 100
"""kube-scheduler stops looking for nodes once it has found this many (`numFeasibleNodesToFind`): of fewer nodes it sees
all, of more it may see a sample."""

REFUSED_FOR_GOOD = 3
"""So many refusals in a row are no passing state of the API server: an API server that has just started forbids
everything until it has read its own roles."""

FAILED_FOR_GOOD = 2 * REFUSED_FOR_GOOD
"""So many other failures in a row are no passing state either: a webhook fails, which is a 500 each time."""

RETRY = RetryPolicy(first_s=1.0, factor=1.0)
"""How long a writer waits after a failed patch: by then the watch shows what became of it."""


@dataclass(frozen=True, slots=True)
class ReleaseNews:
    """What has become of releases since the last review."""

    sent: Collection[PodUid]
    """The pods for which a patch was sent for the first time."""
    refused: Mapping[PodUid, str]
    """The pods whose patch failed again and again, with what the API server said."""


class _ReleasedPods(InFlightLimiter):
    """The released pods that kube-scheduler has not asked about yet."""

    def __init__(self, cache: ClusterCache) -> None:
        super().__init__(WINDOW, burst=BURST, span=SPAN)
        self._cache = cache

    def is_over(self, uid: PodUid) -> bool:
        pod = self._cache.pods.get(uid)
        return pod is None or pod.node is not None or pod.deleting or pod.said.by_scheduler


class Releases:
    """The pods that are to be released. Only `add` and the writers change who they are."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        metrics: Metrics,
        leadership: Precondition,
        parked: ParkedPods,
        *,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Start with nothing to release. A pod that is parked after its gate was taken off is woken."""
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._leadership = leadership
        self._parked = parked
        self._sleep = sleep
        self._queue: asyncio.PriorityQueue[tuple[int, int, PodUid]] = asyncio.PriorityQueue()
        """By priority, highest first, then in the order of the plans."""
        self._numbers = count()
        self._queued: set[PodUid] = set()
        """In `_queue`, or in a writer's hands."""
        self._tried: set[PodUid] = set()
        """Those among them for which a patch has been sent."""
        self._sent: set[PodUid] = set()
        """Those that were tried for the first time, until the next review."""
        self._opened: set[PodUid] = set()
        """Without gate, or gone, although the watch may not show it yet."""
        self._failures: dict[PodUid, int] = {}
        """Of those in `_queued`, how often in a row their patch failed; a refusal counts twice."""
        self._refused: dict[PodUid, str] = {}
        """What the API server said, until the next review."""
        self._window = _ReleasedPods(cache)

    def holds(self, pod: Pod) -> bool:
        """Whether our gate is still on the pod, as far as is known."""
        return pod.held and pod.uid not in self._opened

    def add(self, uid: PodUid) -> None:
        """Have the pod released when it is its turn, if a place is promised to it then."""
        if uid not in self._queued:
            self._queued.add(uid)
            self._put(uid)

    def stands(self, uid: PodUid) -> bool:
        """Whether the pod still stands in our queue: nobody else could have been asked about it."""
        return uid in self._queued and uid not in self._tried

    def review(self) -> ReleaseNews:
        """Return what has become of releases since last asked."""
        news = ReleaseNews(frozenset(self._sent), self._refused)
        self._sent, self._refused = set(), {}
        return news

    def note_asked(self, uid: PodUid) -> None:
        """Note that kube-scheduler has asked about the pod."""
        self._window.answer(uid)

    def forget_gone(self) -> None:
        """Forget of whom the watch shows by now what we knew before it."""
        self._opened = {uid for uid in self._opened if (pod := self._cache.pods.get(uid)) is not None and pod.held}

    async def run(self) -> None:
        """Write patches for ever, several at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._write())

    async def _write(self) -> None:
        while True:
            _, _, uid = await self._queue.get()
            if self._due(uid) is not None:
                await self._window.room()
            await self._release(uid)

    def _due(self, uid: PodUid) -> Pod | None:
        """Return the pod if it is still to be released by us: held, and promised a place that is free now."""
        pod = None if self._leadership.failure() else self._cache.pods.get(uid)
        return pod if pod is not None and self.holds(pod) and self._cache.reservations.promised(uid) else None

    async def _release(self, uid: PodUid) -> None:
        pod = self._due(uid)
        if pod is None:
            self._end(uid)
            return
        if uid not in self._tried:
            # Only now: a pod that is tried again may be open in truth, and have been asked about and parked since.
            self._parked.forget(uid)
            self._tried.add(uid)
            self._sent.add(uid)
        self._window.send(uid)
        pause_s = await self._try(pod)
        if pause_s is None:
            self._opened.add(uid)
            self._end(uid)
            return
        self._window.withdraw(uid)
        await self._sleep(pause_s)
        # At the end of the queue: a pod that cannot be released must not hold up those that can.
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
        # While another replica may decide the pod may still be held and promised, and would come back to us for ever.
        if not self._leadership.failure():
            self._parked.wake(uid)

    def _is_tied(self, pod: Pod) -> bool:
        """Whether few nodes will do for it, for causes of which kube-scheduler knows nothing.

        A GPU was made ready for a pod that shares, and who is to be close to its gang goes where that was planned.
        """
        return pod.sharing is not None or bool(self._cache.groups.constraints(pod))

    async def _nominate(self, pod: PodRef) -> bool:
        """Have kube-scheduler look first at the promised node, which a sample of many nodes need not contain.

        Refused for that, the pod would cost two writes and another attempt instead of this one write. Return whether
        the pod is still to be released: its promise may have ended meanwhile, or our right to decide.
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
        # kube-scheduler never looks at a held pod, and so would count it on that node until it is released.
        await self._cluster.nominate(pod, None)
        return False

    async def _try(self, pod: Pod) -> float | None:
        """Take the gate off; return None when it is off or the pod gone, else how long to wait before the next try."""
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        try:
            if self._is_tied(pod) and not await self._nominate(ref):
                return 0.0
            await self._cluster.release(ref)
        except NotFoundError:
            return None
        except KubeError as error:
            # When the outcome is unknown the watch will tell; a patch that repeats another changes nothing.
            if not isinstance(error, ConflictError):
                log.warning("scheduling gate not taken off", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            # An API server that is away or has too much to do says nothing about the pod.
            if not isinstance(error, UnavailableError) or isinstance(error, WebhookFailedError):
                self._note_failure(pod.uid, error)
            return RETRY.asked_or_after(1, error)
        self._metrics.releases.inc()
        return None

    def _note_failure(self, uid: PodUid, error: KubeError) -> None:
        """Have it told that a pod is not let go; meanwhile its place is for others."""
        weight = 2 if isinstance(error, RejectedError | ForbiddenError) else 1
        self._failures[uid] = self._failures.get(uid, 0) + weight
        if self._failures[uid] >= FAILED_FOR_GOOD:
            self._refused[uid] = str(error)
