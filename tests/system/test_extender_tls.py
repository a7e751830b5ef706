"""kube-scheduler calls the extender's verbs over TLS, as it must if they are not on its own loopback."""

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from app.certificates.authority import CertificateAuthority, make_authority, sign
from tests.pem import CLIENT, issued
from tests.system.api import Api, Object, gpu_node, pod
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import SCHEDULER_CONFIG, install, start_leeboard
from tests.system.identities import User
from tests.system.waiting import eventually

QUEUE = "default-queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """Leeboard that answers over TLS, and what clients need for it."""

    url: str
    servers: CertificateAuthority
    clients: CertificateAuthority
    folder: Path

    def client(self, by: CertificateAuthority | None) -> ssl.SSLContext:
        """Return a client that trusts the servers, with a certificate signed by `by`, or without one."""
        context = ssl.create_default_context(cadata=self.servers.certificate.decode())
        if by is not None:
            context.load_cert_chain(*certificate(by, self.folder))
        return context


def authority() -> CertificateAuthority:
    return make_authority(now=time.time(), valid_s=3600.0)


def certificate(by: CertificateAuthority, folder: Path) -> tuple[Path, Path]:
    """Create a client certificate; return the files of it and of its key."""
    pair = issued(by, "system:kube-scheduler", purpose=CLIENT)
    chain, key = folder / f"{by.fingerprint}.crt", folder / f"{by.fingerprint}.key"
    chain.write_bytes(pair.chain)
    key.write_bytes(pair.key)
    return chain, key


@pytest.fixture
def guarded(bed: Bed, api: Api, tmp_path: Path) -> Iterator[Guarded]:
    install(api)
    servers, clients, folder = authority(), authority(), tmp_path / "served"
    folder.mkdir()
    served = sign(servers, [HOST], now=time.time(), valid_s=3600.0)
    (folder / "tls.crt").write_bytes(served.chain)
    (folder / "tls.key").write_bytes(served.key)
    (folder / "ca.crt").write_bytes(clients.certificate)
    webhooks, operations = free_ports(2)
    ports = {"webhook_port": str(webhooks), "operations_port": str(operations)}
    start_leeboard(bed, webhook_tls_dir=str(folder), **ports)
    readyz = f"http://{HOST}:{operations}/readyz"
    eventually(lambda: httpx.get(readyz).is_success, within_s=30, what="Leeboard is ready")
    yield Guarded(url=f"https://{HOST}:{webhooks}", servers=servers, clients=clients, folder=tmp_path)
    bed.stop("leeboard")


def start_scheduler(bed: Bed, guarded: Guarded) -> None:
    """Start the kube-scheduler as shipped, except for its client certificate."""
    ca = guarded.folder / "servers.crt"
    ca.write_bytes(guarded.servers.certificate)
    chain, key = certificate(guarded.clients, guarded.folder)
    config: Object = yaml.safe_load(SCHEDULER_CONFIG.read_text())
    config["clientConnection"]["kubeconfig"] = str(bed.kubeconfig(User.SCHEDULER))
    config["leaderElection"] = {"leaderElect": False}
    for entry in config["extenders"]:
        entry["urlPrefix"], entry["enableHTTPS"] = guarded.url, True
        entry["tlsConfig"] = {"certFile": str(chain), "keyFile": str(key), "caFile": str(ca)}
    bed.start_scheduler(yaml.safe_dump(config), name="own-scheduler")


def test_kube_scheduler_with_a_certificate_is_served(bed: Bed, api: Api, guarded: Guarded) -> None:
    start_scheduler(bed, guarded)
    api.create(gpu_node("guarded-000", gpus=2))

    api.create_all(pod(name, queue=QUEUE) for name in ("one", "two", "three"))
    bound = api.wait_for_bound(2, within_s=30)
    bed.stop("own-scheduler")

    assert set(bound.values()) == {"guarded-000"}


def test_clients_without_a_certificate_are_not_answered(guarded: Guarded) -> None:
    question = {"Pod": pod("asked", queue=QUEUE), "NodeNames": ["a"]}

    def ask(by: CertificateAuthority | None) -> Object:
        with httpx.Client(verify=guarded.client(by), trust_env=False) as client:
            answer: Object = client.post(f"{guarded.url}/filter", json=question).json()
        return answer

    assert ask(guarded.clients).keys() >= {"NodeNames", "Error"}
    for stranger in (None, authority()):
        with pytest.raises(httpx.TransportError):
            ask(stranger)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{guarded.url.replace('https', 'http')}/filter", json=question)
