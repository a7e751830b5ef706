"""A port in a TaskGroup: known before it runs, gone after it was cancelled."""

import asyncio
import signal
import socket

import httpx
import pytest
from starlette.types import ASGIApp

from app.telemetry import Metrics
from app.web import operations, webhooks
from app.web.callers import Anybody
from app.web.listener import Listener, listener
from tests.web.fakes import FakeExtender, FakeInspect, FakePulse
from tests.web.served import CONNECTIONS, HOST, Served, get, post, serving
from tests.web.test_webhooks import BIND


class SlowExtender(FakeExtender):
    """Binds when the test tells it to."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.released = asyncio.Event(), asyncio.Event()

    async def bind(self, _question: object) -> str:
        self.called.set()
        await self.released.wait()
        return ""


def operating() -> ASGIApp:
    return operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Anybody())


async def test_two_listeners_run_in_one_process() -> None:
    async with (
        serving(operating()) as one,
        serving(webhooks.application(FakeExtender(), Metrics())) as other,
    ):
        assert (await one.ask(get("/livez"))).status == 200
        assert (await other.ask(post("/bind", BIND))).json == {"Error": ""}


async def test_port_is_known_before_it_is_served() -> None:
    bound = listener(operating(), HOST, 0, limits=CONNECTIONS)
    port = bound.port
    bound.close()
    assert port > 0


async def test_port_in_use_is_an_error_at_once() -> None:
    async with serving(operating()) as served:
        with pytest.raises(OSError, match="in use"):
            listener(operating(), HOST, served.port, limits=CONNECTIONS)


async def test_signal_handlers_of_the_service_are_not_replaced() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving(operating()) as served:
        await served.ask(get("/livez"))
        assert signal.getsignal(signal.SIGTERM) is before


async def test_cancelled_listener_finishes_running_calls() -> None:
    extender = SlowExtender()
    bound = listener(webhooks.application(extender, Metrics()), HOST, 0, limits=CONNECTIONS)
    running = asyncio.create_task(bound.run())
    async with httpx.AsyncClient() as client:
        call = asyncio.create_task(client.post(f"http://{HOST}:{bound.port}/bind", content=BIND))
        await extender.called.wait()
        running.cancel()
        extender.released.set()
        assert (await call).json() == {"Error": ""}
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelled_listener_does_not_wait_for_ever() -> None:
    extender = SlowExtender()
    async with serving(webhooks.application(extender, Metrics()), grace_s=0) as served:
        call = asyncio.create_task(served.ask(post("/bind", BIND)))
        await extender.called.wait()
    # Still not released: the call was cut short, and kube-scheduler calls again.
    assert (await call).status == 500


async def test_stopped_listener_answers_no_client() -> None:
    async with serving(operating()) as served:
        await served.ask(get("/livez"))
    with pytest.raises(ConnectionRefusedError):
        await served.ask(get("/livez"))


async def test_listener_ends_with_its_task_group() -> None:
    bound = listener(operating(), HOST, 0, limits=CONNECTIONS)
    port = bound.port
    with pytest.raises(ExceptionGroup):
        await _run_beside_a_broken_task(bound)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)


async def _run_beside_a_broken_task(bound: Listener) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bound.run())
        tasks.create_task(_break())


async def _break() -> None:
    raise LookupError


# Connections that are closed


async def test_idle_connections_are_closed_at_once() -> None:
    async with serving(operating()) as served, served.connection() as fresh, served.connection() as used:
        await used.send(get("/livez"))
        await used.reply()

        served.listener.close_connections()

        assert await fresh.is_closed_by_server()
        assert await used.is_closed_by_server()


async def test_a_connection_with_a_running_call_is_closed_after_its_answer() -> None:
    extender = SlowExtender()
    async with serving(webhooks.application(extender, Metrics())) as served, served.connection() as wire:
        await wire.send(post("/bind", BIND))
        await extender.called.wait()

        served.listener.close_connections()
        extender.released.set()

        answer = await wire.reply()
        assert (answer.json, answer.headers["connection"]) == ({"Error": ""}, "close")
        assert await wire.is_closed_by_server()


async def test_a_client_that_connects_after_connections_were_closed_is_answered() -> None:
    async with serving(operating()) as served:
        served.listener.close_connections()

        async with served.connection() as wire:
            for _ in range(2):
                await wire.send(get("/livez"))
                assert (await wire.reply()).status == 200


@pytest.mark.parametrize("has_ipv6", [True, False])
async def test_the_ipv6_wildcard_includes_ipv4(*, has_ipv6: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the kernel knows whether it has IPv6, so its answer is replaced.
    if not has_ipv6:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    bound = listener(operating(), "::", 0, limits=CONNECTIONS)
    running = asyncio.create_task(bound.run())
    reply = await Served(bound.port, bound).ask(get("/livez"))
    running.cancel()

    assert reply.status == 200
    with pytest.raises(asyncio.CancelledError):
        await running
