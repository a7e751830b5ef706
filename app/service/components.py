"""The composition root, for production, demo, benchmarks and tests: every component between the ports and the cluster.

A component that needs one which is built later gets a function of this module that looks it up when it is called.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from app.cluster.state.cache import ClusterCache
from app.control.autoscaler.autoscaler import Autoscaler, way_of
from app.control.autoscaler.unmet_demand import UnmetDemand
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.disruption_budgets import Budgets
from app.control.cycle.planning import Planning, policy_of
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.reserver import Reserver
from app.control.cycle.search_loop import Plans, SearchLoop
from app.control.cycle.usage_meter import UsageMeter, history_of
from app.control.cycle.waker import Waker
from app.control.gpus.overuse import Overuse
from app.control.gpus.shared_gpus import SharedGpus
from app.control.groups.pod_grouper import PodGrouper
from app.control.groups.podgroup_writer import PodGroupWriter
from app.control.informers.audit import Audit
from app.control.informers.feed import Feed
from app.control.journal.decisions import Decisions
from app.control.leadership.leadership import Leadership
from app.control.report.corrections import Corrections
from app.control.report.events import EventReporter
from app.control.report.inspect import Inspect
from app.control.report.status import Status
from app.control.report.why import Explainer
from app.control.webhooks.admission import Admission
from app.control.webhooks.extender import Extender
from app.control.webhooks.fast_path import AdmissionFastPath
from app.control.writers.barrier import GangBarrier
from app.control.writers.binder import Binder
from app.control.writers.evictor import Evictor
from app.grouping import defaults_of
from app.model.names import PodUid
from app.model.seam import Cluster, RawObject, Resource
from app.scheduling.planner.planner import plan as full_plan
from app.settings import Settings
from app.telemetry import Metrics


class Runs(Protocol):
    """A part that runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The two clocks of the service; tests bring a virtual one."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """Seconds since the epoch."""

    def timestamp(self) -> str:
        """Return the wall clock as RFC 3339, as Kubernetes writes times."""
        return datetime.fromtimestamp(self.wall(), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Components:
    """The service without its ports; nothing runs until somebody runs each of `running`."""

    def __init__(  # noqa: PLR0913 # what differs between production, benchmarks and tests
        self,
        settings: Settings,
        cluster: Cluster,
        metrics: Metrics,
        *,
        on_standby: Callable[[], None] = lambda: None,
        clocks: Clocks | None = None,
        plan: Plans = full_plan,
    ) -> None:
        """Build everything. `on_standby` is called when this replica stops deciding; `plan` is the planner's own."""
        self._settings, self._cluster = settings, cluster
        self._clocks = clocks or Clocks()
        self._on_standby = on_standby
        self.metrics = metrics
        self.cache = ClusterCache(history_of(settings), overuse_tolerance_mib=settings.overuse_tolerance_mib)
        self.leadership = Leadership(
            cluster,
            lease=settings.scheduler_lease,
            hostname=settings.hostname,
            on_change=self._leadership_changed,
            clock=self._clocks.monotonic,
        )
        self.decisions = Decisions(wall_clock=self._clocks.wall)
        self._build_cycle(plan)
        self._build_informers()
        self._build_reports()
        self._build_webhooks()

    def _build_cycle(self, plan: Plans) -> None:
        """Build what turns a plan into pods that start or leave."""
        cache, cluster, metrics, settings = self.cache, self._cluster, self.metrics, self._settings
        clock, wall = self._clocks.monotonic, self._clocks.wall
        self.barrier = GangBarrier(cache)
        self.waker = Waker(cache, cluster, metrics, inactive=self.leadership.failure)
        self.reserver = Reserver(cache, self.barrier, self.waker, metrics, settings, clock=clock)
        self.evictor = Evictor(
            cache, cluster, self.leadership, metrics, decisions=self.decisions, on_failure=self._victim_stays
        )
        self.gpus = SharedGpus(cache, cluster, self.leadership, self.evictor, settings, clock=clock)
        self.preemptions = PendingPreemptions(
            cache, self.waker, self.evictor, self.gpus, settings, clock=clock, wall_clock=wall
        )
        self.applier = PlanApplier(cache, self.reserver, self.preemptions, self.evictor, metrics, self.decisions)
        self.search = SearchLoop(
            cache,
            self.applier,
            metrics,
            policy_of(settings),
            clock=clock,
            wall_clock=wall,
            unready=self._cannot_decide,
            plan_ended=self._plan_ended,
            budgets=Budgets(cache, cluster, clock=clock),
            plan=plan,
        )
        self.planning = Planning(
            cache,
            self.leadership,
            self.reserver,
            self.preemptions,
            self.applier,
            self.search,
            self.gpus,
            metrics,
            settings,
            clock=clock,
            wall_clock=wall,
            unready=self._unready,
        )

    def _build_informers(self) -> None:
        """Build what reads the cluster, forms groups of pods, and keeps watch over both."""
        cache, cluster, settings = self.cache, self._cluster, self._settings
        clock = self._clocks.monotonic
        self.podgroups = PodGroupWriter(cache, cluster, inactive=self._cannot_decide)
        defaults = replace(defaults_of(settings.workload_defaults), owners_project=settings.owners_project)
        self.grouper = PodGrouper(cache, cluster, self.podgroups, defaults=defaults, on_change=self._regrouped)
        self.corrections = Corrections(
            cache, cluster, reason=self.planning.reason, inactive=self._cannot_decide, clock=clock
        )
        self.feed = Feed(
            cache,
            cluster,
            self.metrics,
            settings,
            clock=clock,
            on_change=self.planning.poke,
            on_parked=self.waker.park,
            on_passing=self.corrections.note,
            on_object=self._learn,
            grouper=self.grouper,
        )
        self.audit = Audit(self.feed, cluster, self.metrics, interval_s=settings.audit_interval_s)
        self.meter = UsageMeter(cache, settings, wall_clock=self._clocks.wall, unready=self._cannot_decide)

    def _build_reports(self) -> None:
        """Build what tells people and cluster autoscalers."""
        cache, cluster, settings, clocks = self.cache, self._cluster, self._settings, self._clocks
        explainer = Explainer(
            cache,
            self.planning,
            self.decisions,
            workload=self.grouper.workload,
            autoscaler=lambda key: self.autoscaler.shown(key),  # noqa: PLW0108 # it is built later
            profiles=settings.profiles,
        )
        self.inspect = Inspect(cache, self.feed, self.planning, self.leadership, explainer)
        self.status = Status(cache, self.planning, self.inspect, cluster, settings, wall_clock=clocks.timestamp)
        self.events = EventReporter(
            cache, self.planning, self.inspect, self.grouper, cluster, settings, clock=clocks.monotonic
        )
        self.overuse = Overuse(
            cache,
            cluster,
            self.evictor,
            self.metrics,
            settings,
            clock=clocks.monotonic,
            unready=self._cannot_decide,
        )
        self.autoscaler = Autoscaler(
            UnmetDemand(cache, self.inspect, settings, clock=clocks.monotonic),
            self.inspect,
            cluster,
            way_of(cluster, settings, timestamp=clocks.timestamp),
            clock=clocks.monotonic,
            wall_clock=clocks.wall,
        )

    def _build_webhooks(self) -> None:
        """Build what answers kube-scheduler and the API server."""
        cache, settings = self.cache, self._settings
        binder = Binder(
            cache,
            self._cluster,
            self.leadership,
            self.barrier,
            self.metrics,
            patience_s=settings.gang_barrier_s,
            on_failure=self.planning.dissolve,
        )
        self.fast_path = AdmissionFastPath(
            cache,
            self.planning,
            self.grouper,
            settings=settings,
            unready=self._unready,
            inactive=self.leadership.failure,
            clock=self._clocks.monotonic,
        )
        self.extender = Extender(cache, self.leadership, self.feed, self.planning, self.waker, binder, settings)
        self.admission = Admission(cache, self.fast_path, settings, unready=self._unready)

    @property
    def running(self) -> tuple[Runs, ...]:
        """Every component that runs until it is cancelled, those that decide first."""
        deciding = (self.leadership, self.feed, self.planning, self.search, self.waker, self.evictor, self.gpus)
        telling = (self.status, self.events, self.overuse, self.autoscaler, self.corrections)
        return (*deciding, self.meter, *telling, self.audit)

    def _unready(self) -> str:
        return self.feed.unready()

    def _cannot_decide(self) -> str:
        return self.leadership.failure() or self._unready()

    def _leadership_changed(self) -> None:
        self.planning.poke()
        if self.leadership.failure():
            self._on_standby()

    def _victim_stays(self, victim: PodUid) -> None:
        self.planning.note_staying(victim)

    async def _plan_ended(self) -> None:
        await self.planning.ended()

    def _regrouped(self) -> None:
        self.feed.note_regrouped()

    def _learn(self, resource: Resource, raw: RawObject) -> None:
        self.meter.learn(resource, raw)
        self.fast_path.learn(resource, raw)
        self.status.learn(resource, raw)
        if resource is Resource.POD_GROUPS:
            self.podgroups.learn(raw)
        if resource is Resource.GPU_NODES:
            self.overuse.poke()
