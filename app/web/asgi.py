"""Limits the cost of one request before a handler sees it: bytes of head and body, and the time for the body.

uvicorn has no body limit and no read timeout. `Bounded` gives its handlers the complete body.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web import problem

WHOLE = "body_is_whole"
"""A key of the scope's state. It is true when the server receives the whole body before it calls the app."""

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """The limits of one listener."""

    body_bytes: int
    in_flight_bytes: int = 32 * MIB
    """All bodies together. A body counts from its first byte to the end of its answer."""
    head_bytes: int = 32 * KIB
    deadline_s: float = 5.0
    """From the end of the head to the end of the body."""
    linger_s: float = 1.0
    """How long the rest of a refused body is read and dropped, so that the client can read the answer."""


EXTENDER_LIMITS = BodyLimits(body_bytes=4 * MIB)
"""A pod of 1.5 MB and 5,000 node names of 63 characters."""
OPERATIONS_LIMITS = BodyLimits(body_bytes=64 * KIB)


@dataclass(frozen=True, slots=True)
class _Overstep:
    """The limit that a request exceeds."""

    status: HTTPStatus
    detail: str


class _Gone(Exception):  # noqa: N818 - not an error: the client has disconnected
    """The client disconnected before its body was complete."""


class Bounded:
    """An ASGI app that enforces the limits and passes a request with its complete body to another app."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits
        # Bytes of all bodies in memory. `_fill` adds to it; `__call__` subtracts from it.
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then call the app or refuse the request."""
        parts: list[bytes] = []
        try:
            # A timer costs half as much as all layers below it, so a whole body gets no timer.
            fill = self._fill if WHOLE in scope.get("state", ()) else self._filled
            overstep = self._declared(scope) or await fill(parts, receive)
            if overstep:
                await self._refuse(scope["path"], overstep, receive, send)
            else:
                await self._app(scope, _replaying(b"".join(parts), receive), send)
        except _Gone:
            return
        finally:
            self._held_bytes -= sum(map(len, parts))

    def refusal(self, path: str, status: HTTPStatus, detail: str) -> Response:
        """Return a refusal as problem JSON. A port with another protocol overrides this method."""
        del path
        return problem.response(status, detail)

    def _declared(self, scope: Scope) -> _Overstep | None:
        """Check the head. No byte of the body has been read yet."""
        head_bytes = 0
        for name, value in scope["headers"]:
            head_bytes += len(name) + len(value)
            if name == b"content-length" and int(value) > self._limits.body_bytes:
                return self._too_large()
        if head_bytes <= self._limits.head_bytes:
            return None
        return _Overstep(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers are larger than {self._limits.head_bytes} bytes"
        )

    async def _filled(self, parts: list[bytes], receive: Receive) -> _Overstep | None:
        """Append the body as it arrives, until the deadline."""
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                return await self._fill(parts, receive)
        except TimeoutError:
            detail = f"the body was not complete within {self._limits.deadline_s:g} s"
            return _Overstep(HTTPStatus.REQUEST_TIMEOUT, detail)

    async def _fill(self, parts: list[bytes], receive: Receive) -> _Overstep | None:
        """Append the body as it arrives. Count its bytes; the head may declare a wrong size."""
        size, more = 0, True
        while more:
            chunk, more = await _next(receive)
            parts.append(chunk)
            size += len(chunk)
            self._held_bytes += len(chunk)
            if size > self._limits.body_bytes:
                return self._too_large()
            if self._held_bytes > self._limits.in_flight_bytes:
                return _Overstep(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at once")
        return None

    def _too_large(self) -> _Overstep:
        return _Overstep(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {self._limits.body_bytes} bytes"
        )

    async def _refuse(self, path: str, overstep: _Overstep, receive: Receive, send: Send) -> None:
        said = self.refusal(path, overstep.status, overstep.detail)
        said.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": said.status_code, "headers": said.raw_headers})
        await send({"type": "http.response.body", "body": said.body, "more_body": True})
        await self._linger(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _linger(self, receive: Receive) -> None:
        # The kernel resets a connection that is closed with unread bytes. The client could then not read the answer.
        try:
            async with asyncio.timeout(self._limits.linger_s):
                while (await _next(receive))[1]:
                    pass
        except (TimeoutError, _Gone):
            return


async def _next(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of the body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _Gone
    return message.get("body", b""), message.get("more_body", False)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the whole body once, and then the messages of the connection."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
