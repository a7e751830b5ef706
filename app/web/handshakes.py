"""Accepts the clients of a TLS port. It limits concurrent handshakes and cancels slow ones while others wait.

A handshake costs 50 KB before the client is known; a waiting connection costs almost nothing. Many honest clients may
connect at once (one for each bind of a gang), so no client is refused because many others connect.
"""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from app.web.connection import ConnectionLimits

HANDSHAKE_S = 5.0
"""The time limit of one TLS handshake."""
HURRY_S = 2.0
"""The time limit while other clients wait. It is below the 3 s after which kube-apiserver abandons a webhook call."""
AT_ONCE = 256
"""With `HURRY_S` this allows 128 slow handshakes a second. Even a starved machine completes several times as many
honest ones.
"""
ACCEPTED_AT_ONCE = 128
RETRY_S = 1.0
"""The pause before the next accept when the process has no free file descriptor."""


@dataclass(slots=True)
class _Turn:
    client: socket.socket
    since: float

    def is_ours(self) -> bool:
        """Return whether the client has sent bytes that are not read yet. The delay may then be Leeboard's."""
        try:
            return self.client.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False


class Tls(Protocol):
    """The TLS of a port."""

    def context(self) -> ssl.SSLContext:
        """Return the context for one new handshake."""
        ...


class Connects(Protocol):
    """Serves a connection after its handshake."""

    limits: ConnectionLimits

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of the next client."""
        ...


class Handshakes:
    """Accepts every client of one socket until `close`."""

    def __init__(self, bound: socket.socket, tls: Tls, connections: Connects) -> None:
        """Start to accept on the running loop."""
        self._tls = tls
        self._connections = connections
        # In the order of arrival.
        self._waiting: dict[socket.socket, None] = {}
        self._shaking: dict[asyncio.Task[None], _Turn] = {}
        self._hurry: asyncio.TimerHandle | None = None
        # `close` sets it to None.
        self._bound: socket.socket | None = bound
        bound.settimeout(0)
        self._look_again()

    def close(self) -> None:
        """Accept no more clients and close those that wait. A handshake in progress may complete."""
        if self._bound is not None:
            asyncio.get_running_loop().remove_reader(self._bound)
            self._bound = None
        self._calm_down()
        for client in self._waiting:
            client.close()
        self._waiting.clear()

    def _look_again(self) -> None:
        if self._bound is not None:
            asyncio.get_running_loop().add_reader(self._bound, self._accept, self._bound)

    def _accept(self, bound: socket.socket) -> None:
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                self._came(bound.accept()[0])
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError:
            # No free file descriptor. The socket would stay readable, and the loop would spin.
            loop = asyncio.get_running_loop()
            loop.remove_reader(bound)
            loop.call_later(RETRY_S, self._look_again)
        self._go_on()

    def _came(self, client: socket.socket) -> None:
        client.settimeout(0)
        self._waiting[client] = None
        if len(self._waiting) > self._connections.limits.connections:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.close()

    def _go_on(self) -> None:
        self._calm_down()
        while self._waiting and (len(self._shaking) < AT_ONCE or self._made_room()):
            # The newest client first: a crowd of silent clients then does not delay a client that connects after them.
            client, _ = self._waiting.popitem()
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._shake_hands(client))
            self._shaking[task] = _Turn(client, loop.time())
            task.add_done_callback(self._ended)

    def _made_room(self) -> bool:
        loop = asyncio.get_running_loop()
        longest, turn = next(iter(self._shaking.items()))
        if loop.time() < turn.since + HURRY_S:
            self._hurry = loop.call_at(turn.since + HURRY_S, self._go_on)
            return False
        if turn.is_ours():
            del self._shaking[longest]
            self._shaking[longest] = _Turn(turn.client, loop.time())
            return self._made_room()
        longest.cancel()
        del self._shaking[longest]
        return True

    def _calm_down(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    async def _shake_hands(self, client: socket.socket) -> None:
        # Faults of a client are not logged, because a client could fill the disk with them.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connections.connection, client, ssl=self._tls.context(), ssl_handshake_timeout=HANDSHAKE_S
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        self._go_on()
