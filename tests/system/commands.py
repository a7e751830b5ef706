"""Runs commands of `leeboard` as a user of a bed, with a kubeconfig of this user."""

from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from app.certificates.authority import CertificateAuthority
from app.cli import main
from tests.pem import CLIENT, issued
from tests.system.api import Api, Object
from tests.system.bed import Bed

RBAC = "rbac.authorization.k8s.io"
UNSET: dict[str, str | None] = dict.fromkeys(("KUBERNETES_SERVICE_HOST", "LEEBOARD_URL", "LEEBOARD_SERVER"))


def kubeconfig(bed: Bed, folder: Path, user: Object, *, namespace: str, **cluster: object) -> Path:
    """Write the kubeconfig of a user; `cluster` has more fields of the cluster."""
    of_cluster = {"server": bed.url, "certificate-authority": str(bed.ca), **cluster}
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "clusters": [{"name": "c", "cluster": of_cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def run_with(path: Path, *arguments: str) -> Result:
    """Run a command with this kubeconfig."""
    # Nothing listens on this port.
    environment = {"KUBECONFIG": str(path), "LEEBOARD_OPERATIONS_PORT": "1", "COLUMNS": "200"}
    return CliRunner(env=UNSET | environment).invoke(main, arguments)


def certified(authority: CertificateAuthority, name: str, folder: Path) -> Object:
    """Return the user of a kubeconfig whose certificate an authority has signed, as files beside the kubeconfig."""
    pair = issued(authority, name, purpose=CLIENT)
    (folder / f"{name}.crt").write_bytes(pair.chain)
    (folder / f"{name}.key").write_bytes(pair.key)
    return {"client-certificate": f"{name}.crt", "client-key": f"{name}.key"}


def allow(api: Api, name: str, namespace: str, rule: Object, *users: str) -> None:
    """Give users a right in a namespace."""
    metadata = {"name": name, "namespace": namespace}
    kinds = {"apiVersion": f"{RBAC}/v1", "metadata": metadata}
    subjects = [{"kind": "User", "name": each, "apiGroup": RBAC} for each in users]
    role = {"kind": "Role", "name": name, "apiGroup": RBAC}
    api.apply({**kinds, "kind": "Role", "rules": [rule]})
    api.apply({**kinds, "kind": "RoleBinding", "subjects": subjects, "roleRef": role})
