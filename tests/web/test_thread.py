"""Listeners in threads of their own: neither their clients nor the main loop affect the others."""

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import pytest
from starlette.types import ASGIApp

from app.model.question import Check
from app.model.rights import Right, User
from app.telemetry import Metrics
from app.web import health, operations
from app.web.callers import Anybody, Reviewed
from app.web.connection import ConnectionLimits
from app.web.listener import listener
from app.web.thread import Threaded
from app.web.visits import Visits
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import CONNECTIONS, HOST, get

PATIENCE_S = 10.0


def said(port: int, request: bytes) -> bytes:
    """Send a request over a new connection, without any event loop."""
    with socket.create_connection((HOST, port), PATIENCE_S) as wire:
        wire.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += wire.recv(4096)
        return answer


class InThread:
    """An app that a thread serves during a block."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits = CONNECTIONS) -> None:
        self._bound = listener(app, HOST, 0, limits=limits)
        self.port = self._bound.port

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(Threaded(self._bound, name="tested").run())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


def probing() -> ASGIApp:
    return health.application(FakeInspect(), FakePulse())


async def test_probes_are_answered_while_the_main_loop_is_blocked() -> None:
    async with InThread(probing(), health.PROBE_CONNECTIONS) as probes:
        await asyncio.to_thread(said, probes.port, get("/livez"))

        # No await: nothing else runs on this loop.
        answer = said(probes.port, get("/readyz"))

    assert answer.startswith(b"HTTP/1.1 200")


async def test_thread_and_port_are_gone_after_cancellation() -> None:
    async with InThread(probing()) as probes:
        await asyncio.to_thread(said, probes.port, get("/livez"))

    with pytest.raises(ConnectionError):
        said(probes.port, get("/livez"))
    assert "tested" not in {each.name for each in threading.enumerate()}


async def test_the_end_of_a_listener_ends_its_task() -> None:
    bound = listener(probing(), HOST, 0, limits=CONNECTIONS)
    bound.close()

    with pytest.raises(OSError, match="Bad file descriptor"):
        await Threaded(bound, name="broken").run()


class Watching(FakeInspect):
    """Records in which threads it is called."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(watched, found) if callable(found) and not name.startswith("_") else found


ASKED: set[int] = set()


def watched(found: Callable[..., object], *arguments: object) -> object:
    ASKED.add(threading.get_ident())
    return found(*arguments)


async def test_only_the_main_loop_makes_answers() -> None:
    ASKED.clear()
    visits = Visits(asyncio.get_running_loop())
    inspect = Watching()
    # The lines of /readyz are read in the listener's thread, as probes do.
    app = operations.application(inspect, Metrics(), FakePulse(), callers=Anybody(), ready=FakeInspect(), asks=visits)
    async with InThread(app) as reads:
        for path in ("queues", "podgroups", "gpus", "why/a/b", "pods/a/b", "gpus/n"):
            await asyncio.to_thread(said, reads.port, get(f"/api/v1/{path}"))
        await asyncio.to_thread(said, reads.port, get("/metrics"))
    assert {threading.get_ident()} == ASKED


async def test_one_question_at_a_time_reaches_the_main_loop() -> None:
    main = asyncio.get_running_loop()
    order: list[str] = []

    async def both(visits: Visits) -> None:
        await asyncio.gather(visits.ask(lambda: order.append("one")), visits.ask(lambda: order.append("two")))

    await asyncio.to_thread(lambda: asyncio.run(both(Visits(main))))

    assert order == ["one", "two"]


async def test_reader_gets_an_error_when_the_main_loop_does_not_answer() -> None:
    stalled = asyncio.new_event_loop()
    inspect = FakeInspect()
    visits = Visits(stalled, patience_s=0.01)
    app = operations.application(inspect, Metrics(), FakePulse(), callers=Anybody(), asks=visits)
    try:
        async with InThread(app) as reads:
            assert b"503" in await asyncio.to_thread(said, reads.port, get("/api/v1/queues"))
            assert b"200" in await asyncio.to_thread(said, reads.port, get("/readyz"))
    finally:
        await asyncio.to_thread(lambda: stalled.run_until_complete(asyncio.sleep(0)))
        stalled.close()


async def test_reader_with_a_token_gets_an_error_when_the_main_loop_does_not_answer() -> None:
    stalled = asyncio.new_event_loop()
    visits = Visits(stalled, patience_s=0.01)
    callers = Reviewed(Unasked(), visits, clock=lambda: 0.0)
    app = operations.application(FakeInspect(), Metrics(), FakePulse(), callers=callers, asks=visits)
    try:
        async with InThread(app) as reads:
            answer = await asyncio.to_thread(said, reads.port, get("/api/v1/queues", "Authorization: Bearer tenant"))
    finally:
        await asyncio.to_thread(lambda: stalled.run_until_complete(asyncio.sleep(0)))
        stalled.close()
    assert answer.startswith(b"HTTP/1.1 503")


class Unasked:
    """An API server that no request reaches, since the main loop is blocked."""

    async def user_of(self, token: str) -> User | None:
        raise AssertionError(token)

    async def allows_user(self, right: Right, user: User) -> bool:
        raise AssertionError(right, user)


async def test_nothing_is_ready_before_the_first_report_of_the_main_loop() -> None:
    published = health.Published(FakeInspect(), leader=str)
    assert [check.passed for check in published.checks()] == [False]

    running = asyncio.create_task(published.run())
    await asyncio.sleep(0)
    running.cancel()

    assert published.checks() == (Check("cache-synced"),)
