"""Bounds what one connection may cost: how many there are, how large and slow its requests and their pieces may be.

httptools caps nothing, and uvicorn's only timer runs between requests. Bodies as a whole are `app.web.asgi`'s.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.web.asgi import WHOLE

TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ncontent-type: text/plain\r\n"
    b"connection: close\r\n\r\n"
)
IN_SMALL_PIECES = "The request comes in too many small pieces."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one listener keeps open."""

    connections: int
    head_bytes: int = 64 * 1024
    """Received without completing a head or any part of a body."""
    head_deadline_s: float = 10.0
    """From the connection, or from the first byte of a later request, to the end of the head."""
    unread_s: float = 30.0
    """How long a client may leave an answer unread that does not fit into the buffers."""


PIECES, PIECE_BYTES = 64, 64
"""A request comes in so many pieces (reads and chunks), and one more for each so many bytes: each has its price."""
MOST_HEADERS = 256
MOST_PIPELINED = 16
"""Requests that wait behind the one that is answered. Nobody we know sends any ahead."""


class _WastefulError(Exception):
    """The client sends what costs more than it says; the parser takes it for a broken request and closes."""


EXTENDER_CONNECTIONS = ConnectionLimits(connections=8192)
"""Every bind that waits for its gang holds one (2,985 were seen at once)."""
OPERATIONS_CONNECTIONS = ConnectionLimits(connections=512)


class Joined:
    """A transport that sends the first two pieces of a turn of the loop as one; all but writing is the transport's own.

    uvicorn writes the head of an answer and then its body. Sent apart they cost a system call more, and wake a caller
    who can do nothing with the head alone.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """`_first` is held for what is written after it, until the end of the turn; `write` and `_send` change it."""
        self._transport = transport
        self._loop = loop
        self._first = b""

    def write(self, piece: bytes) -> None:
        """Send this with what was written before it, or hold it for what comes next."""
        if self._first:
            # No copy: the refusal of 5,000 nodes has 325 kB.
            self._transport.writelines([self._first, piece])
            self._first = b""
        elif piece:
            self._first = piece
            self._loop.call_soon(self._send)

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        first, self._first = self._first, b""
        if first and not self._transport.is_closing():  # Else it was cut off since.
            self._transport.write(first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection with limits; each listener has a subclass of its own (`guarded`)."""

    limits: ClassVar[ConnectionLimits]
    # Connections without a complete request under way, the longest idle first; shared by all of one listener.
    idle: ClassVar[dict["GuardedConnection", None]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Take the connection, and close the longest idle one when there are too many: this one if all others work."""
        super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
        # Bytes since the parser last got anywhere; changed by `data_received` and `_progress`.
        self._unfinished_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        # Of the current request; changed by `_count`.
        self._pieces = self._piece_bytes = 0
        # Set while an answer does not leave.
        self._unread: asyncio.TimerHandle | None = None
        self._arm()
        self.idle[self] = None
        if len(self.connections) > self.limits.connections:
            longest_idle = next(iter(self.idle))
            del self.idle[longest_idle]
            longest_idle.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._progress()
        self._stop_waiting_for_reader()
        self.idle.pop(self, None)
        super().connection_lost(exc)
        self._drop_pipelined()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless it has been fed too much already without getting anywhere."""
        self._unfinished_bytes += len(data)
        if self._count(len(data)):
            self.send_400_response(IN_SMALL_PIECES)
            return
        super().data_received(data)
        if self.transport.is_closing() or not self._unfinished_bytes:
            return
        if self._unfinished_bytes > self.limits.head_bytes:
            self.transport.write(TOO_LONG)
            self.transport.close()
        elif self._deadline is None:
            self._arm()

    def on_message_begin(self) -> None:
        """Begin to count its pieces."""
        self._pieces = self._piece_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one more header, or break off."""
        super().on_header(name, value)
        if len(self.headers) > MOST_HEADERS:
            raise _WastefulError

    def on_headers_complete(self) -> None:
        """Take one more request, or break off."""
        self._progress()
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _WastefulError
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that the body goes on; its own deadline is the middleware's."""
        self._progress()
        if self._count(len(body)):
            raise _WastefulError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is under way; before, its sender could leave it half said for as long as it liked."""
        self._progress()
        self.idle.pop(self, None)
        self.scope["state"][WHOLE] = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note that the connection is idle again, unless another request was pipelined behind this one."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.idle[self] = None

    def pause_writing(self) -> None:
        """Wait for the client to read, though not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _drop_pipelined(self) -> None:
        # They refer to this connection as it does to them. As garbage they would hold up all threads while it is
        # looked for: 100 ms after some thousand connections that pipeline.
        for request, _ in self.pipeline:
            request.on_response = _nothing
        self.pipeline.clear()

    def _count(self, size: int) -> bool:
        """Count one more piece of the request; return whether there are too many."""
        self._pieces += 1
        self._piece_bytes += size
        return self._pieces > PIECES + self._piece_bytes // PIECE_BYTES

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.limits.head_deadline_s, self.transport.close)

    def _progress(self) -> None:
        self._unfinished_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _nothing() -> None:
    pass


def guarded(limits: ConnectionLimits) -> type[GuardedConnection]:
    """Return the connection class of one listener."""
    return type("GuardedConnection", (GuardedConnection,), {"limits": limits, "idle": {}})
