"""Tells owners why their pods wait: one event for each cause that lasts, with its numbers.

kube-scheduler's own event repeats our fixed phrase; this one says how much is missing, and of what.
"""

import asyncio
from collections.abc import Callable

import structlog
from cachetools import TTLCache

from app.cluster.cache import ClusterCache
from app.control.inspect import Inspect
from app.control.planning import Planning
from app.control.references import group_reference
from app.model.names import GroupKey
from app.model.reason import Reason, Refusal
from app.model.seam import Cluster, KubeError, UnavailableError
from app.settings import Settings

log = structlog.get_logger()

EVENTS_PER_ROUND = 20
"""Ten thousand pods that wait for one cause must not become a storm of events."""

AT_ONCE = 500
"""Causes that are looked at before the event loop gets a turn."""

TOLD_FOR_S = 1800.0
"""How long the same reason is not told again for the same group."""

LOOK_AGAIN_S = 60.0
"""How often everybody who waits is looked at although nothing has changed: what was told is forgotten after a time."""

PASSING = frozenset({Reason.DECIDING})
"""Reasons that are over before anybody could read of them."""


class Events:
    """Looks once an interval at who waits; a cause that was there the last time too is told."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        planning: Planning,
        inspect: Inspect,
        cluster: Cluster,
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._planning = planning
        self._inspect = inspect
        self._cluster = cluster
        self._interval_s = settings.status_interval_s
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        """What there was when nothing was left to be told."""
        self._look_again_at = 0.0
        self._waited_before: dict[GroupKey, Reason] = {}
        self._told: TTLCache[tuple[GroupKey, Reason], bool] = TTLCache(100_000, TOLD_FOR_S, timer=clock)

    async def run(self) -> None:
        """Tell of whatever lasts, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._inspect.is_ready():
                await self.round()

    async def round(self) -> None:
        """Record one event for each cause that has lasted from one round to the next."""
        version = self._inspect.version()
        if version == self._seen and self._clock() < self._look_again_at:
            return
        lasting, self._waited_before = self._waited_before, {}
        news = 0
        for number, (key, refusal) in enumerate(self._causes()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            if refusal.reason in PASSING:
                continue
            self._waited_before[key] = refusal.reason
            if lasting.get(key) is refusal.reason and (key, refusal.reason) not in self._told:
                news += 1
                if news <= EVENTS_PER_ROUND and self._inspect.is_ready():
                    self._told[key, refusal.reason] = True
                    await self._record(key, refusal)
        if not news and lasting == self._waited_before:
            self._seen, self._look_again_at = version, self._clock() + LOOK_AGAIN_S

    def _causes(self) -> list[tuple[GroupKey, Refusal]]:
        """Return why everybody waits, or has a place and cannot use it yet."""
        return [*self._inspect.refused(), *self._planning.stalled().items()]

    async def _record(self, key: GroupKey, refusal: Refusal) -> None:
        regarding = group_reference(self._cache.groups, key)
        if regarding is None:
            return
        try:
            await self._cluster.record_event(
                regarding, warning=True, reason=refusal.reason.value, note=refusal.sentence
            )
        except KubeError as error:
            log.warning("event not recorded", podgroup=repr(key), error=str(error))
            if isinstance(error, UnavailableError):
                self._told.pop((key, refusal.reason), None)
