"""Makes kube-scheduler ask about pods with a reservation: held pods are released, parked pods are nominated.

kube-scheduler parks a pod after one of our refusals. One status patch is an event that makes kube-scheduler look at the
pod again, and at the reserved node first. A pod that kube-scheduler has not asked about yet, and may look at, needs no
patch.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.cluster.state.cache import ClusterCache
from app.control.cycle.group_cycles import GroupCycles
from app.control.cycle.parked_pods import ParkedPods
from app.control.cycle.releases import ReleaseNews, Releases
from app.control.leadership.readiness import Precondition
from app.control.writers.in_flight import InFlightLimiter
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod
from app.model.retry import RetryPolicy
from app.model.seam import Cluster, ConflictError, KubeError, NotFoundError, PodRef
from app.telemetry import Metrics

log = structlog.get_logger()

WRITERS = 16
"""Patches in flight at once: as fast as kube-scheduler takes pods, without delaying bindings."""

RETRY = RetryPolicy(first_s=1.0, factor=1.0, pauses_until_given_up=3)
"""The pauses between the tries of one patch. After the last try the pod waits for its next reservation."""

WINDOW = 64
"""The most woken pods that kube-scheduler has not asked about yet. For every pod and every node that kube-scheduler
filters, it weighs every nominated pod. So thousands of nominations at once bring it to a standstill
(docs/measurements.md: 41 pods/s and less).
"""


class Waker:
    """The parked pods, the held pods, and the patches in flight."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        metrics: Metrics,
        leadership: Precondition,
        cycles: GroupCycles,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with no pod parked."""
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._leadership = leadership
        self._sleep = sleep
        self._parked = ParkedPods(cache)
        self._window = InFlightLimiter(WINDOW)
        self._cycles = cycles
        self._groups: dict[GroupKey, None] = {}
        """Groups of which kube-scheduler tries no member before all are released; emptied by `_release_groups`."""
        self._has_groups = asyncio.Event()
        self._releases = Releases(cache, cluster, metrics, leadership, self._parked, cycles, sleep=sleep)

    def park(self, uid: PodUid) -> None:
        """Note that kube-scheduler will not ask about this pod again on its own."""
        self._parked.add(uid)

    def note_pod(self, pod: Pod, *, before: Pod | None) -> None:
        """Park a pod that we refused before this process started; release one that holds up the rest of its group."""
        if before is None and pod.said.by_us:
            self.park(pod.uid)
        if before is None and pod.held and self._cycles.are_due(pod):
            self._releases.add(pod.uid)

    def forget(self, uid: PodUid) -> None:
        """Note that kube-scheduler has asked about the pod."""
        self._parked.forget(uid)
        self._window.answer(uid)
        self._releases.note_asked(uid)

    def forget_gone(self) -> None:
        """Forget parked pods that no longer exist."""
        self._parked.forget_gone()
        self._releases.forget_gone()

    def stands(self, uid: PodUid) -> bool:
        """Whether the pod is queued for release and no patch was sent: kube-scheduler cannot have asked about it."""
        return self._releases.stands(uid)

    def review_releases(self) -> ReleaseNews:
        """Return the results of releases since the last call."""
        return self._releases.review()

    def wake(self, uid: PodUid) -> None:
        """Release or nominate the pod, if it is held or parked and a node is reserved for it."""
        pod = self._cache.pods.get(uid)
        if pod is None or self._cache.reservations.promised(uid) is None:
            return
        if self._cycles.include(pod):
            # Once for all members that are woken together: each of them would look at all others.
            self._groups[pod.group] = None
            self._has_groups.set()
        if self._releases.holds(pod):
            self._releases.add(uid)
        else:
            self._parked.wake(uid)

    def nominate(self, uid: PodUid) -> None:
        """Make kube-scheduler look first at the reserved node, which its sample of nodes did not contain."""
        self._parked.add(uid)
        self.wake(uid)

    def revoke(self, uid: PodUid) -> None:
        """Clear the nomination of a pod that lost its reservation: kube-scheduler would keep the node for the pod."""
        pod = self._cache.pods.get(uid)
        if pod is not None and pod.node is None and pod.nominated is not None:
            self._parked.patches.put_nowait(uid)

    async def run(self) -> None:
        """Write patches for ever, several at a time."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._releases.run())
            tasks.create_task(self._release_groups())
            for _ in range(WRITERS):
                tasks.create_task(self._write_patches())

    async def _release_groups(self) -> None:
        while True:
            await self._has_groups.wait()
            self._has_groups.clear()
            groups, self._groups = self._groups, {}
            for one in (pod for key in groups for pod in self._cache.groups.pods(key)):
                if self._releases.holds(one):
                    self._releases.add(one.uid)

    async def _write_patches(self) -> None:
        while True:
            uid = await self._parked.patches.get()
            if self._cache.reservations.promised(uid) is not None:
                await self._window.room()
            await self._patch(uid)

    async def _patch(self, uid: PodUid) -> None:
        for _ in RETRY.pauses():
            pod, held = self._cache.pods.get(uid), self._cache.reservations.promised(uid)
            if pod is None or pod.node is not None or self._leadership.failure():
                return
            if held is None and pod.nominated is not None:
                written = await self._nominate(pod, None)
            elif held is not None and uid in self._parked:
                written = await self._wake(pod, held.node)
            else:
                return
            if written:
                return

    async def _wake(self, pod: Pod, node: NodeName) -> bool:
        # Not parked from here on: kube-scheduler may ask about the pod, and the pod may be parked again, before the
        # reply arrives.
        self._parked.forget(pod.uid)
        self._window.send(pod.uid)
        # A patch that changes nothing is no event, and would not wake the pod.
        cleared = pod.nominated != node or await self._nominate(pod, None)
        written = cleared and await self._nominate(pod, node)
        if written:
            self._metrics.wakes.inc()
        else:
            # If all tries fail, the pod is planned again when its reservation expires, and woken then.
            self._parked.add(pod.uid)
        return written

    async def _nominate(self, pod: Pod, node: NodeName | None) -> bool:
        """Write one patch; return whether no further try is needed, and pause first if one is."""
        try:
            await self._cluster.nominate(PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid), node)
        except NotFoundError:
            return True
        except KubeError as error:
            # A conflict is only a race, for example with a pod that kube-scheduler has just bound.
            if not isinstance(error, ConflictError):
                log.warning("nomination not written", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            await self._sleep(RETRY.asked_or_after(1, error))
            return False
        return True
