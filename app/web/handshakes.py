"""Lets the clients of a TLS port in: few shake hands at a time, and who dallies makes room for who waits.

A handshake costs 50 KB before anything is known of the client, a connection that waits for its turn hardly anything.
Many honest ones may come at once (each bind of a gang is one), so nobody is sent away for coming with many others.
"""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from app.web.connection import ConnectionLimits

HANDSHAKE_S = 5.0
"""Within which TLS has to stand, once its turn has come."""
HURRY_S = 2.0
"""What is left of that while others wait: less than the 3 s after which kube-apiserver gives a webhook up."""
AT_ONCE = 256
"""With `HURRY_S` 128 a second, of whom a starved machine still lets several times as many in when they are honest."""
ACCEPTED_AT_ONCE = 128
RETRY_S = 1.0
"""After which a process without room for one more socket looks again."""


@dataclass(slots=True)
class _Turn:
    client: socket.socket
    since: float

    def is_ours(self) -> bool:
        """Return whether the client has spoken and we have not listened: it may be we who were slow."""
        try:
            return self.client.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False


class Tls(Protocol):
    """The TLS of a port."""

    def context(self) -> ssl.SSLContext:
        """Return what a handshake begins with; asked for each."""
        ...


class Connects(Protocol):
    """What goes on once TLS stands."""

    limits: ConnectionLimits

    def connection(self) -> asyncio.Protocol:
        """Return what speaks with the next client."""
        ...


class Handshakes:
    """Takes every client that comes to one socket, until it is closed."""

    def __init__(self, bound: socket.socket, tls: Tls, connections: Connects) -> None:
        """Begin to accept, on the running loop."""
        self._tls = tls
        self._connections = connections
        # Who came first stands first.
        self._waiting: dict[socket.socket, None] = {}
        self._shaking: dict[asyncio.Task[None], _Turn] = {}
        self._hurry: asyncio.TimerHandle | None = None
        # Taken away by `close`.
        self._bound: socket.socket | None = bound
        bound.settimeout(0)
        self._look_again()

    def close(self) -> None:
        """Take nobody any more, and send away who waits; a handshake that has begun may end."""
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
            # No room for one more. The socket would say for ever that there is one to accept.
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
            # The newest, so that a crowd which never says a word keeps nobody waiting who comes after it.
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
        # Whatever a client does wrong is not logged: it could fill the disk.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connections.connection, client, ssl=self._tls.context(), ssl_handshake_timeout=HANDSHAKE_S
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        self._go_on()
