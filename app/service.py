"""Builds every object and runs it: the only place that knows how the parts fit together.

Everything runs in one TaskGroup: a part that fails takes the process down, because half a service answers wrongly.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from app.cluster.cache import ClusterCache
from app.control.activity import Activity
from app.control.awaiting import Awaiting
from app.control.barrier import GangBarrier
from app.control.binder import Binder
from app.control.budgets import Budgets
from app.control.events import Events
from app.control.evictor import Evictor
from app.control.extender import Extender
from app.control.feed import Feed
from app.control.inspect import Inspect
from app.control.planning import Planning, policy_of
from app.control.promises import Promises
from app.control.search import Search
from app.control.status import Status
from app.control.takeover import TakeOver
from app.control.usage import UsageMeter, history_of
from app.control.waker import Waker
from app.model.names import PodUid
from app.model.seam import Cluster, RawObject, Resource
from app.settings import Settings
from app.telemetry import Metrics
from app.web import operations, webhooks
from app.web.connection import EXTENDER_CONNECTIONS, OPERATIONS_CONNECTIONS
from app.web.listener import Listener, listener
from app.web.watchdog import Watchdog, alarm

GARBAGE_THRESHOLDS = (100_000, 20, 1000)
"""New containers until Python looks for cycles among them, among those that outlived that, and among all.

The first is more than a page of a list holds, the last makes it look through everything once in days.
"""


class Runs(Protocol):
    """A part that runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the service answers, as URLs without a trailing slash."""

    webhooks: str
    operations: str


@dataclass(slots=True, kw_only=True)
class Parts:
    """The service without its ports."""

    metrics: Metrics
    activity: Activity
    barrier: GangBarrier
    waker: Waker
    evictor: Evictor
    search: Search
    planning: Planning
    feed: Feed
    inspect: Inspect
    meter: UsageMeter
    status: Status
    events: Events
    extender: Extender


def build(settings: Settings, cluster: Cluster, metrics: Metrics) -> Parts:
    """Put the parts together; nothing runs yet."""
    cache, clock = ClusterCache(history_of(settings)), time.monotonic
    barrier = GangBarrier(cache)
    waker = Waker(cache, cluster, metrics)

    def activity_changed() -> None:
        planning.poke()

    def unready() -> str:
        return feed.unready()

    activity = Activity(
        cluster, lease=settings.scheduler_lease, hostname=settings.hostname, on_change=activity_changed, clock=clock
    )
    planning, search, evictor = _planning(
        _Ground(cache=cache, cluster=cluster, activity=activity, metrics=metrics, settings=settings),
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
        status.learn(resource, raw)

    feed = Feed(
        cache,
        cluster,
        metrics,
        settings,
        clock=clock,
        on_change=planning.poke,
        on_parked=waker.park,
        on_object=learn,
    )
    inspect = Inspect(cache, feed, planning, activity)
    status = Status(cache, planning, inspect, cluster, settings, wall_clock=_rfc3339)
    events = Events(cache, inspect, cluster, settings, clock=clock)
    binder = Binder(
        cache, cluster, activity, barrier, metrics, patience_s=settings.gang_barrier_s, on_failure=planning.dissolve
    )
    extender = Extender(cache, activity, feed, planning, waker, binder, settings)
    return Parts(
        metrics=metrics,
        activity=activity,
        barrier=barrier,
        waker=waker,
        evictor=evictor,
        search=search,
        planning=planning,
        feed=feed,
        inspect=inspect,
        meter=meter,
        status=status,
        events=events,
        extender=extender,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What nearly every part of `control` stands on."""

    cache: ClusterCache
    cluster: Cluster
    activity: Activity
    metrics: Metrics
    settings: Settings


def _planning(
    on: _Ground, barrier: GangBarrier, waker: Waker, *, unready: Callable[[], str]
) -> tuple[Planning, Search, Evictor]:
    clock = time.monotonic

    def cannot_decide() -> str:
        return on.activity.failure() or unready()

    def stays(victim: PodUid) -> None:
        awaiting.note_failure(victim)
        planning.poke()

    promises = Promises(on.cache, barrier, waker, on.metrics, on.settings, clock=clock)
    evictor = Evictor(on.cache, on.cluster, on.activity, on.metrics, on_failure=stays)
    awaiting = Awaiting(on.cache, waker, evictor, on.settings, clock=clock)
    takeover = TakeOver(on.cache, promises, awaiting, evictor, on.metrics)
    search = Search(
        on.cache,
        takeover,
        on.metrics,
        policy_of(on.settings),
        clock=clock,
        wall_clock=time.time,
        unready=cannot_decide,
        budgets=Budgets(on.cache, on.cluster, clock=clock),
    )
    planning = Planning(
        on.cache,
        on.activity,
        promises,
        awaiting,
        takeover,
        search,
        on.metrics,
        on.settings,
        clock=clock,
        wall_clock=time.time,
        unready=unready,
    )
    return planning, search, evictor


async def serve(
    settings: Settings,
    cluster: Cluster,
    *,
    metrics: Metrics | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
) -> None:
    """Run until cancelled; raises OSError when a port is taken."""
    parts = build(settings, cluster, metrics or Metrics())
    watchdog = Watchdog(alarm(parts.metrics))
    verbs, reads = _listeners(settings, parts, watchdog)
    try:
        with _rare_collections():
            async with asyncio.TaskGroup() as tasks:
                for part in _running(parts, watchdog, verbs, reads):
                    tasks.create_task(part.run(), name=type(part).__name__)
                tasks.create_task(_freeze_when_synced(parts.feed), name="freeze")
                if on_ready is not None:
                    on_ready(_endpoints(settings, verbs, reads))
                await _until_cancelled(parts.barrier)
    finally:
        verbs.close()
        reads.close()


def _running(parts: Parts, *others: Runs) -> tuple[Runs, ...]:
    deciding = (parts.activity, parts.feed, parts.planning, parts.search, parts.waker, parts.evictor)
    return (*deciding, parts.meter, parts.status, parts.events, *others)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Keep Python from looking for reference cycles where there are none, in what was imported and what is remembered.

    Our records form no cycles. With Python's own thresholds the list of 50,000 pods set off 51 walks through all
    objects: it took 10.9 s instead of 3.1 s, and the event loop stood still for up to 496 ms instead of 24 to 44 ms.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _freeze_when_synced(feed: Feed) -> None:
    # One walk through the records of 50,000 pods takes 150 ms; frozen, they are walked through by nobody.
    await feed.synced()
    gc.freeze()


async def _until_cancelled(barrier: GangBarrier) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        # Whoever stands at the barrier would hold up the end of the listeners for nothing.
        barrier.fail_all("Leeboard is stopping")


def _listeners(settings: Settings, parts: Parts, watchdog: Watchdog) -> tuple[Listener, Listener]:
    verbs = listener(
        webhooks.application(parts.extender, parts.metrics),
        settings.webhook_host,
        settings.webhook_port,
        limits=EXTENDER_CONNECTIONS,
    )
    reads = listener(
        operations.application(parts.inspect, parts.metrics, watchdog),
        settings.operations_host,
        settings.operations_port,
        limits=OPERATIONS_CONNECTIONS,
    )
    return verbs, reads


def _endpoints(settings: Settings, verbs: Listener, reads: Listener) -> Endpoints:
    return Endpoints(
        webhooks=f"http://{_authority(settings.webhook_host)}:{verbs.port}",
        operations=f"http://{_authority(settings.operations_host)}:{reads.port}",
    )


def _authority(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _rfc3339() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
