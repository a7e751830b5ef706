"""The certificate of one listener and its state: checks, metrics, and one log line for each change."""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from app.certificates.authority import Certificate
from app.model.question import Check
from app.telemetry import Metrics, Renewal

log = structlog.get_logger()

WARNED_BEFORE_S = 7 * 24 * 3600.0
"""For a short lifetime, it is the last third."""


class Shows(Protocol):
    """The TLS of a listener."""

    def use(self, certificate: Certificate) -> None:
        """Use the certificate for new handshakes. On `CertificateError` the old certificate stays in use."""
        ...


class ServedCertificate:
    """The certificate in use, and the problem that prevents its renewal. Only the certificate source changes it."""

    def __init__(self, tls: Shows, metrics: Metrics, *, listener: str, wall_clock: Callable[[], float]) -> None:
        """Start without a certificate. `listener` names the listener in metrics and logs."""
        self._tls = tls
        self._metrics = metrics
        self._listener = listener
        self._wall_clock = wall_clock
        self._certificate: Certificate | None = None
        self._problem = ""
        self._warned_of: int | None = None
        metrics.certificates.problems(listener, 0)

    def use(self, certificate: Certificate) -> None:
        """Use the certificate for new handshakes. On `CertificateError` the old certificate stays in use."""
        self._tls.use(certificate)
        self._certificate = certificate
        self._metrics.certificates.renewed(Renewal.SERVING)
        self._metrics.certificates.expires(self._listener, certificate.expires_at)

    def note(self, problem: str) -> None:
        """Record the problem that prevents renewal; "" means none. Each change is logged once."""
        if problem != self._problem:
            tell = log.error if problem else log.info
            tell(
                "certificate not renewed" if problem else "certificate can be renewed again",
                **self._named(),
                reason=problem,
            )
            self._metrics.certificates.problems(self._listener, 1 if problem else 0)
        self._problem = problem
        self._warn()

    def checks(self) -> Sequence[Check]:
        """Return two lines of /readyz: whether there is a valid certificate, and whether it can be renewed."""
        renewal = f"{self._problem}; the previous certificate is still served" if self._problem else ""
        failure = self._failure()
        return Check("certificate", failure), Check("certificate-renewal", "" if failure else renewal)

    def _failure(self) -> str:
        certificate = self._certificate
        if certificate is None:
            return f"there is no certificate to serve: {self._problem or 'none has been made or read yet'}"
        if self._wall_clock() >= certificate.expires_at:
            return f"the serving certificate has expired: {self._problem or 'a new one is due'}"
        return ""

    def _warn(self) -> None:
        certificate = self._certificate
        if certificate is None or certificate.serial == self._warned_of:
            return
        left_s = certificate.expires_at - self._wall_clock()
        if left_s < min(WARNED_BEFORE_S, (certificate.expires_at - certificate.begins_at) / 3):
            self._warned_of = certificate.serial
            log.warning("certificate expires soon", **self._named(), left_s=round(left_s))

    def _named(self) -> dict[str, str]:
        return {"listener": self._listener}
