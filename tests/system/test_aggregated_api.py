"""The aggregated API behind a real API server: who asks is known without a token, and sees no more than with one."""

import json
import ssl
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import httpx
import pytest
from click.testing import Result

from app.certificates.authority import CertificateAuthority, make_authority
from app.client.aggregated_paths import API_SERVICE, ROOT
from tests.pem import CLIENT, issued
from tests.system import rendered
from tests.system.api import Api, Object, pod
from tests.system.bed import HOST, ApiServerOptions, Bed, free_ports
from tests.system.cluster import INSTALLED, apply_all, install, start_leeboard
from tests.system.commands import allow, certified, kubeconfig, run_with
from tests.system.identities import User
from tests.system.waiting import eventually

LEEBOARD, TEAM, OTHER = "leeboard", "team", "secret-team"
JANE = "jane"
"""A user with a certificate and without a token."""
PROXY = "front-proxy-client"
HIDDEN = ("", "another namespace, 1 GPU")
"""A PodGroup that the reader may not see."""
WITHIN_S = 60.0
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/leeboard-api"
VALUES = {"aggregatedApi.enabled": "true", "view.enabled": "true", "admission.enabled": "false"}


@dataclass
class Aggregated:
    """A cluster in which the API server passes questions on to a real Leeboard."""

    bed: Bed
    api: Api
    folder: Path
    users: CertificateAuthority
    proxies: CertificateAuthority
    port: int
    """Of the aggregated API."""

    @property
    def jane(self) -> Object:
        return certified(self.users, JANE, self.folder)

    @property
    def tenant(self) -> Object:
        return {"token": self.bed.token(User.TENANT)}

    def run(self, *arguments: str, user: Object) -> Result:
        """Run a command as this user of a kubeconfig."""
        return run_with(kubeconfig(self.bed, self.folder, user, namespace=TEAM), *arguments)

    def raw(self, path: str, user: Object) -> subprocess.CompletedProcess[str]:
        """Ask with kubectl as this user."""
        own = kubeconfig(self.bed, self.folder, user, namespace=TEAM)
        command: list[str | Path] = [self.bed.programs / "kubectl", f"--kubeconfig={own}", "get", "--raw", path]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )

    def directly(self, by: CertificateAuthority | None, name: str = PROXY, **headers: str) -> httpx.Response:
        """Ask Leeboard itself, past the API server, with a certificate of this authority."""
        trusted = self.api.get(f"/api/v1/namespaces/{LEEBOARD}/secrets/leeboard-ca")["data"]["ca.crt"]
        context = ssl.create_default_context(cadata=b64decode(trusted).decode())
        context.check_hostname = False
        if by:
            pair, path = issued(by, name, purpose=CLIENT), self.folder / "direct.pem"
            path.write_bytes(pair.chain + pair.key)
            context.load_cert_chain(path)
        with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
            return client.get(f"https://{HOST}:{self.port}{ROOT}/pending", headers=headers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregated]:
    """A control plane with a front proxy, the objects of the chart, and a Leeboard that it reaches."""
    folder = tmp_path_factory.mktemp("aggregated")
    users, proxies = (make_authority(now=time(), valid_s=3600) for _ in range(2))
    options = ApiServerOptions(disabled_admission=("ServiceAccount",), flags=flags_of(folder, users, proxies))
    with Bed(folder / "bed", options=options) as bed:
        bed.start_control_plane()
        with bed.api() as api:
            install(api)
            items = rendered.objects(values=VALUES)
            kinds = INSTALLED - {"CustomResourceDefinition"} | {"APIService", "Service"}
            apply_all(api, [item for item in items if item["kind"] in kinds])
            port, operations, view = free_ports(3)
            start_leeboard(
                bed,
                aggregated_port=str(port),
                operations_port=str(operations),
                view_port=str(view),
                certificate_secret="leeboard/leeboard-ca",
                certificate_names="leeboard-api.leeboard.svc",
            )
            reached_at(bed, api, "leeboard-api", "aggregated", port)
            reached_at(bed, api, "leeboard", "operations", operations)
            aggregated = Aggregated(bed, api, folder, users, proxies, port)
            furnish(aggregated)
            yield aggregated


def flags_of(folder: Path, users: CertificateAuthority, proxies: CertificateAuthority) -> tuple[str, ...]:
    """Return the flags of an API server with a front proxy, as kubeadm sets them."""
    pair = issued(proxies, PROXY, purpose=CLIENT)
    contents = {"users.crt": users.certificate, "proxies.crt": proxies.certificate}
    for name, content in (contents | {"proxy.crt": pair.chain, "proxy.key": pair.key}).items():
        (folder / name).write_bytes(content)
    return (
        f"--client-ca-file={folder / 'users.crt'}",
        f"--requestheader-client-ca-file={folder / 'proxies.crt'}",
        f"--requestheader-allowed-names={PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder / 'proxy.crt'}",
        f"--proxy-client-key-file={folder / 'proxy.key'}",
        # There is no kube-proxy behind the addresses of Services.
        "--enable-aggregator-routing=true",
    )


def reached_at(bed: Bed, api: Api, service: str, port_name: str, port: int) -> None:
    """Let a Service lead to a port on loopback. The API server refuses such addresses, but uses them."""
    metadata = {"name": service, "namespace": LEEBOARD}
    api.create(pod(service, namespace=LEEBOARD, scheduler="none"))
    addresses = {"podIP": HOST, "podIPs": [{"ip": HOST}]}
    api.patch(f"/api/v1/namespaces/{LEEBOARD}/pods/{service}/status", {"status": addresses})
    target, ports = {"kind": "Pod", **metadata}, [{"name": port_name, "port": port, "protocol": "TCP"}]
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": metadata,
        "subsets": [{"addresses": [{"ip": HOST, "targetRef": target}], "ports": ports}],
    }
    slices = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata | {"labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [HOST], "conditions": {"ready": True}, "targetRef": target}],
        "ports": ports,
    }
    bed.store_unchecked(f"/registry/services/endpoints/{LEEBOARD}/{service}", endpoints)
    bed.store_unchecked(f"/registry/endpointslices/{LEEBOARD}/{service}", slices)


def furnish(cluster: Aggregated) -> None:
    """Create pods that wait in two namespaces, and let users list those of one; wait until all is there."""
    api = cluster.api
    for name in (TEAM, OTHER):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api.create(pod(f"{name}-train", namespace=name))
    allow(api, "read-pods", TEAM, {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}, JANE, "tenant")
    eventually(
        lambda: available(api),
        until=lambda condition: condition.get("status") == "True",
        within_s=WITHIN_S,
        what="the aggregated API is available",
    )
    eventually(
        lambda: cluster.raw(f"{ROOT}/pending", {"token": cluster.bed.token(User.ADMIN)}).stdout,
        until=lambda said: f"{OTHER}-train" in said,
        within_s=WITHIN_S,
        what="both pods wait",
    )


def available(api: Api) -> Object:
    conditions = api.get(f"{API_SERVICES}/{API_SERVICE}").get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == "Available"), {})


def names(document: Any) -> list[tuple[str, str]]:
    return sorted((each["namespace"], each["name"]) for each in document["items"])


# -- who asks, and what they see


def test_a_certificate_is_enough_and_shows_the_namespaces_of_its_user(cluster: Aggregated) -> None:
    result = cluster.run("pending", "-A", "-o", "json", user=cluster.jane)

    assert (result.exit_code, result.stderr) == (0, "")
    assert names(json.loads(result.stdout)) == [HIDDEN, (TEAM, f"{TEAM}-train")]
    assert OTHER not in result.stdout


def test_why_answers_a_certificate_in_its_own_namespace_alone(cluster: Aggregated) -> None:
    own, others = (cluster.run("why", f"{name}-train", "-n", name, user=cluster.jane) for name in (TEAM, OTHER))

    assert (own.exit_code, own.stderr) == (0, "")
    assert "no node" in own.stdout.lower()
    assert (others.exit_code, others.stdout) == (1, "")
    assert f"you may not list pods in namespace {OTHER}" in others.stderr


def test_a_token_identifies_its_user_as_well(cluster: Aggregated) -> None:
    jane, tenant = (cluster.run("pending", "-A", user=user) for user in (cluster.jane, cluster.tenant))

    assert (tenant.exit_code, tenant.stdout) == (0, jane.stdout)
    assert "(hidden)" in tenant.stdout


def test_a_user_with_all_rights_sees_everything(cluster: Aggregated) -> None:
    result = cluster.run("pending", "-A", "-o", "json", user={"token": cluster.bed.token(User.ADMIN)})

    assert names(json.loads(result.stdout)) == [(OTHER, f"{OTHER}-train"), (TEAM, f"{TEAM}-train")]


def test_an_anonymous_user_gets_nothing(cluster: Aggregated) -> None:
    command = cluster.run("pending", "-A", user={})
    context = ssl.create_default_context(cafile=cluster.bed.ca)
    with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
        refused = client.get(f"{cluster.bed.url}{ROOT}/pending")
    # If the API server let anonymous users pass, Leeboard would not.
    passed_on = cluster.directly(cluster.proxies, **{"X-Remote-User": "system:anonymous"})

    assert (command.exit_code, command.stdout) == (1, "")
    assert (refused.status_code, passed_on.status_code) == (403, 401)
    assert 'User \\"system:anonymous\\" cannot list resource' in refused.text
    assert "train" not in refused.text + passed_on.text


def test_headers_of_a_client_name_nobody(cluster: Aggregated) -> None:
    context = ssl.create_default_context(cafile=cluster.bed.ca)
    claims = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "X-Leeboard-Token": "x"}
    with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
        said = client.get(
            f"{cluster.bed.url}{ROOT}/pending",
            headers={"Authorization": f"Bearer {cluster.bed.token(User.TENANT)}", **claims},
        )

    assert said.status_code == 200
    assert OTHER not in said.text


def test_only_the_front_proxy_may_connect(cluster: Aggregated) -> None:
    claims = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}

    assert cluster.directly(cluster.proxies, **claims).status_code == 200
    assert cluster.directly(cluster.proxies, name="other", **claims).status_code == 403
    assert cluster.directly(cluster.proxies).status_code == 401
    for authority in (None, cluster.users):
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            cluster.directly(authority, **claims)


def test_rbac_of_the_api_server_comes_first(cluster: Aggregated) -> None:
    binding = cluster.api.get(BINDING)
    cluster.api.delete(BINDING)
    try:
        refused = eventually(
            lambda: cluster.raw(f"{ROOT}/pending", cluster.jane),
            until=lambda said: said.returncode == 1,
            within_s=WITHIN_S,
            what="the API server knows that the right is gone",
        )
    finally:
        kept = {key: binding["metadata"][key] for key in ("name", "labels")}
        cluster.api.apply({**binding, "metadata": kept})

    assert 'cannot list resource "pending" in API group "view.leeboard.dev" at the cluster scope' in refused.stderr
    eventually(
        lambda: cluster.raw(f"{ROOT}/pending", cluster.jane).returncode == 0, within_s=WITHIN_S, what="it is back"
    )


# -- what can be asked


@pytest.mark.parametrize("path", ["", "/queues", "/gpus", "/pending", "/version", "/state", "/page", "/openapi.json"])
def test_kubectl_reaches_every_path(cluster: Aggregated, path: str) -> None:
    said = cluster.raw(f"{ROOT}{path}", {"token": cluster.bed.token(User.ADMIN)})

    assert (said.returncode, said.stderr) == (0, "")


def test_the_stream_begins_with_what_its_reader_may_see(cluster: Aggregated) -> None:
    context = ssl.create_default_context(cafile=cluster.bed.ca)
    headers = {"Authorization": f"Bearer {cluster.bed.token(User.TENANT)}"}
    with (
        httpx.Client(verify=context, trust_env=False, timeout=60, headers=headers) as client,
        client.stream("GET", f"{cluster.bed.url}{ROOT}/stream?watch=true") as stream,
    ):
        said = ""
        for text in stream.iter_text():
            said += text
            if "\n\n" in said:
                break

    assert stream.status_code == 200
    assert said.startswith("event: state\n")
    assert (f"{TEAM}-train" in said, OTHER in said) == (True, False)


def test_discovery_shows_the_api_and_disturbs_nothing(cluster: Aggregated) -> None:
    own = kubeconfig(cluster.bed, cluster.folder, cluster.tenant, namespace=TEAM)

    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [cluster.bed.programs / "kubectl", f"--kubeconfig={own}", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert "view.leeboard.dev/v1\n" in kubectl("api-versions").stdout
    assert kubectl("api-resources", "--api-group=view.leeboard.dev", "--no-headers").stdout == ""
    assert kubectl("get", "pods", "-o", "name").stdout == f"pod/{TEAM}-train\n"
    assert kubectl("explain", "pods").returncode == 0


# -- the other way through the API server


def test_the_service_proxy_leads_to_the_real_service_with_a_token(cluster: Aggregated) -> None:
    right = {"apiGroups": [""], "resources": ["services/proxy"], "resourceNames": ["leeboard:operations"]}
    allow(cluster.api, "ask-leeboard", LEEBOARD, {**right, "verbs": ["get"]}, "tenant")
    path = f"/api/v1/namespaces/{LEEBOARD}/services/leeboard:operations/proxy/api/v1/podgroups"
    context = ssl.create_default_context(cafile=cluster.bed.ca)
    token = cluster.bed.token(User.TENANT)
    with httpx.Client(verify=context, trust_env=False, timeout=60, base_url=cluster.bed.url) as client:

        def ask(**headers: str) -> httpx.Response:
            return client.get(path, headers={"Authorization": f"Bearer {token}", **headers})

        known = eventually(
            lambda: ask(**{"X-Leeboard-Token": token}),
            until=lambda said: said.status_code == 200,
            within_s=WITHIN_S,
            what="the API server knows the right",
        )
        unknown = ask(**{"X-Leeboard-Token": "another"})
        silent = ask()

    assert names(known.json()) == [HIDDEN, (TEAM, f"{TEAM}-train")]
    assert (unknown.status_code, silent.status_code) == (401, 401)
