"""Waits until Leeboard has read the report of a simulated agent: only then do its decisions depend on the report."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tests.system.api import Object
from tests.system.waiting import eventually

READ_WITHIN_S = 30.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""

Facts = tuple[str, Sequence[tuple[object, ...]]]


class ReportReader(Protocol):
    """A running Leeboard (`forms.Deployed`)."""

    def gpus(self, node: str) -> Object:
        """Return what Leeboard knows of the GPUs of a node; nothing while it has no report of the node's agent."""

    def has_free_gpu(self, node: str) -> bool:
        """Return whether Leeboard would place a pod with a whole GPU on a node now."""


def wait_until_read(leeboard: ReportReader, node: str, report: Callable[[], Object]) -> None:
    """Wait until Leeboard shows what the agent of a node would report now."""
    eventually(
        lambda: (_of_answer(leeboard.gpus(node)), _of_report(report())),
        until=lambda both: both[0] == both[1],
        within_s=READ_WITHIN_S,
        what=f"Leeboard shows (left) what the agent of {node} reports (right)",
    )


def wait_until_full(leeboard: ReportReader, node: str) -> None:
    """Wait until Leeboard knows that a node offers no GPU: its Node is on another watch than the report."""
    what = f"Leeboard knows that {node} offers no GPU"
    eventually(lambda: not leeboard.has_free_gpu(node), within_s=READ_WITHIN_S, what=what)


def _of_answer(answer: Object) -> Facts:
    devices = [
        (one["uuid"], one["health"], one["healthReason"] or "", one["memory"]["usedMib"], one["memory"]["foreignMib"])
        for one in answer.get("devices", ())
    ]
    return answer.get("message") or "", devices


def _of_report(status: Object) -> Facts:
    devices = [
        (one["uuid"], one["health"], one["healthReason"], one["memoryMiB"]["used"], one["memoryMiB"]["foreign"])
        for one in status["devices"]
    ]
    return status["message"], devices
