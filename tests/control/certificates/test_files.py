"""Files that another program maintains, changed as by the kubelet or a user."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.certificates.authority import Certificate, CertificateAuthority, CertificateError, Clients, make_authority
from app.certificates.files import CertificateFiles
from app.certificates.served import ServedCertificate
from app.telemetry import Metrics
from tests.pem import Pair, issued

START = 1_800_000_000.0
DAY = 24 * 3600.0


class Listener:
    """Records what it is given to serve; refuses what the test tells it to refuse."""

    def __init__(self) -> None:
        self.shown: list[bytes] = []
        self.clients: list[bytes] = []
        self.refuses = False

    def use(self, certificate: Certificate) -> None:
        if self.refuses:
            raise CertificateError("the TLS library refuses the certificate: no cipher")
        self.shown.append(certificate.chain)
        self.clients.append(certificate.clients_ca)


class Folder:
    """The files, and the component that follows them."""

    def __init__(self, path: Path, clients: Clients = Clients.ANYBODY) -> None:
        self.path, self.listener, self.metrics = path, Listener(), Metrics()
        self.authority: CertificateAuthority = make_authority(now=START, valid_s=1000 * DAY)
        clock = asyncio.get_running_loop().time

        def wall_clock() -> float:
            return START + clock()

        served = ServedCertificate(self.listener, self.metrics, listener="admission", wall_clock=wall_clock)
        self.files = CertificateFiles(str(path), served, clients=clients, wall_clock=wall_clock)

    def pair(self, *, begins_at: float = START - 10, valid_s: float = 90 * DAY) -> Pair:
        return issued(self.authority, begins_at=begins_at, valid_s=valid_s)

    def write(self, pair: Pair) -> Pair:
        (self.path / "tls.crt").write_bytes(pair.chain)
        (self.path / "tls.key").write_bytes(pair.key)
        return pair

    def failing(self) -> dict[str, str]:
        return {check.name: check.failure for check in self.files.checks() if not check.passed}

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def followed(folder: Folder) -> AsyncIterator[None]:
    task = asyncio.create_task(folder.files.run())
    await passes(0.5)
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def test_files_are_served_and_changed_files_are_served_within_a_second(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    first = folder.write(folder.pair())
    async with followed(folder):
        second = folder.write(folder.pair(valid_s=DAY))
        await passes(1)
        assert folder.listener.shown == [first.chain, second.chain]
        assert folder.failing() == {}
        assert folder.metric("leeboard_certificate_renewals_total", kind="serving") == 2
        assert folder.metric("leeboard_certificate_expires_seconds", listener="admission") == START - 10 + DAY


async def test_unchanged_files_are_not_loaded_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    pair = folder.write(folder.pair())
    async with followed(folder):
        folder.write(pair)
        await passes(10)
        assert folder.listener.shown == [pair.chain]


async def test_a_directory_that_is_swapped_by_a_symlink_is_followed(tmp_path: Path) -> None:
    """Like the kubelet: files are links into `..data`, which is a link that is replaced."""
    folder = Folder(tmp_path / "seen")
    for name in ("seen", "one", "two"):
        (tmp_path / name).mkdir()
    pairs = {name: folder.pair() for name in ("one", "two")}
    for name, pair in pairs.items():
        (tmp_path / name / "tls.crt").write_bytes(pair.chain)
        (tmp_path / name / "tls.key").write_bytes(pair.key)
    (tmp_path / "seen/..data").symlink_to(tmp_path / "one")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "seen" / name).symlink_to(f"..data/{name}")
    async with followed(folder):
        (tmp_path / "seen/..next").symlink_to(tmp_path / "two")
        (tmp_path / "seen/..next").rename(tmp_path / "seen/..data")
        await passes(1)
        assert folder.listener.shown == [pairs["one"].chain, pairs["two"].chain]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("tls.crt", b"-----BEGIN CERTIFICATE-----\nMIIB", "tls.crt holds no certificate that can be read"),
        ("tls.crt", b"", "tls.crt holds no certificate that can be read"),
        ("tls.key", b"-----BEGIN PRIVATE KEY-----\nMIIB", "tls.key holds no key"),
        ("tls.crt", b"x" * (1 << 20) + b"x", "tls.crt: it is longer than"),
    ],
)
async def test_a_broken_file_keeps_the_old_certificate_and_is_reported_once(
    file: str, content: bytes, problem: str, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    old = folder.write(folder.pair())
    with capture_logs() as logs:
        async with followed(folder):
            (tmp_path / file).write_bytes(content)
            await passes(60)
            assert folder.listener.shown == [old.chain]
            assert list(folder.failing()) == ["certificate-renewal"]
            assert str(tmp_path) in folder.failing()["certificate-renewal"]
            assert problem in folder.failing()["certificate-renewal"]
            assert folder.metric("leeboard_certificate_problems", of="admission") == 1

            new = folder.write(folder.pair())
            await passes(1)
            assert folder.listener.shown == [old.chain, new.chain]
            assert folder.failing() == {}
            assert folder.metric("leeboard_certificate_problems", of="admission") == 0
    assert [line["event"] for line in logs] == ["certificate not renewed", "certificate can be renewed again"]


async def test_a_key_of_another_certificate_keeps_the_old_pair(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    old = folder.write(folder.pair())
    async with followed(folder):
        (tmp_path / "tls.key").write_bytes(folder.pair().key)
        await passes(5)
        assert folder.listener.shown == [old.chain]
        assert "tls.key is not the key of tls.crt" in folder.failing()["certificate-renewal"]


async def test_files_read_between_two_writes_cause_no_alarm(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write(folder.pair())
    with capture_logs() as logs:
        async with followed(folder):
            new = folder.pair()
            (tmp_path / "tls.crt").write_bytes(new.chain)
            await passes(1)
            (tmp_path / "tls.key").write_bytes(new.key)
            await passes(1)
            assert folder.listener.shown[-1] == new.chain
    assert logs == []


async def test_missing_files_are_named_and_loaded_when_they_exist(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with followed(folder):
        await passes(2)
        assert f"{tmp_path}/tls.crt: No such file" in folder.failing()["certificate"]
        pair = folder.write(folder.pair())
        await passes(1)
        assert folder.listener.shown == [pair.chain]
        assert folder.failing() == {}


async def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write(folder.pair())
    (tmp_path / "tls.key").unlink()
    os.mkdir(tmp_path / "tls.key")  # noqa: PTH102 # unreadable even for root
    async with followed(folder):
        await passes(2)
        assert f"{tmp_path}/tls.key: Is a directory" in folder.failing()["certificate"]


@pytest.mark.parametrize(
    ("begins_at", "problem"),
    [(START - 200 * DAY, "tls.crt has expired at"), (START + DAY, "tls.crt is not valid before")],
)
async def test_a_certificate_that_is_not_valid_now_is_not_used(begins_at: float, problem: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    old = folder.write(folder.pair())
    async with followed(folder):
        folder.write(folder.pair(begins_at=begins_at))
        await passes(2)
        assert folder.listener.shown == [old.chain]
        assert problem in folder.failing()["certificate-renewal"]


async def test_a_certificate_is_used_as_soon_as_it_becomes_valid(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    pair = folder.write(folder.pair(begins_at=START + 30))
    async with followed(folder):
        assert folder.listener.shown == []
        await passes(31)
        assert folder.listener.shown == [pair.chain]


async def test_a_certificate_that_tls_refuses_is_reported_and_tried_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.listener.refuses = True
    pair = folder.write(folder.pair())
    async with followed(folder):
        await passes(2)
        assert "no cipher" in folder.failing()["certificate"]
        folder.listener.refuses = False
        await passes(1)
        assert folder.listener.shown == [pair.chain]


@pytest.mark.parametrize(("valid_s", "left_s"), [(90 * DAY, 7 * DAY), (3 * 3600.0, 3600.0)])
async def test_a_certificate_that_expires_soon_is_reported_once_and_then_fails(
    valid_s: float, left_s: float, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    # A year with one check a second would take the test too long: it begins a minute before.
    begins_at = START - valid_s + left_s + 60
    folder.write(folder.pair(begins_at=begins_at, valid_s=valid_s))
    with capture_logs() as logs:
        async with followed(folder):
            await passes(50)
            assert logs == []
            await passes(60)
            assert [line["event"] for line in logs] == ["certificate expires soon"]
            assert folder.failing() == {}


async def test_an_expired_certificate_makes_the_service_not_ready(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write(folder.pair(valid_s=30.0))
    async with followed(folder):
        assert folder.failing() == {}
        await passes(30)
        assert "the serving certificate has expired" in folder.failing()["certificate"]


async def test_client_certificates_need_a_ca_file_that_is_reloaded_too(tmp_path: Path) -> None:
    folder = Folder(tmp_path, Clients.CERTIFIED)
    folder.write(folder.pair())
    async with followed(folder):
        await passes(2)
        assert "ca.crt: No such file" in folder.failing()["certificate"]
        for expected in (1, 2):
            ca = make_authority(now=START, valid_s=DAY).certificate
            (tmp_path / "ca.crt").write_bytes(ca)
            await passes(1)
            assert (len(folder.listener.clients), folder.listener.clients[-1]) == (expected, ca)
        (tmp_path / "ca.crt").write_bytes(b"half")
        await passes(2)
        assert len(folder.listener.clients) == 2
        assert "ca.crt holds no certificate" in folder.failing()["certificate-renewal"]
