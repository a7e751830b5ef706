"""Notices that the event loop stands still, from a thread of its own: tells where, then ends a process that is lost.

A stall is counted in the thread's own looks, so a process that was stopped as a whole (SIGSTOP, a frozen VM) is not
taken for a stalled loop when it wakes.
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
    """How long the loop may stand still before what happens."""

    dump_s: float = 0.25
    unready_s: float = 2.0
    exit_s: float = 20.0
    """Longer than a lease takes to renew: by then somebody else may act for us."""
    look_every_s: float = 0.1
    dump_every_s: float = 60.0
    longest_look_s: float = 1.0
    """What one look may add to a stall at most; a longer gap means that the thread did not run either."""


class Alarm:
    """What the watchdog does about a stall, in its own thread: counts it, logs it, and ends a process that is lost."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def report(self, stalled_s: float) -> None:
        """Tell of a stall that has lasted for so long; through the log's queue, since a blocked stderr may be why."""
        self._metrics.stalls.inc()
        structlog.get_logger().error("event loop stands still", stalled_s=round(stalled_s, 2), stacks=_stacks())

    def end(self) -> None:
        """End the process at once."""
        os._exit(EXIT_CODE)


class Watchdog:
    """Counts how long ago the loop last ran."""

    def __init__(
        self, alarm: Alarm, *, limits: StallLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._alarm = alarm
        self._limits = limits or StallLimits()
        self._clock = clock
        # Set by the loop in `beat`, cleared by the thread in `look`.
        self._beaten = threading.Event()
        # Written by `look` only.
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
        """Say that the loop runs."""
        self._beaten.set()

    def look(self) -> None:
        """See whether the loop has run since the last look, and act when it has not for long."""
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
        """Tell whether the loop has run lately enough to be asked anything."""
        if self._stalled_s <= self._limits.unready_s:
            return Check("event-loop")
        return Check("event-loop", f"the event loop has stood still for {self._stalled_s:.1f} s; see the log for where")

    def liveness(self) -> Check:
        """Tell whether the watchdog itself still looks: the loop alone cannot vouch for itself."""
        silent_s = self._clock() - self._looked_at
        if silent_s <= self._limits.exit_s:
            return Check("watchdog")
        return Check("watchdog", f"the watchdog has not looked for {silent_s:.0f} s")

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
