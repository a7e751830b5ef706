"""Times the largest objects that tenants may write: reading JSON and decoding it, and nodes for the largest affinity.

CPU time of this process: the event loop is held that long. That no other field costs more is counted by CI, field by
field (tests/control/test_hostile.py).
"""

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from app.cluster import decode
from app.model.pod import Constraint, Operator, Requirement
from app.model.snapshot import NodeTable
from app.scheduling.placement import fit

BUDGET_MS = 50
PROFILES = frozenset({"kai-scheduler"})
REQUIREMENTS, KEYS, NAMES = 256, 16, 2
"""Of one pod, and how many of the labels that it names differ on each node, as host names do."""

Raw = dict[str, Any]


def pod(metadata: Raw | None = None, **spec: Any) -> Raw:
    """Build a pod of ours."""
    named = {"name": "p", "uid": "u", "namespace": "n", **(metadata or {})}
    return {"metadata": named, "spec": {"schedulerName": "kai-scheduler", **spec}}


def _names(number: int) -> Raw:
    return {f"k{each}": "v" for each in range(number)}


def _affinity(kind: str, terms: object) -> Raw:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


CONTAINER: Raw = {
    "image": "a",
    "resources": {"requests": {"cpu": "1m", "memory": "1"}},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "Always",
}
NOTED: Raw = {".": {}, **{f"f:{key}": {} for key in ("name", *CONTAINER)}, "f:resources": {"f:requests": {"f:cpu": {}}}}
"""What the API server writes down of each container of a pod, in the same object."""

OBJECTS: Mapping[str, Callable[[], Raw]] = {
    "22,000 terms of node affinity": lambda: pod(
        affinity=_affinity("nodeAffinity", {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k"}]}] * 22_000})
    ),
    "25,000 terms of pod affinity": lambda: pod(affinity=_affinity("podAffinity", [{"topologyKey": "zone"}] * 25_000)),
    "60,000 tolerations": lambda: pod(tolerations=[{"operator": "Exists"}] * 60_000),
    "100,000 labels": lambda: pod({"labels": _names(100_000)}),
    "30,000 owner references": lambda: pod({"ownerReferences": [{"kind": "a", "name": "b", "uid": "c"}] * 30_000}),
    "100,000 variables": lambda: pod(containers=[{"name": "c", "env": [{"name": "a"}] * 100_000}]),
    "100,000 requests of a container": lambda: pod(
        containers=[{"name": "c", "resources": {"requests": _names(100_000)}}], nodeName="a"
    ),
    "25,000 containers that run": lambda: pod(
        containers=[{"name": "c", "resources": {"requests": {"cpu": f"{each}m"}}} for each in range(25_000)],
        nodeName="a",
    ),
    "4,500 containers, as much as can be stored": lambda: pod(
        {"managedFields": [{"fieldsV1": {f'k:{{"name":"c{each}"}}': NOTED for each in range(4_500)}}]},
        containers=[CONTAINER | {"name": f"c{each}"} for each in range(4_500)],
        nodeName="a",
    ),
}


NODES: Mapping[str, Callable[[], Raw]] = {
    "60,000 extended resources of a node": lambda: {
        "metadata": {"name": "n", "uid": "u"},
        "status": {"allocatable": {f"a/b{each}": "1" for each in range(60_000)}},
    }
}


def reading_ms(raw: Raw, read: Callable[[Raw], object]) -> float:
    """Return how long it takes to read an object from JSON."""
    body = orjson.dumps(raw)
    started = time.process_time()
    read(orjson.loads(body))
    return (time.process_time() - started) * 1000


def choosing_ms(nodes: int) -> float:
    """Return how long it takes to find the nodes of a pod with the largest allowed request, at the first call."""
    keys = [f"key-{number}" for number in range(KEYS)]
    labels = ({key: str(at if n < NAMES else at % 7) for n, key in enumerate(keys)} for at in range(nodes))
    named = ({"name": f"n{at}", "uid": f"n{at}", "labels": one} for at, one in enumerate(labels))
    table = NodeTable.of(decode.node({"metadata": metadata}) for metadata in named)
    asked = tuple(Requirement(keys[number % KEYS], Operator.GT, (str(number),)) for number in range(REQUIREMENTS))
    started = time.process_time()
    fit.eligible(Constraint(terms=(asked,)), table)
    return (time.process_time() - started) * 1000


def show() -> None:
    """Print a line an object, and one a size of cluster."""
    # As in the service, where the records that are kept are not looked at again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    print(f"\nlargest objects, CPU ms in the event loop; budget {BUDGET_MS}")
    for name, build in OBJECTS.items():
        print(f"  {name:<45}{reading_ms(build(), partial(decode.pod, profiles=PROFILES)):7.1f}")
    for name, build in NODES.items():
        print(f"  {name:<45}{reading_ms(build(), decode.node):7.1f}")
    for nodes in (5_000, 15_000):
        print(f"  {f'largest node affinity, {nodes:,} nodes':<45}{choosing_ms(nodes):7.1f}")


if __name__ == "__main__":
    show()
