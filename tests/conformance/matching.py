"""Compares the outcome of a scheduling case with the assertions of KAI's test (SCHEMA section 4)."""

from collections.abc import Iterator
from decimal import Decimal

from app.model.resources import GPU, GPU_MILLI
from tests.conformance.clusters import Cluster
from tests.conformance.seats import PENDING, Seats, shares_devices, tasks
from tests.conformance.sessions import Counts, Outcome
from tests.conformance.vectors import Case, exact

LIMITS = ("binds", "evictions", "pipelined")


def differences(case: Case, outcome: Outcome) -> list[str]:
    """Return a line for every difference."""
    expected = case["expected"]
    found = [line for number, each in enumerate(outcome.rounds) for line in _over(expected, each, number)]
    for number, seats in enumerate(outcome.matches):
        at = f"match {number}: " if len(outcome.matches) > 1 else ""
        found += [at + line for line in _mismatches(case, seats)]
    return found


def _over(expected: Case, counted: Counts, number: int) -> Iterator[str]:
    limits = expected["max_per_round"]
    for name in LIMITS:
        count = counted.written()[name]
        if count > limits[name]:
            yield f"session {number}: {count} {name}, at most {limits[name]} expected"


def _mismatches(case: Case, seats: Seats) -> Iterator[str]:
    for name, expected in _expectations(case):
        seat = seats[name]
        node = None if expected["status"] == PENDING else expected.get("node")
        if seat.status != expected["status"] or node not in {None, seat.node}:
            yield f"{name}: expected {_said(expected['status'], node)}, got {_said(seat.status, seat.node)}"
    yield from _node_mismatches(case, seats)
    if case["gpu_group_check"] == "holds_up_to_renaming":
        yield from _renamings(case, seats)


def _said(status: str, node: str | None) -> str:
    return f"{status} on {node}" if node else status


def _expectations(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield what is expected of each task, of a whole job first, then of single tasks; other names are ignored."""
    expected = case["expected"]
    for job, task in tasks(case):
        if job["name"] in expected["jobs"]:
            yield task["name"], expected["jobs"][job["name"]]
        if task["name"] in expected["tasks"]:
            yield task["name"], expected["tasks"][task["name"]]


def _node_mismatches(case: Case, seats: Seats) -> Iterator[str]:
    expected = case["expected"]["nodes"]
    if not expected:
        return
    cluster = Cluster.of(case)
    room = cluster.room(seats)
    for name, node in expected.items():
        column = cluster.nodes.index[name]
        for what, amounts in (("idle", room.free), ("releasing", room.releasing)):
            found = int(amounts[GPU, column])
            if found != exact(node[f"{what}_gpus"], GPU_MILLI):
                yield f"{name}: expected {node[f'{what}_gpus']} {what} GPUs, got {Decimal(found) / GPU_MILLI}"


def _renamings(case: Case, seats: Seats) -> Iterator[str]:
    """Compare GPU groups by their meaning: the same name on a node is the same GPU, and no other name is."""
    ours: dict[tuple[str | None, str], str] = {}
    theirs: dict[tuple[str | None, str], str] = {}
    shared = {task["name"] for _, task in tasks(case) if shares_devices(task)}
    for name, expected in _expectations(case):
        groups, seat = expected.get("gpu_groups") or [], seats[name]
        if expected["status"] == PENDING or expected.get("dont_validate_gpu_group") or name not in shared or not groups:
            continue
        if len(groups) != len(seat.devices):
            yield f"{name}: expected {len(groups)} shared GPUs, got {len(seat.devices)}"
            continue
        for group, device in zip(groups, seat.devices, strict=True):
            if theirs.setdefault((seat.node, group), device) != device:
                yield f"{name}: expected the GPU {theirs[seat.node, group]} of group {group}, got {device}"
            if ours.setdefault((seat.node, device), group) != group:
                yield f"{name}: GPU {device} is group {ours[seat.node, device]} and cannot be {group} too"
