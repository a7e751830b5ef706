"""Puts the deciding parts together: everything between the ports and the cluster."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.cluster.state.cache import ClusterCache
from app.control.autoscaler.autoscaler import Autoscaler, way_of
from app.control.autoscaler.unmet_demand import UnmetDemand
from app.control.cycle.apply_plan import PlanApplier
from app.control.cycle.disruption_budgets import Budgets
from app.control.cycle.planning import Planning, policy_of
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.reserver import Reserver
from app.control.cycle.search_loop import SearchLoop
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
from app.settings import Settings
from app.telemetry import Metrics


@dataclass(slots=True, kw_only=True)
class Components:
    """The service without its ports."""

    metrics: Metrics
    activity: Leadership
    barrier: GangBarrier
    waker: Waker
    evictor: Evictor
    gpus: SharedGpus
    search: SearchLoop
    planning: Planning
    amends: Corrections
    feed: Feed
    audit: Audit
    inspect: Inspect
    meter: UsageMeter
    status: Status
    events: EventReporter
    overuse: Overuse
    autoscaling: Autoscaler
    extender: Extender
    admission: Admission


def build(settings: Settings, cluster: Cluster, metrics: Metrics, *, on_standby: Callable[[], None]) -> Components:
    """Put the parts together; nothing runs yet. `on_standby` is called when we cease to be active."""
    history, clock = history_of(settings), time.monotonic
    cache = ClusterCache(history, overuse_tolerance_mib=settings.overuse_tolerance_mib)
    barrier = GangBarrier(cache)

    def activity_changed() -> None:
        planning.poke()
        if activity.failure():
            on_standby()

    def unready() -> str:
        return feed.unready()

    activity = Leadership(
        cluster, lease=settings.scheduler_lease, hostname=settings.hostname, on_change=activity_changed, clock=clock
    )
    waker = Waker(cache, cluster, metrics, inactive=activity.failure)
    decisions = Decisions(wall_clock=time.time)
    planning, search, evictor, gpus = _planning(
        _Ground(
            cache=cache, cluster=cluster, activity=activity, metrics=metrics, settings=settings, decisions=decisions
        ),
        barrier,
        waker,
        unready=unready,
    )

    def cannot_decide() -> str:
        return activity.failure() or unready()

    meter = UsageMeter(cache, settings, wall_clock=time.time, unready=cannot_decide)

    def learn(resource: Resource, raw: RawObject) -> None:
        # The feed comes before the status writer that learns from it.
        meter.learn(resource, raw)
        entrance.learn(resource, raw)
        status.learn(resource, raw)
        if resource is Resource.POD_GROUPS:
            podgroups.learn(raw)
        if resource is Resource.GPU_NODES:
            overuse.poke()

    def regrouped() -> None:
        # The feed comes after the grouper that it asks.
        feed.note_regrouped()

    podgroups = PodGroupWriter(cache, cluster, inactive=cannot_decide)
    defaults = replace(defaults_of(settings.workload_defaults), owners_project=settings.owners_project)
    grouper = PodGrouper(cache, cluster, podgroups, defaults=defaults, on_change=regrouped)
    amends = Corrections(cache, cluster, reason=planning.reason, inactive=cannot_decide, clock=clock)
    feed = Feed(
        cache,
        cluster,
        metrics,
        settings,
        clock=clock,
        on_change=planning.poke,
        on_parked=waker.park,
        on_unready=amends.note,
        on_object=learn,
        grouper=grouper,
    )
    explainer = Explainer(
        cache,
        planning,
        decisions,
        workload=grouper.workload,
        autoscaler=lambda key: autoscaling.shown(key),  # noqa: PLW0108 # it comes after
        profiles=settings.profiles,
    )
    inspect = Inspect(cache, feed, planning, activity, explainer)
    status = Status(cache, planning, inspect, cluster, settings, wall_clock=_rfc3339)
    events = EventReporter(cache, planning, inspect, grouper, cluster, settings, clock=clock)
    overuse = Overuse(cache, cluster, evictor, metrics, settings, clock=clock, unready=cannot_decide)
    autoscaling = Autoscaler(
        UnmetDemand(cache, inspect, settings, clock=clock),
        inspect,
        cluster,
        way_of(cluster, settings, timestamp=_rfc3339),
        clock=clock,
        wall_clock=time.time,
    )
    binder = Binder(
        cache, cluster, activity, barrier, metrics, patience_s=settings.gang_barrier_s, on_failure=planning.dissolve
    )
    entrance = AdmissionFastPath(
        cache, planning, grouper, settings=settings, unready=unready, inactive=activity.failure, clock=clock
    )
    extender = Extender(cache, activity, feed, planning, waker, binder, settings)
    return Components(
        metrics=metrics,
        activity=activity,
        barrier=barrier,
        waker=waker,
        evictor=evictor,
        gpus=gpus,
        search=search,
        planning=planning,
        amends=amends,
        feed=feed,
        audit=Audit(feed, cluster, metrics, interval_s=settings.audit_interval_s),
        inspect=inspect,
        meter=meter,
        status=status,
        events=events,
        overuse=overuse,
        autoscaling=autoscaling,
        extender=extender,
        admission=Admission(cache, entrance, settings, unready=unready),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What nearly every part of `control` stands on."""

    cache: ClusterCache
    cluster: Cluster
    activity: Leadership
    metrics: Metrics
    settings: Settings
    decisions: Decisions


def _planning(
    on: _Ground, barrier: GangBarrier, waker: Waker, *, unready: Callable[[], str]
) -> tuple[Planning, SearchLoop, Evictor, SharedGpus]:
    clock = time.monotonic

    def cannot_decide() -> str:
        return on.activity.failure() or unready()

    def stays(victim: PodUid) -> None:
        # The planning loop comes after the evictor that it orders from.
        planning.note_staying(victim)

    async def plan_ended() -> None:
        # The planning loop comes after the search that it pokes.
        await planning.ended()

    promises = Reserver(on.cache, barrier, waker, on.metrics, on.settings, clock=clock)
    evictor = Evictor(on.cache, on.cluster, on.activity, on.metrics, decisions=on.decisions, on_failure=stays)
    gpus = SharedGpus(on.cache, on.cluster, on.activity, evictor, on.settings, clock=clock)
    awaiting = PendingPreemptions(on.cache, waker, evictor, gpus, on.settings, clock=clock, wall_clock=time.time)
    takeover = PlanApplier(on.cache, promises, awaiting, evictor, on.metrics, on.decisions)
    search = SearchLoop(
        on.cache,
        takeover,
        on.metrics,
        policy_of(on.settings),
        clock=clock,
        wall_clock=time.time,
        unready=cannot_decide,
        plan_ended=plan_ended,
        budgets=Budgets(on.cache, on.cluster, clock=clock),
    )
    planning = Planning(
        on.cache,
        on.activity,
        promises,
        awaiting,
        takeover,
        search,
        gpus,
        on.metrics,
        on.settings,
        clock=clock,
        wall_clock=time.time,
        unready=unready,
    )
    return planning, search, evictor, gpus


def _rfc3339() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
