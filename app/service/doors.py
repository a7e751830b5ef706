"""Opens the listeners: the extender's verbs, admission and operations, each with its clients and its certificate."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp

from app.certificates.authority import Clients
from app.certificates.files import CertificateFiles
from app.certificates.own import Certificates, Installation
from app.certificates.served import ServedCertificate
from app.model.question import Check
from app.service.components import Runs
from app.settings import Settings
from app.telemetry import Metrics
from app.web import admission, health, webhooks
from app.web.admission import AnswersAdmission
from app.web.connection import EXTENDER_CONNECTIONS, OPERATIONS_CONNECTIONS
from app.web.listener import Listener, listener
from app.web.thread import Threaded
from app.web.tls import LiveTls
from app.web.webhooks import AnswersScheduler


class CertificateSource(Runs, Protocol):
    """The source of a listener's certificate."""

    def checks(self) -> Sequence[Check]:
        """Return the lines of /readyz."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One listener, and the source of its certificate. Without a source it speaks plain HTTP."""

    host: str
    listener: Listener
    certificate: CertificateSource | None = None
    thread: str = ""
    """The name of the thread that serves it; empty means the main loop."""

    @property
    def url(self) -> str:
        """The URL, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.listener.port}"

    @property
    def running(self) -> tuple[Runs, ...]:
        """What must run so that it answers."""
        serving = Threaded(self.listener, name=self.thread) if self.thread else self.listener
        return (serving, *([self.certificate] if self.certificate else []))

    def checks(self) -> Sequence[Check]:
        """Return the lines of /readyz."""
        return self.certificate.checks() if self.certificate else ()


def extender_door(settings: Settings, extender: AnswersScheduler, metrics: Metrics) -> Door:
    """Open the listener of the extender's verbs; raise OSError when its port is in use."""
    app = webhooks.application(extender, metrics)
    host, port, folder = settings.webhook_host, settings.webhook_port, settings.webhook_tls_dir
    if folder is None:
        return Door(host=host, listener=listener(app, host, port, limits=EXTENDER_CONNECTIONS))
    tls = LiveTls(Clients.CERTIFIED)
    served = ServedCertificate(tls, metrics, listener="extender", wall_clock=time.time)
    source = CertificateFiles(folder, served, clients=Clients.CERTIFIED, wall_clock=time.time)
    bound = listener(app, host, port, limits=EXTENDER_CONNECTIONS, tls=tls)
    return Door(host=host, listener=bound, certificate=source)


def admission_door(
    settings: Settings, answers: AnswersAdmission, metrics: Metrics, installation: Installation | None
) -> Door | None:
    """Open the listener of admission, if it is configured; raise OSError when its port is in use."""
    if settings.admission_port is None:
        return None
    tls = LiveTls()
    source = _admission_certificate(
        settings,
        ServedCertificate(tls, metrics, listener="admission", wall_clock=time.time),
        metrics,
        installation,
    )
    app = admission.application(answers, metrics)
    bound = listener(app, settings.admission_host, settings.admission_port, limits=admission.CONNECTIONS, tls=tls)
    return Door(host=settings.admission_host, listener=bound, certificate=source)


def _admission_certificate(
    settings: Settings, served: ServedCertificate, metrics: Metrics, installation: Installation | None
) -> CertificateSource:
    if settings.admission_tls_dir is not None:
        return CertificateFiles(settings.admission_tls_dir, served, clients=Clients.ANYBODY, wall_clock=time.time)
    if installation is None:
        raise ValueError("a certificate of our own needs a Kubernetes to keep its CA in; set admission_tls_dir")
    return Certificates(installation, served, settings, metrics, clock=time.monotonic, wall_clock=time.time)


def operations_door(settings: Settings, app: ASGIApp) -> Door:
    """Open the listener of health, metrics and the read API; raise OSError when its port is in use."""
    host, port = settings.operations_host, settings.operations_port
    bound = listener(app, host, port, limits=OPERATIONS_CONNECTIONS)
    return Door(host=host, listener=bound, thread="operations")


def probe_door(settings: Settings, app: ASGIApp) -> Door | None:
    """Open the listener of probes, if it is configured; raise OSError when its port is in use."""
    if settings.probe_port is None:
        return None
    bound = listener(app, settings.probe_host, settings.probe_port, limits=health.PROBE_CONNECTIONS)
    return Door(host=settings.probe_host, listener=bound, thread="probes")
