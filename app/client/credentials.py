"""Who the caller is: certificates, tokens and exec plugins of a kubeconfig, and the address they belong to."""

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.client.http_connection import Address
from app.client.kubeconfig import Context, Entry
from app.client.reach_errors import KubeconfigError

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_WITHIN_S = 60.0
"""A plugin may wait until a person has logged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The address of an API server, and what identifies the caller there."""

    address: Address
    token: str = field(default="", repr=False)


def login(context: Context) -> Login:
    """Read the credentials of a context, and run its exec plugin if it has one. Raise `KubeconfigError`."""
    cluster, user = context.cluster, context.user
    server = str(cluster.get("server") or "").rstrip("/")
    if not server:
        raise KubeconfigError(f"context {context.name!r} names a cluster without a server")
    if "auth-provider" in user and "exec" not in user:
        raise KubeconfigError(
            f"context {context.name!r} uses an auth-provider, which kubectl does not support any more;"
            " write the kubeconfig again with your provider's tool"
        )
    status = _of_plugin(user["exec"], cluster) if isinstance(user.get("exec"), dict) else {}
    token = str(status.get("token") or _content(user, "token", file="tokenFile")).strip()
    if not (token.isascii() and token.isprintable()):
        raise KubeconfigError("the token has characters that no header can carry")
    return Login(
        address=Address(
            url=server,
            ca=_pem(cluster, "certificate-authority"),
            is_verified=not cluster.get("insecure-skip-tls-verify"),
            server_name=cluster.get("tls-server-name"),
            proxy=str(cluster.get("proxy-url") or ""),
            certificate=str(status.get("clientCertificateData") or _pem(user, "client-certificate")),
            key=str(status.get("clientKeyData") or _pem(user, "client-key")),
        ),
        token=token,
    )


def _content(entry: Entry, name: str, *, file: str) -> str:
    """Return a text of an entry; a file wins, as in kubectl."""
    if not entry.get(file):
        return str(entry.get(name) or "")
    try:
        return Path(entry[file]).read_text()
    except (OSError, ValueError) as error:
        raise KubeconfigError(f"{entry[file]} of the kubeconfig cannot be read: {error}") from error


def _pem(entry: Entry, name: str) -> str:
    """Return a certificate or a key, which is in the entry or in a file."""
    data = entry.get(f"{name}-data")
    if not data:
        return _content(entry, "", file=name)
    try:
        return base64.b64decode("".join(str(data).split()), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise KubeconfigError(f"{name}-data of the kubeconfig is not base64") from None


# Exec plugins ---------------------------------------------------------------------------------------------------------


def _of_plugin(plugin: Mapping[str, Any], cluster: Entry) -> Mapping[str, Any]:
    """Run a plugin; return the status of its ExecCredential."""
    import subprocess  # noqa: PLC0415 # most kubeconfigs have no plugin, and its import takes time
    import sys  # noqa: PLC0415

    version, command = str(plugin.get("apiVersion")), str(plugin.get("command") or "")
    if version not in EXEC_VERSIONS:
        raise KubeconfigError(f"the exec plugin {command!r} speaks {version}; only {' and '.join(EXEC_VERSIONS)} work")
    spec: dict[str, Any] = {"interactive": plugin.get("interactiveMode") != "Never" and sys.stdin.isatty()}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _told_to_plugin(cluster)
    information = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    own = {str(each["name"]): str(each["value"]) for each in plugin.get("env") or () if isinstance(each, dict)}
    environment = os.environ | own | {"KUBERNETES_EXEC_INFO": information}
    try:
        ended = subprocess.run(  # noqa: S603 # the kubeconfig of the user names it
            [command, *map(str, plugin.get("args") or ())],
            env=environment,
            stdout=subprocess.PIPE,
            timeout=EXEC_WITHIN_S,
            check=False,
        )
    except FileNotFoundError:
        hint = " ".join(str(plugin.get("installHint") or "install it, or correct the kubeconfig").split())
        raise KubeconfigError(f"the exec plugin {command!r} of the kubeconfig is not installed; {hint}") from None
    except (OSError, subprocess.SubprocessError) as error:
        # The text of a time-out has the arguments, which may be secret.
        raise KubeconfigError(f"the exec plugin {command!r} cannot run: {type(error).__name__}") from None
    if ended.returncode:
        raise KubeconfigError(f"the exec plugin {command!r} failed with exit code {ended.returncode}; run it by hand")
    return _credential(ended.stdout, command)


def _credential(printed: bytes, command: str) -> Mapping[str, Any]:
    try:
        status = json.loads(printed)["status"]
        if status.get("token") or status.get("clientCertificateData"):
            return dict(status)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    # What it printed may be secret.
    raise KubeconfigError(f"the exec plugin {command!r} printed no ExecCredential with a token or a certificate")


def _told_to_plugin(cluster: Entry) -> Mapping[str, Any]:
    ca = base64.b64encode(_pem(cluster, "certificate-authority").encode()).decode()
    extensions = cluster.get("extensions") or ()
    config = [each.get("extension") for each in extensions if each.get("name") == "client.authentication.k8s.io/exec"]
    told = {
        "server": cluster.get("server"),
        "tls-server-name": cluster.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.get("insecure-skip-tls-verify"),
        "certificate-authority-data": ca,
        "proxy-url": cluster.get("proxy-url"),
        "config": config[0] if config else None,
    }
    return {name: value for name, value in told.items() if value}
