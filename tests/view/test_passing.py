"""Questions to the deciding process: few at a time, the others wait, and nobody who leaves keeps a place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from starlette.requests import Request
from starlette.types import Message

from app.view import passing
from app.view.passing import AT_ONCE, AT_ONCE_OF_ONE, Passing
from tests.kube.apiserver import Answer, listening


@asynccontextmanager
async def passing_to(operations: Answer) -> AsyncIterator[Passing]:
    """Yield one that asks a deciding process which answers like this."""
    async with listening(operations) as url, aiohttp.ClientSession(trust_env=False) as session:
        yield Passing(session, url)


def question() -> Request:
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/queues",
        "raw_path": b"/api/v1/queues",
        "query_string": b"",
        "headers": [],
    }
    return Request(scope)


async def asked(through: Passing, user: str = "") -> tuple[int, bytes]:
    """Ask once; return status and body."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    request = question()
    await (await through.answer(request, user))(request.scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_readers_wait_for_each_other_instead_of_being_turned_away() -> None:
    now, most = 0, 0

    async def operations(_request: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return web.Response(text="{}")

    async with passing_to(operations) as through:
        answers = await asyncio.gather(*(asked(through) for _ in range(10 * AT_ONCE)))

    assert answers == [(200, b"{}")] * (10 * AT_ONCE)
    assert 1 < most <= AT_ONCE


async def test_a_reader_is_told_to_come_back_when_the_others_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "WAIT_S", 0.01)
    go_on = asyncio.Event()

    async def operations(_request: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response(text="{}")

    async with passing_to(operations) as through:
        first = [asyncio.create_task(asked(through)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        status, body = await asked(through)
        go_on.set()

        assert (status, b"too many questions at once" in body) == (503, True)
        assert {(await each)[0] for each in first} == {200}


async def test_a_user_who_reads_slowly_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "WAIT_S", 0.01)
    first_come, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def operations(_request: web.Request) -> web.Response:
        first_come.release()
        if not go_on.is_set():
            await go_on.wait()
        return web.Response(text="{}")

    async with passing_to(operations) as through:
        slow = [asyncio.create_task(asked(through, "jane")) for _ in range(AT_ONCE_OF_ONE)]
        for _ in slow:
            await first_come.acquire()
        status, _ = await asked(through, "jane")
        other = asyncio.create_task(asked(through, "joe"))
        await first_come.acquire()
        go_on.set()

        assert status == 503
        assert {(await each)[0] for each in (*slow, other)} == {200}


async def test_a_reader_who_leaves_before_the_answer_begins_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "WAIT_S", 1.0)

    async def operations(_request: web.Request) -> web.Response:
        return web.Response(text="{}")

    async def left() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        await asyncio.Event().wait()

    async with passing_to(operations) as through:
        for _ in range(2 * AT_ONCE):
            request = question()
            await (await through.answer(request, "jane"))(request.scope, left, send)

        assert await asked(through) == (200, b"{}")
