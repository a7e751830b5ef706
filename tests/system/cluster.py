"""Installs the contents of `deploy/` into a control plane, and starts Leeboard and its kube-scheduler on it."""

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import httpx
import yaml

from tests.system.api import Api, ApiError, Object
from tests.system.bed import HOST, Bed, free_ports
from tests.system.identities import User
from tests.system.waiting import eventually

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DEFAULT_QUEUES = DEPLOY / "default-queues.yaml"
MANIFESTS = (DEPLOY / "kustomize" / "own-scheduler" / "manifests.yaml", DEFAULT_QUEUES)
SCHEDULER_CONFIG = ROOT / "scheduler-config" / "extender-only.yaml"
"""Admission is not installed here, so nothing marks the pods that Leeboard has to bind."""
ADMITTING_SCHEDULER_CONFIG = SCHEDULER_CONFIG.with_name("own-scheduler.yaml")
"""For tests that add the policies."""
SHIPPED_URL = "http://127.0.0.1:8888"
INSTALLED = frozenset(
    {
        "Namespace",
        "CustomResourceDefinition",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Secret",
        "PriorityClass",
        "Queue",
    }
)
"""The manifests that a bed uses: it runs the programs itself, and tests of admission add the rest."""


def install(api: Api) -> None:
    """Apply the contents of `deploy/`, CRDs first and served before other objects; no workload and no admission."""
    apply_all(api, [item for path in MANIFESTS for item in documents(path) if _is_installed(item)])


def apply_all(api: Api, items: Sequence[Object]) -> None:
    """Apply objects in an order that works: the namespace, kinds until they are served, then all that may need them."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leeboard"}})
    crds = [item for item in items if item["kind"] == "CustomResourceDefinition"]
    for crd in crds:
        api.apply(crd)
    for crd in crds:
        wait_until_served(api, crd)
    for item in items:
        if item not in crds:
            api.apply(item)


def connected(config: str) -> str:
    """Return a shipped configuration of kube-scheduler with `${KUBECONFIG}` and `${EXTENDER_URL}` filled in.

    The programs of a bed are no pods, so they have no service account and no loopback of their own. There is no
    election.
    """
    read = yaml.safe_load(config)
    read["clientConnection"]["kubeconfig"] = "${KUBECONFIG}"
    read["leaderElection"] = {"leaderElect": False}
    return yaml.safe_dump(read).replace(SHIPPED_URL, "${EXTENDER_URL}")


def documents(path: Path) -> Iterable[Object]:
    """Read every object of a manifest file."""
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def start_leeboard(bed: Bed, **settings: str) -> str:
    """Start the service under its own service account; return the address for the extender entries.

    `settings` are environment variables without their prefix: `gang_barrier_s="5"`.
    """
    webhooks, operations = free_ports(2)
    own = {"kubeconfig": str(bed.kubeconfig(User.LEEBOARD)), "webhook_port": str(webhooks)}
    own["operations_port"] = str(operations)
    env = {f"LEEBOARD_{name.upper()}": value for name, value in (own | settings).items()}
    bed.start("leeboard", [sys.executable, "-m", "app", "serve"], env | {"PYTHONPATH": str(ROOT)})
    return f"http://{HOST}:{webhooks}"


def start_own_scheduler(bed: Bed, extender_url: str, config: Path = SCHEDULER_CONFIG) -> None:
    """Start the second kube-scheduler as shipped, with Leeboard as its extender."""
    text = connected(config.read_text())
    bed.start_scheduler(text, name="own-scheduler", placeholders={"EXTENDER_URL": extender_url})


def _is_installed(item: Object) -> bool:
    return item["kind"] in INSTALLED and not is_kube_schedulers(item)


def is_kube_schedulers(item: Object) -> bool:
    """Whether an object is for the kube-scheduler in our pod.

    The kube-scheduler of a bed has an identity of its own: its rights would hide what Leeboard's role lacks.
    """
    component: str = item["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
    return component == "kube-scheduler"


def wait_until_served(api: Api, crd: Object) -> None:
    """Wait until every version of a kind is served."""
    spec = crd["spec"]
    for version in spec["versions"]:
        path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
        eventually(partial(_is_served, api, path), within_s=20.0, what=f"{path} is served")


def _is_served(api: Api, path: str) -> bool:
    try:
        return api.find(path) is not None
    except ApiError as refused:
        # "storage is (re)initializing": the kind is known and is served in a moment.
        if refused.status == httpx.codes.TOO_MANY_REQUESTS:
            return False
        raise
