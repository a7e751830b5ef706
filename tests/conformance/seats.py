"""The state between two sessions of a scheduling case: the place of every task, and what follows each status."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.conformance.vectors import Case

PENDING, RUNNING, RELEASING, PIPELINED, BINDING = "Pending", "Running", "Releasing", "Pipelined", "Binding"
SUCCEEDED = "Succeeded"

HOLDING = frozenset({"Allocated", BINDING, "Bound", RUNNING})
"""Statuses of tasks that hold resources and keep them."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The state of one task."""

    status: str
    node: str | None = None
    devices: tuple[str, ...] = ()
    """The shared GPUs of which it holds a part."""

    def written(self) -> dict[str, Any]:
        """Return the seat as `-o json` prints it."""
        return {"status": self.status, "node": self.node, "gpu_groups": list(self.devices)}


WAITING = Seat(PENDING)

Seats = Mapping[str, Seat]
"""By the name of the task."""


def tasks(case: Case) -> Iterator[tuple[Case, Case]]:
    """Yield every task with its job."""
    for job in case["cluster"]["jobs"]:
        for task in job["tasks"]:
            yield job, task


def shares_devices(task: Case) -> bool:
    """Return whether the task requests GPU shares."""
    return task["gpu"]["kind"] in {"fraction", "memory"}


def initial(case: Case) -> Seats:
    """Return the places of the tasks before the first session; a node named by a pending task means nothing."""
    return {task["name"]: _initial(task) for _, task in tasks(case)}


def _initial(task: Case) -> Seat:
    if task["status"] == PENDING:
        return WAITING
    return Seat(task["status"], task["node"], tuple(task["gpu_groups"]) if shares_devices(task) else ())


def next_round(case: Case, seats: Seats) -> Seats:
    """Return the state that the next session finds: bound tasks run, evicted ones are pending again."""
    stays = {task["name"] for job, task in tasks(case) if job.get("delete_in_test")}
    return {name: _next(seat, stays=name in stays) for name, seat in seats.items()}


def _next(seat: Seat, *, stays: bool) -> Seat:
    match seat.status:
        case "Binding":
            return Seat(RUNNING, seat.node, seat.devices)
        case "Releasing" if stays:
            return seat
        case "Releasing" | "Pipelined":
            return WAITING
        case _:
            return seat
