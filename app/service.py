"""Builds every object and runs it: the only place that knows how the parts fit together.

Everything runs in one TaskGroup: a part that fails takes the process down, because half a service answers wrongly.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from app.cluster.cache import ClusterCache
from app.control.barrier import GangBarrier
from app.control.binder import Binder
from app.control.extender import Extender
from app.control.feed import Feed
from app.control.inspect import Inspect
from app.control.planning import Planning
from app.control.status import Status
from app.control.waker import Waker
from app.model.seam import Cluster
from app.settings import Settings
from app.telemetry import Metrics
from app.web import operations, webhooks
from app.web.connection import EXTENDER_CONNECTIONS, OPERATIONS_CONNECTIONS
from app.web.listener import Listener, listener
from app.web.watchdog import Alarm, Watchdog, log_stacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the service answers, as URLs without a trailing slash."""

    webhooks: str
    operations: str


@dataclass(slots=True, kw_only=True)
class Parts:
    """The service without its ports."""

    metrics: Metrics
    barrier: GangBarrier
    waker: Waker
    planning: Planning
    feed: Feed
    inspect: Inspect
    status: Status
    extender: Extender


def build(settings: Settings, cluster: Cluster, metrics: Metrics) -> Parts:
    """Put the parts together; nothing runs yet."""
    cache, clock = ClusterCache(), time.monotonic
    barrier = GangBarrier(cache)
    waker = Waker(cache, cluster, metrics)
    planning = Planning(cache, barrier, waker, metrics, settings, clock=clock)
    # The feed comes before the status writer that learns from it: `learn` is looked up when it is needed.
    feed = Feed(
        cache,
        cluster,
        metrics,
        settings,
        clock=clock,
        on_change=planning.poke,
        on_parked=waker.park,
        on_object=lambda resource, raw: status.learn(resource, raw),
    )
    inspect = Inspect(cache, feed, planning)
    status = Status(cache, inspect, cluster, settings, clock=clock, wall_clock=_rfc3339)
    binder = Binder(cache, cluster, barrier, metrics, patience_s=settings.gang_barrier_s, on_failure=planning.dissolve)
    extender = Extender(cache, feed, planning, waker, binder, settings)
    return Parts(
        metrics=metrics,
        barrier=barrier,
        waker=waker,
        planning=planning,
        feed=feed,
        inspect=inspect,
        status=status,
        extender=extender,
    )


async def serve(
    settings: Settings,
    cluster: Cluster,
    *,
    metrics: Metrics | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
) -> None:
    """Run until cancelled; raises OSError when a port is taken."""
    parts = build(settings, cluster, metrics or Metrics())
    watchdog = Watchdog(Alarm(report=log_stacks))
    verbs, reads = _listeners(settings, parts, watchdog)
    try:
        async with asyncio.TaskGroup() as tasks:
            for part in (watchdog, parts.feed, parts.planning, parts.waker, parts.status, verbs, reads):
                tasks.create_task(part.run(), name=type(part).__name__)
            if on_ready is not None:
                on_ready(_endpoints(settings, verbs, reads))
            await _until_cancelled(parts.barrier)
    finally:
        verbs.close()
        reads.close()


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
