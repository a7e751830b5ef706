"""Follows who the API server's front proxy is: its CA, its names and its headers, as the API server publishes them.

The front proxy says for other users what it asks. So a connection is only believed if its certificate is that of the
front proxy, and only those headers are read that the front proxy sets, or removes, in every request.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from app.certificates.authority import Certificate, CertificateError
from app.certificates.served import Shows
from app.model.question import Check
from app.model.seam import KubeError

log = structlog.get_logger()

LOOK_EVERY_S = 10.0
NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
PUBLISHED = f"ConfigMap {NAMESPACE}/{NAME}"

USER, UID, GROUP, EXTRA = "x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-"
KEYS: Mapping[str, str] = {
    USER: "requestheader-username-headers",
    UID: "requestheader-uid-headers",
    GROUP: "requestheader-group-headers",
    EXTRA: "requestheader-extra-headers-prefix",
}
"""Where each header has to be listed. The API server's proxy sets these and no others.

It passes other headers of its clients on, so a listed header of another name may be a client's own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """The front proxy of the API server."""

    authorities: bytes
    """The CAs that sign its certificates, in PEM."""
    fingerprints: frozenset[bytes]
    """The same in DER."""
    names: frozenset[str]
    """The common names of its certificates; empty means any."""
    headers: frozenset[str]
    """The headers by which it says who asks, of those in `KEYS`."""


def read_front_proxy(published: Mapping[str, str]) -> FrontProxy:
    """Read what the API server publishes; raise `CertificateError` when nobody can be trusted by it."""
    authorities = _certificates(published, "requestheader-client-ca-file")
    if not authorities:
        raise CertificateError("it names no CA, so the API server has no front proxy")
    names = _texts(published, "requestheader-allowed-names")
    if not names and not authorities.keys().isdisjoint(_certificates(published, "client-ca-file")):
        raise CertificateError("its CA also signs users, who could call themselves anything without allowed names")
    headers = frozenset(header for header, key in KEYS.items() if header in map(str.lower, _texts(published, key)))
    if USER not in headers:
        raise CertificateError(f"it does not list {USER} among {KEYS[USER]}")
    pem = b"".join(authorities.values())
    return FrontProxy(authorities=pem, fingerprints=frozenset(authorities), names=names, headers=headers)


class PublishedSettings(Protocol):
    """The part of the cluster that is read."""

    async def read_settings(self, namespace: str, name: str) -> Mapping[str, str]:
        """Read the texts of a ConfigMap; raise `KubeError`."""
        ...


class FrontProxyTls:
    """Joins a serving certificate with the CA of the front proxy: clients are let in when both are known."""

    def __init__(self, tls: Shows) -> None:
        """Start without either. `tls` requires certificates of clients."""
        self._tls = tls
        self._certificate: Certificate | None = None
        self._authorities = b""

    def use(self, certificate: Certificate) -> None:
        """Serve this certificate; raise `CertificateError` when it is refused."""
        self._join(certificate, self._authorities)
        self._certificate = certificate

    def trust(self, authorities: bytes) -> None:
        """Let in clients whose certificates these CAs have signed; raise `CertificateError`."""
        self._join(self._certificate, authorities)
        self._authorities = authorities

    def _join(self, certificate: Certificate | None, authorities: bytes) -> None:
        if certificate and authorities:
            self._tls.use(replace(certificate, clients_ca=authorities))


class FrontProxyFollower:
    """Reads again and again what the API server publishes. Errors never end `run`."""

    def __init__(
        self,
        cluster: PublishedSettings,
        tls: FrontProxyTls,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._tls = tls
        self._sleep = sleep
        self.current: FrontProxy | None = None
        """Other threads read it; None while nobody can be trusted. Only `look` writes it."""
        self._problem = "not read yet"

    def checks(self) -> Sequence[Check]:
        """Return the line of /readyz. Without the aggregated API all else works."""
        said = f"the aggregated API answers no request: {PUBLISHED}: {self._problem}"
        return (Check("front-proxy", "", degraded=said if self._problem else ""),)

    async def run(self) -> None:
        """Look without end."""
        while True:
            await self.look()
            await self._sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Trust those that are published now. What cannot be read at present stays as it was."""
        problem = ""
        try:
            found = read_front_proxy(await self._cluster.read_settings(NAMESPACE, NAME))
            if found != self.current:
                self._tls.trust(found.authorities)
                self.current = found
                log.info("front proxy followed", names=sorted(found.names))
        except CertificateError as error:
            self.current, problem = None, str(error)
        except KubeError as error:
            problem = "" if self.current else str(error)
        if problem and problem != self._problem:
            log.warning("front proxy not known", reason=problem)
        self._problem = problem


def _texts(published: Mapping[str, str], key: str) -> frozenset[str]:
    try:
        found = json.loads(published.get(key) or "[]")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CertificateError(f"{key} is no list of texts")
    return frozenset(found)


def _certificates(published: Mapping[str, str], key: str) -> Mapping[bytes, bytes]:
    """Return certificates in PEM by their DER."""
    pem = published.get(key, "").encode()
    try:
        found = x509.load_pem_x509_certificates(pem) if pem.strip() else []
        return {one.public_bytes(Encoding.DER): one.public_bytes(Encoding.PEM) for one in found}
    except ValueError as error:
        raise CertificateError(f"{key} holds a certificate that cannot be read") from error
