"""One port and its server. It is used in a TaskGroup; cancelling it shuts it down gracefully.

Several listeners run in one process. The service owns the signals and the event loop.
"""

import asyncio
import socket

import structlog
from starlette.types import ASGIApp

from app.web.connection import ConnectionLimits
from app.web.handshakes import Handshakes, Tls
from app.web.uvicorn_adapter import OpenConnections

BACKLOG = 2048
EVERY_ADDRESS = "::"
EVERY_IPV4_ADDRESS = "0.0.0.0"  # noqa: S104 # intended: the IPv4 part of `::`


class Listener:
    """A bound port. It answers requests while `run` runs."""

    def __init__(self, bound: socket.socket, connections: OpenConnections, tls: Tls | None, grace_s: float) -> None:
        self._socket = bound
        self._connections = connections
        self._tls = tls
        self._grace_s = grace_s

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS."""
        return self._tls is not None

    @property
    def port(self) -> int:
        """The port in use. It is also correct when port 0 (any free port) was requested."""
        port: int = self._socket.getsockname()[1]
        return port

    async def run(self) -> None:
        """Serve until cancelled. Then let running requests end, for at most the grace time."""
        accepting = await self._accept()
        try:
            await asyncio.Event().wait()
        finally:
            accepting.close()
            self._socket.close()
            await self._connections.end(self._grace_s)

    async def _accept(self) -> asyncio.Server | Handshakes:
        if self._tls is not None:
            return Handshakes(self._socket, self._tls, self._connections)
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._connections.connection, sock=self._socket, backlog=BACKLOG)

    def close_connections(self) -> None:
        """Close idle connections now and others after their answer. New connections are served as before."""
        self._connections.close()

    def close(self) -> None:
        """Release the port when `run` was never called."""
        self._socket.close()


def listener(  # noqa: PLR0913 # each argument is one property of the port
    app: ASGIApp,
    host: str,
    port: int,
    *,
    limits: ConnectionLimits,
    grace_s: float = 5.0,
    tls: Tls | None = None,
) -> Listener:
    """Bind the port and return its server; raise OSError when the port is in use. Port 0 is any free port.

    Connections that arrive before `run` wait in the backlog. Without `tls` the listener speaks plain HTTP. The host
    `::` means every address of the machine, including IPv4.
    """
    return Listener(bound(host, port), OpenConnections(app, limits), tls, grace_s)


def serving_on(bound_to: socket.socket, app: ASGIApp, limits: ConnectionLimits, *, grace_s: float) -> Listener:
    """Return the server of a port that another process has bound."""
    bound_to.settimeout(0)
    return Listener(bound_to, OpenConnections(app, limits), None, grace_s)


def bound(host: str, port: int) -> socket.socket:
    """Bind a port; raise OSError when it is in use."""
    if host == EVERY_ADDRESS and not socket.has_dualstack_ipv6():
        structlog.get_logger().info("no IPv6 on this machine: listening on every IPv4 address", port=port)
        host = EVERY_IPV4_ADDRESS
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == EVERY_ADDRESS)
