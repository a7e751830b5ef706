"""Questions to the view for users of the aggregated API: answers come back as they are, and few are open at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.model.rights import User
from app.view.passing import THROUGH_AT_ONCE, AskingView
from app.view.vouched import vouched
from tests.kube.apiserver import Answer, listening
from tests.web.served import serving

SECRET, JANE = "secret", User(name="jane")
PATIENCE_S = 60.0


@asynccontextmanager
async def asking(view: Answer) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an app that asks this view for Jane, and yield a client of it."""
    async with listening(view) as url:
        through = AskingView(url, SECRET)

        async def answer(request: Request) -> Response:
            return await through.answer(request, JANE)

        async with serving(Starlette(routes=[Route("/{path:path}", answer)])) as served:  # noqa: SIM117 # one each
            async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE_S, trust_env=False) as client:
                yield client


async def test_an_answer_is_passed_on_as_it_is() -> None:
    seen: list[web.Request] = []

    async def view(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(status=304, headers={"ETag": '"1"', "Vary": "Accept-Encoding"})

    async with asking(view) as client:
        reply = await client.get("/api/v1/state?a=b", headers={"If-None-Match": '"1"', "Authorization": "Bearer x"})

    assert (reply.status_code, reply.headers["etag"], reply.headers["vary"]) == (304, '"1"', "Accept-Encoding")
    (request,) = seen
    assert (request.path_qs, request.headers["if-none-match"]) == ("/api/v1/state?a=b", '"1"')
    assert request.headers["authorization"] == vouched(JANE, SECRET)


async def test_few_streams_are_open_at_a_time_and_a_client_that_leaves_makes_room() -> None:
    ended = asyncio.Semaphore(0)

    async def view(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await response.write(b"event: state\n\n")
            await asyncio.Event().wait()
        finally:
            ended.release()
        return response

    async with asking(view) as client, asyncio.timeout(PATIENCE_S):
        streams = [client.stream("GET", "/api/v1/stream") for _ in range(THROUGH_AT_ONCE)]
        opened = [await stream.__aenter__() for stream in streams]
        assert [await anext(each.aiter_bytes()) for each in opened] == [b"event: state\n\n"] * THROUGH_AT_ONCE
        assert (await client.get("/api/v1/stream")).status_code == 503

        for stream in streams:
            with suppress(httpx.HTTPError):
                await stream.__aexit__(None, None, None)
        for _ in streams:
            await ended.acquire()

        async with client.stream("GET", "/api/v1/stream") as again:
            assert again.status_code == 200


async def test_a_view_that_is_not_there_is_said_so() -> None:
    through = AskingView("http://127.0.0.1:1", SECRET)

    async def answer(request: Request) -> Response:
        return await through.answer(request, JANE)

    async with serving(Starlette(routes=[Route("/{path:path}", answer)])) as served:
        replies = [
            await asyncio.to_thread(httpx.get, f"{served.url}/api/v1/state", trust_env=False)
            for _ in range(THROUGH_AT_ONCE + 1)
        ]

    assert {reply.status_code for reply in replies} == {502}
    assert "the view of Leeboard does not answer" in replies[0].text
