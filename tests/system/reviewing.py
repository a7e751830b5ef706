"""Admission in the process of the test, over TLS, registered with a real API server under a temporary certificate."""

import asyncio
import ipaddress
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.model.marks import GATE
from app.telemetry import Metrics
from app.web import admission
from app.web.listener import listener
from tests.system.api import DEFAULT_PODS, PROFILE, QUEUE_LABEL, Api, ApiError, Object, pod
from tests.system.bed import HOST
from tests.system.rendered import objects
from tests.system.waiting import eventually

NAME = "reviewed-by-the-test"
OPT_IN = {"leeboard.dev/managed": "true"}
PATH = "/apis/admissionregistration.k8s.io/v1"
DRY_RUN = {"dryRun": "All"}
MANAGED = f"has(object.spec.schedulerName) && object.spec.schedulerName == '{PROFILE}'"
NAMES_QUEUE = f"has(object.metadata.labels) && '{QUEUE_LABEL}' in object.metadata.labels"


@contextmanager
def reviewed(api: Api, judge: admission.AnswersAdmission, folder: Path) -> Iterator[None]:
    """Let the API server call `judge` for pods, queues and PodGroups until the block ends."""
    with _serving(judge, _certificate(folder)) as port:
        bundle = b64encode((folder / "tls.crt").read_bytes()).decode()
        configurations = list(_configurations(f"https://{HOST}:{port}", bundle))
        try:
            for one in configurations:
                api.create(one)
            _wait_until_asked(api)
            yield
        finally:
            for one in configurations:
                api.delete(f"{PATH}/{one['kind'].lower()}s/{NAME}")


@dataclass(frozen=True, slots=True)
class Unchanged:
    """TLS with one certificate that never changes."""

    tls: ssl.SSLContext

    def context(self) -> ssl.SSLContext:
        return self.tls


@contextmanager
def _serving(judge: admission.AnswersAdmission, tls: ssl.SSLContext) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    bound = listener(admission.application(judge, Metrics()), HOST, 0, limits=admission.CONNECTIONS, tls=Unchanged(tls))
    running = loop.create_task(bound.run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([running])))
    thread.start()
    try:
        yield bound.port
    finally:
        loop.call_soon_threadsafe(running.cancel)
        thread.join()
        loop.close()


def _certificate(folder: Path) -> ssl.SSLContext:
    """Write a self-signed certificate and its key; return a context that serves with them."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "tls.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def _configurations(url: str, bundle: str) -> Iterator[Object]:
    client = {"caBundle": bundle}
    mutate, validate = client | {"url": f"{url}/mutate"}, client | {"url": f"{url}/validate"}
    pods = _rule("", "v1", "pods", "CREATE")
    opted_in = {"namespaceSelector": {"matchLabels": OPT_IN}, "matchConditions": [_condition("queue", NAMES_QUEUE)]}
    managed = {"matchConditions": [_condition("managed", MANAGED)]}
    policy = [
        _rule("scheduling.run.ai", "*", "queues", "CREATE", "UPDATE", "DELETE"),
        _rule("scheduling.run.ai", "*", "podgroups", "CREATE", "UPDATE"),
    ]
    yield _configuration(
        "Mutating",
        _webhook("managed", mutate, [pods]) | managed,
        _webhook("opted-in", mutate, [pods]) | opted_in,
    )
    yield _configuration(
        "Validating",
        _webhook("pods", validate, [pods]) | managed,
        _charts("changed.validate.leeboard.dev") | {"clientConfig": validate, "failurePolicy": "Fail"},
        _webhook("policy", validate, policy),
    )


def _charts(name: str) -> Object:
    """Return a webhook of the chart."""
    items = objects(only="templates/webhooks.yaml")
    found: Object = next(each for item in items for each in item["webhooks"] if each["name"] == name)
    return found


def _configuration(kind: str, *webhooks: Object) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": list(webhooks),
    }


def _webhook(name: str, client: Object, rules: list[Object]) -> Object:
    return {
        "name": f"{name}.leeboard.dev",
        "clientConfig": client,
        "rules": rules,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
    }


def _rule(group: str, version: str, resource: str, *operations: str) -> Object:
    return {"apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": list(operations)}


def _condition(name: str, expression: str) -> Object:
    return {"name": name, "expression": expression}


def _wait_until_asked(api: Api) -> None:
    """Wait until the API server applies both configurations: it watches them separately."""
    said = partial(_said_of, api)
    eventually(partial(said, {"gpu-memory": "0"}), until=refused, within_s=20.0, what="the API server has pods judged")
    eventually(partial(said, {}), until=held, within_s=20.0, what="the API server has pods changed")


def refused(said: Object | str) -> bool:
    """Return whether the API server refused a pod with our message."""
    return "gpu-memory annotation value must be a positive integer" in said


def held(said: Object | str) -> bool:
    """Return whether the API server would store a pod with our gate."""
    return isinstance(said, dict) and said["spec"].get("schedulingGates") == [{"name": GATE}]


def _said_of(api: Api, annotations: Object) -> Object | str:
    """Return what the API server would store, or its refusal."""
    try:
        return api.call("POST", DEFAULT_PODS, body=pod("probe", annotations=annotations, gpus=0), query=DRY_RUN)
    except ApiError as error:
        return str(error)
