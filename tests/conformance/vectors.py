"""Reads vector files and turns them into our terms; expected results are left to `judging`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from app.model.names import QueueName
from app.model.queue import Entitlement, Queue
from app.model.resources import UNLIMITED, Resources
from app.model.snapshot import NodeTable, Snapshot, Usage

Case = dict[str, Any]
"""One case as its JSON was decoded; numbers with a point are `Decimal`, so that nothing is rounded on the way."""

SCHEMA = "kai-vectors/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The cases of one file."""

    name: str
    cases: tuple[Case, ...]


def suites(paths: Iterable[Path]) -> Iterator[Suite]:
    """Read files, and the files of folders in the order of their names; other JSON in a folder is skipped."""
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        for file in files:
            content = json.loads(file.read_text(encoding="utf-8"), parse_float=Decimal)
            if path.is_dir() and content.get("schema") != SCHEMA:
                continue
            yield Suite(name=content.get("suite", file.stem), cases=tuple(content["cases"]))


def exact(number: Decimal | float, scale: int) -> int:
    """Return `number` in units of one `scale`-th; the vectors must not need rounding."""
    scaled = Decimal(number) * scale
    if scaled != int(scaled):
        raise ValueError(f"{number} is no whole number of units of 1/{scale}")
    return int(scaled)


def bounded(number: Decimal | float, scale: int) -> int:
    """Return an amount of which -1 means unlimited."""
    return UNLIMITED if number == -1 else exact(number, scale)


def resources(amounts: Mapping[str, Any]) -> Resources:
    """Read `cpu`, `memory` and `gpu`; a missing value, or one that is not a number in KAI's test, is nothing."""
    cpu, memory, gpu = (amounts.get(name, 0) for name in ("cpu", "memory", "gpu"))
    gpu_milli = 0 if gpu == "NaN" else exact(gpu, 1000)
    return Resources(cpu_milli=exact(cpu, 1), memory_bytes=exact(memory, 1), gpu_milli=gpu_milli)


def entitlement(resource: Mapping[str, Any], scale: int) -> Entitlement:
    """Read what a queue is entitled to of one resource."""
    return Entitlement(
        deserved=bounded(resource["deserved"], scale),
        limit=bounded(resource["limit"], scale),
        over_quota_weight_micro=exact(resource["over_quota_weight"], 1_000_000),
    )


def queue(name: str, attributes: Case) -> Queue:
    """Read a queue with its three entitlements."""
    parent = attributes.get("parent")
    return Queue(
        name=QueueName(name),
        parent=QueueName(parent) if parent else None,
        priority=attributes["priority"],
        created_at=attributes.get("creation_order") or 0,
        cpu_milli=entitlement(attributes["cpu"], 1),
        memory_bytes=entitlement(attributes["memory"], 1),
        gpu_milli=entitlement(attributes["gpu"], 1000),
    )


def snapshot(queues: Mapping[str, Case], total: Resources) -> Snapshot:
    """Build a cluster without nodes or groups, whose queues hold and request the amounts of the case."""
    table = NodeTable.of(())
    return Snapshot(
        version=1,
        nodes=table,
        free=table.allocatable,
        queues={QueueName(name): queue(name, each) for name, each in queues.items()},
        usage={QueueName(name): _usage(name, queues) for name in queues},
        groups={},
        total=total,
    )


def column(queue: Case, name: str) -> Resources:
    """Read one attribute, such as `allocated`, of all three resources."""
    return resources({resource: queue[resource].get(name, 0) for resource in ("cpu", "memory", "gpu")})


def _usage(name: str, queues: Mapping[str, Case]) -> Usage:
    return Usage(
        allocated=_own(name, queues, "allocated"),
        allocated_non_preemptible=_own(name, queues, "allocated_non_preemptible"),
        requested=_own(name, queues, "request"),
    )


def _own(name: str, queues: Mapping[str, Case], attribute: str) -> Resources:
    # Vectors give sums over the subtree; a snapshot holds each queue's own, negative where a test's do not add up.
    own = column(queues[name], attribute)
    for child in queues.values():
        if child.get("parent") == name:
            own -= column(child, attribute)
    return own
