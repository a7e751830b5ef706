"""Makes a script from a seed: the shape of the cluster, the work, and the faults. Nothing else is random."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from app.simulation.manifests import MEMORY_LABEL, PRODUCT_LABEL, RACK_LABEL, UNLIMITED
from tests.faults.script import Operation, Script

QUIET_S = 420.0
"""How long the quiet end lasts: longer than any wait that is not for a change."""

MODELS = (("NVIDIA-H100-80GB-HBM3", 81559, 8), ("NVIDIA-A100-SXM4-40GB", 40960, 4), ("NVIDIA-L4", 23034, 2))
PARTS: tuple[dict[str, str], ...] = (
    {"gpu-fraction": "0.5"},
    {"gpu-fraction": "0.25"},
    {"gpu-fraction": "0.3"},
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
    {"gpu-memory": "8192"},
)
KINDS = ("nodes", "pods", "priority_classes", "queues", "pod_groups", "topologies", "gpu_nodes")
WRITES = ("bind", "nominate", "release", "evict", "delete_pod", "mark_disrupted", "create_pod", "annotate_pod", "*")
ERRORS = ("conflict", "forbidden", "rejected", "unavailable", "unavailable", "webhook", "budget")


@dataclass(slots=True)
class Shape:
    """What the rest of the generation needs to know of the cluster."""

    nodes: list[tuple[str, int]]
    leaves: list[str]
    queues: list[str]
    replicas: int
    busy_s: float

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.nodes)

    @property
    def hosts(self) -> list[str]:
        return [f"host-{index}" for index in range(self.replicas)]


def generate(seed: int) -> Script:
    """Return the script of a seed."""
    chance = Random(seed)
    busy_s = chance.uniform(300, 800)
    shape = Shape([], [], [], 2 if chance.random() < 0.3 else 1, busy_s)
    cluster = [*_nodes(chance, shape), *_queues(chance, shape)]
    work = list(_work(chance, shape))
    faults = list(_faults(chance, shape)) if seed % 5 else []
    return Script(
        seed=seed,
        settings=_settings(chance),
        replicas=shape.replicas,
        has_admission=chance.random() < 0.5,
        quiet_at=busy_s + 20.0,
        end_at=busy_s + 20.0 + QUIET_S,
        operations=(*cluster, *sorted([*work, *faults], key=lambda one: one.at)),
    )


def _settings(chance: Random) -> dict[str, Any]:
    return {
        "audit_interval_s": chance.choice((30.0, 60.0)),
        "patience_s": chance.choice((0.0, 30.0, 60.0)),
        "ageing_s": chance.choice((None, 60.0, 120.0)),
        "promise_ttl_s": chance.choice((20.0, 60.0)),
        "answered_ttl_s": chance.choice((60.0, 300.0)),
        "gang_barrier_s": chance.choice((15.0, 45.0)),
        "stale_grace_s": chance.choice((20.0, 60.0)),
        "borrow_last": chance.random() < 0.7,
        "packing": chance.choice(("expected-use", "best-fit")),
        "placement": "binpack" if chance.random() < 0.8 else "spread",
    }


# The cluster


def _nodes(chance: Random, shape: Shape) -> Iterator[Operation]:
    number = chance.choice((4, 4, 4, 4, 5, 5, 6, 6, 6, 8, 10, 40 if chance.random() < 0.3 else 12))
    racks = chance.randint(1, 3)
    models = chance.sample(MODELS, chance.randint(1, 2))
    yield Operation(at=0.0, do="topology", args={"name": "t", "levels": [RACK_LABEL, "kubernetes.io/hostname"]})
    for index in range(number):
        product, memory_mib, gpus = chance.choice(models)
        if chance.random() < 0.1:
            gpus = 0
        labels = {RACK_LABEL: f"r{index % racks}"}
        if gpus:
            labels |= {PRODUCT_LABEL: product, MEMORY_LABEL: str(memory_mib), "nvidia.com/gpu.count": str(gpus)}
        name = f"n{index:02}"
        shape.nodes.append((name, gpus))
        yield Operation(
            at=0.0, do="node", args={"name": name, "gpus": gpus, "cpu": 16 * max(gpus, 1), "labels": labels}
        )


def _queues(chance: Random, shape: Shape) -> Iterator[Operation]:
    departments = chance.randint(1, 3)
    yield from _queue(chance, shape, "root", None, shape.gpus, may_limit=False)
    for index in range(departments):
        share = shape.gpus // departments
        name = f"d{index}"
        yield from _queue(chance, shape, name, "root", share, may_limit=True)
        teams = chance.randint(1, 3)
        for team in range(teams):
            shape.leaves.append(f"{name}-{team}")
            yield from _queue(chance, shape, f"{name}-{team}", name, share // teams, may_limit=True)


def _queue(  # noqa: PLR0913 # one queue of the tree
    chance: Random, shape: Shape, name: str, parent: str | None, gpus: int, *, may_limit: bool
) -> Iterator[Operation]:
    shape.queues.append(name)
    limit = gpus + chance.randint(0, max(1, gpus)) if may_limit and chance.random() < 0.5 else UNLIMITED
    quota = max(0, gpus - chance.randint(0, 2))
    args = {"name": name, "parent": parent, "gpus": quota, "limit": limit, "weight": chance.randint(1, 3)}
    yield Operation(at=0.0, do="queue", args=args)


# The work


def _work(chance: Random, shape: Shape) -> Iterator[Operation]:
    load = chance.uniform(0.6, 2.5)
    most = min(int(shape.gpus * load) + 6, 36)
    for number in range(most):
        at = chance.uniform(0.5, shape.busy_s) if number > most // 4 else chance.uniform(0.5, 5)
        args = _job(chance, shape, f"j{number}")
        yield Operation(at=round(at, 3), do="submit", args=args)
        if chance.random() < 0.15:
            gone_at = chance.uniform(at, shape.busy_s)
            yield Operation(at=round(gone_at, 3), do="delete", args={"job": args["name"]})
        elif chance.random() < 0.1:
            member = chance.randrange(args["size"])
            gone_at = chance.uniform(at, shape.busy_s)
            lost = {"job": args["name"], "member": member, "for_good": member % 2 == 0}
            yield Operation(at=round(gone_at, 3), do="delete_pod", args=lost)
    for _ in range(chance.choice((0, 0, 1, 2))):
        limit = chance.choice((UNLIMITED, chance.randint(1, shape.gpus + 1)))
        change = {"quota": chance.randint(0, shape.gpus // 2), "limit": limit}
        at = chance.uniform(30, shape.busy_s)
        yield Operation(at=round(at, 3), do="quota", args={"queue": chance.choice(shape.leaves), "change": change})


def _job(chance: Random, shape: Shape, name: str) -> dict[str, Any]:
    kind = chance.choices(("single", "gang", "elastic", "share", "cpu", "sharing gang"), (30, 25, 10, 25, 8, 6))[0]
    runtime_s = chance.choice((chance.randint(15, 120), chance.randint(60, 400), 0))
    priority = chance.choices(("train", "build-preemptible", "build", "inference"), (60, 15, 15, 10))[0]
    args: dict[str, Any] = {
        "name": name,
        "queue": chance.choice(shape.leaves),
        "size": 1,
        "gpus": 0,
        "cpu": chance.choice((1, 1, 2, 4)),
        "runtime_s": runtime_s,
        "priority": priority,
        "grace_s": chance.choice((1, 5, 20)),
    }
    widest = max(gpus for _, gpus in shape.nodes) or 1
    match kind:
        case "single":
            args |= {"gpus": chance.choice((1, 1, 1, 2, widest))}
        case "gang" | "elastic":
            size = chance.randint(2, min(8, max(2, shape.gpus)))
            least = size if kind == "gang" else chance.randint(1, size)
            args |= {"gpus": chance.choice((1, 1, 2)), "size": size, "min": least, "group": True}
            if chance.random() < 0.25:
                level = chance.choice(("requiredTopologyLevel", "preferredTopologyLevel"))
                args["topology"] = {"topology": "t", level: RACK_LABEL}
        case "share":
            args |= {"part": chance.choice(PARTS)}
        case "sharing gang":
            args |= {"part": chance.choice(PARTS), "size": 3, "min": 3, "group": True}
        case _:
            args |= {"size": chance.randint(1, 3)}
    if args["size"] > 1 and chance.random() < 0.15:
        args["budget"] = chance.randint(1, args["size"])
    return args


# The faults

Fault = Callable[[Random, Shape], tuple[str, dict[str, Any]]]


def _faults(chance: Random, shape: Shape) -> Iterator[Operation]:
    """Choose some kinds of faults for this run: a run with all of them at once tests none of them well."""
    kinds = chance.sample(sorted(FAULTS), chance.randint(1, 6))
    if shape.replicas > 1:
        kinds += ["no_renewal", "release_lease", "crash"]
    for _ in range(chance.randint(3, 25)):
        do, args = FAULTS[chance.choice(kinds)](chance, shape)
        if (do == "release_lease" and shape.replicas == 1) or (do == "reborn" and shape.replicas > 1):
            continue
        yield Operation(at=round(chance.uniform(1, shape.busy_s), 3), do=do, args=args)


def _lasting(chance: Random) -> float:
    return round(chance.uniform(1, 30), 2)


def _watch_fault(do: str) -> Fault:
    def fault(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
        args: dict[str, Any] = {
            "host": chance.choice(shape.hosts),
            "kind": chance.choice((*KINDS, "pods", "pods", "*")),
        }
        match do:
            case "lag":
                args |= {"by_s": round(chance.uniform(0.1, 4), 2), "for_s": _lasting(chance)}
            case "cut":
                args |= {"for_s": round(chance.uniform(0.1, 20), 2), "relists": chance.random() < 0.5}
            case _:
                args |= {"count": chance.randint(1, 3), "for_s": _lasting(chance)}
        return do, args

    return fault


def _write_fault(do: str) -> Fault:
    def fault(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
        args: dict[str, Any] = {
            "host": chance.choice(shape.hosts),
            "verb": chance.choice(WRITES),
            "for_s": _lasting(chance),
        }
        match do:
            case "refuse":
                args |= {"error": chance.choice(ERRORS), "count": chance.randint(1, 8)}
            case "unknown":
                # With two replicas a write that arrives late would be one of a replica that does not lead any more.
                late_s = 0.2 if shape.replicas > 1 else round(chance.uniform(0, 50), 2)
                args |= {"done": chance.random() < 0.6, "late_s": late_s, "count": chance.randint(1, 4)}
                args["noticed_s"] = round(chance.uniform(0.05, 10), 2)
            case _:
                args |= {"by_s": round(chance.uniform(0.1, 0.4 if shape.replicas > 1 else 8), 2)}
        return do, args

    return fault


def _call_fault(do: str) -> Fault:
    def fault(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
        args: dict[str, Any] = {"host": chance.choice(shape.hosts), "verb": chance.choice(("filter", "bind"))}
        args |= {"count": chance.randint(1, 5), "for_s": _lasting(chance)}
        if do == "call_slow":
            args["by_s"] = round(chance.uniform(0.1, 6), 2)
        return do, args

    return fault


def _reborn(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
    return "reborn", {"host": chance.choice(shape.hosts), "verb": "bind", "count": chance.randint(1, 3)}


def _crash(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
    what = chance.choice(("leeboard", "leeboard", "kube-scheduler", "kubelets", "agents"))
    return "crash", {"what": what, "for_s": round(chance.uniform(1, 25), 2), "host": chance.choice(shape.hosts)}


def _node_fault(do: str) -> Fault:
    def fault(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
        name, gpus = chance.choice(shape.nodes)
        args: dict[str, Any] = {"name": name, "for_s": round(chance.uniform(5, 120), 2)}
        if do == "gpu_broken":
            args |= {"index": chance.randrange(max(gpus, 1)), "shrinks": chance.random() < 0.3}
            args["for_s"] = round(chance.uniform(60, 400), 2)  # After a minute no earlier decision explains its use.
        return do, args

    return fault


def _lease_fault(do: str) -> Fault:
    def fault(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
        return do, {"host": chance.choice(shape.hosts), "for_s": round(chance.uniform(2, 40), 2)}

    return fault


def _clock(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
    jump_s, drift = round(chance.uniform(-120, 120), 1), round(chance.uniform(-0.02, 0.02), 4)
    return "clock", {"host": chance.choice(shape.hosts), "jump_s": jump_s, "drift": drift}


def _slow_plan(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
    del shape
    return "slow_plan", {"by_s": round(chance.uniform(0.2, 5), 2), "for_s": 2 * _lasting(chance)}


def _outage(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
    return "outage", {"host": chance.choice(shape.hosts), "for_s": round(chance.uniform(0.5, 15), 2)}


def _hostile(chance: Random, shape: Shape) -> tuple[str, dict[str, Any]]:
    name = f"hostile-{chance.randrange(1 << 30)}"
    annotations = chance.choice(
        ({"gpu-fraction": "x" * 5000}, {"gpu-memory": "-1"}, {"pod-group-name": "9" * 300}, {"a" * 200: "b" * 90000})
    )
    spec: dict[str, Any] = chance.choice(
        (
            {"nodeSelector": {"k" * 300: "v"}},
            {"priority": 1 << 62},
            {"tolerations": [{}] * 4000},
            {"overhead": {"cpu": "x"}},
        )
    )
    return "hostile", {"name": name, "queue": chance.choice(shape.leaves), "annotations": annotations, "spec": spec}


FAULTS: dict[str, Fault] = {
    **{do: _watch_fault(do) for do in ("lag", "cut", "lose", "repeat")},
    **{do: _write_fault(do) for do in ("refuse", "unknown", "slow")},
    **{do: _call_fault(do) for do in ("call_slow", "call_lost", "answer_lost")},
    **{do: _node_fault(do) for do in ("node_gone", "node_down", "cordon", "gpu_broken")},
    **{do: _lease_fault(do) for do in ("no_renewal", "release_lease")},
    "crash": _crash,
    "reborn": _reborn,
    "clock": _clock,
    "slow_plan": _slow_plan,
    "outage": _outage,
    "hostile": _hostile,
}
