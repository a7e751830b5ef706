"""Tells owners why their pods wait: for each cause that lasts one event an object, with its numbers.

An event is about the PodGroup, the objects that own its pods, such as a Job, and the first of the pods themselves, so
that `kubectl describe` of each of them shows the cause. kube-scheduler's own event repeats our fixed phrase; these say
how much is missing, and of what.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest

import structlog
from cachetools import TTLCache

from app.cluster.cache import ClusterCache
from app.control.inspect import Inspect
from app.control.planning import Planning
from app.control.podgrouper import PodGrouper
from app.control.references import group_reference, owner_reference, pod_reference
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.reason import Reason, Refusal
from app.model.seam import Cluster, KubeError, RawObject, UnavailableError
from app.model.sentence import say, tenant, told
from app.settings import Settings

log = structlog.get_logger()

EVENTS_PER_ROUND = 20
"""Ten thousand pods that wait for one cause must not become a storm of events."""

AT_ONCE = 500
"""Causes that are looked at before the event loop gets a turn."""

PODS_TOLD = 16
"""The pods of one PodGroup that have events of their own: each costs a write."""

TOLD_FOR_S = 1800.0
"""How long the same reason is not told again for the same object."""

LOOK_AGAIN_S = 60.0
"""How often everybody who waits is looked at although nothing has changed: what was told is forgotten after a time."""

PASSING = frozenset({Reason.DECIDING})
"""Reasons that are over before anybody could read of them."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One event that is to be written."""

    regarding: RawObject
    refusal: Refusal
    prefix: str = ""
    """Of what the object owns or belongs to the event tells, where that is not the object itself."""

    @property
    def key(self) -> tuple[str, Reason]:
        """By which it is known that it was written."""
        return str(self.regarding["uid"]), self.refusal.reason

    @property
    def note(self) -> str:
        """The text, for readers of the namespace that it is stored in."""
        said = say("{prefix}{sentence}", prefix=self.prefix, sentence=self.refusal.sentence)
        return told(said, tenant(self.regarding["namespace"]))


class Events:
    """Looks once an interval at who waits; a cause that was there the last time too is told."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        planning: Planning,
        inspect: Inspect,
        grouper: PodGrouper,
        cluster: Cluster,
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._planning = planning
        self._inspect = inspect
        self._grouper = grouper
        self._cluster = cluster
        self._interval_s = settings.status_interval_s
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        """What there was when nothing was left to be told."""
        self._look_again_at = 0.0
        self._waited_before: dict[GroupKey, Reason] = {}
        self._told: TTLCache[tuple[str, Reason], bool] = TTLCache(100_000, TOLD_FOR_S, timer=clock)
        """By the uid of the object."""
        self._covered: TTLCache[tuple[GroupKey, Reason], int] = TTLCache(100_000, TOLD_FOR_S, timer=clock)
        """Groups of which the first events are written, and of how many of their pods."""

    async def run(self) -> None:
        """Tell of whatever lasts, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._inspect.is_ready():
                await self.round()

    async def round(self) -> None:
        """Write events for causes that have lasted from one round to the next, a bounded number."""
        version = self._inspect.version()
        if version == self._seen and self._clock() < self._look_again_at:
            return
        before = self._waited_before
        lasting = await self._lasting()
        # Of every group one object is told before the many pods of one.
        first = {key: refusal for key, refusal in lasting.items() if (key, refusal.reason) not in self._covered}
        left = await self._tell(first, EVENTS_PER_ROUND, pods_too=False)
        more = {key: refusal for key, refusal in lasting.items() if self._lacks_pods(key, refusal.reason)}
        left = await self._tell(more, left, pods_too=True)
        if not first and not more and before == self._waited_before:
            self._seen, self._look_again_at = version, self._clock() + LOOK_AGAIN_S

    async def _lasting(self) -> Mapping[GroupKey, Refusal]:
        """Return the causes that were there in the round before, too."""
        before, self._waited_before = self._waited_before, {}
        lasting = {}
        for number, (key, refusal) in enumerate(self._causes()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            if refusal.reason not in PASSING:
                self._waited_before[key] = refusal.reason
                if before.get(key) is refusal.reason:
                    lasting[key] = refusal
        return lasting

    def _causes(self) -> list[tuple[GroupKey, Refusal]]:
        """Return why everybody waits, or has a place and cannot use it yet."""
        return [*self._inspect.refused(), *self._planning.stalled().items()]

    def _lacks_pods(self, key: GroupKey, reason: Reason) -> bool:
        covered = self._covered.get((key, reason))
        return covered is not None and covered < min(len(self._cache.groups.pods(key)), PODS_TOLD)

    async def _tell(self, causes: Mapping[GroupKey, Refusal], most: int, *, pods_too: bool) -> int:
        """Write at most so many events; return how many more may be written."""
        for key, refusal in causes.items():
            pods = self._cache.groups.pods(key)
            events = self._of_pods(key, refusal, pods) if pods_too else self._of_group(key, refusal, pods)
            unsaid = [event for event in events if event.key not in self._told]
            for event in unsaid:
                if not most or not self._inspect.is_ready():
                    return 0
                most -= 1
                await self._record(event)
            if all(event.key in self._told for event in unsaid):
                is_alone = not any(pod.names_group for pod in pods)
                self._covered[key, refusal.reason] = PODS_TOLD if is_alone else len(pods) if pods_too else 0
        return most

    def _of_group(self, key: GroupKey, refusal: Refusal, pods: Collection[Pod]) -> Iterator[_Event]:
        """Yield what is told of the PodGroup, or the pod alone, and of the objects that own its pods."""
        regarding, pod = group_reference(self._cache.groups, key), next(iter(pods), None)
        if regarding is not None:
            yield _Event(regarding, refusal)
        if pod is not None:
            prefix = f"PodGroup {key.name}: " if pod.names_group else f"Pod {pod.name}: "
            for owner in self._grouper.owners_of(pod):
                if regarding is None or owner.uid != regarding["uid"]:
                    yield _Event(owner_reference(pod, owner), refusal, prefix)

    def _of_pods(self, key: GroupKey, refusal: Refusal, pods: Collection[Pod]) -> Iterator[_Event]:
        """Yield what is told of the first of the pods that wait."""
        waiting = (pod for pod in pods if pod.node is None and not pod.deleting)
        for pod in nsmallest(PODS_TOLD, waiting, key=lambda pod: (pod.created_at, len(pod.name), pod.name)):
            yield _Event(pod_reference(pod), refusal, f"PodGroup {key.name}: ")

    async def _record(self, event: _Event) -> None:
        self._told[event.key] = True
        reason = event.refusal.reason.value
        try:
            await self._cluster.record_event(event.regarding, warning=True, reason=reason, note=event.note)
        except KubeError as error:
            log.warning("event not recorded", object=event.regarding["name"], error=str(error))
            if isinstance(error, UnavailableError):
                self._told.pop(event.key, None)
