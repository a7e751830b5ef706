"""Builds every component and runs them. Only this package knows how the components fit together.

The components run on the loop of the core, which a shell drives; the shell and the listeners run in one TaskGroup. A
component that fails ends the process, because a partial service answers wrongly.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from secrets import token_urlsafe
from typing import Protocol

from starlette.types import ASGIApp

from app.certificates.own import Installation
from app.control.leadership.rights import AccessReviews, Rights
from app.model.seam import Cluster
from app.service.components import Clocks, Components, Runs
from app.service.doors import (
    ApiServerTls,
    Door,
    admission_door,
    aggregated_listener,
    extender_door,
    operations_door,
    probe_door,
    url_of,
)
from app.service.feed import Condition, Feed
from app.service.shell import Shell
from app.service.view_process import ViewProcess
from app.settings import Settings
from app.telemetry import Metrics
from app.view.messages import Setup
from app.view.passing import AskingView
from app.web import health, operations, standby
from app.web.aggregated import AggregatedApi
from app.web.callers import Anybody, CallerReviews, CallersByName, Nobody, Reviewed
from app.web.listener import Listener
from app.web.visits import Visits
from app.web.watchdog import Alarm, Watchdog

__all__ = ["GARBAGE_THRESHOLDS", "SWITCH_AFTER_S", "Clocks", "Components", "Endpoints", "Kubernetes", "serve"]

GARBAGE_THRESHOLDS = (20_000, 100, 1000)
"""Python's garbage collection thresholds for the generations 0, 1 and 2.

The first is a number of new containers. It bounds how long all threads are blocked: garbage takes about a microsecond
each. With the last one Python searches all objects once in days.
"""

SWITCH_AFTER_S = 0.0005
"""How long one thread keeps the interpreter lock while another thread waits for it."""

FREEZE_EVERY_S = 0.1
FREEZES = 600
"""Twice the time that a list of 100,000 pods takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The URLs of the service, without a trailing slash."""

    webhooks: str
    operations: str
    admission: str = ""
    """Empty when admission is not served."""
    probes: str = ""
    """Empty when probes have no port of their own."""
    view: str = ""
    """Empty when there is no view."""
    aggregated: str = ""
    """Empty when there is no aggregated API."""


class RightsApi(AccessReviews, CallerReviews, Protocol):
    """The reviews of rights by the API server: Leeboard's own rights, and those of callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """What only a real cluster has: Leeboard's installation in it, and rights that may be missing."""

    installation: Installation
    reviews: RightsApi


async def serve(
    settings: Settings,
    cluster: Cluster,
    *,
    kubernetes: Kubernetes | None = None,
    metrics: Metrics | None = None,
    on_ready: Callable[[Endpoints], None] | None = None,
) -> None:
    """Run until cancelled; raise OSError when a port is in use. A simulated cluster has no `kubernetes`."""
    with ExitStack() as open_ports, _rare_collections(), _prompt_switches():

        def opened(door: Door) -> Door:
            open_ports.callback(door.listener.close)
            return door

        metrics = metrics or Metrics()
        shell = Shell(settings, cluster, metrics)
        open_ports.callback(shell.close)
        components = shell.components
        verbs = opened(extender_door(settings, shell, metrics))
        tls = ApiServerTls(settings, metrics, kubernetes.installation if kubernetes else None)
        reviews = admission_door(settings, shell, metrics, tls)
        doors = [verbs, *([opened(reviews)] if reviews else [])]
        rights = [Rights(kubernetes.reviews, settings)] if kubernetes else []
        watchdog = Watchdog(Alarm(metrics))
        published = health.Published(shell, *rights, *doors, tls, leader=components.leadership.other)
        visits = Visits(asyncio.get_running_loop(), state=shell)
        callers = _callers(settings, kubernetes.reviews if kubernetes else None, visits)
        app = operations.application(
            components.inspect,
            metrics,
            watchdog,
            callers=callers,
            ready=published,
            asks=visits,
            standby=lambda: standby.sentence(published.leader),
        )
        reads = opened(operations_door(settings, app))
        secret = token_urlsafe(32)
        view = _view(settings, shell, metrics, reads.url, secret, has_reviews=kubernetes is not None)
        if view:
            open_ports.callback(view.close)
        aggregated = _aggregated(settings, app, tls, callers, AskingView(view.url, secret) if view else None)
        if aggregated:
            open_ports.callback(aggregated.close)
            reads = replace(reads, guest=aggregated)
        probes = probe_door(settings, health.application(published, watchdog))
        doors += [reads, *([opened(probes)] if probes else [])]
        async with asyncio.TaskGroup() as tasks:
            beside: list[Runs] = [
                watchdog,
                published,
                *rights,
                *tls.running,
                *(view.running if view else ()),
                *(one for door in doors for one in door.running),
            ]
            for part in (shell, *beside):
                tasks.create_task(part.run(), name=type(part).__name__)
            tasks.create_task(_freeze_until_synced(shell), name="freeze")
            tasks.create_task(_close_on_standby(shell, verbs), name="standby")
            if on_ready is not None:
                admission = reviews.url if reviews else ""
                urls = {
                    "admission": admission,
                    "probes": probes.url if probes else "",
                    "view": view.url if view else "",
                    "aggregated": url_of(settings.aggregated_host, aggregated) if aggregated else "",
                }
                on_ready(Endpoints(webhooks=verbs.url, operations=reads.url, **urls))
            await asyncio.Event().wait()


def _aggregated(
    settings: Settings, operations: ASGIApp, tls: ApiServerTls, callers: CallersByName, view: AskingView | None
) -> Listener | None:
    """Bind the port of the aggregated API, if it is configured; raise OSError when it is in use."""
    if tls.proxy is None:
        return None
    app = AggregatedApi(operations, tls.proxy, callers, view=view.answer if view else None)
    return aggregated_listener(settings, app, tls)


def _view(  # noqa: PLR0913 # what the view is made of
    settings: Settings, shell: Shell, metrics: Metrics, operations: str, secret: str, *, has_reviews: bool
) -> ViewProcess | None:
    """Bind the port of the view, if it is configured; raise OSError when its port is in use."""
    if settings.view_port is None:
        return None
    setup = Setup(
        operations=operations,
        anonymous=settings.anonymous_reads,
        reviews=has_reviews,
        kubeconfig=settings.kubeconfig,
        secret=secret,
    )
    components = shell.components
    condition = Condition(shell, components.readiness, metrics, wall_clock=time.time)
    feed = Feed(shell, components.live, condition, setup)
    return ViewProcess(feed, settings.view_host, settings.view_port)


def _callers(settings: Settings, authority: CallerReviews | None, visits: Visits) -> CallersByName:
    if settings.anonymous_reads:
        return Anybody()
    return Nobody() if authority is None else Reviewed(authority, visits, clock=time.monotonic)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python search rarely for reference cycles in imported modules and stored records, which have none.

    With Python's default thresholds the list of 50,000 pods caused 51 searches through all objects: it took 10.9 s
    instead of 3.1 s, and the event loop was blocked for up to 496 ms instead of 24 to 44 ms.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def _prompt_switches() -> Iterator[None]:
    """Shorten the wait of a request for a plan that is computed in another thread.

    The event loop waits for the interpreter lock after each of its system calls, by default for 5 ms. Measured beside a
    plan of 10,000 pods, p99 of filter at 500 names: 9.8 and 13.3 ms with 5 ms, 5.0 and 4.7 with 0.5; at 5,000 names 30
    and 53 against 18 and 20.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_AFTER_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def _close_on_standby(shell: Shell, verbs: Door) -> None:
    while True:
        await shell.seen(shell.components.leadership.ended)
        # The kube-scheduler of a replica on standby must not keep using an old connection to it.
        verbs.listener.close_connections()


async def _freeze_until_synced(shell: Shell) -> None:
    # One search through the records of 100,000 pods takes 700 ms, during which no request is answered. Frozen records
    # are not searched, and freezing them while they arrive keeps each search short.
    synced = asyncio.ensure_future(shell.seen(shell.components.freshness.synced))
    try:
        # The loop is bounded in case some kind is never listed: frozen garbage is never collected.
        for _ in range(FREEZES):
            await asyncio.wait((synced,), timeout=FREEZE_EVERY_S)
            gc.freeze()
            if synced.done():
                return
        await synced
        gc.freeze()
    finally:
        synced.cancel()
