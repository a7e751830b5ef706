"""Reads kubeconfigs as kubectl does: which cluster, which user and which namespace a context means."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.client.reach_errors import KubeconfigError

USERS_FILE = "~/.kube/config"
DEFAULT_NAMESPACE = "default"
IN_CLUSTER_HOST, IN_CLUSTER_PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
OTHER_CONTEXT = "name another one with --context"

Entry = dict[str, Any]

PATHS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}
"""The fields with paths, which are relative to the file that they are in."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A cluster, a user and a namespace, as the kubeconfig states them."""

    name: str
    namespace: str
    cluster: Entry
    user: Entry = field(repr=False)


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The entries of all files, by section and name. Of two entries with one name, the first counts."""

    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry] = field(repr=False)
    current: str

    def context(self, name: str | None = None) -> Context:
        """Return a context; without a name, the current one. Raise `KubeconfigError`."""
        wanted = name or self.current
        if not wanted:
            raise KubeconfigError(
                f"the kubeconfig has no current context; {OTHER_CONTEXT}{_among(self.contexts)},"
                " or choose one with `kubectl config use-context NAME`"
            )
        if wanted not in self.contexts:
            raise KubeconfigError(f"the kubeconfig has no context {wanted!r}; {OTHER_CONTEXT}{_among(self.contexts)}")
        found = self.contexts[wanted]
        cluster, user = str(found.get("cluster") or ""), str(found.get("user") or "")
        if cluster not in self.clusters:
            raise KubeconfigError(f"context {wanted!r} names a cluster {cluster!r}, which the kubeconfig does not have")
        return Context(
            name=wanted,
            namespace=str(found.get("namespace") or DEFAULT_NAMESPACE),
            cluster=self.clusters[cluster],
            user=self.users.get(user, {}),
        )


def is_in_cluster() -> bool:
    """Return whether this process runs in a pod."""
    return IN_CLUSTER_HOST in os.environ


def context_of(path: str | None, name: str | None = None) -> Context | None:
    """Return the context to use: of the named kubeconfig, else of the pod, else of the user's kubeconfig.

    Return None when there is none and none was named. Raise `KubeconfigError`.
    """
    if path is None and name is None and is_in_cluster():
        return _of_pod()
    files = [Path(each).expanduser() for each in _paths(path) if each]
    found = [each for each in files if each.is_file()]
    if not found:
        if path is None and name is None:
            return None
        shown = os.pathsep.join(_paths(path))
        raise KubeconfigError(f"kubeconfig {shown!r} does not exist; name one with --kubeconfig")
    return merged(found).context(name)


def merged(files: list[Path]) -> Kubeconfig:
    """Read these files; raise `KubeconfigError`."""
    sections: dict[str, dict[str, Entry]] = {"context": {}, "cluster": {}, "user": {}}
    current = ""
    for file in files:
        document = _document(file)
        current = current or str(document.get("current-context") or "")
        for kind, entries in sections.items():
            for name, entry in _entries(document, kind):
                entries.setdefault(name, _with_paths(entry, kind, file))
    return Kubeconfig(sections["context"], sections["cluster"], sections["user"], current)


def _paths(path: str | None) -> list[str]:
    return [path] if path is not None else os.environ.get("KUBECONFIG", USERS_FILE).split(os.pathsep)


def _document(file: Path) -> Entry:
    try:
        document = yaml.load(file.read_bytes(), LOADER)  # noqa: S506 # a safe loader
    except (OSError, ValueError, yaml.YAMLError) as error:
        # A YAML error quotes the text around it, which may be a token.
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where is not None else ""
        raise KubeconfigError(f"kubeconfig {str(file)!r} cannot be read{line}: {type(error).__name__}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeconfigError(f"kubeconfig {str(file)!r} is not a kubeconfig; name another with --kubeconfig")
    return document


def _entries(document: Entry, kind: str) -> Iterator[tuple[str, Entry]]:
    listed = document.get(f"{kind}s")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and isinstance(each.get(kind), dict):
            yield str(each.get("name")), each[kind]


def _with_paths(entry: Entry, kind: str, file: Path) -> Entry:
    named = {name: str(file.parent / str(entry[name])) for name in PATHS.get(kind, ()) if entry.get(name)}
    command = entry.get("exec")
    if kind == "user" and isinstance(command, dict) and "/" in str(command.get("command")):
        named["exec"] = command | {"command": str(file.parent / str(command["command"]))}  # type: ignore[assignment] # an entry
    return entry | named


def _of_pod() -> Context:
    host = os.environ[IN_CLUSTER_HOST]
    at = f"[{host}]" if ":" in host else host
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()
    except OSError:
        namespace = DEFAULT_NAMESPACE
    return Context(
        name="in-cluster",
        namespace=namespace,
        cluster={
            "server": f"https://{at}:{os.environ.get(IN_CLUSTER_PORT, '443')}",
            "certificate-authority": str(ACCOUNT / "ca.crt"),
        },
        user={"tokenFile": str(ACCOUNT / "token")},
    )


def _among(names: Mapping[str, Entry]) -> str:
    return f" ({', '.join(sorted(names)[:10])})" if names else ""
