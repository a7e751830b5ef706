"""The streams of changes: one client each. A client that reads slowly gets the whole state again, and no backlog."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.view.kept_state import KeptState
from app.view.packing import Body, GzipBody, Piece, PlainBody
from app.view.readers import ReadersRights
from app.view.sight import Picture
from app.web import problem, standby
from app.web.callers import Caller, RefusedError, refusal

MOST_STREAMS = 256
MOST_OF_ONE = 64
"""So many of them may be of one user: a quarter. Several people may use one service account."""
RETRY_AFTER_S = 10
TOO_MANY = f"{MOST_STREAMS} clients already read the stream; read /api/v1/state, or try again in some seconds"
TOO_MANY_OF_ONE = f"your user already reads the stream {MOST_OF_ONE} times; close a page, or read /api/v1/state"

COMMENT_EVERY_S = 15.0
"""Proxies close a connection on which nothing happens."""
RIGHTS_EVERY_S = 60.0
NAMES_EVERY_S = 10.0
"""How soon the rights in a namespace are looked up that has just appeared."""
MOST_BEHIND = 20
"""A client that lags by more changes gets the whole state."""
STILL_HERE, NOTHING_NEW = Piece(b": still here\n\n"), Piece(b": nothing has changed\n\n")
DIGITS = 15
"""No tick has more."""
PIECE_BYTES = 64 << 10
"""So much is sent before the client has to read: a large state must not lie in memory once for each client."""


class Source(Protocol):
    """The source of the frames."""

    def want(self) -> None:
        """Let frames come for some time."""
        ...

    async def fresh(self) -> bool:
        """Return whether there is a state that is not old; wait for it for some seconds."""
        ...


class Streams:
    """The open streams. A set of them counts against one limit."""

    def __init__(self, kept: KeptState, rights: ReadersRights, source: Source) -> None:
        """Start without streams. `source` lets frames come for longer than `COMMENT_EVERY_S`."""
        self._kept = kept
        self._rights = rights
        self._source = source
        self._of_users = Counter[str]()
        self.open = 0
        """How many clients read now."""

    async def serve(self, scope: Scope, receive: Receive, send: Send, *, after: str) -> None:
        """Send changes until the client leaves. `after` is the id of the last event that it has; empty for none."""
        if self.open >= MOST_STREAMS:
            await _refused(HTTPStatus.SERVICE_UNAVAILABLE, TOO_MANY)(scope, receive, send)
            return
        self.open += 1
        try:
            await self._serve(scope, receive, send, after)
        finally:
            self.open -= 1

    async def _serve(self, scope: Scope, receive: Receive, send: Send, after: str) -> None:
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        address = (scope.get("client") or ("", 0))[0]
        try:
            caller = await self._rights.caller(headers, address)
            # Rights are looked up in the namespaces of the state.
            await self._source.fresh()
            picture = await self._rights.picture(caller)
        except RefusedError as error:
            await refusal(error)(scope, receive, send)
            return
        if self._kept.standby:
            await standby.response(self._kept.standby)(scope, receive, send)
            return
        if caller.name and self._of_users[caller.name] >= MOST_OF_ONE:
            await _refused(HTTPStatus.TOO_MANY_REQUESTS, TOO_MANY_OF_ONE)(scope, receive, send)
            return
        client = _Client(self._kept, self._rights, headers, address, picture, self._source.want)
        self._of_users[caller.name] += 1
        try:
            await _while_there(client.run(send, after), receive)
        finally:
            self._of_users[caller.name] -= 1
            self._of_users += Counter()  # Users without a stream are forgotten.


def _refused(status: HTTPStatus, sentence: str) -> Response:
    said = problem.response(status, sentence)
    said.headers["retry-after"] = str(RETRY_AFTER_S)
    return said


async def _while_there(run: Coroutine[None, None, None], receive: Receive) -> None:
    """Run until the end, or until the client leaves."""
    sending, leaving = asyncio.create_task(run), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


class _Client:
    """One client and what it has."""

    def __init__(  # noqa: PLR0913, PLR0917 # the state, and all that is known of the client
        self,
        kept: KeptState,
        rights: ReadersRights,
        headers: Mapping[bytes, bytes],
        address: str,
        picture: Picture,
        want: Callable[[], None],
    ) -> None:
        self._want = want
        self._kept = kept
        self._rights = rights
        self._headers = headers
        self._address = address
        self._picture = picture
        self._seen = kept.namespaces
        self._looked_at = asyncio.get_running_loop().time()
        self._is_packed = b"gzip" in headers.get(b"accept-encoding", b"")
        self._body: Body = GzipBody() if self._is_packed else PlainBody()

    async def run(self, send: Send, after: str) -> None:
        """Send events until the rights of the client end."""
        headers = [*_HEADERS, (b"content-encoding", b"gzip")] if self._is_packed else _HEADERS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body.begin(), "more_body": True})
        epoch, tick = _position(after)
        if self._kept.tick and epoch == self._picture.epoch and tick == self._kept.tick:
            await self._send(send, NOTHING_NEW)
        while True:
            self._want()
            if self._kept.tick and (epoch != self._picture.epoch or tick != self._kept.tick):
                # The events and the position are of one moment: there is no await in between.
                known = tick if epoch == self._picture.epoch else -1
                events = self._picture.changes(known, most=MOST_BEHIND)
                epoch, tick = self._picture.epoch, self._kept.tick
                await self._send(send, *(events if events is not None else await self._whole()))
            else:
                await self._wait(send)
            # A client of a replica that no longer decides comes back to the one that does.
            if self._kept.standby or not await self._may_go_on():
                await send({"type": "http.response.body", "body": self._body.end(), "more_body": False})
                return

    async def _whole(self) -> Sequence[Piece]:
        events = self._picture.whole()
        if self._is_packed:
            await self._picture.packed_state()
        return events

    async def _send(self, send: Send, *pieces: Piece) -> None:
        for piece in pieces:
            body = self._body.add(piece)
            for begin in range(0, len(body), PIECE_BYTES):
                await send({"type": "http.response.body", "body": body[begin : begin + PIECE_BYTES], "more_body": True})

    async def _wait(self, send: Send) -> None:
        try:
            async with asyncio.timeout(COMMENT_EVERY_S):
                await self._kept.moved()
        except TimeoutError:
            await self._send(send, STILL_HERE)

    async def _may_go_on(self) -> bool:
        """Look up the rights again when it is time; return whether the client may see anything."""
        now = asyncio.get_running_loop().time()
        has_new = not self._kept.namespaces <= self._seen
        if now - self._looked_at < (NAMES_EVERY_S if has_new else RIGHTS_EVERY_S):
            return True
        self._looked_at = now
        self._seen |= self._kept.namespaces
        try:
            caller: Caller = await self._rights.caller(self._headers, self._address)
            self._picture = await self._rights.picture(caller, self._seen)
        except RefusedError as error:
            # An API server that does not answer takes no rights away.
            return error.status is not HTTPStatus.UNAUTHORIZED
        return True


def _position(identity: str) -> tuple[str, int]:
    """Return the epoch and the tick of the id of an event; an epoch that never was for any other text."""
    epoch, _, tick = identity.rpartition("-")
    return (epoch, int(tick)) if tick.isascii() and tick.isdecimal() and len(tick) <= DIGITS else ("", -1)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_HEADERS = Response(
    headers={
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "vary": "accept-encoding",
        "x-accel-buffering": "no",
    }
).raw_headers
_HEADERS = [(name, value) for name, value in _HEADERS if name != b"content-length"]
