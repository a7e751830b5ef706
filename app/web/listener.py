"""One port and the server behind it, fit for a TaskGroup: cancelling it shuts it down gracefully.

Several live in one process; signals are the service's, and so is the event loop.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from app.web.connection import ConnectionLimits, guarded
from app.web.handshakes import Contexts, Handshakes

KEEP_ALIVE_S = 120
"""Longer than the 90 s after which kube-scheduler's client lets go: it does not repeat a POST that met a closed one."""
BACKLOG = 2048
EVERY_ADDRESS = "::"
EVERY_IPV4_ADDRESS = "0.0.0.0"  # noqa: S104 # asked for by name, as the other half of `::`


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers and without its poll for the time to stop."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits, tls: Contexts | None) -> None:
        super().__init__(config)
        # Set once, by `Listener.run`.
        self.stopping = asyncio.Event()
        self._limits = limits
        self._tls = tls

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = [await self._open(each) for each in sockets or ()]
        self.started = True

    async def _open(self, bound: socket.socket) -> asyncio.Server:
        if self._tls is None:
            return await asyncio.get_running_loop().create_server(self._connection, sock=bound, backlog=BACKLOG)
        handshakes = Handshakes(self._tls, self._connection, most_waiting=self._limits.connections)
        handshakes.accept_from(bound)
        # uvicorn closes it and waits for it, no more.
        return cast("asyncio.Server", handshakes)

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg] # as in uvicorn
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def main_loop(self) -> None:
        await self.stopping.wait()


class Listener:
    """A bound port; it answers while `run` runs."""

    def __init__(self, bound: socket.socket, server: _Server) -> None:
        self._socket = bound
        self._server = server

    @property
    def port(self) -> int:
        """The port in use, also when any free one was asked for."""
        port: int = self._socket.getsockname()[1]
        return port

    async def run(self) -> None:
        """Serve until cancelled; then let running requests end, for the grace time at most."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._server.stopping.set()
            await serving
            raise

    def close_connections(self) -> None:
        """Close what is idle at once, the rest after its answer; whoever connects anew is answered as before."""
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    def close(self) -> None:
        """Give the port back when `run` never got to it."""
        self._socket.close()


def listener(  # noqa: PLR0913 # each is one plain word about the port
    app: ASGIApp,
    host: str,
    port: int,
    *,
    limits: ConnectionLimits,
    grace_s: int = 5,
    tls: Contexts | None = None,
) -> Listener:
    """Bind the port (0: any free one) and return its server; raises OSError when it is taken.

    Connections that come before `run` wait in the backlog. Without `tls` it speaks plain HTTP. The host `::` is every
    address of this machine, those of IPv4 too.
    """
    config = uvicorn.Config(
        app,
        http=guarded(limits),
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )
    return Listener(_bound(host, port), _Server(config, limits, tls))


def _bound(host: str, port: int) -> socket.socket:
    if host == EVERY_ADDRESS and not socket.has_dualstack_ipv6():
        structlog.get_logger().info("no IPv6 here: listening on every IPv4 address", port=port)
        host = EVERY_IPV4_ADDRESS
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == EVERY_ADDRESS)
