"""Writes events that explain why pods wait: for each lasting cause one event for each object, with its numbers.

The last event of an object shows its current cause: a cause that returns gets a new event, a bounded number of times.
Events are written for the PodGroup, the owners of its pods, such as a Job, and the first pods themselves, so that
`kubectl describe` of each object shows the cause. The event of kube-scheduler repeats a fixed phrase of Leeboard; these
events add how much is missing, and of what.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain

import structlog
from cachetools import TTLCache

from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.groups.pod_grouper import PodGrouper
from app.control.journal.references import group_reference, owner_reference, pod_reference
from app.control.report.inspect import Inspect
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.reason import Cause, Reason, Refusal
from app.model.seam import Cluster, KubeError, RawObject, UnavailableError
from app.model.sentence import say, tenant, told
from app.settings import Settings

log = structlog.get_logger()

EVENTS_PER_ROUND = 20
"""Ten thousand pods that wait for one cause must not cause a storm of events."""

AT_ONCE = 100
"""Causes that are compared before the event loop gets a turn."""

PODS_TOLD = 16
"""Pods of one PodGroup that have events of their own: each costs a write."""

CAUSES_TOLD = 8
"""Events of one object while fewer than `TOLD_FOR_S` pass between any two: its cause may change all the time."""

TOLD_FOR_S = 1800.0
"""How long the same cause is not repeated for the same object, unless the object had another cause since."""

LOOK_AGAIN_S = 60.0
"""How often all waiting groups are reviewed although nothing has changed: written events are forgotten after a time."""

PASSING = frozenset({Reason.DECIDING})
"""Reasons that are over before a user could read them."""


@dataclass(frozen=True, slots=True)
class _Lasting:
    """The cause of a waiting group, from one round to the next."""

    refusal: Refusal
    cause: Cause


@dataclass(frozen=True, slots=True)
class _Event:
    """An event to write."""

    regarding: RawObject
    lasting: _Lasting
    prefix: str = ""
    """Names the PodGroup or pod that the event explains, where it differs from the object of the event."""

    @property
    def uid(self) -> str:
        """The uid of the object of the event."""
        return str(self.regarding["uid"])

    @property
    def key(self) -> tuple[str, Cause]:
        """The key under which a written event is remembered."""
        return self.uid, self.lasting.cause

    @property
    def note(self) -> str:
        """The text, for readers of the namespace in which the event is stored."""
        said = say("{prefix}{sentence}", prefix=self.prefix, sentence=self.lasting.refusal.sentence)
        return told(said, tenant(self.regarding["namespace"]))


@dataclass(frozen=True, slots=True)
class _Covered:
    """The events that were written for a group."""

    cause: Cause
    pods: int
    """The number of its pods with events; 0 when only the group and its owners have events."""


class EventReporter:
    """Reviews waiting groups at each interval; writes a cause that was there in the last round too."""

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
        """The state at which no event was left to write."""
        self._look_again_at = 0.0
        self._waited_before: dict[GroupKey, Cause] = {}
        self._told: TTLCache[tuple[str, Cause], bool] = TTLCache(100_000, TOLD_FOR_S, timer=clock)
        """By the uid of the object."""
        self._written: TTLCache[str, int] = TTLCache(100_000, TOLD_FOR_S, timer=clock)
        """The number of events of each object, by its uid."""
        self._covered: TTLCache[GroupKey, _Covered] = TTLCache(100_000, TOLD_FOR_S, timer=clock)
        """Groups whose first events are written."""

    async def run(self) -> None:
        """Write events for lasting causes until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._inspect.is_ready():
                await self.round()

    async def round(self) -> None:
        """Write events for causes that have lasted since the last round, a bounded number."""
        version = self._inspect.version()
        if version == self._seen and self._clock() < self._look_again_at:
            return
        before = self._waited_before
        lasting = await self._lasting()
        # One object of every group comes before the many pods of one group.
        first = await self._among(lasting, lambda key, cause: not self._is_covered(key, cause))
        left = await self._tell(first, EVENTS_PER_ROUND, pods_too=False)
        more = await self._among(lasting, self._lacks_pods)
        left = await self._tell(more, left, pods_too=True)
        if not first and not more and before == self._waited_before:
            self._seen, self._look_again_at = version, self._clock() + LOOK_AGAIN_S

    async def _lasting(self) -> Mapping[GroupKey, _Lasting]:
        """Return the causes that were there in the last round, too."""
        before, self._waited_before = self._waited_before, {}
        lasting = {}
        for number, (key, refusal) in enumerate(self._causes()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            if refusal.reason not in PASSING:
                cause = self._waited_before[key] = refusal.cause
                if self._lasts(key, before.get(key), cause):
                    lasting[key] = _Lasting(refusal, cause)
        return lasting

    async def _among(
        self, lasting: Mapping[GroupKey, _Lasting], is_wanted: Callable[[GroupKey, Cause], bool]
    ) -> Mapping[GroupKey, _Lasting]:
        wanted = {}
        for number, (key, each) in enumerate(lasting.items()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            if is_wanted(key, each.cause):
                wanted[key] = each
        return wanted

    def _lasts(self, key: GroupKey, before: Cause | None, now: Cause) -> bool:
        if before is None or key in self._covered:
            return before == now
        # Only the reason is compared: where the nodes change in each round, no event would ever be written.
        return before.reason is now.reason

    def _causes(self) -> Iterator[tuple[GroupKey, Refusal]]:
        """Yield the cause of each group that waits, or that has a place and cannot use it yet."""
        return chain(self._inspect.refused(), list(self._planning.attempts.stalled().items()))

    def _is_covered(self, key: GroupKey, cause: Cause) -> bool:
        covered = self._covered.get(key)
        return covered is not None and covered.cause == cause

    def _lacks_pods(self, key: GroupKey, cause: Cause) -> bool:
        covered = self._covered.get(key)
        if covered is None or covered.cause != cause:
            return False
        return covered.pods < min(len(self._cache.groups.pods(key)), PODS_TOLD)

    async def _tell(self, causes: Mapping[GroupKey, _Lasting], most: int, *, pods_too: bool) -> int:
        """Write this number of events at most; return how many more may be written."""
        for number, (key, each) in enumerate(causes.items()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            pods = self._cache.groups.pods(key)
            self._forget_others(key, each, pods)
            events = [*(self._of_pods(key, each, pods) if pods_too else self._of_group(key, each, pods))]
            for event in events:
                # Checked right before each event: pods of one group have owners in common.
                if self._is_said(event):
                    continue
                if not most or not self._inspect.is_ready():
                    return 0
                most -= 1
                await self._record(event)
            if all(map(self._is_said, events)):
                is_alone = not any(pod.names_group for pod in pods)
                told = PODS_TOLD if is_alone else len(pods) if pods_too else 0
                self._covered[key] = _Covered(each.cause, told)
        return most

    def _is_said(self, event: _Event) -> bool:
        return event.key in self._told or self._written.get(event.uid, 0) >= CAUSES_TOLD

    def _forget_others(self, key: GroupKey, now: _Lasting, pods: Collection[Pod]) -> None:
        """Forget the other causes of a group: when one returns, it gets a new event."""
        covered = self._covered.get(key)
        if covered is None or covered.cause == now.cause:
            return
        self._covered.pop(key, None)
        for event in (*self._of_group(key, now, pods), *self._of_pods(key, now, pods)):
            self._told.pop((event.uid, covered.cause), None)

    def _of_group(self, key: GroupKey, lasting: _Lasting, pods: Collection[Pod]) -> Iterator[_Event]:
        """Yield the events for the PodGroup, or for its single pod, and for the owners of its pods."""
        regarding, pod = group_reference(self._cache.groups, key), min(pods, key=_age, default=None)
        if regarding is not None:
            yield _Event(regarding, lasting)
        if pod is not None:
            yield from self._of_owners(pod, lasting)

    def _of_pods(self, key: GroupKey, lasting: _Lasting, pods: Collection[Pod]) -> Iterator[_Event]:
        """Yield the events for the first waiting pods, and for the owners of these pods."""
        waiting = (pod for pod in pods if pod.node is None and not pod.deleting)
        for pod in nsmallest(PODS_TOLD, waiting, key=_age):
            yield _Event(pod_reference(pod), lasting, f"PodGroup {key.name}: ")
            yield from self._of_owners(pod, lasting)

    def _of_owners(self, pod: Pod, lasting: _Lasting) -> Iterator[_Event]:
        prefix = f"PodGroup {pod.group.name}: " if pod.names_group else f"Pod {pod.name}: "
        for owner in self._grouper.pod_owners.of(pod):
            yield _Event(owner_reference(pod, owner), lasting, prefix)

    async def _record(self, event: _Event) -> None:
        self._told[event.key] = True
        reason = event.lasting.cause.reason.value
        try:
            await self._cluster.record_event(event.regarding, warning=True, reason=reason, note=event.note)
        except KubeError as error:
            log.warning("event not recorded", object=event.regarding["name"], error=str(error))
            if isinstance(error, UnavailableError):
                self._told.pop(event.key, None)
                return
        self._written[event.uid] = self._written.get(event.uid, 0) + 1


def _age(pod: Pod) -> tuple[float, int, str]:
    """Order pods by creation time, then by number: p-9 before p-10."""
    return pod.created_at, len(pod.name), pod.name
