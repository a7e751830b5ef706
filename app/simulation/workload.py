"""What the demo's people run: a fixed cluster, and work that arrives by a seeded chance so that every state is seen."""

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
ARRIVAL_EVERY_S = 8.0
AT_ONCE = 20
"""So much work is there from the start, so that the first look already finds a busy cluster."""
MOST_GPUS_A_GANG = 32

QUEUES = (
    ("acme", None, Quota(gpus=112)),
    ("research", "acme", Quota(gpus=80, weight=2)),
    ("product", "acme", Quota(gpus=32)),
    ("vision", "research", Quota(gpus=48, weight=2)),
    ("language", "research", Quota(gpus=32)),
    ("serving", "product", Quota(gpus=24, limit=32)),
)
"""Name, parent, quota: 112 of the 128 GPUs in racks are deserved by somebody, the rest goes by weight."""

LEAVES = {"vision": 45, "language": 35, "serving": 20}
"""How often each leaf queue is the one that asks."""

LAB = {"lab-1": 6, "lab-2": 2, "lab-3": 0}
"""Nodes apart, and how many of their GPUs another scheduler's pods hold for good."""

LAB_TAINT = {"key": "dedicated", "value": "lab", "effect": "NoSchedule"}

KINDS = {"single": 24, "shared": 24, "cpu": 16, "gang": 30, "impossible": 3, "incomplete": 3}
NEVER_START = frozenset({"impossible", "incomplete"})
"""Of these kinds: pods that no node is large enough for, and gangs that lack a member."""


PARTS: tuple[Mapping[str, str], ...] = (
    {FRACTION: "0.5"},
    {FRACTION: "0.25"},
    {FRACTION: "0.3"},
    {FRACTION: "0.5", "gpu-fraction-num-devices": "2"},
    {MEMORY: "8192"},
    {MEMORY: "20480"},
)
"""What is asked for of a GPU, or of two, in shared use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Objects that somebody creates together, so many simulated seconds after the arrival before."""

    after_s: float
    kind: str
    objects: tuple[Creation, ...]


def furniture() -> Iterator[Creation]:
    """Yield what is there before any work: nodes, queues and priority classes."""
    for rack, number in itertools.product(RACKS, range(1, NODES_A_RACK + 1)):
        yield Resource.NODES, _gpu_node(f"gpu-{rack}-{number:02}", {manifests.RACK_LABEL: rack})
    for number in (1, 2):
        yield Resource.NODES, manifests.node(f"cpu-{number:02}", gpus=0, cpu=32, labels={})
    yield from _lab()
    for name, parent, quota in QUEUES:
        yield Resource.QUEUES, manifests.queue(name, parent, quota)
    for name in manifests.PRIORITIES:
        yield Resource.PRIORITY_CLASSES, manifests.priority_class(name)


def _lab() -> Iterator[Creation]:
    """Yield nodes that the work stays away from, so that a question about them has the same answer at any time."""
    for name, used in LAB.items():
        lab = _gpu_node(name, {})
        lab["spec"]["taints"] = [LAB_TAINT]
        yield Resource.NODES, lab
        if used:
            yield Resource.PODS, manifests.foreign_pod(f"experiment-{name}", node=name, gpus=used)


def arrivals(seed: int) -> Iterator[Arrival]:
    """Yield work for ever; the same seed yields the same work."""
    chance = random.Random(seed)  # noqa: S311 # a demo that repeats itself wants no better chance
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
            return _gang(
                chance, Job(name=f"{kind}-{number}", queue=queue, runtime_s=runtime_s, group=f"{kind}-{number}")
            )
        case "shared":
            job = _single(f"share-{number}", queue, runtime_s)
            return _alone(replace(job, gpus=0, part=chance.choice(PARTS)))
        case _:
            return _alone(_single(f"single-{number}", queue, runtime_s))


def _single(name: str, queue: str, runtime_s: int) -> Job:
    # What serves customers is not preemptible, so it must stay within its queue's quota.
    priority_class = "inference" if queue == "serving" else "train"
    return Job(name=name, queue=queue, gpus=1, runtime_s=runtime_s, priority_class=priority_class)


def _alone(job: Job) -> Iterator[Creation]:
    yield Resource.PODS, manifests.pod(job)


def _gang(chance: random.Random, shape: Job) -> Iterator[Creation]:
    gpus = chance.choice((1, 1, 1, 2, 2, 4))
    size = min(chance.randint(4, 16), MOST_GPUS_A_GANG // gpus)
    job = Job(name=shape.name, queue=shape.queue, gpus=gpus, runtime_s=shape.runtime_s, group=shape.group)
    yield Resource.POD_GROUPS, manifests.pod_group(job, min_member=size)
    for member in range(size - 1 if job.name.startswith("incomplete") else size):
        yield Resource.PODS, manifests.pod(job, member=member)


def _draw(chance: random.Random, weights: dict[str, int]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]
