"""The command line on a real API server: its proxy of the Service, and callers with each kind of credential."""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

import pytest
from click.testing import Result

from app.certificates.authority import CertificateAuthority, make_authority
from tests.system.api import Api, Object
from tests.system.bed import ApiServerOptions, Bed
from tests.system.commands import allow, certified, kubeconfig, run_with
from tests.system.identities import User
from tests.system.waiting import eventually

LEEBOARD, TEAM, OTHER = "leeboard", "team", "other"
AUDIENCES = ["leeboard.dev", "https://kubernetes.default.svc"]
"""Of the service, and of the API server: the user's own token is for the latter."""
JANE = "jane"
"""A user with a certificate and without a token."""
ROBOT = "system:serviceaccount:team:robot"


@dataclass
class ServiceStandIn:
    """The service behind the proxy of the API server: it says who the caller is, by the token in our header."""

    api: Api
    seen: list[Mapping[str, str]] = field(default_factory=list)

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, Object]:
        self.seen.append(headers)
        token = headers.get("X-Leeboard-Token")
        if token is None:
            return 401, {"detail": "send a token"}
        spec = {"token": token, "audiences": AUDIENCES}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = self.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=review)["status"]
        if not status.get("authenticated"):
            return 401, {"detail": "the API server does not know this token"}
        if path.startswith("/api/v1/why/"):
            return 404, {"detail": "nothing is known"}
        caller = {"user": status["user"]["username"], "audiences": status["audiences"]}
        return 200, {"kind": "QueueList", "items": [], **caller}


@dataclass
class Proxied:
    """A cluster whose Service `leeboard` leads to the stand-in."""

    bed: Bed
    api: Api
    authority: CertificateAuthority
    service: ServiceStandIn
    folder: Path

    def run(self, *arguments: str, user: Object, **cluster: object) -> Result:
        """Run a command as this user of a kubeconfig."""
        path = kubeconfig(self.bed, self.folder, user, namespace=TEAM, **cluster)
        return run_with(path, *arguments)

    def caller(self, user: Object, *options: str, **cluster: object) -> Any:
        """Return what the service knows about the caller of `leeboard queues`."""
        result = self.run("queues", "-o", "json", *options, user=user, **cluster)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def certificate(self) -> Object:
        """Return Jane's certificate, as files beside the kubeconfig."""
        return certified(self.authority, JANE, self.folder)

    def plugin(self, token: str) -> Object:
        """Return a user whose token a program prints."""
        credential = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": token},
        }
        path = self.folder / "plugin"
        path.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
        path.chmod(0o700)
        return {"exec": {"apiVersion": credential["apiVersion"], "command": "./plugin", "interactiveMode": "Never"}}

    def robot(self) -> Object:
        """Return the service account, with a token as a pod has it."""
        path = f"/api/v1/namespaces/{TEAM}/serviceaccounts/robot/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return {"token": self.api.call("POST", path, body=request)["status"]["token"]}

    def tenant(self) -> Object:
        """Return a user with a static token."""
        return {"token": self.bed.token(User.TENANT)}

    def allow(self, name: str, namespace: str, rule: Object, *users: str) -> None:
        """Give users a right in a namespace."""
        allow(self.api, name, namespace, rule, *users)

    def revoke(self, name: str, namespace: str) -> None:
        self.api.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A control plane that accepts certificates of clients, with the Service and its pod."""
    folder = tmp_path_factory.mktemp("command-line")
    authority = make_authority(now=time(), valid_s=3600)
    (folder / "clients.crt").write_bytes(authority.certificate)
    options = ApiServerOptions(
        disabled_admission=("ServiceAccount",), flags=(f"--client-ca-file={folder / 'clients.crt'}",)
    )
    with Bed(folder / "bed", options=options) as bed:
        bed.start_control_plane()
        with bed.api() as api:
            service = ServiceStandIn(api)
            proxied = Proxied(bed, api, authority, service, folder)
            with listening(service) as port:
                furnish(proxied, port)
                yield proxied


class listening:  # noqa: N801 - used as a block
    """Serve the stand-in on loopback during a block."""

    def __init__(self, service: ServiceStandIn) -> None:
        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = service.answer(self.path, dict(self.headers))
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> int:
        self._thread.start()
        return self._server.server_port

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def furnish(cluster: Proxied, port: int) -> None:
    """Create the namespaces, the Service and the rights to it."""
    api = cluster.api
    for name in (LEEBOARD, TEAM, OTHER):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": TEAM}})
    metadata = {"name": "leeboard", "namespace": LEEBOARD}
    ports = [{"name": "operations", "port": port}]
    api.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None", "ports": ports}}
    )
    api.create(pod(LEEBOARD, "leeboard"))
    addresses = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    api.patch(f"/api/v1/namespaces/{LEEBOARD}/pods/leeboard/status", {"status": addresses})
    target = {"kind": "Pod", **metadata}
    subsets = [{"addresses": [{"ip": "127.0.0.1", "targetRef": target}], "ports": ports}]
    stored = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets}
    # The API server refuses addresses on loopback, but uses them.
    cluster.bed.store_unchecked(f"/registry/services/endpoints/{LEEBOARD}/leeboard", stored)
    proxy = {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "resourceNames": ["leeboard:operations"],
        "verbs": ["get"],
    }
    cluster.allow("ask-leeboard", LEEBOARD, proxy, "tenant", JANE, ROBOT)
    read = {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}
    cluster.allow("read-pods", TEAM, read, "tenant", JANE)
    for namespace in (TEAM, OTHER):
        api.create(pod(namespace, "train"))
    eventually(
        lambda: cluster.run("queues", "-o", "json", user=cluster.tenant()).exit_code == 0,
        within_s=30,
        what="the API server knows the rights",
    )


def pod(namespace: str, name: str) -> Object:
    spec = {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "leeboard.dev/held"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


# -- who asks


def test_a_static_token_and_a_plugin_identify_their_user_to_the_service(cluster: Proxied) -> None:
    token = cluster.bed.token(User.TENANT)

    assert cluster.caller({"token": token})["user"] == "tenant"
    assert cluster.caller(cluster.plugin(token))["user"] == "tenant"
    assert not [headers for headers in cluster.service.seen if "Authorization" in headers]


def test_a_service_account_sends_its_own_token_unless_it_may_make_one_for_the_service(cluster: Proxied) -> None:
    own = cluster.caller(cluster.robot())
    make = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["robot"], "verbs": ["create"]}
    cluster.allow("make-tokens", TEAM, make, ROBOT)

    for_service = eventually(
        lambda: cluster.caller(cluster.robot()),
        until=lambda caller: caller != own,
        within_s=10,
        what="the API server knows the right",
    )

    assert own == {"kind": "QueueList", "items": [], "user": ROBOT, "audiences": AUDIENCES[1:]}
    assert for_service == {**own, "audiences": AUDIENCES[:1]}


def test_a_certificate_reads_objects_and_needs_a_token_for_the_service(cluster: Proxied) -> None:
    jane = cluster.certificate()

    alone = cluster.run("why", "train", user=jane)
    assert (alone.exit_code, alone.stdout.splitlines()[2:4]) == (0, ["pod    team/train", "state  Held, Pending"])
    assert "answers only callers with a token: send a token; your context has no token; send one" in alone.stderr
    assert cluster.caller(jane, "--token", cluster.bed.token(User.TENANT))["user"] == "tenant"


# -- what a user may not do


def test_rights_in_one_namespace_show_that_namespace_alone(cluster: Proxied) -> None:
    own, others = (cluster.run("why", "train", "-n", name, user=cluster.tenant()) for name in (TEAM, OTHER))

    assert (own.exit_code, own.stdout.splitlines()[2]) == (0, "pod    team/train")
    assert (others.exit_code, others.stdout) == (1, "")
    assert others.stderr == "Error: nothing is known\n"


def test_without_the_right_to_the_proxy_the_objects_answer_and_the_right_is_named(cluster: Proxied) -> None:
    cluster.revoke("ask-leeboard", LEEBOARD)
    try:
        refused = eventually(
            lambda: cluster.run("why", "train", user=cluster.tenant()),
            until=lambda result: "no right" in result.stderr,
            within_s=10,
            what="the API server knows that the right is gone",
        )
    finally:
        rule = {"apiGroups": [""], "resources": ["services/proxy"], "resourceNames": ["leeboard:operations"]}
        cluster.allow("ask-leeboard", LEEBOARD, {**rule, "verbs": ["get"]}, "tenant", JANE, ROBOT)

    assert (refused.exit_code, refused.stdout.splitlines()[2]) == (0, "pod    team/train")
    assert "you have no right to ask Leeboard through the API server" in refused.stderr
    assert "(get services/proxy of leeboard:operations in namespace leeboard)" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "user", "cluster_options", "says"),
    [
        (["queues"], {"token": "unknown"}, {}, "the API server does not know you: Unauthorized; log in again"),
        (["queues", "--service", "leeboard/none:operations"], User.ADMIN, {}, "--service NAMESPACE/NAME:PORT"),
        (["queues", "--service", "leeboard/leeboard:none"], User.ADMIN, {}, "do its pods run?"),
        (
            ["queues", "--context", "d"],
            User.TENANT,
            {},
            "no context 'd'; name another one with --context (c)",
        ),
        (["queues"], User.TENANT, {"certificate-authority": None}, "certificate verify failed"),
        (["queues"], User.TENANT, {"tls-server-name": "other"}, "certificate is not valid for 'other'"),
        (["queues"], User.TENANT, {"proxy-url": "http://127.0.0.1:1"}, "Connection refused"),
        (["queues"], User.TENANT, {"proxy-url": "socks5://127.0.0.1:1"}, "cannot be used; only http://HOST:PORT can"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    cluster: Proxied, arguments: list[str], user: Object | User, cluster_options: dict[str, object], says: str
) -> None:
    who = {"token": cluster.bed.token(user)} if isinstance(user, User) else user

    result = cluster.run(*arguments, user=who, **cluster_options)

    assert (result.exit_code in {1, 2}, result.stdout) == (True, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_may_have_another_name_or_go_unverified(cluster: Proxied) -> None:
    assert cluster.caller(cluster.tenant(), **{"tls-server-name": "kubernetes.default.svc"})["user"] == "tenant"
    unverified = {"certificate-authority": None, "insecure-skip-tls-verify": True}
    assert cluster.caller(cluster.tenant(), **unverified)["user"] == "tenant"
