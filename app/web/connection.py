"""Limits of connections, certificates of clients, and a transport that sends head and body of an answer together."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any, Self

PEER = "peer"
"""A key of the scope's state: the `Peer` of a connection whose client has shown a certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The connection limits of one listener."""

    connections: int
    head_bytes: int = 64 * 1024
    """The most bytes received without completing a head or a part of a body."""
    headers: int = 256
    """The most headers of one request."""
    head_deadline_s: float = 10.0
    """From the start of the connection, or from the first byte of a later request, to the end of the head."""
    unread_s: float = 30.0
    """How long a client may leave an answer unread that does not fit into the buffers."""


EXTENDER_CONNECTIONS = ConnectionLimits(connections=8192)
"""Every bind that waits for its gang holds one connection. 2,985 were seen at the same time."""
OPERATIONS_CONNECTIONS = ConnectionLimits(connections=512)


@dataclass(frozen=True, slots=True)
class Peer:
    """The certificate of a client."""

    name: str
    """Its common name; empty when it has none, or several."""
    authorities: frozenset[bytes]
    """The CAs that were trusted when the connection was made, in DER. One of them has signed it."""

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Self | None:
        """Return the peer of a connection; None where clients need no certificate."""
        handshake: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if handshake is None or handshake.context.verify_mode is not ssl.CERT_REQUIRED:
            return None
        subject: Any = (handshake.getpeercert() or {}).get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]
        name = names[0] if len(names) == 1 else ""
        return cls(name, frozenset(handshake.context.get_ca_certs(binary_form=True)))


class Joined:
    """A transport that sends the first two writes of one loop iteration together. It forwards all other calls.

    uvicorn writes the head of an answer and then its body. Two separate sends cost one more system call. They also wake
    the client for a head that is useless without the body.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Wrap a transport.

        `write` stores the first write in `_first` until the next write or the end of the loop iteration; `_send` clears
        it.
        """
        self._transport = transport
        self._loop = loop
        self._first = b""

    def write(self, piece: bytes) -> None:
        """Send this piece with the stored one, or store it until the next write."""
        if self._first:
            # `writelines` does not copy: the refusal of 5,000 nodes has 325 kB.
            self._transport.writelines([self._first, piece])
            self._first = b""
        elif piece:
            self._first = piece
            self._loop.call_soon(self._send)

    def close(self) -> None:
        """Send what is stored, then close the connection."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        first, self._first = self._first, b""
        if first and not self._transport.is_closing():  # Otherwise the connection was lost in the meantime.
            self._transport.write(first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
