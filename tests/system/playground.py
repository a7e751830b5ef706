"""`make cluster`: a real control plane with Leeboard as it is shipped and simulated GPU nodes, until Ctrl-C."""

import argparse
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tests.system.api import Api, Object, gpu_node
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.forms import Deployed, Form, deployed
from tests.system.identities import User

NEXT = """
The cluster is up: {nodes} nodes with {gpus} GPUs each; Leeboard in the form {form}.

    export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
    kubectl get nodes
    kubectl create -f - <<< '{example}'
    kubectl get pods -o wide -w

Leeboard itself can be asked too:

    curl -s {url}/readyz?verbose
    curl -s {url}/api/v1/queues
    curl -s {url}/metrics

kubectl comes with that PATH. Logs: {folder}/*.log. Ctrl-C ends it and removes everything.
"""
EXAMPLE = (
    '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"train","labels":{"kai.scheduler/queue":"default-queue"}},'
    '"spec":{"schedulerName":"kai-scheduler","containers":[{"name":"main","image":"none",'
    '"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}'
)


def main() -> None:
    """Start everything, say what to type next, and wait for Ctrl-C."""
    options = _options()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Bed(Path(tempfile.mkdtemp(prefix="leeboard-cluster-"))) as bed:
        plain = partial(bed.start_scheduler, PLAIN_SCHEDULER)
        if not begun((bed.start_control_plane, bed.start_controller_manager, bed.start_kwok, plain), ended):
            return
        with bed.api() as api, deployed(bed, api, options.form, PLAIN_SCHEDULER) as running:
            if begun((partial(_furnish, api, options),), ended):
                _say_what_next(running, options)
                _wait_for_end(bed, ended)


def begun(steps: Iterable[Callable[[], object]], ended: threading.Event) -> bool:
    """Take the steps of a start one by one; return whether all were taken before somebody ended it."""
    for step in steps:
        if ended.is_set():
            return False
        step()
    return not ended.is_set()


def _furnish(api: Api, options: argparse.Namespace) -> None:
    for item in documents(DEFAULT_QUEUES):
        api.apply(item)
    api.create_all(nodes(options.nodes, gpus=options.gpus))


def nodes(number: int, *, gpus: int) -> list[Object]:
    """Build the nodes, half of them in each of two racks."""
    racks = [{"example.com/rack": f"rack-{2 * index // max(number, 2)}"} for index in range(number)]
    return [gpu_node(f"gpu-{index:03}", gpus=gpus, labels=rack) for index, rack in enumerate(racks)]


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


if __name__ == "__main__":
    main()
