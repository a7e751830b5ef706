"""`make cluster`: a real control plane with Leeboard beside it and simulated GPU nodes, until Ctrl-C."""

import argparse
import importlib.util
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import httpx
import yaml

from tests.system.api import Api, ApiError, Object, gpu_node
from tests.system.bed import HOST, Bed, free_ports
from tests.system.identities import User
from tests.system.waiting import eventually

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DEFAULT_QUEUES = DEPLOY / "default-queues.yaml"
MANIFESTS = (DEPLOY / "kustomize" / "own-scheduler" / "manifests.yaml", DEFAULT_QUEUES)
SCHEDULER_CONFIG = ROOT / "scheduler-config" / "own-scheduler.yaml"
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
"""What of the manifests a bed takes: it runs the programs itself, and whoever tests admission adds that."""
NEXT = """
The cluster is up: {nodes} nodes with {gpus} GPUs each{leeboard}.

    export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
    kubectl get nodes
    kubectl create -f - <<< '{example}'
    kubectl get pods -o wide -w
{operations}
kubectl comes with that PATH. Logs: {folder}/*.log. Ctrl-C ends it and removes everything.
"""
OPERATIONS = """
Leeboard itself can be asked too:

    curl -s {url}/api/v1/queues
    curl -s {url}/metrics
"""
EXAMPLE = (
    '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"train","labels":{"kai.scheduler/queue":"default-queue"}},'
    '"spec":{"schedulerName":"kai-scheduler","containers":[{"name":"main","image":"none",'
    '"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}'
)


def install(api: Api) -> None:
    """Apply what `deploy/` ships, CRDs first and served before anything uses them; no workload and no admission."""
    items = [item for path in MANIFESTS for item in documents(path) if _is_installed(item)]
    crds = [item for item in items if item["kind"] == "CustomResourceDefinition"]
    for crd in crds:
        api.apply(crd)
    for crd in crds:
        wait_until_served(api, crd)
    for item in items:
        api.apply(item)


def connected(config: str) -> str:
    """Return a shipped configuration of kube-scheduler with `${KUBECONFIG}` and `${EXTENDER_URL}` in it.

    A bed's programs are no pods, so they have no service account and no loopback of their own. Nobody is elected.
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


def main() -> None:
    """Start everything, say what to type next, and wait for Ctrl-C."""
    options = _options()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Bed(Path(tempfile.mkdtemp(prefix="leeboard-cluster-"))) as bed:
        steps = (bed.start_control_plane, bed.start_controller_manager, bed.start_kwok, partial(_furnish, bed, options))
        if not begun(steps, ended):
            return
        leeboard, operations = _start_beside(bed)
        _say_what_next(bed, options, leeboard, operations)
        _wait_for_end(bed, ended)


def begun(steps: Iterable[Callable[[], object]], ended: threading.Event) -> bool:
    """Take the steps of a start one by one; return whether all were taken before somebody ended it."""
    for step in steps:
        if ended.is_set():
            return False
        step()
    return not ended.is_set()


def _furnish(bed: Bed, options: argparse.Namespace) -> None:
    with bed.api() as api:
        install(api)
        api.create_all(gpu_node(f"gpu-{index:03}", gpus=options.gpus) for index in range(options.nodes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="simulated nodes (default 4)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs on each (default 8)")
    return parser.parse_args()


def _start_beside(bed: Bed) -> tuple[str, str]:
    """Start Leeboard and its kube-scheduler; return what to say of them, and what to ask Leeboard itself."""
    if importlib.util.find_spec("app.__main__") is None or not SCHEDULER_CONFIG.exists():
        return ", without Leeboard: app/__main__.py or scheduler-config/own-scheduler.yaml is not there", ""
    (port,) = free_ports(1)
    start_own_scheduler(bed, start_leeboard(bed, operations_port=str(port)))
    return ", Leeboard beside kube-scheduler", OPERATIONS.format(url=f"http://{HOST}:{port}")


def _say_what_next(bed: Bed, options: argparse.Namespace, leeboard: str, operations: str) -> None:
    print(
        NEXT.format(
            nodes=options.nodes,
            gpus=options.gpus,
            leeboard=leeboard,
            operations=operations,
            kubeconfig=bed.kubeconfig(User.ADMIN),
            programs=bed.programs,
            example=EXAMPLE,
            folder=bed.folder,
        ),
        flush=True,
    )


def _wait_for_end(bed: Bed, ended: threading.Event) -> None:
    # Awake once a second only to notice a program that died: the person should see it here, not guess.
    while not ended.wait(1.0):
        for child in bed.children:
            child.check_alive()


def _is_installed(item: Object) -> bool:
    # The kube-scheduler of a bed has an identity of its own: its rights would hide what Leeboard's role lacks.
    component = item["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return item["kind"] in INSTALLED and component != "kube-scheduler"


def wait_until_served(api: Api, crd: Object) -> None:
    """Wait until every version of a kind can be asked for."""
    spec = crd["spec"]
    for version in spec["versions"]:
        path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
        eventually(partial(_is_served, api, path), within_s=20.0, what=f"{path} is served")


def _is_served(api: Api, path: str) -> bool:
    try:
        return api.find(path) is not None
    except ApiError as refused:
        # "storage is (re)initializing": the kind is known and will be served in a moment.
        if refused.status == httpx.codes.TOO_MANY_REQUESTS:
            return False
        raise


if __name__ == "__main__":
    main()
