"""A cluster as the page is shown it: states and deltas of the read API, made from a seed, and what is known of pods."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from app.model.live import TABLES, Row

Json = dict[str, Any]

BEGINNING = datetime(2026, 11, 26, 18, 0, tzinfo=UTC)
FRAME = timedelta(seconds=0.5)
H100 = "NVIDIA-H100-80GB-HBM3"
H100_MIB = 81_920
A100 = "NVIDIA-A100-SXM4-40GB"
WHOLE = 1000


def moment(seconds_ago: float = 0.0) -> str:
    """Return a time before the beginning of a scene."""
    return (BEGINNING - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


@dataclass
class Scene:
    """The tables of a state, by table and key; `change` and `drop` collect what the next delta holds."""

    tables: dict[str, dict[str, Row]] = field(default_factory=lambda: {name: {} for name in TABLES})
    epoch: str = "9f3c"
    tick: int = 0
    scalars: Json = field(default_factory=dict)
    whys: dict[str, Json] = field(default_factory=dict)
    """By namespace/name."""
    changes: Json = field(default_factory=dict)

    def put(self, table: str, *rows: Row) -> None:
        """Add or replace rows; the next delta has them."""
        changes = self.changes.setdefault(table, {})
        for row in rows:
            before = self.tables[table].get(row[0])
            self.tables[table][row[0]] = row
            if table == "waiting" and before is not None and before[2:] == row[2:]:
                changes.setdefault("move", []).append(row[:2])
            else:
                changes.setdefault("set", []).append(row)

    def drop(self, table: str, *keys: str) -> None:
        """Remove rows; the next delta has them."""
        for key in keys:
            del self.tables[table][key]
        self.changes.setdefault(table, {}).setdefault("delete", []).extend(keys)

    @property
    def identity(self) -> str:
        """The id of the current frame."""
        return f"{self.epoch}-{self.tick}"

    @property
    def time(self) -> str:
        """The server's clock at the current frame."""
        return (BEGINNING + self.tick * FRAME).isoformat().replace("+00:00", "Z")

    def state(self) -> Json:
        """Return the whole state."""
        tables = {
            name: {"columns": list(TABLES[name]), "rows": list(rows.values())} for name, rows in self.tables.items()
        }
        return {
            "apiVersion": "leeboard.dev/v1alpha1",
            "kind": "State",
            "epoch": self.epoch,
            "tick": self.tick,
            "time": self.time,
            "stale": None,
            "active": True,
            "plan": {"at": moment(2), "milliseconds": 12},
            "summary": self.summary(),
            "leftOut": 0,
            "incomplete": None,
            **self.scalars,
            "tables": tables,
        }

    def delta(self, **scalars: Any) -> Json:
        """Return what has changed since the last frame, and begin the next."""
        self.tick += 1
        self.scalars |= scalars
        changes, self.changes = self.changes, {}
        summary = {"summary": self.summary()} if {"devices", "shares", "nodes"} & set(changes) else {}
        return {"tick": self.tick, "time": self.time, **summary, **scalars, "tables": changes}

    def summary(self) -> Json:
        """Return the figures of the header."""
        held = {"bound": 0, "leaving": 0, "reserved": 0, "foreign": 0}
        used: dict[str, int] = {}
        for _, device, milli, state, *_ in self.tables["shares"].values():
            held[state] += milli
            used[device] = used.get(device, 0) + milli
        ready = {row[0] for row in self.tables["nodes"].values() if row[5] == "ready"}
        sick = [row[0] for row in self.tables["devices"].values() if row[6] == "unhealthy"]
        usable = [row for row in self.tables["devices"].values() if row[1] in ready and row[6] != "unhealthy"]
        whole: dict[str, int] = {}
        for device, node, *_ in usable:
            if not used.get(device):
                whole[node] = whole.get(node, 0) + 1
        return {
            "gpuMilli": {
                "total": WHOLE * len(self.tables["devices"]),
                "free": sum(WHOLE - used.get(row[0], 0) for row in usable),
                "allocated": held["bound"] + held["leaving"],
                "reserved": held["reserved"],
                "unhealthy": WHOLE * len(sick),
                "unmanaged": held["foreign"],
            },
            "largestGangs": [
                {"gpus": size, "pods": sum(free // size for free in whole.values())} for size in (1, 2, 4, 8)
            ],
        }


def device(node: str, index: int, *, clique: int | None = None, health: str = "healthy", profile: str = "") -> Row:
    """Build the row of a device."""
    return [f"{node}/{index}", node, index, H100, H100_MIB, 3 * 1024 * (index + 1), health, clique, profile]


def share(  # noqa: PLR0913 # each is a column
    at: str, pod: str, queue: str, *, milli: int = WHOLE, group: str = "", state: str = "bound"
) -> Row:
    """Build the row of a share; the pod is namespace/name."""
    namespace, _, name = pod.partition("/")
    return [f"{at} {pod}", at, milli, state, queue, namespace, name, group, moment(900)]


def queue(name: str, parent: str = "", **amounts: int | None) -> Row:
    """Build the row of a queue; amounts in GPUs, a missing limit is none."""

    def milli(key: str, otherwise: int | None = 0) -> int | None:
        amount = amounts.get(key, otherwise)
        return None if amount is None else amount * WHOLE

    numbers = [milli("deserved"), milli("fair"), milli("held"), milli("asked"), milli("limit", None)]
    return [name, parent, "", 100, *numbers, amounts.get("waiting", 0), amounts.get("pods", 0)]


def waiting(position: int, pod_group: str, queue: str, sentence: str, **of: Any) -> Row:
    """Build the row of a waiting PodGroup, which is namespace/name."""
    namespace, _, name = pod_group.partition("/")
    pods = of.get("pods", 1)
    asked = of.get("gpu_milli", pods * WHOLE)
    reason = of.get("reason", "NoNodeFits")
    key = of.get("key", pod_group)
    return [key, position, queue, namespace, name, pods, of.get("minimum", pods), asked, reason, sentence, moment(840)]


def why(namespace: str, name: str, **of: Any) -> Json:
    """Build an answer of /api/v1/why."""
    amounts = {"cpuMilli": None, "memoryBytes": None, "gpuMilli": None}
    return {
        "apiVersion": "leeboard.dev/v1alpha1",
        "kind": "PodGroupExplanation",
        "namespace": namespace,
        "name": name,
        "uid": "uid",
        "state": "Waiting",
        "why": {"reason": "NoNodeFits", "sentence": "There is no room.", "details": {}},
        "podGroup": name,
        "queue": "vision",
        "queueNumbers": {
            "deserved": amounts | {"gpuMilli": 24_000},
            "limit": amounts,
            "fairShare": amounts | {"gpuMilli": 28_000},
            "allocated": amounts | {"gpuMilli": 30_000},
            "requested": amounts | {"gpuMilli": 46_000},
            "waitingPodGroups": 2,
            "problem": None,
        },
        "priority": 50,
        "preemptible": True,
        "minMember": 2,
        "node": None,
        "since": None,
        "position": {"aheadInQueue": 0, "firstAhead": [], "ahead": 0, "atLeast": False},
        "podsByState": {"Held": 2},
        "members": [],
        "waitsFor": [],
        "autoscaler": None,
        "workloadPodGroups": None,
        "decisions": [],
        **of,
    }


def large(nodes: int = 1000, gpus: int = 8, seed: int = 25, racks: int = 40) -> Scene:
    """Build a busy cluster of many nodes."""
    chance = random.Random(seed)
    scene = Scene()
    leaves = [f"team-{number}" for number in range(24)]
    for number in range(nodes):
        node = f"gpu-{number:04}"
        rack = number * racks // nodes
        state = "cordoned" if chance.random() < 0.01 else "ready"
        scene.put("nodes", [node, H100, gpus, 0, f"zone-{rack % 2}/rack-{rack:02}", state, "ok", "", "plugin"])
        team = chance.choice(leaves)
        for index in range(gpus):
            health = "unhealthy" if chance.random() < 0.002 else "healthy"
            scene.put("devices", device(node, index, clique=0, health=health))
            if chance.random() < 0.92 and health == "healthy":
                job = f"job-{number // 4}"
                scene.put("shares", share(f"{node}/{index}", f"{team}/{job}-{number}-{index}", team, group=job))
    scene.put("queues", queue("company", deserved=nodes * gpus, fair=nodes * gpus, held=7000, asked=9000, waiting=300))
    scene.put("queues", *(queue(name, "company", deserved=330, fair=333, held=300, asked=360) for name in leaves))
    scene.put("waiting", *(_waits(number, leaves[number % len(leaves)]) for number in range(1, 301)))
    scene.changes = {}
    return scene


def _waits(number: int, team: str, position: int | None = None) -> Row:
    sentence = (
        f"No node has 8 free GPUs: {number % 7} are free on the best one. It starts when a gang of its queue ends."
    )
    return waiting(position or number, f"{team}/waits-{number}", team, sentence, pods=8, gpu_milli=64_000)


def busy_tick(scene: Scene, chance: random.Random, changes: int = 60) -> Json:
    """Change some shares, every queue and some of what waits, as in a busy half second; return the delta."""
    devices = list(scene.tables["devices"])
    by_device: dict[str, str] = {row[1]: key for key, row in scene.tables["shares"].items()}
    for at in chance.sample(devices, changes):
        if at in by_device:
            scene.drop("shares", by_device[at])
        else:
            scene.put("shares", share(at, f"team-1/tick-{scene.tick}-{at.replace('/', '-')}", "team-1"))
    for row in list(scene.tables["queues"].values()):
        scene.put("queues", [*row[:6], row[6] + chance.choice([-1, 0, 1]) * WHOLE, *row[7:]])
    keys = list(scene.tables["waiting"])
    scene.drop("waiting", keys[0])
    scene.put("waiting", *_moved_up(scene.tables["waiting"].values()))
    return scene.delta()


def _moved_up(rows: Iterable[Row]) -> list[Row]:
    return [[row[0], position, *row[2:]] for position, row in enumerate(rows, start=1)]
