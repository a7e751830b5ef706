"""Bounds what one request may cost before any handler sees it: bytes of head and body, and the time they take.

uvicorn has neither a body cap nor a read timeout. Handlers behind `Bounded` find the whole body already there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from app.web import problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """What one listener takes."""

    body_bytes: int
    in_flight_bytes: int = 32 * MIB
    """All bodies together, from their first byte to the end of their answer."""
    head_bytes: int = 32 * KIB
    deadline_s: float = 5.0
    """From the end of the head to the end of the body."""
    linger_s: float = 1.0
    """How long a refused body is still read, and thrown away, so that its sender gets to read the answer."""


EXTENDER_LIMITS = BodyLimits(body_bytes=4 * MIB)
"""A pod of 1.5 MB and 5,000 names of 63 characters."""
OPERATIONS_LIMITS = BodyLimits(body_bytes=64 * KIB)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The answer to a request that oversteps."""

    status: HTTPStatus
    media_type: str
    body: bytes


Reject = Callable[[str, HTTPStatus, str], Rejection]
"""From path, status and sentence to the listener's own form of saying no."""


def as_problem(_path: str, status: HTTPStatus, detail: str) -> Rejection:
    """Say no as problem JSON."""
    return Rejection(status, problem.MEDIA_TYPE, problem.body(status, detail))


@dataclass(frozen=True, slots=True)
class _Overstep:
    """Which limit a request does not keep."""

    status: HTTPStatus
    detail: str


class _Gone(Exception):  # noqa: N818 - not an error: the client has left
    """The client left before its body was complete."""


class Bounded:
    """An ASGI app that keeps to its limits and hands the rest to another, body and all."""

    def __init__(self, app: ASGIApp, limits: BodyLimits, *, reject: Reject = as_problem) -> None:
        self._app = app
        self._limits = limits
        self._reject = reject
        # Bytes of all bodies now held; changed by `_fill` and given back by `__call__`.
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then call the app or say no."""
        body = bytearray()
        try:
            overstep = self._declared(scope) or await self._fill(body, receive)
            if overstep:
                await self._refuse(scope["path"], overstep, receive, send)
            else:
                await self._app(scope, _replaying(bytes(body), receive), send)
        except _Gone:
            return
        finally:
            self._held_bytes -= len(body)

    def _declared(self, scope: Scope) -> _Overstep | None:
        """Check what the head says: nothing of the body has been read yet."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._limits.head_bytes:
            return _Overstep(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the headers are larger than {self._limits.head_bytes} bytes",
            )
        lengths = (int(value) for name, value in headers if name == b"content-length")
        return self._too_large() if any(length > self._limits.body_bytes for length in lengths) else None

    async def _fill(self, body: bytearray, receive: Receive) -> _Overstep | None:
        """Append the body as it comes in, counted, whatever the head said."""
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                more = True
                while more:
                    chunk, more = await _next(receive)
                    body += chunk
                    self._held_bytes += len(chunk)
                    if len(body) > self._limits.body_bytes:
                        return self._too_large()
                    if self._held_bytes > self._limits.in_flight_bytes:
                        return _Overstep(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests at once")
        except TimeoutError:
            detail = f"the body was not complete within {self._limits.deadline_s:g} s"
            return _Overstep(HTTPStatus.REQUEST_TIMEOUT, detail)
        return None

    def _too_large(self) -> _Overstep:
        return _Overstep(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {self._limits.body_bytes} bytes"
        )

    async def _refuse(self, path: str, overstep: _Overstep, receive: Receive, send: Send) -> None:
        said = self._reject(path, overstep.status, overstep.detail)
        headers = [
            (b"content-type", said.media_type.encode()),
            (b"content-length", str(len(said.body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": said.status.value, "headers": headers})
        await send({"type": "http.response.body", "body": said.body, "more_body": True})
        await self._linger(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _linger(self, receive: Receive) -> None:
        # Closing on unread bytes makes the kernel reset the connection, and the client never reads our answer.
        try:
            async with asyncio.timeout(self._limits.linger_s):
                while (await _next(receive))[1]:
                    pass
        except (TimeoutError, _Gone):
            return


Answer = Callable[[bytes], Awaitable[ASGIApp]]
"""From a whole body to the response, which is itself an ASGI app, as Starlette's are; raises nothing."""


class Direct:
    """Answers the POSTs of a few known paths itself and leaves everything else to an app; stands behind `Bounded`.

    The ten layers of a framework cost half a millisecond a request, more than most answers here.
    """

    def __init__(self, app: ASGIApp, answers: Mapping[str, Answer]) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or have the app answer."""
        answer, method = self._answers.get(scope["path"]), scope["method"]
        if answer is None:
            await self._app(scope, receive, send)
        elif method == "POST":
            body, _ = await _next(receive)
            await (await answer(body))(scope, receive, send)
        else:
            status = HTTPStatus.METHOD_NOT_ALLOWED
            said = problem.response(status, f"{method} {scope['path']}: {status.phrase}")
            said.headers["allow"] = "POST"
            await said(scope, receive, send)


async def _next(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of the body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _Gone
    return message.get("body", b""), message.get("more_body", False)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body once, and then what the connection has to say."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
