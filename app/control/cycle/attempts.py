"""Ends the start attempts of groups that failed or took too long, and readmits those groups to plans later."""

import asyncio
import math
from collections.abc import Callable, Mapping

from app.cluster.changes import NO_CHANGES
from app.cluster.state.cache import ClusterCache
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.blocked import stalled
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.reserver import Reserver
from app.control.gpus.shared_gpus import SharedGpus
from app.control.journal.backoff import Backoff, Setback
from app.control.writers.unevictable import UnevictablePods
from app.model.names import GroupKey, PodUid
from app.model.reason import Reason, Refusal
from app.model.sentence import capital, say

AGED_EVERY_S = 1.0
"""The interval between two checks for gangs that have become stale."""


class Attempts:
    """The attempts that are under way. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        reserver: Reserver,
        preemptions: PendingPreemptions,
        applier: PlanApplier,
        gpus: SharedGpus,
        unevictable: UnevictablePods,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        changed: asyncio.Event,
    ) -> None:
        """`clock` is monotonic, `wall_clock` is in seconds since the epoch.

        `changed` is set when other groups may get a place.
        """
        self._cache = cache
        self._reserver = reserver
        self._preemptions = preemptions
        self._applier = applier
        self._gpus = gpus
        self._unevictable = unevictable
        self._clock = clock
        self._wall_clock = wall_clock
        self._changed = changed
        self._backoff = Backoff()
        self._aged_at = -math.inf

    def stand_down(self) -> None:
        """Forget all attempts, because another replica decides."""
        self._gpus.stand_down()
        self._preemptions.stand_down()
        self._reserver.stand_down()

    def dissolve(self, key: GroupKey, error: str, least_s: float = 0.0) -> None:
        """End a gang's attempt: drop its reservations, fail its members at the barrier, and let the gang back off."""
        setback = Setback(error, self._cache.groups.progress.bound(key))
        delay_s = self._backoff.failed(key, self._clock(), least_s=least_s, setback=setback)
        sentence = say("{error}; Leeboard tries again in {delay} s.", error=capital(error), delay=math.ceil(delay_s))
        self._cache.groups.set_aside(key, Refusal(reason=Reason.BACKING_OFF, sentence=sentence))
        self._reserver.release(key, error)
        self._changed.set()

    def stalled(self) -> Mapping[GroupKey, Refusal]:
        """Return the groups that have places, or get them again, but cannot use them yet, each with its reason."""
        return stalled(self._cache, self._preemptions, self._backoff)

    def awaited(self, key: GroupKey) -> Mapping[PodUid, Refusal]:
        """Return what each pod with held room in this group waits for."""
        return self._preemptions.refusals_of(key)

    def give_up(self, uid: PodUid) -> None:
        """End one pod's reservation: kube-scheduler refuses the node, or did not ask for the pod in time."""
        self._reserver.give_up(uid)
        self._changed.set()

    def spread_changes(self) -> None:
        """Pass the changes of the cache to the parts that react to them."""
        changes = self._cache.drain_changes()
        if changes is NO_CHANGES:
            return
        self._applier.note_changes(changes)
        self._reserver.note_changes(changes)
        self._preemptions.note_changes(changes)

    def end_what_is_over(self) -> None:
        """End attempts that expired or get no room; readmit groups whose backoff is over."""
        if self._clock() >= self._aged_at + AGED_EVERY_S:
            self._aged_at = self._clock()
            self._cache.groups.age_stale(self._wall_clock())
        for uid in self._gpus.review():
            self._reserver.give_up(uid)
        self.spread_changes()
        for failure in self._preemptions.review():
            self.dissolve(failure.group, failure.error, failure.least_s)
        self.spread_changes()
        for key, error in self._reserver.review().items():
            self.dissolve(key, error)
        for key in self._backoff.over(self._clock()):
            self._cache.findings.readmit(key)
        self._unevictable.end_pauses()
