"""Lets the clients of a TLS port in: few shake hands at a time, and who dallies makes room for who waits.

A handshake costs 50 KB before anything is known of the client, a connection that waits for its turn hardly anything.
Many honest ones may come at once (each bind of a gang is one), so nobody is sent away for coming with many others.
"""

import asyncio
import ssl
from collections.abc import Callable

HANDSHAKE_S = 5.0
"""Within which TLS has to stand, once its turn has come."""
HURRY_S = 1.0
"""What is left of that while others wait: less than the 3 s after which kube-apiserver gives a webhook up."""
AT_ONCE = 256


class Handshakes:
    """The clients of one listener that are not in yet."""

    def __init__(
        self, tls: Callable[[], ssl.SSLContext], connection: Callable[[], asyncio.Protocol], *, most_waiting: int
    ) -> None:
        """`tls` is asked for each handshake, and `connection` makes what goes on behind it."""
        self.tls = tls
        self.connection = connection
        self._most_waiting = most_waiting
        # Who came first stands first; changed by `came`, `left` and `_go_on`.
        self._waiting: dict[_Arrival, None] = {}
        self._shaking: dict[_Arrival, None] = {}
        self._hurry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Count the connections that are kept."""
        return len(self._waiting) + len(self._shaking)

    def arrival(self) -> asyncio.Protocol:
        """Return the protocol of a connection that has just been accepted."""
        return _Arrival(self)

    def close(self) -> None:
        """Send everybody away."""
        everybody = [*self._waiting, *self._shaking]
        self._waiting.clear()
        self._shaking.clear()
        self._calm_down()
        for arrival in everybody:
            arrival.drop()

    def came(self, arrival: "_Arrival") -> None:
        """Take a client in, in the place of the one that waits longest when there are too many."""
        self._waiting[arrival] = None
        if len(self._waiting) > self._most_waiting:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.drop()
        self._go_on()

    def left(self, arrival: "_Arrival") -> None:
        """Give its place to another: it is in, or gone."""
        self._waiting.pop(arrival, None)
        self._shaking.pop(arrival, None)
        self._go_on()

    def _go_on(self) -> None:
        self._calm_down()
        while self._waiting:
            if len(self._shaking) >= AT_ONCE and not self._made_room():
                return
            # The newest, so that a crowd which never says a word keeps nobody waiting who comes after it.
            newest, _ = self._waiting.popitem()
            self._shaking[newest] = None
            newest.begin()

    def _made_room(self) -> bool:
        loop, longest = asyncio.get_running_loop(), next(iter(self._shaking))
        if loop.time() < longest.begun_at + HURRY_S:
            self._hurry = loop.call_at(longest.begun_at + HURRY_S, self._go_on)
            return False
        del self._shaking[longest]
        longest.drop()
        return True

    def _calm_down(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None


class _Arrival(asyncio.Protocol):
    """A connection up to the end of its handshake."""

    def __init__(self, handshakes: Handshakes) -> None:
        self.begun_at = 0.0
        self._handshakes = handshakes
        self._shaking: asyncio.Task[None] | None = None
        # What TLS tells before the connection behind it is made.
        self._early = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        # TLS reads it, from its first byte on.
        transport.pause_reading()
        self._transport = transport
        self._handshakes.came(self)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._handshakes.left(self)

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun_at = loop.time()
        self._shaking = loop.create_task(self._shake_hands())

    def drop(self) -> None:
        if self._shaking is not None:
            self._shaking.cancel()
        self._transport.abort()

    async def _shake_hands(self) -> None:
        tls: asyncio.Transport | None = None
        try:
            tls = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                self._handshakes.tls(),
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError:
            # Whatever a client does wrong: it is not logged, or it could fill the disk.
            return
        finally:
            self._handshakes.left(self)
        # One that is gone may look as if it had succeeded.
        if tls is not None and not tls.is_closing():
            self._let_in(tls)

    def _let_in(self, tls: asyncio.Transport) -> None:
        connection = self._handshakes.connection()
        tls.set_protocol(connection)
        connection.connection_made(tls)
        if self._early:
            connection.data_received(bytes(self._early))
