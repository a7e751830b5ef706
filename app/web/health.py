"""Health endpoints like those of the API server: /livez, /readyz, ?verbose, ?exclude=NAME, and single checks.

Threads answer the probes, so a blocked main loop does not delay them. They read the checks that the main loop published
last and the age of its heartbeat.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from app.model.question import Check
from app.web import problem, routes
from app.web.asgi import BodyLimits
from app.web.connection import ConnectionLimits

Checks = Callable[[], Sequence[Check]]

PUBLISH_EVERY_S = 0.1
STARTING = (Check("started", "the event loop has not reported anything yet"),)

PROBE_CONNECTIONS = ConnectionLimits(connections=1024, head_bytes=16 * 1024, head_deadline_s=1.0, unread_s=1.0)
PROBE_LIMITS = BodyLimits(body_bytes=0, head_bytes=8 * 1024, deadline_s=1.0, linger_s=0.0)


class Pulse(Protocol):
    """What the watchdog reports about the event loop; callable from any thread."""

    def readiness(self) -> Check:
        """Return whether the loop runs."""
        ...

    def liveness(self) -> Check:
        """Return whether the watchdog runs."""
        ...


class Ready(Protocol):
    """A component with readiness checks."""

    def checks(self) -> Sequence[Check]:
        """Return the component's lines of /readyz."""
        ...


class Published:
    """The checks that the main loop published last, for threads that must not wait for the main loop."""

    def __init__(self, *parts: Ready, leader: Callable[[], str]) -> None:
        """Start without results. The parts belong to the main loop; `leader` returns who else leads, if anybody."""
        self._parts = parts
        self._leader = leader
        self.leader = ""
        """The kube-scheduler that leads, if it is beside another replica."""
        # `run` replaces it; other threads read it.
        self._seen: Sequence[Check] = STARTING

    def checks(self) -> Sequence[Check]:
        """Return the last published checks."""
        return self._seen

    async def run(self) -> None:
        """Publish the checks until cancelled."""
        while True:
            self._seen = tuple(check for part in self._parts for check in part.checks())
            self.leader = self._leader()
            await asyncio.sleep(PUBLISH_EVERY_S)


def application(ready: Ready, pulse: Pulse) -> FastAPI:
    """Build the app of the probe listener."""
    app = routes.application(PROBE_LIMITS)
    add_routes(app, ready, pulse)
    return app


def add_routes(app: FastAPI, ready: Ready, pulse: Pulse) -> None:
    """Add the health endpoints; /healthz is the old name of /livez."""

    def livez() -> Sequence[Check]:
        return (pulse.liveness(),)

    def readyz() -> Sequence[Check]:
        return (*ready.checks(), pulse.readiness())

    for path, title, checks in (
        ("/livez", "livez", livez),
        ("/healthz", "livez", livez),
        ("/readyz", "readyz", readyz),
    ):
        app.add_route(path, _summary(title, checks), methods=["GET"], include_in_schema=False)
        app.add_route(path + "/{name}", _single(checks), methods=["GET"], include_in_schema=False)


def _summary(title: str, checks: Checks) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        seen = checks()
        excluded = frozenset(request.query_params.getlist("exclude"))
        passed = all(check.passed for check in seen if check.name not in excluded)
        if passed and "verbose" not in request.query_params:
            return PlainTextResponse("ok")
        lines = [f"[+]{check.name} excluded: ok" if check.name in excluded else _line(check) for check in seen]
        lines += _unknown(excluded - {check.name for check in seen})
        lines.append(f"{title} check {'passed' if passed else 'failed'}")
        return PlainTextResponse("\n".join(lines) + "\n", _status(passed=passed))

    return endpoint


def _single(checks: Checks) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        check = next((check for check in checks() if check.name == name), None)
        if check is None:
            return problem.response(HTTPStatus.NOT_FOUND, f"there is no check named {name!r}")
        return PlainTextResponse("ok" if check.passed else _line(check) + "\n", _status(passed=check.passed))

    return endpoint


def _unknown(names: frozenset[str]) -> list[str]:
    # A probe with a misspelt name would otherwise fail because of a check that its author believes excluded.
    return [f"warn: there is no check named {name!r} to exclude" for name in sorted(names)]


def _line(check: Check) -> str:
    if check.failure:
        return f"[-]{check.name} failed: {check.failure}"
    return f"[+]{check.name} ok" + (f", degraded: {check.degraded}" if check.degraded else "")


def _status(*, passed: bool) -> HTTPStatus:
    return HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
