"""An installation to check: an API server, an admission listener and replicas, all faked, on loopback."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.cli.doctor import Patient, examine
from app.cli.findings import Finding
from app.model.seam import Resource
from app.settings import Settings
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody
from tests.kube.apiserver import kubeconfig, listening, says, status
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import serving

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/leases"
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
GPU_NODES = "/apis/leeboard.dev/v1alpha1/gpunodes"
NAMESPACES = "/api/v1/namespaces"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RESERVATIONS = f"{NAMESPACES}/kai-resource-reservation"
YEAR = timedelta(days=365)
WITH_POLICIES = 36
"""The first minor version in which the API server itself can change pods."""


@dataclass
class FakeCluster:
    """Answers by path; reviews are granted except `denied`; paths in `forbidden` may not be read."""

    objects: dict[str, object] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    """As `verb group resource name`."""
    forbidden: set[str] = field(default_factory=set)
    may_ask: bool = True
    groups: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """The API groups, with their versions."""
    reviewed_users: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.set_version("1", "36")
        self.set_items(NODES)
        self.set_items(LEASES)
        self.set_items(PODS)
        self.set_items(GPU_NODES)
        self.set_items(CLASSES, {"metadata": {"name": "leeboard-reservation"}})
        self.objects[RESERVATIONS] = {"metadata": {"name": "kai-resource-reservation"}}
        for resource in Resource:
            version, _, plural = f"/{resource.value}".rpartition("/")
            self.objects.setdefault(version, {"resources": []})
            self.objects[version]["resources"].append({"name": plural})  # type: ignore[index] # set just above

        self.serve_kinds("batch/v1", "jobs", "cronjobs")

    def serve_kinds(self, version: str, *plurals: str) -> None:
        name = version.partition("/")[0]
        self.groups.setdefault(name, []).append({"groupVersion": version})
        self.objects["/apis"] = {"groups": [{"name": each, "versions": of} for each, of in self.groups.items()]}
        self.objects[f"/apis/{version}"] = {"resources": [{"name": plural} for plural in plurals]}

    def set_version(self, major: str, minor: str) -> None:
        self.objects["/version"] = {"major": major, "minor": minor}
        policies = [{"name": "mutatingadmissionpolicies"}] if int(minor.rstrip("+")) >= WITH_POLICIES else []
        self.objects[ADMISSION] = {"resources": policies}

    def set_items(self, path: str, *items: object) -> None:
        self.objects[path] = {"metadata": {"resourceVersion": "1"}, "items": items}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and not self.may_ask:
            return await says(status(403), code=403)(request)
        if request.method == "POST":
            return await says(self._review(orjson.loads(await request.read())), code=201)(request)
        if request.path in self.forbidden:
            return await says(status(403, f"{request.path} is forbidden"), code=403)(request)
        if request.path not in self.objects:
            return await says(status(404), code=404)(request)
        return await says(self.objects[request.path])(request)

    def _review(self, review: Any) -> object:
        wanted = review["spec"]["resourceAttributes"]
        self.reviewed_users.add(review["spec"].get("user", "ourselves"))
        resource = "/".join(filter(None, (wanted["resource"], wanted["subresource"])))
        subject = " ".join((wanted["verb"], wanted["group"], resource, wanted["name"])).strip()
        return {"status": {"allowed": subject not in self.denied}}


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One Leeboard, as its operations port shows it."""

    inspect: FakeInspect = field(default_factory=FakeInspect)
    metrics: Metrics = field(default_factory=Metrics)


async def examined(
    folder: Path, cluster: FakeCluster, *replicas: Replica, account: str | None = None, **settings: str
) -> dict[str, Finding]:
    """Check this cluster with these replicas; return the last finding of each name."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(listening(cluster.answer))
        urls = [await stack.enter_async_context(answering(replica)) for replica in replicas]
        own = Settings(kubeconfig=str(kubeconfig(url, folder)), webhook_port=1, **settings)  # type: ignore[arg-type] # as the environment has them
        patient = Patient(settings=own, urls=tuple(urls), account=account)
        return {each.name: each for each in await examine(patient)}


@asynccontextmanager
async def answering(replica: Replica) -> AsyncIterator[str]:
    """Serve the operations listener of a replica."""
    async with serving(
        operations.application(replica.inspect, replica.metrics, FakePulse(), callers=Anybody())
    ) as served:
        yield served.url


# -- certificates


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A self-signed certificate."""

    certificate: bytes
    key: bytes

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self.certificate).decode()

    def served_from(self, folder: Path) -> ssl.SSLContext:
        """Return what a server needs."""
        (folder / "tls.pem").write_bytes(self.certificate + self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.pem")
        return context


def identity(*, valid_for: timedelta = YEAR, name: str = "127.0.0.1") -> Identity:
    """Create a key and a certificate for this name or address."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "leeboard")])
    alternative = x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - YEAR)
        .not_valid_after(now + valid_for)
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Identity(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


@asynccontextmanager
async def shaking_hands(shown: Identity, folder: Path) -> AsyncIterator[int]:
    """Serve TLS without any content; yield the port."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=shown.served_from(folder))
    async with server:
        yield server.sockets[0].getsockname()[1]


def webhook_configuration(client: Mapping[str, object]) -> object:
    """Build the parts of a configuration that are checked."""
    return {"webhooks": [{"name": "pods.leeboard.dev", "clientConfig": dict(client)}]}
