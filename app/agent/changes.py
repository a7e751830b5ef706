"""Decides whether a report should be sent: every report is a write and wakes all watchers. Pure functions."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from app.agent.report import Status

LEAST_MIB = 64
LEAST_PERCENT = 2
MEASURED = ("used", "foreign")


class Change(Enum):
    """How soon a report must be sent."""

    NONE = "none"
    MEMORY = "memory"
    """Only measured memory or the list of driver failures has changed. Such a report can wait."""
    AT_ONCE = "at once"


def change(before: Status | None, now: Status) -> Change:
    """Compare a report with the last one that was sent."""
    if before is None or _without_measures(before) != _without_measures(now):
        return Change.AT_ONCE
    measured = dict(_measures(before))
    moved = any(_has_moved(measured[key], value) for key, value in _measures(now))
    return Change.MEMORY if moved or before.get("failures") != now.get("failures") else Change.NONE


Measure = tuple[int, int]
"""MiB used, and the MiB of the whole device."""


def _has_moved(before: Measure, now: Measure) -> bool:
    (was, _), (is_now, total) = before, now
    moved = abs(is_now - was)
    return moved >= LEAST_MIB or (moved > 0 and moved * 100 >= LEAST_PERCENT * total)


def _measures(status: Status) -> Iterator[tuple[tuple[str, str], Measure]]:
    for device in status["devices"]:
        memory = device.get("memoryMiB", {})
        total = memory.get("total", 0)
        for name in MEASURED:
            if name in memory:
                yield (device["uuid"], name), (memory[name], total)
        for process in device.get("processes", ()):
            if "memoryMiB" in process:
                yield (device["uuid"], process["podUid"]), (process["memoryMiB"], total)


def _without_measures(status: Status) -> dict[str, Any]:
    return {**status, "failures": [], "devices": [_steady(device) for device in status["devices"]]}


def _steady(device: Mapping[str, Any]) -> dict[str, Any]:
    # It matters whether memory was measured at all, and which pods have processes.
    memory = {**device.get("memoryMiB", {})} | {name: 0 for name in MEASURED if name in device.get("memoryMiB", {})}
    processes = [each | {"memoryMiB": 0} if "memoryMiB" in each else each for each in device.get("processes", ())]
    return {**device, "memoryMiB": memory, "processes": processes}
