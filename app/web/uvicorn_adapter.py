"""All code that relies on uvicorn's internals. uvicorn's version is pinned, and a test fails when the internals change.

uvicorn cannot limit connections, and httptools has no limits; uvicorn's only timer runs between requests. This module
adds limits to uvicorn's HTTP/1.1 protocol: the number of connections, and the size and duration of requests and of
their pieces. `app.web.asgi` limits whole bodies; `app.web.listener` accepts connections and runs TLS handshakes.
"""

import asyncio
import contextlib
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app.web.asgi import WHOLE
from app.web.connection import PEER, ConnectionLimits, Joined, Peer

KEEP_ALIVE_S = 120
"""Longer than the 90 s after which kube-scheduler's client closes: it does not repeat a POST on a closed connection."""
LOOK_EVERY_S = 0.02
TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ncontent-type: text/plain\r\n"
    b"connection: close\r\n\r\n"
)
IN_SMALL_PIECES = "The request arrives in too many small pieces."
PIECES, PIECE_BYTES = 64, 64
"""A request may arrive in `PIECES` pieces (reads and chunks), plus one for each `PIECE_BYTES`. Each piece costs time.
"""
MOST_PIPELINED = 16
"""Requests that wait behind the current one. No known client pipelines requests."""


class _WastefulError(Exception):
    """The client sends data that costs too much. The parser treats it as a broken request and closes."""


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection with limits."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        limits: ConnectionLimits,
        idle: dict["GuardedConnection", None],
    ) -> None:
        """Take uvicorn's configuration and the limits.

        `idle` holds the listener's connections without a complete request in progress, the longest idle first.
        """
        super().__init__(config=config, server_state=state, app_state={})
        self._limits = limits
        self._idle = idle
        # Bytes since the parser last completed something; `data_received` and `_progress` change it.
        self._unfinished_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        # Pieces of the current request; `_count` changes it.
        self._pieces = self._piece_bytes = 0
        # Set while the client does not read an answer.
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Accept the connection. Above the limit, close the longest idle one: this one if all others are busy."""
        super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
        if peer := Peer.of(transport):
            # uvicorn copies it into the state of each request.
            self.app_state[PEER] = peer
        self._arm()
        self._idle[self] = None
        if len(self.connections) > self._limits.connections:
            longest_idle = next(iter(self._idle))
            del self._idle[longest_idle]
            longest_idle.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._progress()
        self._stop_waiting_for_reader()
        self._idle.pop(self, None)
        super().connection_lost(exc)
        # Waiting requests and the connection refer to each other. As cyclic garbage they would block all threads during
        # collection: 100 ms after some thousand pipelining connections.
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment] # as in uvicorn

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless it has already received too many bytes without completing anything."""
        self._unfinished_bytes += len(data)
        if self._count(len(data)):
            self.send_400_response(IN_SMALL_PIECES)
            return
        super().data_received(data)
        if self.transport.is_closing() or not self._unfinished_bytes:
            return
        if self._unfinished_bytes > self._limits.head_bytes:
            self.transport.write(TOO_LONG)
            self.transport.close()
        elif self._deadline is None:
            self._arm()

    def on_message_begin(self) -> None:
        """Reset the count of pieces."""
        self._pieces = self._piece_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a header; close the connection above the limit."""
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            raise _WastefulError

    def on_headers_complete(self) -> None:
        """Accept a request; close the connection when too many are pipelined."""
        self._progress()
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _WastefulError
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Record progress of the body. `app.web.asgi` has the body's own deadline."""
        self._progress()
        if self._count(len(body)):
            raise _WastefulError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that a request is in progress. Until here the connection counts as idle."""
        self._progress()
        self._idle.pop(self, None)
        self.scope["state"][WHOLE] = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Record that the connection is idle again, unless another request was pipelined."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._idle[self] = None

    def pause_writing(self) -> None:
        """Wait for the client to read, for at most `unread_s`."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue to send the answer."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _count(self, size: int) -> bool:
        """Count one more piece of the request; return whether there are too many."""
        self._pieces += 1
        self._piece_bytes += size
        return self._pieces > PIECES + self._piece_bytes // PIECE_BYTES

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self._limits.head_deadline_s, self.transport.close)

    def _progress(self) -> None:
        self._unfinished_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class OpenConnections:
    """The connections of one listener."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        # All open connections and running requests; uvicorn maintains it.
        self._state = ServerState()
        self._idle: dict[GuardedConnection, None] = {}

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of the next client."""
        return GuardedConnection(self._config, self._state, self.limits, self._idle)

    def close(self) -> None:
        """Close idle connections now and others after their answer."""
        for connection in list(self._state.connections):
            connection.shutdown()

    async def end(self, grace_s: float) -> None:
        """Close all connections. Let running requests end, for at most the grace time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._state.connections or self._state.tasks:
                    self.close()
                    await asyncio.sleep(LOOK_EVERY_S)
        for request in self._state.tasks:
            request.cancel()
