"""Writes the GpuNode: creates a missing one, and sends the status when it has changed or is too old."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol

from app.agent.changes import Change, change
from app.agent.report import Status, gpu_node
from app.model.seam import ConflictError, KubeError, NotFoundError, UnavailableError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
JITTER = 0.1
RETRY_JITTER = 0.5
"""Agents that one API server refused at the same time retry at different times."""

MOST_AT_ONCE, AGAIN_AFTER_S = 20, 10.0
"""`MOST_AT_ONCE` reports may follow directly, and then one more per `AGAIN_AFTER_S`.

A value that alternates on each of thousands of nodes (a kubelet, a faulty device) must not cause a write a second.
"""

TOP = ("agentVersion", "driverVersion", "bootId", "message", "failures")
"""Fields that a merge patch must clear when they are no longer reported."""


class GpuNodes(Protocol):
    """The API server's GpuNodes. Each call raises `KubeError`."""

    async def create(self, body: Mapping[str, Any]) -> None:
        """Create a GpuNode."""

    async def patch_status(self, name: str, body: Mapping[str, Any]) -> None:
        """Merge this into the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often reports are sent."""

    memory_s: float
    """The shortest time between two reports that differ only in measured memory.

    It doubles, up to the heartbeat, as long as the memory keeps changing.
    """
    heartbeat_s: float


class Publication:
    """The GpuNode of one node, as far as it was written."""

    def __init__(
        self, node_name: str, gpu_nodes: GpuNodes, rhythm: Rhythm, *, chance: Random, now: Callable[[], datetime]
    ) -> None:
        self._name = node_name
        self._gpu_nodes = gpu_nodes
        self._rhythm = rhythm
        self._chance = chance
        self._now = now
        # Only `publish` writes these: the last report, its time, and when the next one is due in any case.
        self._sent: Status | None = None
        self._sent_at_s = float("-inf")
        self._heartbeat_at_s = float("-inf")
        self._pause_s = 0.0
        self._not_before_s = float("-inf")
        self._memory_wait_s = rhythm.memory_s
        # How many reports may follow directly, as of the last one.
        self._allowed = float(MOST_AT_ONCE)

    def due_in_s(self, status: Status, at_s: float) -> float:
        """Return how many seconds this report must wait; 0 when it is due now."""
        due_at_s = self._heartbeat_at_s
        match change(self._sent, status):
            case Change.AT_ONCE:
                due_at_s = min(due_at_s, self._sent_at_s + max(0.0, 1 - self._allowed) * AGAIN_AFTER_S)
            case Change.MEMORY:
                due_at_s = min(due_at_s, self._sent_at_s + self._memory_wait_s)
            case Change.NONE:
                pass
        return max(due_at_s, self._not_before_s) - at_s if max(due_at_s, self._not_before_s) > at_s else 0.0

    async def publish(self, status: Status, at_s: float) -> None:
        """Send the report. After a `KubeError`, which is raised, it is not due again for a while."""
        try:
            await self._send(status)
        except KubeError as error:
            self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
            asked_s = error.retry_after_s if isinstance(error, UnavailableError) else 0.0
            self._not_before_s = at_s + max(self._around(self._pause_s, RETRY_JITTER), self._after(asked_s))
            raise
        self._count(change(self._sent, status), at_s)
        self._sent, self._sent_at_s, self._pause_s = status, at_s, 0.0
        self._heartbeat_at_s = at_s + self._around(self._rhythm.heartbeat_s, JITTER)

    def _count(self, sent: Change, at_s: float) -> None:
        regained = (at_s - self._sent_at_s) / AGAIN_AFTER_S
        self._allowed = min(self._allowed + regained, MOST_AT_ONCE) - (sent is Change.AT_ONCE)
        match sent:
            case Change.MEMORY:
                self._memory_wait_s = min(2 * self._memory_wait_s, self._rhythm.heartbeat_s)
            case Change.NONE:
                self._memory_wait_s = self._rhythm.memory_s
            case Change.AT_ONCE:
                pass

    async def _send(self, status: Status) -> None:
        # The complete status, also when only the time is new: changes by others are then overwritten.
        body = {"status": patch(status) | {"observedAt": self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}}
        try:
            await self._gpu_nodes.patch_status(self._name, body)
        except NotFoundError:
            await self._create()
            await self._gpu_nodes.patch_status(self._name, body)

    async def _create(self) -> None:
        try:
            await self._gpu_nodes.create({key: value for key, value in gpu_node(self._name, {}).items() if value})
        except ConflictError:
            return  # another process created it first

    def _around(self, span_s: float, jitter: float) -> float:
        # A thousand agents that started together must not keep writing together.
        return span_s * self._chance.uniform(1 - jitter, 1 + jitter)

    def _after(self, span_s: float) -> float:
        return span_s * self._chance.uniform(1, 1 + RETRY_JITTER)


def patch(status: Status) -> dict[str, Any]:
    """Return the merge patch that replaces an earlier status completely."""
    kubelet = {"reason": None} | dict(status["kubelet"])
    summary = {"products": None} | status["summary"] if "summary" in status else None
    return dict.fromkeys(TOP) | dict(status) | {"kubelet": kubelet, "summary": summary}
