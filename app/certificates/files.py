"""Follows certificate files that another program maintains, such as cert-manager through the kubelet.

It compares the contents, which are a few kilobytes a second. A file's date may stay the same when its content changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.certificates.authority import Certificate, CertificateError, Clients, read_certificate
from app.certificates.served import ServedCertificate
from app.model.question import Check

LOOK_EVERY_S = 1.0
LONGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Files:
    """The contents that were read: certificate, key, and the clients' CA if clients need a certificate."""

    chain: bytes
    key: bytes
    clients_ca: bytes | None


class CertificateFiles:
    """The certificate source of one listener: `tls.crt`, `tls.key`, and `ca.crt` for certified clients."""

    def __init__(
        self,
        folder: str,
        served: ServedCertificate,
        *,
        clients: Clients,
        wall_clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`wall_clock` is in Unix seconds."""
        self._folder = Path(folder)
        self._served = served
        self._clients = clients
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._used: _Files | None = None
        # The problem of the last look. It is reported only if the next look finds it, too.
        self._suspected = ""

    def checks(self) -> Sequence[Check]:
        """Return the lines of /readyz."""
        return self._served.checks()

    async def run(self) -> None:
        """Check the files without end."""
        while True:
            await self.look()
            await self._sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Use the files' contents if they are new and valid."""
        problem = ""
        try:
            files = await asyncio.to_thread(self._read)
            if files != self._used:
                self._served.use(self._certificate(files))
                self._used = files
        except CertificateError as error:
            problem = str(error)
        # The files may have been replaced between two reads. The next look then reads matching files.
        self._served.note(problem if problem == self._suspected else "")
        self._suspected = problem

    def _read(self) -> _Files:
        certified = self._clients is Clients.CERTIFIED
        return _Files(
            chain=_content(self._folder / "tls.crt"),
            key=_content(self._folder / "tls.key"),
            clients_ca=_content(self._folder / "ca.crt") if certified else None,
        )

    def _certificate(self, files: _Files) -> Certificate:
        try:
            return read_certificate(files.chain, files.key, now=self._wall_clock(), clients_ca=files.clients_ca)
        except CertificateError as error:
            raise CertificateError(f"{self._folder}: {error}") from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from error
    if len(content) > LONGEST_BYTES:
        raise CertificateError(f"{path}: it is longer than {LONGEST_BYTES} bytes")
    return content
