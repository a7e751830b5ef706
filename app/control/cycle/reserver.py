"""Makes reservations, and ends reservations that expired or must be taken back."""

from collections.abc import Callable, Iterable, Mapping

import structlog

from app.cluster.changes import Changes
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.group_cycles import GroupCycles
from app.control.cycle.waker import Waker
from app.control.journal.backoff import COSTLY, Backoff
from app.control.writers.barrier import GangBarrier
from app.model.decision import Start
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod
from app.settings import Settings
from app.telemetry import Metrics

log = structlog.get_logger()

EXPIRES_WITHIN_S = 0.5
"""The longest delay before an expired reservation is noticed."""

REFUSED_NODES_FOR_S = 120.0
"""How long a node that kube-scheduler refused for a pod is excluded for the pod, unless its next question says more."""


class Reserver:
    """The reservations in the cache for pods that are not bound yet. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        barrier: GangBarrier,
        waker: Waker,
        metrics: Metrics,
        cycles: GroupCycles,
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._barrier = barrier
        self._waker = waker
        self._metrics = metrics
        self._cycles = cycles
        self._settings = settings
        self._clock = clock
        self._forget_at = clock() + REFUSED_NODES_FOR_S
        self._expire_at = clock()
        self._bereft: dict[PodUid, None] = {}
        """Pods whose nomination may outlive their reservation, until the next review."""
        self._taken_by_others: set[NodeName] = set()
        """Nodes to which other programs have bound our pods without a reservation there, until `make_way`."""
        self._overlooked = Backoff()
        """Per pod: how long the pod gets no other place after kube-scheduler did not ask about it while it had one."""

    def note_changes(self, changes: Changes) -> None:
        """Note changes from the watches that affect our reservations."""
        self._bereft |= changes.bereft
        self._taken_by_others |= changes.taken_by_others

    def make(self, start: Start) -> None:
        """Reserve the places of a start, and wake its pods."""
        expires_at = self._clock() + self._settings.promise_ttl_s
        for placement in start.placements:
            self._cache.promises.make(placement.pod, placement.node, placement.devices, expires_at=expires_at)
            self._waker.wake(placement.pod)

    def answered_expiry(self) -> float:
        """Return the expiry time of a reservation that filter answers with now, on the monotonic clock."""
        return self._clock() + self._settings.answered_ttl_s

    def give_up(self, uid: PodUid) -> None:
        """End one pod's reservation."""
        self._cache.promises.drop(uid)
        self._waker.revoke(uid)

    def make_way(self) -> None:
        """Drop reservations that no longer fit on nodes to which other programs have bound pods.

        This must happen before the places that were reserved for those bound pods are given away. A replica that was
        active until a moment ago may have had bindings in flight. Gangs lose their reservations last: otherwise the
        rest of a partially bound gang would have to wait.
        """
        nodes, self._taken_by_others = self._taken_by_others, set()
        if not nodes:
            return
        there = [
            held for held in self._cache.reservations if held.state is ReservationState.PROMISED and held.node in nodes
        ]
        for held in sorted(there, key=self._worth):
            if self._cache.room.is_overbooked(held.pod):
                log.info("reservation lost to a pod bound by another program", pod=held.pod, node=held.node)
                self.give_up(held.pod)

    def of_pods_alone(self, *, up_to: int) -> list[tuple[Pod, NodeName]]:
        """Return the single pods of at most this priority with a reserved node, if nothing was written yet."""
        found: list[tuple[Pod, NodeName]] = []
        for held in self._cache.reservations:
            is_gang, priority = self._worth(held)
            pod = self._cache.pods.get(held.pod)
            if pod is None or pod.sharing is not None:
                continue  # It gives back at most a part of a GPU, which completes no gang.
            if held.state is ReservationState.PROMISED and not is_gang and priority <= up_to:
                found.append((pod, held.node))
        return found

    def _worth(self, held: Reservation) -> tuple[bool, int]:
        on = self._cache.groups.terms.of(held.group)
        return self._cache.groups.progress.min_member(held.group) > 1, on.priority if on else 0

    def release(self, key: GroupKey, error: str) -> None:
        """Drop the reservations of a gang, and fail its members that wait at the barrier."""
        for held in self._cache.reservations.of_group(key):
            if held.is_revocable:
                self.give_up(held.pod)
        self._barrier.fail(key, error)

    def stand_down(self) -> None:
        """Drop all reservations: another replica decides, and the watch shows its decisions only later."""
        for held in [held for held in self._cache.reservations if not held.is_written]:
            self._cache.promises.drop(held.pod)
        self._barrier.fail_all("this replica of Leeboard no longer decides; kube-scheduler will try again")

    def review(self) -> Mapping[GroupKey, str]:
        """End expired reservations, revoke nominations that outlived their reservation, and review the barrier.

        Return the groups with pods whose gate cannot be removed, with the cause.
        """
        now, releases = self._clock(), self._waker.review_releases()
        self._begin(releases.sent, now)
        if now >= self._expire_at:
            # Not at every change: with 40,000 reservations a look at all of them takes 8 ms.
            self._expire_at = now + EXPIRES_WITHIN_S
            self._expire_all(now)
            for key in self._overlooked.over(now):
                self._cache.findings.reconsider(PodUid(key.name))
        if now >= self._forget_at:
            self._forget_at = now + REFUSED_NODES_FOR_S
            self._cache.findings.forget_refused_nodes()
            self._waker.forget_gone()
        for uid in self._bereft:
            self._waker.revoke(uid)
        self._bereft.clear()
        self._barrier.review()
        refused = ((self._cache.pods.get(uid), said) for uid, said in releases.refused.items())
        return {pod.group: said for pod, said in refused if pod is not None}

    def _begin(self, sent: Iterable[PodUid], now: float) -> None:
        """Start the lifetime of a reservation at its pod's release, since kube-scheduler could not ask before."""
        expires_at = now + self._settings.promise_ttl_s
        for uid in sent:
            held = self._cache.reservations.promised(uid)
            if held is not None and held.is_revocable and held.expires_at < expires_at:
                self._cache.reservations.extend(uid, expires_at)

    def _expire_all(self, now: float) -> None:
        for held in self._cache.reservations.expired(now):
            # A pod in our own release queue cannot have been asked about, however long it is queued.
            if held.state is not ReservationState.AWAITING and not self._waker.stands(held.pod):
                self._expire(held)

    def _expire(self, held: Reservation) -> None:
        self._metrics.promises_expired.inc()
        log.info("reservation expired", pod=held.pod, node=held.node)
        pod = self._cache.pods.get(held.pod)
        if pod is not None and self._cycles.include(pod):
            # kube-scheduler may be waiting with the whole group, which says nothing about this pod.
            self._waker.park(held.pod)
            self.give_up(held.pod)
            return
        is_asked = held.state is ReservationState.ANSWERED
        was_woken = pod is not None and pod.said.by_us and pod.nominated == held.node
        if pod is not None and not is_asked and (pod.said.by_scheduler or was_woken):
            # kube-scheduler looked at the pod, or the pod was woken, and no question came: kube-scheduler's own filters
            # refuse that node. A nomination together with the release proves nothing, since kube-scheduler may not have
            # reached the pod yet.
            self._cache.findings.refuse_node(held.pod, held.node)
        if pod is not None and not is_asked and not self._cache.reservations.is_asked(held.pod):
            # Other pods may have the room meanwhile, for longer each time: kube-scheduler may never look at the pod.
            self._overlooked.failed(GroupKey(pod.namespace, pod.uid), self._clock(), policy=COSTLY)
            self._cache.findings.overlook(held.pod)
        self._waker.park(held.pod)
        self.give_up(held.pod)
