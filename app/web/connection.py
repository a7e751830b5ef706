"""What one listener keeps open, and what leaves a connection in one piece."""

import asyncio
from dataclasses import dataclass
from typing import Any


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
