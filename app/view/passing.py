"""Passes questions on between the view and the deciding process, so that a page or a program needs one address only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote
from weakref import WeakValueDictionary

import aiohttp
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from yarl import URL

from app.model.rights import User
from app.view.vouched import vouched
from app.web import problem
from app.web.callers import RefusedError, refusal, token_of

AT_ONCE = 8
"""More at once would gain nothing: one thread of the deciding process answers them."""
AT_ONCE_OF_ONE = 4
"""An answer takes as long as its reader reads, so one user may not have all places."""
MOST_WAITING, MOST_WAITING_OF_ONE = 256, 64
WAIT_S = 5.0
PATIENCE_S = 30.0
PIECE_BYTES = 64 << 10
BUSY = "Leeboard is asked too many questions at once; try again in some seconds"
SILENT = "Leeboard does not answer: {error}"
NO_VIEW = "the view of Leeboard does not answer: {error}"
TOO_MANY = "too many clients read the view through the API server; try again in some seconds"
THROUGH_AT_ONCE = 16
"""Each such stream costs the deciding process what the view exists to spare it."""
ENDLESS = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE_S, sock_read=60.0)
"""A stream says something every 15 s."""
OF_ONE_CONNECTION = frozenset(("connection", "transfer-encoding", "date", "server"))
KEPT_HEADERS = ("content-type", "www-authenticate", "retry-after", "etag", "link", "connection")
"""A replica on standby closes the connection, so that the next one leads elsewhere."""


@dataclass
class _Places:
    """The places of one user."""

    free: asyncio.Semaphore
    waiting: int = 0


class Passing:
    """Asks the operations listener with the token of the reader."""

    def __init__(self, session: aiohttp.ClientSession, operations: str) -> None:
        """`operations` is the URL of the listener."""
        self._session = session
        self._operations = operations
        self._free = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._of_users = WeakValueDictionary[str, _Places]()

    async def answer(self, request: Request, user: str) -> Response:
        """Return the answer of the deciding process; wait some seconds for those who asked before.

        `user` is empty where nobody has to say who asks: such readers have all places together.
        """
        own = self._of_users.get(user) or _Places(asyncio.Semaphore(AT_ONCE_OF_ONE if user else AT_ONCE))
        self._of_users[user] = own
        if self._waiting >= MOST_WAITING or (user and own.waiting >= MOST_WAITING_OF_ONE):
            return _busy(BUSY)
        self._waiting, own.waiting = self._waiting + 1, own.waiting + 1
        try:
            async with asyncio.timeout(WAIT_S):
                await self._place(own)
        except TimeoutError:
            return _busy(BUSY)
        finally:
            self._waiting, own.waiting = self._waiting - 1, own.waiting - 1
        return await self._asked(request, own)

    async def _place(self, own: _Places) -> None:
        await own.free.acquire()
        try:
            await self._free.acquire()
        except BaseException:
            own.free.release()
            raise

    def _leave(self, own: _Places) -> None:
        own.free.release()
        self._free.release()

    async def _asked(self, request: Request, own: _Places) -> Response:
        token = token_of(dict(request.scope["headers"]))
        path = request.scope["raw_path"].decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        try:
            reply = await self._session.get(
                f"{self._operations}{path}{'?' if query else ''}{query}",
                headers={"authorization": token} if token else {},
                timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._leave(own)
            return problem.response(HTTPStatus.BAD_GATEWAY, SILENT.format(error=error or "it took too long"))
        except asyncio.CancelledError:
            self._leave(own)
            raise
        headers = {name: reply.headers[name] for name in KEPT_HEADERS if name in reply.headers}
        pieces = reply.content.iter_chunked(PIECE_BYTES)

        async def end() -> None:
            reply.close()
            self._leave(own)

        return _Passed(pieces, reply.status, headers=headers, end=end)


class AskingView:
    """Asks the view for users that the API server has authenticated. It belongs to the loop of its callers."""

    def __init__(self, view: str, secret: str) -> None:
        """`view` is the URL of the view, which believes who knows the secret."""
        self._view = view
        self._secret = secret
        self._open = 0

    async def answer(self, request: Request, user: User) -> Response:
        """Return the answer of the view; a stream ends when its client leaves."""
        if self._open >= THROUGH_AT_ONCE:
            return _busy(TOO_MANY)
        try:
            sent = dict(request.headers) | {"authorization": vouched(user, self._secret)}
        except RefusedError as error:
            return refusal(error)
        self._open += 1
        # Few ask here, so each has a session of its own, which ends with the answer.
        session = aiohttp.ClientSession(trust_env=False, auto_decompress=False, timeout=ENDLESS)
        try:
            query = request.scope["query_string"].decode("latin-1")
            url = f"{self._view}{quote(request.scope['path'])}{'?' if query else ''}{query}"
            reply = await session.get(URL(url, encoded=True), headers=sent, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            await self._end(session)
            return problem.response(HTTPStatus.BAD_GATEWAY, NO_VIEW.format(error=error or "it took too long"))
        except asyncio.CancelledError:
            await self._end(session)
            raise
        headers = {name: value for name, value in reply.headers.items() if name.lower() not in OF_ONE_CONNECTION}

        async def end() -> None:
            reply.close()
            await self._end(session)

        return _Passed(reply.content.iter_any(), reply.status, headers=headers, end=end)

    async def _end(self, session: aiohttp.ClientSession) -> None:
        self._open -= 1
        await session.close()


class _Passed(StreamingResponse):
    """A stream that ends what it needs, also when its client has left before it began."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        status: int,
        *,
        headers: Mapping[str, str],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(pieces, status, headers=headers)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()


def _busy(detail: str) -> Response:
    said = problem.response(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    said.headers["retry-after"] = "2"
    return said
