"""The openb format (Alibaba's GPU trace of 2023), and the replay of a trace as in "Beware of Fragmentation" (ATC'23).

The cluster is empty at first. The pods of a trace arrive in random order until 130 % of the cluster's GPUs have been
requested. No pod ever leaves. A pod that finds no place is dropped. The result is the allocation: the milli-GPUs of the
placed pods, in percent of all milli-GPUs.
"""

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from app.model.resources import GPU_MILLI

REQUESTED_PERCENT = 130
"""Where a replay ends: the GPUs that all pods requested, in percent of the cluster's GPUs."""
MOST_PODS = 1001
"""The most pods of a node, as in the published experiment."""
MOST = 1 << 27
"""The largest number in a file: 128 TiB in MiB, 134,000 cores in milli-CPUs."""
MOST_DIGITS, LONGEST_SHOWN = 9, 40
MOST_GPUS = 64
"""The most GPUs of a node or a pod."""

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
"""A pod list may also have a column `gpu_spec`. All other columns are ignored."""


class OpenbError(Exception):
    """A file cannot be used; the message is for the person who named it."""


class OpenbNode(NamedTuple):
    """A node of a node list."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class OpenbPod(NamedTuple):
    """What a pod of a trace requests. Pods that request the same are equal."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    """Of each GPU; 1000 is a whole one."""
    models: tuple[str, ...]
    """The GPU models that the pod accepts; empty: all."""

    @property
    def total_milli(self) -> int:
        """The milli-GPUs that the pod requests."""
        return self.gpus * self.gpu_milli


class OpenbPlace(NamedTuple):
    """Where a pod was placed."""

    column: int
    """The number of the node."""
    devices: tuple[object, ...]
    """The names of its GPUs on the node; may be empty for whole GPUs."""


class Move(NamedTuple):
    """A pod that was moved for another pod."""

    pod: int
    """The number of the moved pod's arrival; the first is 0."""
    beneficiary: int
    """The number of the other pod's arrival, at which the pod moved."""
    to: OpenbPlace


class Placer(Protocol):
    """A placement policy at work on its own cluster."""

    @property
    def moves(self) -> Sequence[Move]:
        """All moves so far."""

    def place(self, pod: OpenbPod) -> OpenbPlace | None:
        """Place the pod for good. Return None if it fits nowhere."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What one policy made of one sequence of arrivals."""

    curve: tuple[float, ...]
    """The allocation in percent by the percentage of GPUs that was requested so far, from 0 to 130."""
    places: tuple[OpenbPlace | None, ...]
    """By arrival, before any move."""
    moves: tuple[Move, ...]
    moved_milli: int
    """The milli-GPUs of the pods that were moved, each as often as it moved."""
    cpu_s: float
    """CPU seconds of this process for all arrivals."""

    @property
    def allocation_percent(self) -> float:
        """The allocation when 130 % of the GPUs have been requested."""
        return self.curve[-1]

    @property
    def decisions_per_second(self) -> float:
        """The arrivals per CPU second."""
        return len(self.places) / max(self.cpu_s, 1e-6)


def replay(placer: Placer, arriving: Sequence[OpenbPod], gpu_milli: int) -> Replay:
    """Place the pods one after the other on a cluster with so many milli-GPUs."""
    began = time.process_time()
    places = [placer.place(pod) for pod in arriving]
    cpu_s = time.process_time() - began
    return Replay(
        curve=_curve(arriving, places, gpu_milli),
        places=tuple(places),
        moves=tuple(placer.moves),
        moved_milli=sum(arriving[move.pod].total_milli for move in placer.moves),
        cpu_s=cpu_s,
    )


def _curve(arriving: Sequence[OpenbPod], places: Sequence[OpenbPlace | None], gpu_milli: int) -> tuple[float, ...]:
    """Return the mean allocation of the arrivals that round to each percentage, or the last one before that."""
    requested = allocated = 0
    last = [0] * (REQUESTED_PERCENT + 1)
    found: list[list[int]] = [[] for _ in last]
    for pod, place in zip(arriving, places, strict=True):
        requested += pod.total_milli
        allocated += 0 if place is None else pod.total_milli
        percent = round(100 * requested / gpu_milli)
        if percent <= REQUESTED_PERCENT:
            found[percent].append(allocated)
    means, last_one = [], 0.0
    for here in found:
        means.append(sum(here) / len(here) if here else last_one)
        last_one = here[-1] if here else last_one
    return tuple(100 * mean / gpu_milli for mean in means)


def in_fixed_order(nodes: Sequence[OpenbNode], seed: int) -> list[OpenbNode]:
    """Return the nodes in the random order of one replay. A policy takes the first one of equal nodes."""
    ordered = sorted(nodes)
    Random(seed + 1000).shuffle(ordered)
    return ordered


def arrivals(trace: Sequence[OpenbPod], gpu_milli: int, seed: int) -> list[OpenbPod]:
    """Return the arrivals of one replay: the pods of the trace, shuffled, with further ones or fewer.

    They request 130 % of so many milli-GPUs.
    """
    random, most = Random(seed), gpu_milli * REQUESTED_PERCENT / 100
    arriving = list(trace)
    random.shuffle(arriving)
    requested = sum(pod.total_milli for pod in arriving)
    if requested > most:
        while requested > most:
            requested -= arriving.pop(random.randrange(len(arriving))).total_milli
    else:
        # The published experiment adds the milli-GPUs of one GPU in this test, also for a pod of several GPUs.
        while requested + (pod := random.choice(trace)).gpu_milli <= most:
            arriving.append(pod)
            requested += pod.total_milli
    return arriving


def read_nodes(path: Path) -> list[OpenbNode]:
    """Read a node list; raises `OpenbError` with what to do."""
    nodes = [
        OpenbNode(
            row["sn"], row.amount("cpu_milli"), row.amount("memory_mib"), row.amount("gpu", MOST_GPUS), row["model"]
        )
        for row in _rows(path, "node list", NODE_COLUMNS)
    ]
    if not any(node.gpus for node in nodes):
        raise OpenbError(f"{path}: no node has a GPU. Give a node list with a number above 0 in its column gpu.")
    return nodes


def read_pods(path: Path) -> list[OpenbPod]:
    """Read a pod list in the order of the names; raises `OpenbError` with what to do."""
    rows = sorted(_rows(path, "pod list", POD_COLUMNS), key=lambda row: row["name"])
    pods = [_pod(row) for row in rows]
    if not any(pod.gpus for pod in pods):
        raise OpenbError(f"{path}: no pod requests a GPU. Give a pod list with a number above 0 in its column num_gpu.")
    return pods


def _pod(row: "_Row") -> OpenbPod:
    gpus = row.amount("num_gpu", MOST_GPUS)
    gpu_milli = row.amount("gpu_milli", GPU_MILLI, least=1) if gpus else 0
    models = tuple(sorted(filter(None, row.get("gpu_spec", "").split("|"))))
    return OpenbPod(row.amount("cpu_milli"), row.amount("memory_mib"), gpus, gpu_milli, models)


class _Row(dict[str, str]):
    """One line of a file."""

    def __init__(self, cells: dict[str, str], where: str) -> None:
        super().__init__(cells)
        self._where = where

    def amount(self, column: str, most: int = MOST, *, least: int = 0) -> int:
        """Return a whole number; raises `OpenbError` for anything else."""
        text = self[column]
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else -1
        if not least <= number <= most:
            advice = f"Write a whole number from {least} to {most} there."
            raise OpenbError(f"{self._where}: {column} is {text[:LONGEST_SHOWN]!r}. {advice}")
        return number


def _rows(path: Path, kind: str, columns: Sequence[str]) -> list[_Row]:
    advice = f"Give a {kind} of the openb format, a CSV file with the columns {', '.join(columns)}."
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval=None, restkey="")
            lacking = [column for column in columns if column not in (reader.fieldnames or ())]
            if lacking:
                raise OpenbError(f"{path} has no column {', '.join(lacking)}. {advice}")
            rows = []
            for cells in reader:
                where = f"{path}, line {reader.line_num}"
                if None in cells.values():
                    raise OpenbError(f"{where}: there are fewer values than columns. Complete or remove the line.")
                rows.append(_Row(cells, where))
    except OSError as error:
        raise OpenbError(f"{path} cannot be read: {error.strerror}. {advice}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise OpenbError(f"{path} is not a CSV file: {error}. {advice}") from error
    if not rows:
        raise OpenbError(f"{path} has no line below the titles. {advice}")
    return rows
