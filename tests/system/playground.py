"""`make cluster`: a real control plane with the shipped Leeboard and simulated GPU nodes, until Ctrl-C."""

import argparse
import operator
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from tests.system.api import Api, Object
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.features import HAS_MUTATING_POLICIES
from tests.system.forms import Deployed, Form, deployed
from tests.system.gpus import DevicePlugins
from tests.system.identities import User
from tests.system.machines import RUNTIME_CLASS, SIMULATED, machine_node
from tests.system.waiting import eventually
from tests.system.workloads import crds
from tests.system.workloads.operators import Operators

NEXT = """
The cluster is up: {nodes} nodes with {gpus} GPUs each; Leeboard in the form {form}.

    export KUBECONFIG={kubeconfig} TOKEN={token} PATH={programs}:$PATH
    kubectl get nodes
    kubectl create -f - <<< '{example}'
    kubectl get pods -o wide -w

{sharing}

{operators} are there too, with stand-ins for their operators, which make the pods:

    kubectl apply -f deploy/examples/ray-job.yaml -f deploy/examples/pytorch-elastic.yaml
    kubectl get podgroups

Leeboard itself can be asked too:

    {leeboard} why train --url {url}
    {leeboard} queues --url {url}
    {leeboard} gpus --url {url}
    {leeboard} gpus --url {url} {node}
    {leeboard} doctor --url {url} --kubeconfig $KUBECONFIG --service-account leeboard/leeboard
    curl -s {url}/readyz?verbose
    curl -s -H "Authorization: Bearer $TOKEN" {url}/api/v1/queues
    curl -s -H "Authorization: Bearer $TOKEN" {url}/api/v1/gpus
    curl -s -H "Authorization: Bearer $TOKEN" {url}/metrics

kubectl comes with that PATH. Logs: {folder}/*.log. Ctrl-C ends it and removes everything.
"""
SHARING = """\
For half a GPU write the annotation gpu-fraction: "0.5" and no nvidia.com/gpu; `kubectl get gpunodes -o yaml` shows who
has which. More of it: kubectl apply -f deploy/examples/gpu-sharing.yaml"""
NO_SHARING = "GPUs are shared in the other forms only, which hold pods back until their GPU is known."
OPERATORS = (
    "Ray, Kubeflow, MPI, JobSet and LeaderWorkerSet" if HAS_MUTATING_POLICIES else "Ray, Kubeflow, MPI and JobSet"
)
LEEBOARD = Path(".venv") / "bin" / "leeboard"
EXAMPLE = (
    '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"train","labels":{"kai.scheduler/queue":"default-queue"}},'
    '"spec":{"schedulerName":"kai-scheduler","containers":[{"name":"main","image":"none",'
    '"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}'
)


def main() -> None:
    """Start everything, print what to type next, and wait for Ctrl-C."""
    options = _options()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    bed = Bed(Path(tempfile.mkdtemp(prefix="leeboard-cluster-")))
    sys.exit(status_of(bed, partial(_play, bed, options, ended)))


def status_of(bed: Bed, play: Callable[[], None]) -> int:
    """Run, remove everything, and return the exit status; an error is printed before anything is removed."""
    with bed:
        try:
            play()
        except Exception:  # noqa: BLE001 - passed on it would have the bed keep its folder
            traceback.print_exc()
            return 1
    return 0


def _play(bed: Bed, options: argparse.Namespace, ended: threading.Event) -> None:
    plain = partial(bed.start_scheduler, PLAIN_SCHEDULER)
    if not begun((bed.start_control_plane, bed.start_controller_manager, bed.start_kwok, plain), ended):
        return
    with (
        bed.api() as api,
        _operators(bed, api) as operators,
        deployed(bed, api, options.form, PLAIN_SCHEDULER) as running,
        DevicePlugins(bed) as plugins,
    ):
        # The printed commands work from the moment at which they are printed.
        steps = (partial(_furnish, api, options), partial(_wait_for_gpus, running, options.nodes))
        if begun(steps, ended):
            _say_what_next(running, options)
            checks = (*(child.check_alive for child in bed.children), plugins.check, operators.check)
            wait_for_end(checks, ended)


@contextmanager
def _operators(bed: Bed, api: Api) -> Iterator[Operators]:
    """Install the kinds of operators before Leeboard starts, and run stand-ins for them."""
    crds.install(api)
    with Operators(bed) as operators:
        yield operators


def begun(steps: Iterable[Callable[[], object]], ended: threading.Event) -> bool:
    """Take the steps of a start one by one; return whether all were taken before it was ended."""
    for step in steps:
        if ended.is_set():
            return False
        step()
    return not ended.is_set()


def _furnish(api: Api, options: argparse.Namespace) -> None:
    for item in documents(DEFAULT_QUEUES):
        api.apply(item)
    api.apply(RUNTIME_CLASS)
    api.create_all(nodes(options.nodes, gpus=options.gpus))


def _wait_for_gpus(running: Deployed, number: int) -> None:
    """Wait until Leeboard knows the GPUs of every node."""

    def known() -> int:
        answer = httpx.get(f"{running.operations}/api/v1/gpus", headers=running.bed.reading(), timeout=10)
        return len(answer.raise_for_status().json()["items"])

    eventually(known, until=partial(operator.eq, number), within_s=60, what="the GPUs of all nodes")


def wait_for_end(checks: Sequence[Callable[[], None]], ended: threading.Event) -> None:
    """Wait until it is ended, or a check raises."""
    # Awake once a second only to notice ended programs: the user should see the reason here.
    while not ended.wait(1.0):
        for check in checks:
            check()


def nodes(number: int, *, gpus: int) -> list[Object]:
    """Build the nodes, half of them in each of two racks."""
    racks = [{"example.com/rack": f"rack-{2 * index // max(number, 2)}"} for index in range(number)]
    return [machine_node(name_of(index), gpus=gpus, labels=rack) for index, rack in enumerate(racks)]


def name_of(index: int) -> str:
    """Return the name of a node."""
    return f"{SIMULATED}{index:03}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="simulated nodes (default 4)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs on each (default 8)")
    parser.add_argument("--form", type=Form, default=Form.HELD, choices=list(Form), help="as in the chart")
    return parser.parse_args()


def _say_what_next(running: Deployed, options: argparse.Namespace) -> None:
    bed = running.bed
    print(
        NEXT.format(
            nodes=options.nodes,
            gpus=options.gpus,
            form=running.form.value,
            url=running.operations,
            sharing=SHARING if running.form.has_admission else NO_SHARING,
            leeboard=LEEBOARD,
            node=name_of(0),
            operators=OPERATORS,
            kubeconfig=bed.kubeconfig(User.ADMIN),
            token=bed.token(User.ADMIN),
            programs=bed.programs,
            example=EXAMPLE,
            folder=bed.folder,
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
