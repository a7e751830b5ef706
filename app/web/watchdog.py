"""Detects, from its own thread, that the event loop is blocked. It logs where, and ends a process that stays blocked.

The thread counts a stall in its own looks. A process that was stopped as a whole (SIGSTOP, a frozen VM) is therefore
not taken for a blocked loop when it resumes.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from app.model.question import Check
from app.telemetry import Metrics

EXIT_CODE = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """How long the loop may be blocked before each action."""

    dump_s: float = 0.25
    unready_s: float = 2.0
    exit_s: float = 20.0
    """Longer than the time to renew a lease: after that, another replica may act."""
    look_every_s: float = 0.1
    dump_every_s: float = 60.0
    longest_look_s: float = 1.0
    """The most that one look may add to a stall. A longer gap means that the watchdog's thread did not run either."""


class Alarm:
    """The actions on a stall, in the watchdog's thread: count it, log it, end the process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def report(self, stalled_s: float) -> None:
        """Report a stall of this length. It uses the log's queue, because a blocked stderr may be the cause."""
        self._metrics.stalls.inc()
        structlog.get_logger().error("event loop is blocked", stalled_s=round(stalled_s, 2), stacks=_stacks())

    def end(self) -> None:
        """End the process at once."""
        os._exit(EXIT_CODE)


class Watchdog:
    """Measures how long ago the loop last ran."""

    def __init__(
        self, alarm: Alarm, *, limits: StallLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._alarm = alarm
        self._limits = limits or StallLimits()
        self._clock = clock
        # The loop sets it in `beat`; the thread clears it in `look`.
        self._beaten = threading.Event()
        # Only `look` writes it.
        self._looked_at = clock()
        self._stalled_s = 0.0
        self._dumped_at: float | None = None

    async def run(self) -> None:
        """Watch the running loop until cancelled."""
        over = threading.Event()
        thread = threading.Thread(target=self._look_until, args=(over,), name="watchdog", daemon=True)
        self._looked_at = self._clock()
        thread.start()
        try:
            while True:
                self.beat()
                await asyncio.sleep(self._limits.look_every_s)
        finally:
            over.set()

    def beat(self) -> None:
        """Record that the loop runs."""
        self._beaten.set()

    def look(self) -> None:
        """Check whether the loop has run since the last look. Act on a long stall."""
        now = self._clock()
        gap_s, self._looked_at = now - self._looked_at, now
        if self._beaten.is_set():
            self._beaten.clear()
            self._stalled_s = 0.0
            return
        self._stalled_s += min(gap_s, self._limits.longest_look_s)
        if self._stalled_s > self._limits.dump_s and self._may_dump(now):
            self._dumped_at = now
            self._alarm.report(self._stalled_s)
        if self._stalled_s > self._limits.exit_s:
            self._alarm.end()

    def readiness(self) -> Check:
        """Return whether the loop ran recently enough to answer questions."""
        if self._stalled_s <= self._limits.unready_s:
            return Check("event-loop")
        return Check("event-loop", f"the event loop has been blocked for {self._stalled_s:.1f} s; the log shows where")

    def liveness(self) -> Check:
        """Return whether the watchdog itself still runs. A running loop alone does not show that."""
        silent_s = self._clock() - self._looked_at
        if silent_s <= self._limits.exit_s:
            return Check("watchdog")
        return Check("watchdog", f"the watchdog has not run for {silent_s:.0f} s")

    def _may_dump(self, now: float) -> bool:
        return self._dumped_at is None or now - self._dumped_at >= self._limits.dump_every_s

    def _look_until(self, over: threading.Event) -> None:
        while not over.wait(self._limits.look_every_s):
            self.look()


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - the documented way to see other threads
    )
