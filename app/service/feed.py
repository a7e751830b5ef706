"""Makes the frames of the view on the main loop, in short slices, and only those that the view asks for.

A frame costs what has changed. The next one waits until the work of the last one is at most `PART` of the time, so a
cluster in which everything changes is shown less often, and viewers never delay scheduling.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from app.control.leadership.readiness import Readiness
from app.control.report.live_state import LiveState, Tables
from app.control.report.queue_rows import Line
from app.model.question import Check
from app.model.seam import rfc3339
from app.telemetry import Metrics
from app.view import messages
from app.web import standby

FRAME_EVERY_S = 0.5
LONGEST_PAUSE_S = 10.0
PART = 0.005
"""Rows may take so much of the time, and so may the queues and the waiting PodGroups."""
BURST_S = 0.25
"""The first frame has everything: it is paid back while little changes."""
SLICE_S = 0.002
"""How long the loop works on a frame before other work gets a turn."""
ROWS_AT_ONCE = 2_000
"""The number of rows after which a part of a frame is sent: encoding it takes about a millisecond."""
IDLE_S = 60.0
"""After so long without a request nothing is collected any more. The next frame then has everything."""
LOOK_EVERY_S = 0.5


class Reads(Protocol):
    """The shell, as far as it is read."""

    def reading(self) -> AbstractContextManager[None]:
        """Let code outside of the core read the components."""
        ...

    def checks(self) -> Sequence[Check]:
        """Return the components' lines of /readyz."""
        ...


class Condition:
    """Whether this replica decides or stands by, since when its state is old, and the last plan.

    It is looked at all the time.
    """

    def __init__(
        self, shell: Reads, readiness: Readiness, metrics: Metrics, *, wall_clock: Callable[[], float]
    ) -> None:
        """`wall_clock` is in seconds since the epoch."""
        self._shell = shell
        self._readiness = readiness
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._since: str | None = None
        self._plans = (0.0, 0.0)
        self._plan: Mapping[str, object] = {"at": None, "milliseconds": None}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> Mapping[str, object]:
        """Return the condition now."""
        now = rfc3339(self._wall_clock())
        failed = [check.failure for check in self._shell.checks() if not check.passed]
        self._since = (self._since or now) if failed else None
        stale = {"since": self._since, "sentence": f"{'; '.join(failed)}."} if failed else None
        plans = _plans(self._metrics)
        if plans[0] > self._plans[0]:
            mean_s = (plans[1] - self._plans[1]) / (plans[0] - self._plans[0])
            self._plan = {"at": now, "milliseconds": round(mean_s * 1000, 1)}
        self._plans = plans
        with self._shell.reading():
            is_active = not self._readiness.leadership.failure()
            leader = self._readiness.leadership.other()
        plan = {"active": is_active, "plan": self._plan}
        return {"time": now, "stale": stale, **plan, "standby": standby.sentence(leader)}


class Allowance:
    """Bounds one kind of work to `PART` of the time, apart from bursts."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic."""
        self._clock = clock
        self._debt_s = 0.0
        self._at = clock()

    def pause_s(self, spent_s: float) -> float:
        """Return how long to wait after work of this length."""
        now = self._clock()
        self._debt_s = max(0.0, self._debt_s - PART * (now - self._at)) + spent_s
        self._at = now
        return min(max(FRAME_EVERY_S, (self._debt_s - BURST_S) / PART), LONGEST_PAUSE_S)


class Feed:
    """Answers the requests of one view process after the other."""

    def __init__(self, shell: Reads, live: LiveState, condition: Condition, setup: messages.Setup) -> None:
        """Start without a process. `setup` is told to each."""
        self._shell = shell
        self._live = live
        self.condition = condition
        self._setup = setup
        self.spent_s = 0.0
        """The CPU time of the main loop for frames."""
        self.spent_aside_s = 0.0
        """The CPU time of threads."""
        self._rows, self._lines = Allowance(), Allowance()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a frame for each request until the view is gone."""
        writer.write(messages.written(self._setup.message()))
        try:
            is_first, self._line_due, self._line_of = True, 0.0, None
            while True:
                if not await self._asked(reader):
                    return
                began, before = time.monotonic(), self.spent_s
                await self._send_frame(writer, is_full=is_first or not self._is_collecting)
                is_first = False
                await asyncio.sleep(began + self._rows.pause_s(self.spent_s - before) - time.monotonic())
        except ConnectionError:
            return
        finally:
            self._stop_collecting()

    _is_collecting = False
    _line_due = 0.0
    _line_of: object = None

    async def _asked(self, reader: asyncio.StreamReader) -> bool:
        """Return at the next request; False when the view is gone."""
        reading = asyncio.ensure_future(reader.read(1))
        try:
            done, _ = await asyncio.wait((reading,), timeout=IDLE_S)
            if not done:
                self._stop_collecting()
            return bool(await reading)
        finally:
            reading.cancel()

    def _stop_collecting(self) -> None:
        if self._is_collecting:
            self._is_collecting = False
            self._live.end()

    async def _send_frame(self, writer: asyncio.StreamWriter, *, is_full: bool) -> None:
        if said := self.condition.look()["standby"]:
            self._stop_collecting()
            await self._send(writer, {"frame": {"standby": said}})
            return
        began = time.thread_time()
        with self._shell.reading():
            if is_full:
                self._live.begin()
                self._is_collecting = True
            self._live.note()
        self.spent_s += time.thread_time() - began
        tables: Tables = {}
        while self._work(tables):
            if sum(len(rows) for rows, _ in tables.values()) >= ROWS_AT_ONCE:
                await self._send_part(writer, tables)
                tables = {}
            await asyncio.sleep(0)
        if is_full:
            self._line_due, self._line_of = 0.0, None
        await self._take_line(tables)
        await self._send_part(writer, tables)
        frame = {**self.condition.look(), "summary": self._live.summary(), "leftOut": self._live.left_out}
        await self._send(writer, {"frame": {"full": is_full, **frame}})

    def _work(self, tables: Tables) -> bool:
        """Work for one slice; return whether anything is left."""
        until, cpu, is_left = time.perf_counter() + SLICE_S, time.thread_time(), True
        with self._shell.reading():
            while is_left and time.perf_counter() < until:
                is_left = self._live.advance(tables)
        self.spent_s += time.thread_time() - cpu
        return is_left

    async def _take_line(self, tables: Tables) -> None:
        version = self._live.version()
        if version == self._line_of or time.monotonic() < self._line_due:
            return
        self._line_of = version
        with self._shell.reading():
            compute = self._live.line()
        line, took_s = await asyncio.to_thread(_timed, compute)
        self.spent_aside_s += took_s
        self._line_due = time.monotonic() + self._lines.pause_s(took_s)
        began = time.thread_time()
        self._live.take_line(line, tables)
        self.spent_s += time.thread_time() - began

    async def _send_part(self, writer: asyncio.StreamWriter, tables: Tables) -> None:
        if tables:
            await self._send(writer, tables)

    async def _send(self, writer: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
        began = time.thread_time()
        writer.write(messages.written(message))
        self.spent_s += time.thread_time() - began
        await writer.drain()


def _timed(compute: Callable[[], Line]) -> tuple[Line, float]:
    began = time.thread_time()
    return compute(), time.thread_time() - began


def _plans(metrics: Metrics) -> tuple[float, float]:
    """Return how many plans there were, and how many seconds they took."""
    samples = (sample for family in metrics.plan_duration.collect() for sample in family.samples)
    found = {sample.name.rpartition("_")[2]: sample.value for sample in samples}
    return found["count"], found["sum"]
