"""Many clients on a TLS port: a client that never finishes its handshake costs little, and blocks no other client."""

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from app.web import handshakes
from app.web.connection import ConnectionLimits
from app.web.handshakes import AT_ONCE, Handshakes
from app.web.tls import LiveTls
from tests.web.served import CONNECTIONS, HOST, PATIENCE_S
from tests.web.test_tls import authority, serving, shown, signed, trusting

HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
CROWD = 3000


@contextlib.asynccontextmanager
async def crowd(port: int, *, of: int, saying: bytes = HALF_A_HELLO) -> AsyncIterator[list[socket.socket]]:
    """Open connections that never continue, while the server runs on."""
    clients = await asyncio.to_thread(lambda: [dallying(port, saying) for _ in range(of)])
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def dallying(port: int, saying: bytes) -> socket.socket:
    client = socket.create_connection((HOST, port), PATIENCE_S)
    client.sendall(saying)
    return client


def is_open(client: socket.socket) -> bool:
    """Return whether the server has not closed the connection, whatever it has sent before."""
    client.settimeout(0)
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


@contextlib.asynccontextmanager
async def halfway(port: int, client: ssl.SSLContext) -> AsyncIterator[socket.socket]:
    """Send the client hello, read the server's answer, and stop."""
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=HOST).do_handshake()
    with await asyncio.to_thread(dallying, port, hello.read()) as opened:
        assert await asyncio.to_thread(opened.recv, 1)
        yield opened


@pytest.fixture
def _room_for_a_crowd() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_room_for_a_crowd")
@pytest.mark.parametrize("saying", [b"", HALF_A_HELLO], ids=["nothing", "half a hello"])
async def test_clients_that_never_finish_their_handshake_are_limited_and_a_normal_client_is_answered(
    saying: bytes,
) -> None:
    ca, tls = authority(), LiveTls()
    tls.use(good := signed(ca))
    async with serving(tls) as port, crowd(port, of=CROWD, saying=saying) as clients:
        assert await shown(port, trusting(ca)) == good.serial
        assert 0 < sum(map(is_open, clients)) <= CONNECTIONS.connections + AT_ONCE


async def test_a_slow_handshake_is_closed_for_a_waiting_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "AT_ONCE", 1)
    monkeypatch.setattr(handshakes, "HURRY_S", 0.1)
    ca, tls = authority(), LiveTls()
    tls.use(signed(ca))
    client = trusting(ca)
    async with serving(tls) as port, halfway(port, client) as first, crowd(port, of=20) as others:
        assert await shown(port, client)
        assert not is_open(first)
        # The normal client came after them, and did not have to wait until they were gone.
        assert any(map(is_open, others))


async def test_no_client_is_rejected_only_because_many_connect_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "AT_ONCE", 4)
    ca, tls = authority(), LiveTls()
    tls.use(good := signed(ca))
    client = trusting(ca)
    async with serving(tls) as port:
        seen = await asyncio.gather(*(shown(port, client) for _ in range(CONNECTIONS.connections)))
    assert seen == [good.serial] * CONNECTIONS.connections


async def test_waiting_clients_are_closed_with_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "AT_ONCE", 1)
    monkeypatch.setattr(handshakes, "HURRY_S", PATIENCE_S)
    ca, tls = authority(), LiveTls()
    tls.use(signed(ca))
    async with contextlib.AsyncExitStack() as clients:
        async with serving(tls) as port:
            first = await clients.enter_async_context(halfway(port, trusting(ca)))
            others = await clients.enter_async_context(crowd(port, of=2))
        assert [is_open(each) for each in (first, *others)] == [True, False, False]


class Exhausted(socket.socket):
    """A listening socket of a process without a free file descriptor, the first time."""

    failures = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Greeting(asyncio.Protocol):
    """Sends a greeting to every connected client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # the only kind there is
        transport.write(b"in\n")
        transport.close()


class Greetings:
    """Greets every client."""

    limits = ConnectionLimits(connections=1)

    def connection(self) -> asyncio.Protocol:
        return Greeting()


async def test_a_process_without_a_free_socket_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "RETRY_S", 0.01)
    ca, tls = authority(), LiveTls()
    tls.use(signed(ca))
    with Exhausted() as bound:
        bound.bind((HOST, 0))
        bound.listen()
        waiting_room = Handshakes(bound, tls, Greetings())
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(*bound.getsockname(), ssl=trusting(ca))
            assert await reader.readline() == b"in\n"
        waiting_room.close()
    writer.close()
    assert bound.failures == 0
