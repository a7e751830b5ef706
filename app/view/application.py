"""The routes of the view: the page, the state, the stream, the version, and what the deciding process answers."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Protocol

from fastapi import FastAPI, Request, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.client.tokens import TOKEN_HEADER
from app.view.kept_state import KeptState
from app.view.packing import GzipBody
from app.view.page import Page
from app.view.readers import ReadersRights
from app.view.streams import Source, Streams
from app.web import problem, routes, standby
from app.web.asgi import BodyLimits
from app.web.callers import Callers, RefusedError, refused
from app.web.connection import ConnectionLimits
from app.web.parameters import refuse_unknown
from app.web.service_version import show_version

VIEW_CONNECTIONS = ConnectionLimits(connections=1024, head_bytes=32 * 1024)
VIEW_LIMITS = BodyLimits(body_bytes=0)

NO_STATE = "Leeboard has no state to show yet; try again in some seconds"

SAFE = {
    b"content-security-policy": b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}
"""Headers of every answer. The page loads nothing from elsewhere, and sets no cookies."""


class Elsewhere(Protocol):
    """The deciding process."""

    async def answer(self, request: Request, user: str) -> Response:
        """Return its answer to a request of this user; empty where nobody has to say who asks."""
        ...


def application(  # noqa: PLR0913 # collaborators come in here
    kept: KeptState,
    callers: Callers,
    source: Source,
    elsewhere: Elsewhere,
    page: Page,
    *,
    limits: BodyLimits = VIEW_LIMITS,
) -> FastAPI:
    """Build the app. `callers` authenticates readers; the page itself is open to everybody."""
    rights = ReadersRights(kept, callers)
    streams = Streams(kept, rights, source)
    served: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        "/": page.index,
        "/static/{path:path}": page.file,
        "/version": show_version,
        "/api/v1/state": _state(kept, rights, source),
        "/api/v1/{path:path}": _passed(rights, elsewhere),
        "/openapi.json": _passed(rights, elsewhere),
    }
    paths = [Route(path, endpoint, methods=["GET"]) for path, endpoint in served.items()]
    stream = Route("/api/v1/stream", _Stream(streams), methods=["GET"])
    app = routes.application(limits, [stream, *paths])
    app.add_exception_handler(RefusedError, refused)
    app.add_middleware(_Safe)
    return app


class _Safe:
    """Adds the headers in `SAFE` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SAFE.items()]
            await send(message)

        await self._app(scope, receive, sent)


class _Stream:
    """The endpoint of the stream. Starlette calls an object with this method as an ASGI app."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        refuse_unknown(request)
        await self._streams.serve(scope, receive, send, after=request.headers.get("last-event-id", ""))


def _state(kept: KeptState, rights: ReadersRights, source: Source) -> Callable[[Request], Awaitable[Response]]:
    async def state(request: Request) -> Response:
        refuse_unknown(request)
        caller = await rights.caller(dict(request.scope["headers"]), _address(request))
        is_known = await source.fresh()
        if kept.standby:
            return standby.response(kept.standby)
        if not is_known:
            return problem.response(HTTPStatus.SERVICE_UNAVAILABLE, NO_STATE)
        picture = await rights.picture(caller)
        headers = {"etag": f'"{picture.id}"', "cache-control": "private, no-cache", "vary": VARY}
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, state = GzipBody(), await picture.packed_state()
            packed = body.begin() + body.add(state) + body.end()
            return Response(packed, media_type="application/json", headers=headers | {"content-encoding": "gzip"})
        return Response(picture.state().plain, media_type="application/json", headers=headers)

    return state


VARY = f"Accept-Encoding, Authorization, {TOKEN_HEADER}"


def _passed(rights: ReadersRights, elsewhere: Elsewhere) -> Callable[[Request], Awaitable[Response]]:
    async def passed(request: Request) -> Response:
        # The deciding process must not be asked by those whom the API server does not know.
        caller = await rights.caller(dict(request.scope["headers"]), _address(request))
        return await elsewhere.answer(request, caller.name)

    return passed


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
