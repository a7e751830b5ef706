"""Opens the listeners: the extender's verbs, admission, operations and the aggregated API, each with its clients."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp

from app.certificates.authority import Certificate, Clients
from app.certificates.files import CertificateFiles
from app.certificates.front_proxy import FrontProxyFollower, FrontProxyTls
from app.certificates.own import Certificates, Installation
from app.certificates.served import ServedCertificate, Shows
from app.model.question import Check
from app.service.components import Runs
from app.settings import Settings
from app.telemetry import Metrics
from app.web import admission, health, webhooks
from app.web.admission import AnswersAdmission
from app.web.aggregated import AGGREGATED_CONNECTIONS
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
    """One listener, and the source of its certificate if that is its own."""

    host: str
    listener: Listener
    certificate: CertificateSource | None = None
    thread: str = ""
    """The name of the thread that serves it; empty means the main loop."""
    guest: Listener | None = None
    """A listener that this thread serves too."""

    @property
    def url(self) -> str:
        """The URL, without a trailing slash."""
        return url_of(self.host, self.listener)

    @property
    def running(self) -> tuple[Runs, ...]:
        """What must run so that it answers."""
        listeners = [self.listener, *([self.guest] if self.guest else [])]
        serving = Threaded(*listeners, name=self.thread) if self.thread else self.listener
        return (serving, *([self.certificate] if self.certificate else []))

    def checks(self) -> Sequence[Check]:
        """Return the lines of /readyz."""
        return self.certificate.checks() if self.certificate else ()


def url_of(host: str, listener: Listener) -> str:
    """Return the URL of a listener, without a trailing slash."""
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if listener.is_tls else 'http'}://{host}:{listener.port}"


class ApiServerTls:
    """The TLS of the listeners that the API server calls. Admission and the aggregated API have one certificate."""

    def __init__(self, settings: Settings, metrics: Metrics, installation: Installation | None) -> None:
        """`installation` is None where there is no Kubernetes; nothing runs unless one of the ports is configured."""
        self.admission, self.aggregated = LiveTls(), LiveTls(Clients.CERTIFIED)
        joined = FrontProxyTls(self.aggregated)
        self.proxy: FrontProxyFollower | None = None
        """Follows the API server's front proxy; None without the aggregated API."""
        self.running: tuple[CertificateSource, ...] = ()
        """What must run so that there are certificates."""
        if settings.aggregated_port is not None:
            if installation is None:
                raise ValueError("the aggregated API needs an API server that says who asks; unset aggregated_port")
            self.proxy = FrontProxyFollower(installation, joined)
            self.running = (self.proxy,)
        if settings.admission_port is not None or self.proxy:
            name = "aggregated" if settings.admission_port is None else "admission"
            shown = _Shared(self.admission, joined)
            served = ServedCertificate(shown, metrics, listener=name, wall_clock=time.time)
            self.running = (_certificate(settings, served, metrics, installation), *self.running)

    def checks(self) -> Sequence[Check]:
        """Return the lines of /readyz."""
        return [check for source in self.running for check in source.checks()]


@dataclass(frozen=True, slots=True)
class _Shared:
    """Uses a certificate at two listeners."""

    first: Shows
    second: Shows

    def use(self, certificate: Certificate) -> None:
        """Use it; raise `CertificateError`."""
        self.first.use(certificate)
        self.second.use(certificate)


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


def admission_door(settings: Settings, answers: AnswersAdmission, metrics: Metrics, tls: ApiServerTls) -> Door | None:
    """Open the listener of admission, if it is configured; raise OSError when its port is in use."""
    if settings.admission_port is None:
        return None
    app = admission.application(answers, metrics)
    host, port = settings.admission_host, settings.admission_port
    return Door(host=host, listener=listener(app, host, port, limits=admission.CONNECTIONS, tls=tls.admission))


def _certificate(
    settings: Settings, served: ServedCertificate, metrics: Metrics, installation: Installation | None
) -> CertificateSource:
    if settings.admission_tls_dir is not None:
        return CertificateFiles(settings.admission_tls_dir, served, clients=Clients.ANYBODY, wall_clock=time.time)
    if installation is None:
        raise ValueError("a certificate of our own needs a Kubernetes to keep its CA in; set admission_tls_dir")
    return Certificates(installation, served, settings, metrics, clock=time.monotonic, wall_clock=time.time)


def aggregated_listener(settings: Settings, app: ASGIApp, tls: ApiServerTls) -> Listener | None:
    """Open the listener of the aggregated API, if it is configured; raise OSError when its port is in use."""
    host, port = settings.aggregated_host, settings.aggregated_port
    return None if port is None else listener(app, host, port, limits=AGGREGATED_CONNECTIONS, tls=tls.aggregated)


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
