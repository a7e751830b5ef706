"""A real listener whose certificate changes, as real TLS clients see it."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.certificates.authority import (
    Certificate,
    CertificateAuthority,
    CertificateError,
    Clients,
    make_authority,
    read_certificate,
    sign,
)
from app.telemetry import Metrics
from app.web import handshakes, operations
from app.web.callers import Anybody
from app.web.listener import listener
from app.web.tls import LiveTls
from tests.pem import CLIENT, issued, rsa_key
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import CONNECTIONS, HOST, PATIENCE_S, Wire, get

NAMES = ("localhost", HOST)


def authority() -> CertificateAuthority:
    return make_authority(now=time.time(), valid_s=3600.0)


def signed(by: CertificateAuthority, *, clients_ca: bytes = b"") -> Certificate:
    return replace(sign(by, NAMES, now=time.time(), valid_s=3600.0), clients_ca=clients_ca)


@contextlib.asynccontextmanager
async def serving(tls: LiveTls) -> AsyncIterator[int]:
    app = operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Anybody())
    bound = listener(app, HOST, 0, limits=CONNECTIONS, tls=tls)
    running = asyncio.create_task(bound.run())
    try:
        yield bound.port
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def trusting(*authorities: CertificateAuthority) -> ssl.SSLContext:
    """Return a client that trusts these and checks the name, as kube-apiserver does."""
    return ssl.create_default_context(cadata=b"".join(one.certificate for one in authorities).decode())


@contextlib.asynccontextmanager
async def connected(port: int, client: ssl.SSLContext, name: str = HOST) -> AsyncIterator[tuple[Wire, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=client, server_hostname=name)
    try:
        yield Wire(reader, writer), writer.get_extra_info("ssl_object")
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def shown(port: int, client: ssl.SSLContext, name: str = HOST) -> int:
    """Connect, send a request, and return the serial number of the server's certificate."""
    async with connected(port, client, name) as (wire, handshake):
        await wire.send(get("/livez"))
        assert (await wire.reply()).status == 200
        return int(handshake.getpeercert()["serialNumber"], 16)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", NAMES)
async def test_the_next_handshake_uses_the_new_certificate(version: ssl.TLSVersion, name: str) -> None:
    ca, tls = authority(), LiveTls()
    first, second = signed(ca), signed(ca)
    client = trusting(ca)
    client.minimum_version = client.maximum_version = version
    async with serving(tls) as port:
        tls.use(first)
        assert await shown(port, client, name) == first.serial
        tls.use(second)
        assert await shown(port, client, name) == second.serial


async def test_no_handshake_fails_while_certificates_and_cas_change() -> None:
    old, new = authority(), authority()
    tls, client = LiveTls(), trusting(old, new)
    certificates = [signed(by) for by in (old, new) for _ in range(50)]
    coming = [*certificates]
    seen: set[int] = set()

    async def ask_on() -> None:
        while coming:
            tls.use(coming.pop())
            # Others change it meanwhile, during our handshake.
            seen.add(await shown(port, client))

    tls.use(certificates[0])
    async with serving(tls) as port, asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(ask_on())
    # One of the four has used a quarter of them, and has seen another one each time.
    assert len(seen) >= len(certificates) / 4


async def test_an_open_connection_is_answered_after_the_change() -> None:
    ca, tls = authority(), LiveTls()
    tls.use(signed(ca))
    async with serving(tls) as port, connected(port, trusting(ca)) as (wire, _):
        tls.use(signed(authority()))
        await wire.send(get("/livez"))
        assert (await wire.reply()).status == 200


async def test_a_certificate_with_another_kind_of_key_replaces_the_previous_one_completely() -> None:
    ca, tls = authority(), LiveTls()
    pair = issued(ca, key=rsa_key())
    theirs = read_certificate(pair.chain, pair.key, now=time.time())
    async with serving(tls) as port:
        tls.use(signed(ca))
        tls.use(theirs)
        # A client prefers the other kind, if there is one.
        assert await shown(port, trusting(ca), "localhost") == theirs.serial


@pytest.mark.parametrize("broken", ["key", "chain"])
async def test_an_unusable_certificate_is_refused_and_the_previous_one_stays(broken: str) -> None:
    ca, tls = authority(), LiveTls()
    good, other = signed(ca), signed(ca)
    tls.use(good)
    half = replace(good, key=other.key) if broken == "key" else replace(good, chain=good.chain[:200])

    with pytest.raises(CertificateError, match="the TLS library refuses the certificate"):
        tls.use(half)

    async with serving(tls) as port:
        assert await shown(port, trusting(ca)) == good.serial


def test_a_key_with_a_password_is_refused_without_a_prompt() -> None:
    good = signed(authority())
    locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"

    with pytest.raises(CertificateError):
        LiveTls().use(replace(good, key=locked))


async def test_no_client_is_served_before_there_is_a_certificate() -> None:
    async with serving(LiveTls()) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await shown(port, trusting(authority()))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("ending", ["stands", "closed in order", "gone"])
async def test_no_session_is_resumed(version: ssl.TLSVersion, ending: str) -> None:
    ca, tls = authority(), LiveTls()
    tls.use(signed(ca))
    client = trusting(ca)
    client.minimum_version = client.maximum_version = version
    async with serving(tls) as port:
        with await asyncio.to_thread(asked, port, client, None) as first:
            session = first.session
            if ending == "closed in order":
                await asyncio.to_thread(closed_in_order, first)
            if ending == "gone":
                first.close()
            with await asyncio.to_thread(asked, port, client, session) as second:
                assert not second.session_reused


def asked(port: int, client: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSocket:
    """Connect with a session to resume, send a request, and read the whole answer."""
    plain = socket.create_connection((HOST, port), PATIENCE_S)
    secured = client.wrap_socket(plain, server_hostname=HOST, session=session)
    secured.sendall(get("/livez"))
    received = b""
    while not received.endswith(b"ok"):
        received += (more := secured.recv(1024))
        assert more
    return secured


def closed_in_order(secured: ssl.SSLSocket) -> None:
    """Close the connection in TLS, and read the answer of the server."""
    secured.unwrap()


# Clients that need a certificate


def certified(by: CertificateAuthority, servers: CertificateAuthority, folder: Path) -> ssl.SSLContext:
    """Return a client whose certificate `by` has signed."""
    pair = issued(by, "kube-scheduler", purpose=CLIENT)
    path = folder / f"{by.fingerprint}.pem"
    path.write_bytes(pair.key + pair.chain)
    client = trusting(servers)
    client.load_cert_chain(path)
    return client


async def test_only_clients_with_a_certificate_of_our_ca_are_answered(tmp_path: Path) -> None:
    servers, ours, theirs = authority(), authority(), authority()
    tls = LiveTls(Clients.CERTIFIED)
    tls.use(signed(servers, clients_ca=ours.certificate))
    async with serving(tls) as port:
        assert await shown(port, certified(ours, servers, tmp_path))
        for stranger in (certified(theirs, servers, tmp_path), trusting(servers)):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await shown(port, stranger)


async def test_a_replaced_client_ca_is_no_longer_trusted(tmp_path: Path) -> None:
    servers, before, after = authority(), authority(), authority()
    tls = LiveTls(Clients.CERTIFIED)
    tls.use(signed(servers, clients_ca=before.certificate))
    old, new = certified(before, servers, tmp_path), certified(after, servers, tmp_path)
    async with serving(tls) as port:
        assert await shown(port, old)
        tls.use(signed(servers, clients_ca=after.certificate))
        assert await shown(port, new)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await shown(port, old)


async def test_clients_with_certificates_use_tls_1_3(tmp_path: Path) -> None:
    ca, tls = authority(), LiveTls(Clients.CERTIFIED)
    tls.use(signed(ca, clients_ca=ca.certificate))
    client = certified(ca, ca, tmp_path)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(tls) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await shown(port, client)


async def test_client_certificates_without_any_ca_are_refused(tmp_path: Path) -> None:
    ca, tls = authority(), LiveTls(Clients.CERTIFIED)
    tls.use(signed(ca))
    async with serving(tls) as port:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await shown(port, certified(ca, ca, tmp_path))


# Failed handshakes


async def test_broken_handshakes_are_not_logged_and_affect_no_other_client(caplog: pytest.LogCaptureFixture) -> None:
    ca, tls = authority(), LiveTls()
    tls.use(signed(ca))
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    caplog.set_level(logging.INFO)
    async with serving(tls) as port:
        for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x00\x02\x01\x00"):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(junk)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        with pytest.raises(ssl.SSLError):
            await shown(port, trusting(authority()))
        assert await shown(port, trusting(ca))
    ours = [record for record in caplog.records if "asyncio" in record.name or record.levelno >= logging.WARNING]
    assert (complaints, ours) == ([], [])


async def test_a_client_that_never_finishes_its_handshake_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # The test does not wait five seconds.
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.05)
    tls = LiveTls()
    tls.use(signed(authority()))
    async with serving(tls) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert await Wire(reader, writer).is_closed_by_server()
        writer.close()
