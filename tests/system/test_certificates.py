"""An API server calls admission by our certificates while these change all the time, and no call fails."""

import asyncio
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from app.certificates.authority import Certificate, Clients, make_authority
from app.certificates.files import CertificateFiles
from app.certificates.own import Certificates, Pace
from app.certificates.served import ServedCertificate
from app.kube.client import KubeCluster
from app.model.installation import WebhookKind
from app.settings import Settings
from app.telemetry import Metrics
from app.web.connection import OPERATIONS_CONNECTIONS
from app.web.listener import listener
from app.web.tls import LiveTls
from tests.pem import issued
from tests.system.api import Api, ApiError, Object
from tests.system.bed import HOST, Bed
from tests.system.identities import User

NAMESPACE, SECRET, NAME = "certificates", "admission-ca", "certificates-test"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
WRITERS = 4
PACE = Pace(look_every_s=0.1, settle_s=0.4)
WITHIN_S = 120.0
SERVING_ROTATIONS, CA_ROTATIONS = 1000, 20
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["get", "update"]},
]
CLUSTER_RULES = [
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": [kind.value for kind in WebhookKind],
        "resourceNames": [NAME],
        "verbs": ["get", "patch"],
    },
]
"""All cluster-wide rights of our service account here."""


class CountedTls(LiveTls):
    """Records the certificates of handshakes."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use = 0
        self.taken: set[int] = set()

    def use(self, certificate: Certificate) -> None:
        super().use(certificate)
        self.in_use = certificate.serial

    def _take_current(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        super()._take_current(handshake, _name, _context)
        self.taken.add(self.in_use)


def allowing(asked: list[str]) -> ASGIApp:
    """Allow everything, and close the connection, so that each review is a handshake."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        review = orjson.loads(body)
        asked.append(review["request"]["name"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        answer = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": answer})

    return app


class Creators:
    """Threads that create ConfigMaps until the block ends."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._create_on, args=(index,)) for index in range(WRITERS)]
        self.created = 0
        self.refused: list[str] = []

    async def __aenter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            # Not here: their last calls are answered by our own loop.
            await asyncio.to_thread(thread.join)

    def _create_on(self, index: int) -> None:
        with self._bed.api() as api:
            for number in range(1_000_000):
                if self._over.is_set():
                    return
                try:
                    api.create(config_map(f"c-{index}-{number}"))
                    self.created += 1
                except ApiError as error:
                    self.refused.append(str(error))


def config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}


def hooks(kind: WebhookKind, port: int, *, policy: str, bundle: bytes = b"") -> Object:
    """Return a configuration of two webhooks, with settings that must not be lost."""
    hook = {
        "clientConfig": {"url": f"https://{HOST}:{port}/", "caBundle": b64encode(bundle).decode()},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "matchConditions": [{"name": "ours", "expression": "object.metadata.name.startsWith('c-')"}],
        "failurePolicy": policy,
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": str(kind),
        "metadata": {"name": NAME},
        "webhooks": [{**hook, "name": f"{name}.leeboard.dev"} for name in ("first", "second")],
    }


@pytest.fixture
def granted(api: Api) -> Iterator[Api]:
    """Create the namespace, an empty Secret, and our rights; remove all of them afterwards."""
    user = {"kind": "User", "name": User.LEEBOARD.value[0], "apiGroup": "rbac.authorization.k8s.io"}
    rbac, where = "rbac.authorization.k8s.io/v1", {"name": NAME, "namespace": NAMESPACE}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "name": NAME}
    if api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}})
    api.apply({"apiVersion": rbac, "kind": "Role", "metadata": where, "rules": RULES})
    api.apply({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": CLUSTER_RULES})
    for role, metadata in (("Role", where), ("ClusterRole", {"name": NAME})):
        binding = {"metadata": metadata, "subjects": [user], "roleRef": {**ref, "kind": role}}
        api.apply({"apiVersion": rbac, "kind": f"{role}Binding", **binding})
    yield api
    for kind in WebhookKind:
        api.delete(f"{HOOKS}/{kind.value}/{NAME}")
    api.delete_now(CONFIG_MAPS)
    api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}")


class Replica:
    """Admission that allows everything, behind our listener and our certificates."""

    def __init__(self) -> None:
        self.tls, self.metrics, self.asked = CountedTls(), Metrics(), list[str]()
        self.served = ServedCertificate(self.tls, self.metrics, listener="admission", wall_clock=time.time)
        self.listener = listener(allowing(self.asked), HOST, 0, limits=OPERATIONS_CONNECTIONS, tls=self.tls)

    def renewals(self, kind: str) -> float:
        return self.metrics.registry.get_sample_value("leeboard_certificate_renewals_total", {"kind": kind}) or 0.0


@asynccontextmanager
async def self_made(bed: Bed, replica: Replica, **settings: object) -> AsyncIterator[Certificates]:
    """Run the replica with its own certificates, with no more rights than it needs."""
    mine = {"certificate_secret": f"{NAMESPACE}/{SECRET}", "webhook_configuration": NAME, **settings}
    async with await KubeCluster.connect(str(bed.kubeconfig(User.LEEBOARD))) as cluster:
        certificates = Certificates(
            cluster.installation(),
            replica.served,
            Settings.model_validate(mine),
            replica.metrics,
            clock=time.monotonic,
            wall_clock=time.time,
            pace=PACE,
        )
        async with running(certificates.run(), replica.listener.run()):
            yield certificates


@asynccontextmanager
async def running(*parts: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(holds: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not holds():  # noqa: ASYNC110 # another process changes it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN_S:g} s: {what}") from None


def bundles(api: Api, kind: WebhookKind) -> set[str]:
    found = api.get(f"{HOOKS}/{kind.value}/{NAME}")
    return {hook["clientConfig"].get("caBundle", "") for hook in found["webhooks"]}


def test_no_admission_fails_while_certificates_and_cas_change(bed: Bed, granted: Api) -> None:
    replica = Replica()
    for kind in WebhookKind:
        granted.create(hooks(kind, replica.listener.port, policy="Fail"))

    async def story() -> Creators:
        async with self_made(bed, replica, certificate_rotation_s=0.02, ca_rotation_s=0.5) as certificates:
            await until(lambda: not any(check.failure for check in certificates.checks()), "all is well")
            await asyncio.to_thread(first_review, granted)
            async with Creators(bed) as creators:
                await until(
                    lambda: len(replica.tls.taken) >= SERVING_ROTATIONS and replica.renewals("ca") > CA_ROTATIONS,
                    "as many rotations as were asked for",
                )
                return creators

    creators = asyncio.run(story())

    assert creators.refused == []
    # Four webhooks are called for each.
    assert len(replica.asked) >= 4 * creators.created >= 4 * WRITERS
    print(f"{creators.created} created, {len(replica.asked)} reviews, {len(replica.tls.taken)} certificates,", end=" ")
    print(f"{replica.renewals('serving'):.0f} made, {replica.renewals('ca'):.0f} CAs")


def first_review(api: Api) -> None:
    """Create one ConfigMap; API servers see new webhooks a moment after their creation."""
    with suppress(ApiError):
        api.create(config_map("c-first"))
    time.sleep(1)


def test_a_removed_ca_bundle_is_restored_in_seconds_and_nothing_else_is_changed(bed: Bed, granted: Api) -> None:
    replica = Replica()
    written = [granted.create(hooks(kind, replica.listener.port, policy="Ignore")) for kind in WebhookKind]

    async def story() -> Creators:
        async with self_made(bed, replica):
            await until(lambda: all(all(bundles(granted, kind)) for kind in WebhookKind), "every bundle is written")
            async with Creators(bed) as creators:
                await until(lambda: replica.asked, "we are asked")
                for kind in WebhookKind:
                    before = bundles(granted, kind)
                    await asyncio.to_thread(remove_bundles, granted, kind)
                    began = time.monotonic()
                    await until(lambda kind=kind, before=before: bundles(granted, kind) == before, "repaired")  # type: ignore[misc] # of a lambda with defaults
                    assert time.monotonic() - began < 5
                    seen = len(replica.asked)
                    await until(lambda seen=seen: len(replica.asked) > seen, "we are asked again")  # type: ignore[misc] # see above
                return creators

    creators = asyncio.run(story())

    assert creators.refused == []
    for kind, original in zip(WebhookKind, written, strict=True):
        now = granted.get(f"{HOOKS}/{kind.value}/{NAME}")
        assert without_bundles(now) == without_bundles(original)


def remove_bundles(api: Api, kind: WebhookKind) -> None:
    found = api.get(f"{HOOKS}/{kind.value}/{NAME}")
    for hook in found["webhooks"]:
        hook["clientConfig"]["caBundle"] = ""
    api.patch(f"{HOOKS}/{kind.value}/{NAME}", {"webhooks": found["webhooks"]})


def without_bundles(configuration: Object) -> list[Object]:
    kept = [{**hook, "clientConfig": {**hook["clientConfig"]}} for hook in configuration["webhooks"]]
    for hook in kept:
        hook["clientConfig"].pop("caBundle", None)
    return kept


def test_half_written_files_keep_the_old_certificate_until_they_are_complete(
    bed: Bed, granted: Api, tmp_path: Path
) -> None:
    replica, authority = Replica(), make_authority(now=time.time(), valid_s=3600)
    for kind in WebhookKind:
        granted.create(hooks(kind, replica.listener.port, policy="Fail", bundle=authority.certificate))
    old, new = issued(authority, HOST), issued(authority, HOST)
    (tmp_path / "tls.key").write_bytes(old.key)
    (tmp_path / "tls.crt").write_bytes(old.chain)
    files = CertificateFiles(
        str(tmp_path),
        replica.served,
        clients=Clients.ANYBODY,
        wall_clock=time.time,
        sleep=lambda _: asyncio.sleep(0.05),
    )

    def renewal() -> str:
        return files.checks()[1].failure

    async def story() -> Creators:
        async with running(files.run(), replica.listener.run()):
            await until(lambda: replica.tls.in_use, "the files are read")
            await asyncio.to_thread(first_review, granted)
            before = replica.tls.in_use
            async with Creators(bed) as creators:
                (tmp_path / "tls.crt").write_bytes(new.chain[:300])
                await until(lambda: "tls.crt holds no certificate" in renewal(), "the half is noticed")
                (tmp_path / "tls.crt").write_bytes(new.chain)
                await until(lambda: "tls.key is not the key of tls.crt" in renewal(), "the mismatch is noticed")
                await asked_again(replica)
                assert replica.tls.in_use == before
                (tmp_path / "tls.key").write_bytes(new.key)
                await until(lambda: not renewal(), "the pair is taken")
                assert replica.tls.in_use != before
                await asked_again(replica)
            return creators

    creators = asyncio.run(story())

    assert creators.refused == []
    assert len(replica.tls.taken) == 2


async def asked_again(replica: Replica) -> None:
    seen = len(replica.asked)
    await until(lambda: len(replica.asked) > seen + 20, "the API server goes on asking")
