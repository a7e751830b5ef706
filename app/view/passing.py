"""Passes questions on to the deciding process, so that a page or a program needs one address only."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from app.web import problem
from app.web.callers import token_of

AT_ONCE = 8
PATIENCE_S = 30.0
PIECE_BYTES = 64 << 10
BUSY = "too many questions to the deciding process at once; try again in some seconds"
SILENT = "the deciding process does not answer: {error}"
KEPT_HEADERS = ("content-type", "www-authenticate", "retry-after", "etag", "link", "connection")
"""A replica on standby closes the connection, so that the next one leads elsewhere."""


class Passing:
    """Asks the operations listener with the token of the reader."""

    def __init__(self, session: aiohttp.ClientSession, operations: str) -> None:
        """`operations` is the URL of the listener."""
        self._session = session
        self._operations = operations
        self._asked = 0

    async def answer(self, request: Request) -> Response:
        """Return the answer of the deciding process."""
        if self._asked >= AT_ONCE:
            said = problem.response(HTTPStatus.SERVICE_UNAVAILABLE, BUSY)
            said.headers["retry-after"] = "2"
            return said
        token = token_of(dict(request.scope["headers"]))
        path = request.scope["raw_path"].decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        self._asked += 1
        try:
            reply = await self._session.get(
                f"{self._operations}{path}{'?' if query else ''}{query}",
                headers={"authorization": token} if token else {},
                timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._asked -= 1
            return problem.response(HTTPStatus.BAD_GATEWAY, SILENT.format(error=error or "it took too long"))
        except asyncio.CancelledError:
            self._asked -= 1
            raise
        headers = {name: reply.headers[name] for name in KEPT_HEADERS if name in reply.headers}
        return StreamingResponse(self._pieces(reply), reply.status, headers=headers)

    async def _pieces(self, reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for piece in reply.content.iter_chunked(PIECE_BYTES):
                yield piece
        finally:
            self._asked -= 1
            reply.close()
