"""The workload of the demo: a fixed cluster, and jobs that arrive at seeded random times and show every state."""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.admission import FRACTION, MEMORY
from app.simulation.manifests import MEMORY_LABEL, PRODUCT_LABEL, Job, Quota

Creation = tuple[Resource, RawObject]

GPUS_A_NODE = 8
NODES_A_RACK = 8
RACKS = ("a", "b")
NODES_A_NVLINK_DOMAIN = 4
TOPOLOGY = "hall"
LEVELS = (manifests.RACK_LABEL, manifests.NVLINK_LABEL, manifests.HOSTNAME_LABEL)
IN_A_RACK = {
    "topology": TOPOLOGY,
    "requiredTopologyLevel": manifests.RACK_LABEL,
    "preferredTopologyLevel": manifests.NVLINK_LABEL,
}
"""The constraint of every other gang. The others may be spread over both racks."""
ARRIVAL_EVERY_S = 8.0
AT_ONCE = 20
"""The jobs that exist from the start, so that the first look shows a busy cluster."""
MOST_GPUS_A_GANG = NODES_A_NVLINK_DOMAIN * GPUS_A_NODE

QUEUES = (
    ("acme", None, Quota(gpus=112)),
    ("research", "acme", Quota(gpus=80, weight=2)),
    ("product", "acme", Quota(gpus=32)),
    ("vision", "research", Quota(gpus=48, weight=2)),
    ("language", "research", Quota(gpus=32)),
    ("serving", "product", Quota(gpus=24, limit=32)),
)
"""Name, parent, quota. Queues deserve 112 of the 128 GPUs in racks; the rest is divided by weight."""

LEAVES = {"vision": 45, "language": 35, "serving": 20}
"""How often each leaf queue submits a job."""

LAB = {"lab-1": 6, "lab-2": 2, "lab-3": 0}
"""Separate nodes, and how many of their GPUs pods of another scheduler hold without end."""

LAB_TAINT = {"key": "dedicated", "value": "lab", "effect": "NoSchedule"}

KINDS = {"single": 24, "shared": 24, "cpu": 16, "gang": 30, "impossible": 3, "incomplete": 3}
NEVER_START = frozenset({"impossible", "incomplete"})
"""The kinds of pods that no node is large enough for, and of gangs without one member."""


PARTS: tuple[Mapping[str, str], ...] = (
    {FRACTION: "0.5"},
    {FRACTION: "0.25"},
    {FRACTION: "0.3"},
    {FRACTION: "0.5", "gpu-fraction-num-devices": "2"},
    {MEMORY: "8192"},
    {MEMORY: "20480"},
)
"""The requests for fractions of one GPU, or of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Objects that are created together, `after_s` simulated seconds after the previous arrival."""

    after_s: float
    kind: str
    objects: tuple[Creation, ...]


def furniture() -> Iterator[Creation]:
    """Yield the objects that exist before any job: nodes, their Topology, queues and priority classes."""
    for rack, number in itertools.product(RACKS, range(1, NODES_A_RACK + 1)):
        nvlink = f"nvlink-{rack}{(number - 1) // NODES_A_NVLINK_DOMAIN + 1}"
        labels = {manifests.RACK_LABEL: f"rack-{rack}", manifests.NVLINK_LABEL: nvlink}
        yield Resource.NODES, _gpu_node(f"gpu-{rack}-{number:02}", labels)
    yield Resource.TOPOLOGIES, manifests.topology(TOPOLOGY, *LEVELS)
    for number in (1, 2):
        yield Resource.NODES, manifests.node(f"cpu-{number:02}", gpus=0, cpu=32, labels={})
    yield from _lab()
    for name, parent, quota in QUEUES:
        yield Resource.QUEUES, manifests.queue(name, parent, quota)
    for name in manifests.PRIORITIES:
        yield Resource.PRIORITY_CLASSES, manifests.priority_class(name)


def _lab() -> Iterator[Creation]:
    """Yield nodes that no job uses, so that a question about them always has the same answer."""
    for name, used in LAB.items():
        lab = _gpu_node(name, {})
        lab["spec"]["taints"] = [LAB_TAINT]
        yield Resource.NODES, lab
        if used:
            yield Resource.PODS, manifests.foreign_pod(f"experiment-{name}", node=name, gpus=used)


def arrivals(seed: int) -> Iterator[Arrival]:
    """Yield jobs without end. The same seed yields the same jobs."""
    chance = random.Random(seed)  # noqa: S311 # a repeatable demo needs no cryptographic randomness
    for number in itertools.count(1):
        after_s = 0.0 if number <= AT_ONCE else chance.expovariate(1 / ARRIVAL_EVERY_S)
        kind = _draw(chance, KINDS)
        yield Arrival(after_s=after_s, kind=kind, objects=tuple(_work(chance, kind, number)))


def _gpu_node(name: str, labels: Mapping[str, str]) -> RawObject:
    found = {
        "nvidia.com/gpu.count": str(GPUS_A_NODE),
        MEMORY_LABEL: "81559",
        PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3",
    }
    return manifests.node(name, gpus=GPUS_A_NODE, cpu=96, labels=found | dict(labels))


def _work(chance: random.Random, kind: str, number: int) -> Iterable[Creation]:
    queue = _draw(chance, LEAVES)
    runtime_s = chance.randint(60, 300)
    match kind:
        case "cpu":
            return _alone(Job(name=f"prepare-{number}", queue=queue, cpu=chance.randint(2, 8), runtime_s=runtime_s))
        case "impossible":
            return _alone(Job(name=f"huge-{number}", queue=queue, gpus=2 * GPUS_A_NODE))
        case "gang" | "incomplete":
            name, domain = f"{kind}-{number}", IN_A_RACK if number % 2 else {}
            return _gang(chance, Job(name=name, queue=queue, runtime_s=runtime_s, group=name, domain=domain))
        case "shared":
            job = _single(f"share-{number}", queue, runtime_s)
            return _alone(replace(job, gpus=0, part=chance.choice(PARTS)))
        case _:
            return _alone(_single(f"single-{number}", queue, runtime_s))


def _single(name: str, queue: str, runtime_s: int) -> Job:
    # Serving pods are non-preemptible, so they must stay within their queue's quota.
    priority_class = "inference" if queue == "serving" else "train"
    return Job(name=name, queue=queue, gpus=1, runtime_s=runtime_s, priority_class=priority_class)


def _alone(job: Job) -> Iterator[Creation]:
    yield Resource.PODS, manifests.pod(job)


def _gang(chance: random.Random, shape: Job) -> Iterator[Creation]:
    gpus = chance.choice((1, 1, 1, 2, 2, 4))
    size = min(chance.randint(4, 16), MOST_GPUS_A_GANG // gpus)
    job = replace(shape, gpus=gpus)
    yield Resource.POD_GROUPS, manifests.pod_group(job, min_member=size)
    for member in range(size - 1 if job.name.startswith("incomplete") else size):
        yield Resource.PODS, manifests.pod(job, member=member)


def _draw(chance: random.Random, weights: dict[str, int]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]
