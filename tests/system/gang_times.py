"""Times native gangs beside the same gangs without native objects: `python -m tests.system.gang_times`.

For each form and size it prints the seconds from the moment at which the last pod exists until all pods are bound: the
median of several rounds.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.system.api import POD_GROUPS, PODS, Api, Object, gang, gpu_node
from tests.system.bed import Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.controlplane import build
from tests.system.forms import DEFAULT_QUEUE, Form
from tests.system.native_podgroups import ARE_THERE, GROUPS, deployed_for_groups, group, members, serving_bed
from tests.system.observer import Observer, Sight
from tests.system.waiting import eventually

GPUS = 8
"""Of each node."""

WITHIN_S = 300.0


def annotated(name: str, size: int) -> list[Object]:
    """Build a gang whose pods name their PodGroup by KAI's annotation."""
    return gang(name, size=size, queue=DEFAULT_QUEUE)


def native(name: str, size: int) -> list[Object]:
    """Build a gang whose pods name a native PodGroup."""
    return [group(name, min_count=size), *members(name, size, queue=DEFAULT_QUEUE)]


KINDS: Mapping[str, Callable[[str, int], list[Object]]] = {"annotation": annotated, "native": native}


def main() -> int:
    """Print the table; return the exit status."""
    asked = _arguments()
    if not ARE_THERE:
        print(f"Kubernetes {build.KUBERNETES_VERSION} has no native PodGroups: set LEEBOARD_KUBERNETES=1.37.")
        return 1
    with serving_bed(Path(tempfile.mkdtemp(prefix="leeboard-gangs-"))) as bed, bed.api() as api:
        for item in (gpu_node(f"n{index:03}", gpus=GPUS) for index in range(-(-max(asked.sizes) // GPUS))):
            api.create(item)
        print(f"Kubernetes {build.KUBERNETES_VERSION}, median of {asked.rounds}: seconds until all pods are bound")
        print(f"{'form':<14} {'pods':>5} " + " ".join(f"{kind:>11}" for kind in KINDS))
        for form in (Form.HELD, Form.BESIDE):
            with deployed_for_groups(bed, api, form):
                for item in documents(DEFAULT_QUEUES):
                    api.apply(item)
                for size in asked.sizes:
                    _tell(form, size, _times(bed, api, size, asked.rounds))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.system.gang_times", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 104, 500], help="pods of each gang")
    parser.add_argument("--rounds", type=int, default=3, help="how often each gang is started")
    return parser.parse_args()


def _tell(form: Form, size: int, found: Mapping[str, Sequence[float]]) -> None:
    medians = " ".join(f"{median(found[kind]):>11.2f}" for kind in KINDS)
    print(f"{form.value:<14} {size:>5} {medians}", flush=True)


def _times(bed: Bed, api: Api, size: int, rounds: int) -> dict[str, list[float]]:
    """Start the gangs of each kind in turn, so that both meet the same machine."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind, build_gang in KINDS.items():
            found[kind].append(_time(bed, api, build_gang(f"{kind}-{size}-{number}", size)))
    return found


def _time(bed: Bed, api: Api, items: Sequence[Object]) -> float:
    names = {one["metadata"]["name"] for one in items if one["kind"] == "Pod"}
    with Observer(bed) as observer:
        first, *pods = items
        api.create(first)
        api.create_all(pods)
        observer.wait_for(
            lambda there: len([one for one in there if one.name in names and one.node]) == len(names),
            within_s=WITHIN_S,
            what=f"all {len(names)} pods are bound",
        )
        history = [one for one in observer.history() if one.name in names]
    for collection in (PODS, POD_GROUPS, GROUPS):
        api.empty(collection)
    eventually(lambda: not api.items(PODS), within_s=60, what="the pods are gone")
    return max(_first(history, is_bound=True).values()) - max(_first(history, is_bound=False).values())


def _first(history: Sequence[Sight], *, is_bound: bool) -> dict[str, float]:
    """Return when each pod was first seen, or first seen with a node."""
    found: dict[str, float] = {}
    for one in history:
        if one.node or not is_bound:
            found.setdefault(one.name, one.at_s)
    return found


if __name__ == "__main__":
    sys.exit(main())
