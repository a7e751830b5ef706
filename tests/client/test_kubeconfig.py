"""Which cluster, user and namespace a kubeconfig means, and whose credentials it names."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.client.credentials import login
from app.client.kubeconfig import Context, context_of
from app.client.reach_errors import KubeconfigError

SERVER = "https://127.0.0.1:1"
SECRET = "s3cret"


def document(**more: Any) -> dict[str, Any]:
    """Build a kubeconfig with one context, `c`."""
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "vision"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"{SERVER}/"}}],
        "users": [{"name": "u", "user": {"token": SECRET}}],
        **more,
    }


def written(folder: Path, content: object, name: str = "config") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def user(folder: Path, **fields: Any) -> Context:
    """Return the context of a user with these fields."""
    found = context_of(written(folder, document(users=[{"name": "u", "user": fields}])))
    assert found is not None
    return found


def cluster(folder: Path, **fields: Any) -> Context:
    """Return the context of a cluster with these fields."""
    found = context_of(written(folder, document(clusters=[{"name": "c", "cluster": {"server": SERVER, **fields}}])))
    assert found is not None
    return found


def test_a_context_has_a_namespace_a_server_and_a_token(tmp_path: Path) -> None:
    found = context_of(written(tmp_path, document()))

    assert found is not None
    access = login(found)
    assert (found.name, found.namespace, access.address.url, access.token) == ("c", "vision", SERVER, SECRET)
    assert SECRET not in f"{found!r} {access!r}"


def test_of_two_entries_with_one_name_that_of_the_first_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path, {"users": [{"name": "u", "user": {"token": "first"}}]}, "first")
    monkeypatch.setenv(
        "KUBECONFIG", os.pathsep.join(("", str(tmp_path / "none"), first, written(tmp_path, document())))
    )

    found = context_of(None)

    assert found is not None
    assert (found.namespace, login(found).token) == ("vision", "first")


def test_another_context_can_be_named(tmp_path: Path) -> None:
    contexts = [*document()["contexts"], {"name": "d", "context": {"cluster": "c", "user": "u"}}]
    path = written(tmp_path, document(contexts=contexts))

    assert getattr(context_of(path, "d"), "namespace", None) == "default"
    with pytest.raises(KubeconfigError, match=r"no context 'e'; name another one with --context \(c, d\)"):
        context_of(path, "e")


def test_without_any_kubeconfig_there_is_no_context() -> None:
    assert context_of(None) is None


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("namespace", "team\n"), ("token", f"{SECRET}\n"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("app.client.kubeconfig.ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    found = context_of(None)

    assert found is not None
    access = login(found)
    assert (found.namespace, access.address.url, access.token) == ("team", "https://[fd00::1]:6443", SECRET)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (document(**{"current-context": ""}), r"has no current context; .*\(c\), or .*use-context NAME"),
        (document(clusters=[]), "context 'c' names a cluster 'c', which the kubeconfig does not have"),
        (f"users: [token: {SECRET}: [", "cannot be read at line 1: ParserError$"),
        ("[]", "is not a kubeconfig"),
        ("", "has no current context"),
        (document(contexts="c"), "has no context 'c'"),
    ],
    ids=["no current context", "no cluster", "no YAML", "a list", "empty", "no list"],
)
def test_an_unusable_kubeconfig_is_one_sentence_without_secrets(tmp_path: Path, content: object, says: str) -> None:
    with pytest.raises(KubeconfigError, match=says) as refused:
        context_of(written(tmp_path, content))

    assert SECRET not in str(refused.value)


def test_a_named_kubeconfig_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"none' does not exist; name one with --kubeconfig"):
        context_of(str(tmp_path / "none"))


# -- credentials


def test_files_are_relative_to_the_kubeconfig_and_win_over_texts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-file\n")

    assert login(user(tmp_path, tokenFile="token", token=SECRET)).token == "of-file"  # of the test


def test_certificates_are_in_files_or_in_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "client.crt").write_text("certificate")
    key = base64.b64encode(b"key").decode()

    address = login(user(tmp_path, **{"client-certificate": "client.crt", "client-key-data": key})).address

    assert (address.certificate, address.key) == ("certificate", "key")
    with pytest.raises(KubeconfigError, match="client-key-data of the kubeconfig is not base64"):
        login(user(tmp_path, **{"client-key-data": "!"}))
    with pytest.raises(KubeconfigError, match=r"none of the kubeconfig cannot be read: .*No such file"):
        login(user(tmp_path, **{"client-key": "none"}))


def test_the_options_of_tls_and_of_the_proxy_are_read(tmp_path: Path) -> None:
    options = {"insecure-skip-tls-verify": True, "tls-server-name": "kubernetes", "proxy-url": "http://127.0.0.1:2"}

    address = login(cluster(tmp_path, **options)).address

    assert (address.is_verified, address.server_name, address.proxy) == (False, "kubernetes", "http://127.0.0.1:2")


def test_an_auth_provider_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="uses an auth-provider, which kubectl does not support any more"):
        login(user(tmp_path, **{"auth-provider": {"name": "gcp"}}))


# -- exec plugins


def plugin(folder: Path, script: str, **more: Any) -> Context:
    """Return the context of a user whose credentials a shell script prints."""
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    version = {"apiVersion": "client.authentication.k8s.io/v1"}
    return user(folder, exec={"command": "./plugin", **version, **more})


def credential(**status: str) -> str:
    return f"echo '{json.dumps({'kind': 'ExecCredential', 'status': status})}'"


@pytest.mark.slow
def test_a_plugin_gives_a_token_or_a_certificate(tmp_path: Path) -> None:
    assert login(plugin(tmp_path, credential(token=SECRET))).token == SECRET
    address = login(plugin(tmp_path, credential(clientCertificateData="certificate", clientKeyData="key"))).address
    assert (address.certificate, address.key) == ("certificate", "key")


@pytest.mark.slow
def test_a_plugin_gets_its_arguments_its_variables_and_the_cluster_if_it_asks(tmp_path: Path) -> None:
    script = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/told; {credential(token="TOKEN")} | sed "s/TOKEN/$1-$OWN/"'

    found = login(plugin(tmp_path, script, args=["a"], env=[{"name": "OWN", "value": "b"}], provideClusterInfo=True))

    assert found.token == "a-b"  # of the test
    told = json.loads((tmp_path / "told").read_text())
    assert told["spec"] == {"interactive": False, "cluster": {"server": f"{SERVER}/"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "more", "says"),
    [
        (f"echo {SECRET}; exit 3", {}, "failed with exit code 3; run it by hand"),
        (f"echo {SECRET}", {}, "printed no ExecCredential with a token or a certificate"),
        (credential(), {}, "printed no ExecCredential"),
        ("", {"command": "no-such-plugin", "installHint": "Get it\nfrom us."}, "is not installed; Get it from us."),
        ("", {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "speaks client.authentication.k8s.io/v1alpha1;"),
    ],
    ids=["fails", "no JSON", "no token", "not installed", "old"],
)
def test_a_plugin_that_gives_nothing_is_one_sentence_without_secrets(
    tmp_path: Path, script: str, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(KubeconfigError, match=says) as refused:
        login(plugin(tmp_path, script, **more))

    assert SECRET not in str(refused.value)
