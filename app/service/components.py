"""The composition root for production, demo, benchmarks and tests: all components between the ports and the cluster.

Each component gets those that were built before it. What two components tell each other goes through an object that
both hold: an event (`changed`), `Freshness`, `UnevictablePods`, `KeptRoom`.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from app.cluster.state.cache import ClusterCache
from app.control.autoscaler.autoscaler import Autoscaler, way_of
from app.control.autoscaler.unmet_demand import UnmetDemand
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.attempts import Attempts
from app.control.cycle.disruption_budgets import Budgets
from app.control.cycle.group_cycles import GroupCycles
from app.control.cycle.kept_room import KeptRoom
from app.control.cycle.planning import Planning
from app.control.cycle.policy_settings import policy_of
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.reserver import Reserver
from app.control.cycle.search_loop import Plans, SearchLoop
from app.control.cycle.usage_meter import UsageMeter, history_of
from app.control.cycle.waker import Waker
from app.control.gpus.overuse import Overuse
from app.control.gpus.shared_gpus import SharedGpus
from app.control.groups.arrivals import Arrivals
from app.control.groups.completions import CompletionLookup
from app.control.groups.grouped_pods import keeps_of
from app.control.groups.pod_grouper import PodGrouper
from app.control.groups.podgroup_writer import PodGroupWriter
from app.control.informers.audit import Audit
from app.control.informers.feed import Feed
from app.control.informers.kinds import kinds_of
from app.control.informers.pod_kind import PodKind
from app.control.informers.tolerance import Tolerance
from app.control.journal.decisions import Decisions
from app.control.leadership.freshness import Freshness
from app.control.leadership.leadership import Leadership
from app.control.leadership.readiness import Readiness
from app.control.report.corrections import Corrections
from app.control.report.events import EventReporter
from app.control.report.inspect import Inspect
from app.control.report.live_state import LiveState
from app.control.report.start_latency import StartLatency
from app.control.report.status import Status
from app.control.report.waiting import WaitingGroups
from app.control.report.why import Explainer
from app.control.webhooks.admission import Admission
from app.control.webhooks.extender import Extender
from app.control.webhooks.fast_path import AdmissionFastPath
from app.control.writers.barrier import GangBarrier
from app.control.writers.binder import Binder
from app.control.writers.evictor import Evictor
from app.control.writers.unevictable import UnevictablePods
from app.grouping import defaults_of
from app.model.seam import Cluster, rfc3339
from app.scheduling.planner.planner import plan as full_plan
from app.settings import Settings
from app.telemetry import Metrics


class Runs(Protocol):
    """A component that runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The two clocks of the service. Tests use a virtual clock."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """Seconds since the epoch."""

    def timestamp(self) -> str:
        """Return the wall clock as RFC 3339, the format of Kubernetes."""
        return rfc3339(self.wall())


class Components:
    """The service without its ports. Nothing runs until the caller runs each of `running`."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        metrics: Metrics,
        *,
        clocks: Clocks | None = None,
        plan: Plans = full_plan,
    ) -> None:
        """Build everything; `plan` is the planner's own."""
        self._settings, self._cluster = settings, cluster
        self._clocks = clocks or Clocks()
        self.metrics = metrics
        self.cache = ClusterCache(history_of(settings), overuse_tolerance_mib=settings.overuse_tolerance_mib)
        self._changed = asyncio.Event()
        """Set by whatever may let the planning loop decide something; it waits for this."""
        self.leadership = Leadership(
            cluster,
            lease=settings.scheduler_lease,
            hostname=settings.hostname,
            clock=self._clocks.monotonic,
            changed=self._changed,
        )
        self.freshness = Freshness(clock=self._clocks.monotonic)
        self.readiness = Readiness(self.leadership, self.freshness)
        self.arrivals = Arrivals(self.cache)
        self.decisions = Decisions(wall_clock=self._clocks.wall)
        self._build_cycle(plan)
        self._build_groups()
        self._build_reports()
        self._build_webhooks()
        self._build_informers()

    def _build_cycle(self, plan: Plans) -> None:
        """Build the components that turn a plan into starts and evictions."""
        cache, cluster, metrics, settings = self.cache, self._cluster, self.metrics, self._settings
        clock, wall = self._clocks.monotonic, self._clocks.wall
        self.barrier = GangBarrier(cache)
        self.cycles = GroupCycles(cache, settings)
        self.waker = Waker(cache, cluster, metrics, self.leadership, self.cycles)
        self.reserver = Reserver(cache, self.barrier, self.waker, metrics, self.cycles, settings, clock=clock)
        self.unevictable = UnevictablePods(cache, clock=clock, changed=self._changed)
        self.evictor = Evictor(
            cache, cluster, self.leadership, metrics, decisions=self.decisions, unevictable=self.unevictable
        )
        self.gpus = SharedGpus(cache, cluster, self.leadership, self.evictor, settings, clock=clock)
        self.preemptions = PendingPreemptions(
            cache, self.waker, self.evictor, self.unevictable, self.gpus, settings, clock=clock, wall_clock=wall
        )
        self.applier = PlanApplier(cache, self.reserver, self.preemptions, self.evictor, metrics, self.decisions)
        self.kept_room = KeptRoom(self.applier)
        search_due = asyncio.Event()
        self.attempts = Attempts(
            cache,
            self.reserver,
            self.preemptions,
            self.applier,
            self.gpus,
            self.unevictable,
            clock=clock,
            wall_clock=wall,
            changed=self._changed,
        )
        self.planning = Planning(
            cache,
            self.readiness,
            self.reserver,
            self.applier,
            self.kept_room,
            self.attempts,
            metrics,
            settings,
            clock=clock,
            wall_clock=wall,
            changed=self._changed,
            search_due=search_due,
        )
        self.search = SearchLoop(
            cache,
            self.applier,
            metrics,
            policy_of(settings),
            self.planning,
            self.kept_room,
            self.readiness,
            clock=clock,
            wall_clock=wall,
            due=search_due,
            budgets=Budgets(cache, cluster, clock=clock),
            plan=plan,
        )

    def _build_groups(self) -> None:
        """Build what forms groups of pods from their owners."""
        cache, cluster, settings = self.cache, self._cluster, self._settings
        self.podgroups = PodGroupWriter(cache, cluster, self.readiness)
        self.grouper = PodGrouper(
            cache,
            cluster,
            self.podgroups,
            freshness=self.freshness,
            arrivals=self.arrivals,
            defaults=replace(defaults_of(settings.workload_defaults), owners_project=settings.owners_project),
            changed=self._changed,
        )
        self.endings = CompletionLookup(
            cache,
            cluster,
            self.grouper,
            profiles=settings.profiles,
            keeps=keeps_of(settings),
            freshness=self.freshness,
            changed=self._changed,
        )

    def _build_reports(self) -> None:
        """Build the components that report to people and cluster autoscalers."""
        cache, cluster, settings, clocks = self.cache, self._cluster, self._settings, self._clocks
        waiting = WaitingGroups(cache, self.planning, self.readiness)
        self.autoscaler = Autoscaler(
            UnmetDemand(cache, waiting, settings, clock=clocks.monotonic),
            waiting,
            cluster,
            way_of(cluster, settings, timestamp=clocks.timestamp),
            clock=clocks.monotonic,
            wall_clock=clocks.wall,
        )
        explainer = Explainer(
            cache,
            self.planning,
            self.decisions,
            grouper=self.grouper,
            autoscaler=self.autoscaler,
            profiles=settings.profiles,
        )
        self.inspect = Inspect(cache, self.planning, self.readiness, explainer, clock=clocks.monotonic)
        self.live = LiveState(cache, self.planning, policy_of(settings), wall_clock=clocks.wall)
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
            self.readiness,
            clock=clocks.monotonic,
        )
        self.corrections = Corrections(cache, cluster, self.planning, self.readiness, clock=clocks.monotonic)
        self.start_latency = StartLatency(cache, self.metrics, self.leadership, wall_clock=clocks.wall)
        self.meter = UsageMeter(cache, settings, self.readiness, wall_clock=clocks.wall)

    def _build_webhooks(self) -> None:
        """Build the components that answer kube-scheduler and the API server."""
        cache, settings = self.cache, self._settings
        binder = Binder(
            cache,
            self._cluster,
            self.leadership,
            self.barrier,
            self.metrics,
            self.attempts,
            patience_s=settings.gang_barrier_s,
        )
        self.fast_path = AdmissionFastPath(
            cache,
            self.planning,
            self.grouper,
            self.readiness,
            settings=settings,
            clock=self._clocks.monotonic,
        )
        self.extender = Extender(
            cache, self.readiness, self.arrivals, self.planning, self.waker, binder, self.cycles, settings
        )
        self.admission = Admission(cache, self.fast_path, settings, freshness=self.freshness)

    def _build_informers(self) -> None:
        """Build the reader of the cluster, after all components that use what it reads."""
        cache, cluster, metrics, clock = self.cache, self._cluster, self.metrics, self._clocks.monotonic
        tolerance = Tolerance(metrics)
        pods = PodKind(
            cache,
            self._settings,
            tolerance,
            self.grouper,
            self.endings,
            self.arrivals,
            observers=(self.waker, self.corrections, self.start_latency),
        )
        self.feed = Feed(
            cache,
            cluster,
            metrics,
            kinds_of(cache, self.grouper, pods, clock=clock),
            self.freshness,
            tolerance,
            changed=self._changed,
            learners=(self.meter, self.fast_path, self.status, self.podgroups, self.overuse),
        )
        owners, interval_s = self.grouper.owner_watch, self._settings.audit_interval_s
        self.audit = Audit(self.feed, owners, self.freshness, cluster, metrics, interval_s=interval_s)

    @property
    def informers(self) -> tuple[Runs, ...]:
        """The components that carry the cluster into the cache."""
        return (self.feed, self.endings, self.grouper)

    @property
    def running(self) -> tuple[Runs, ...]:
        """Every component that runs until it is cancelled, those that decide first."""
        deciding = (self.leadership, *self.informers, self.planning, self.search, self.waker, self.evictor, self.gpus)
        telling = (self.status, self.events, self.overuse, self.autoscaler, self.corrections)
        return (*deciding, self.meter, *telling, self.audit)
