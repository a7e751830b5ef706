"""A feed with its dependencies, for tests of something else than the other components."""

import asyncio
from collections.abc import Callable, Sequence

from app.cluster.state.cache import ClusterCache
from app.control.groups.arrivals import Arrivals
from app.control.groups.completions import CompletionLookup
from app.control.groups.grouped_pods import keeps_of
from app.control.groups.pod_grouper import PodGrouper
from app.control.groups.podgroup_writer import PodGroupWriter
from app.control.informers.feed import Feed, Learner
from app.control.informers.kinds import kinds_of
from app.control.informers.pod_kind import PodKind, PodObserver
from app.control.informers.tolerance import Tolerance
from app.control.leadership.freshness import Freshness
from app.grouping import NO_DEFAULTS
from app.model.seam import Cluster, RawObject, Resource
from app.settings import Settings
from app.telemetry import Metrics
from tests.control.ready import Told


class Looks:
    """Records what the test needs of each object."""

    def __init__(self, look: Callable[[RawObject], None]) -> None:
        self._look = look

    def learn(self, resource: Resource, raw: RawObject) -> None:
        del resource
        self._look(raw)


class Fed:
    """A feed that fills a cache, beside a pod grouper that may write at any time."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        learners: Sequence[Learner] = (),
        observers: Sequence[PodObserver] = (),
        changed: asyncio.Event | None = None,
    ) -> None:
        clock, settings = asyncio.get_running_loop().time, Settings()
        self.cache, self.metrics = ClusterCache(), Metrics()
        self.freshness, self.arrivals = Freshness(clock=clock), Arrivals(self.cache)
        self.changed = changed or asyncio.Event()
        self.grouper = PodGrouper(
            self.cache,
            cluster,
            PodGroupWriter(self.cache, cluster, Told()),
            freshness=self.freshness,
            arrivals=self.arrivals,
            defaults=NO_DEFAULTS,
            changed=asyncio.Event(),
        )
        self.endings = CompletionLookup(
            self.cache,
            cluster,
            self.grouper,
            profiles=settings.profiles,
            keeps=keeps_of(settings),
            freshness=self.freshness,
            changed=self.changed,
        )
        tolerance = Tolerance(self.metrics)
        self.pod_kind = PodKind(
            self.cache, settings, tolerance, self.grouper, self.endings, self.arrivals, observers=observers
        )
        self.feed = Feed(
            self.cache,
            cluster,
            self.metrics,
            kinds_of(self.cache, self.grouper, self.pod_kind, clock=clock),
            self.freshness,
            tolerance,
            changed=self.changed,
            learners=learners,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in (self.endings, self.grouper, self.feed):
                tasks.create_task(part.run())
