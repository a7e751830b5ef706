"""The scenarios: families of scripts of `tests.faults`, each for one part of what Leeboard decides."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from app.simulation.manifests import RACK_LABEL
from tests.faults.generate import FAULTS, PARTS, Shape, generate
from tests.faults.script import Operation, Script

BUSY_S, QUIET_S = 300.0, 60.0
CLUSTER = ("topology", "node", "queue")
WORK = ("submit", "delete", "delete_pod", "quota")

Reshape = Callable[[Random, Shape, dict[str, Any], int], dict[str, Any]]
"""Changes the arguments of one submitted job, the one of this number."""


def _same(_chance: Random, _shape: Shape, args: dict[str, Any], _number: int) -> dict[str, Any]:
    return args


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Scripts of one kind, made from the first seeds."""

    count: int
    faults: tuple[str, ...] = ()
    fault_count: int = 12
    replicas: int = 1
    has_admission: bool | None = None
    """None: as the seed has it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    reshape: Reshape = _same


def _gang(chance: Random, _shape: Shape, args: dict[str, Any], _number: int) -> dict[str, Any]:
    size = chance.randint(2, 6)
    gang = {"size": size, "min": chance.choice((size, size, chance.randint(1, size))), "group": True}
    level = chance.choice(("requiredTopologyLevel", "preferredTopologyLevel"))
    topology = {"topology": {"topology": "t", level: RACK_LABEL}} if chance.random() < 0.4 else {}
    return {**_bare(args), "gpus": chance.choice((1, 1, 2)), **gang, **topology}


def _short_gang(chance: Random, shape: Shape, args: dict[str, Any], number: int) -> dict[str, Any]:
    return {**_gang(chance, shape, args, number), "runtime_s": chance.randint(10, 60)}


def _sharing(chance: Random, _shape: Shape, args: dict[str, Any], _number: int) -> dict[str, Any]:
    gang = {"size": 3, "min": 3, "group": True} if chance.random() < 0.2 else {"size": 1}
    return {**_bare(args), "gpus": 0, "part": chance.choice(PARTS), **gang}


def _borrowing(chance: Random, shape: Shape, args: dict[str, Any], number: int) -> dict[str, Any]:
    """Let one queue borrow everything with the first jobs; those of other queues take it back."""
    first, *others = shape.leaves
    if number < 12 or not others:
        return {**args, "queue": first, "priority": "train", "runtime_s": 0}
    return {**args, "queue": chance.choice(others), "priority": chance.choice(("train", "build"))}


def _unschedulable(chance: Random, shape: Shape, args: dict[str, Any], number: int) -> dict[str, Any]:
    """Let the cluster be full for long, so that more nodes would help."""
    return {**(_gang if chance.random() < 0.4 else _same)(chance, shape, args, number), "runtime_s": 0}


def _bare(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name not in {"part", "group", "min", "topology", "budget"}}


PAST = {"fair_share_k": 1.0, "usage_interval_s": 10.0, "usage_half_life_s": 600.0}
OVERUSE = {"overuse_tolerance_mib": 100, "evict_overuse_after_s": 35.0}
WATCHES, WRITES = ("lag", "cut", "lose", "repeat"), ("refuse", "unknown", "slow", "outage")
NODES = ("node_gone", "node_down", "cordon", "gpu_broken")

FAMILIES: Mapping[str, Family] = {
    "quiet": Family(count=6),
    "spread": Family(count=3, settings={"placement": "spread"}),
    "restarts": Family(count=6, faults=("crash",), fault_count=8),
    "writes": Family(count=6, faults=WRITES, fault_count=20),
    "watches": Family(count=5, faults=WATCHES, fault_count=15),
    "calls": Family(count=3, faults=("call_slow", "call_lost", "answer_lost", "slow_plan")),
    "nodes": Family(count=4, faults=(*NODES, "hostile", "clock")),
    "replicas": Family(count=6, replicas=2, faults=("no_renewal", "release_lease", "crash"), fault_count=8),
    "sharing": Family(count=6, reshape=_sharing),
    "sharing-faults": Family(count=4, reshape=_sharing, faults=("crash", "gpu_broken", "unknown", "refuse")),
    "gangs": Family(count=6, reshape=_gang),
    "gangs-faults": Family(count=4, reshape=_gang, faults=("crash", "unknown", "refuse", "answer_lost")),
    "reclaim": Family(count=6, reshape=_borrowing),
    "reclaim-faults": Family(count=3, reshape=_borrowing, faults=("unknown", "refuse", "lag", "crash")),
    "admission": Family(count=4, has_admission=True, faults=("call_lost",), fault_count=4),
    "completions": Family(count=3, reshape=_short_gang, faults=("crash", "cut"), fault_count=8),
    "provisioning": Family(
        count=3,
        reshape=_unschedulable,
        settings={"autoscaling": "provisioning-request", "autoscaling_after_s": 10.0},
    ),
    "scaling-pods": Family(
        count=2, reshape=_unschedulable, settings={"autoscaling": "scaling-pods", "autoscaling_after_s": 10.0}
    ),
    "overuse": Family(count=3, reshape=_sharing, settings=OVERUSE),
    "past-usage": Family(count=3, reshape=_borrowing, settings=PAST),
}
GENERATED = tuple(range(10))
"""The seeds that are scenarios as they are, all faults mixed."""

DEMOS = (219, 7)
"""The seeds of the demo."""


def scripts() -> dict[str, Script]:
    """Return the script of each scenario by its name."""
    made = {
        f"{name}-{seed}": _script(name, one, seed) for name, one in FAMILIES.items() for seed in range(1, one.count + 1)
    }
    return made | {f"mixed-{seed}": _ended(generate(seed), generate(seed).operations) for seed in GENERATED}


def names() -> list[str]:
    """Return the names of all scenarios."""
    return [*scripts(), *(f"demo-{seed}" for seed in DEMOS)]


def _script(name: str, family: Family, seed: int) -> Script:
    script, chance = generate(seed), Random(f"{name} {seed}")
    shape = _shape(script, family.replicas)
    cluster = [one for one in script.operations if one.do in CLUSTER]
    work = list(_reshaped(chance, shape, family, (one for one in script.operations if one.do in WORK)))
    faults = list(_faults(chance, shape, family)) if family.faults else []
    script = replace(
        script,
        settings={**script.settings, **family.settings},
        replicas=family.replicas,
        has_admission=script.has_admission if family.has_admission is None else family.has_admission,
    )
    return _ended(script, [*cluster, *sorted([*work, *faults], key=lambda one: one.at)])


def _ended(script: Script, operations: Iterable[Operation]) -> Script:
    """Return the first minutes of a script."""
    kept = tuple(one for one in operations if one.at < BUSY_S)
    return replace(script, operations=kept, quiet_at=BUSY_S, end_at=BUSY_S + QUIET_S)


def _shape(script: Script, replicas: int) -> Shape:
    nodes = [(one.args["name"], one.args["gpus"]) for one in script.operations if one.do == "node"]
    queues = [one.args for one in script.operations if one.do == "queue"]
    parents = {one["parent"] for one in queues}
    names = [one["name"] for one in queues]
    return Shape(nodes, [name for name in names if name not in parents], names, replicas, BUSY_S)


def _reshaped(chance: Random, shape: Shape, family: Family, work: Iterable[Operation]) -> Iterator[Operation]:
    jobs: dict[str, dict[str, Any]] = {}
    for one in work:
        args = dict(one.args)
        if one.do == "submit":
            args = jobs[args["name"]] = family.reshape(chance, shape, args, len(jobs))
        elif one.do == "delete_pod":
            args["member"] %= jobs[args["job"]]["size"]
        yield replace(one, args=args)


def _faults(chance: Random, shape: Shape, family: Family) -> Iterator[Operation]:
    for _ in range(family.fault_count):
        do, args = FAULTS[chance.choice(family.faults)](chance, shape)
        yield Operation(at=round(chance.uniform(1, BUSY_S - 20), 3), do=do, args=args)
