"""A loop that is blocked is reported, and ended, by a clock that the test controls."""

import asyncio
import os
import threading
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from app.telemetry import Metrics
from app.web.watchdog import EXIT_CODE, Alarm, Watchdog


@dataclass
class Noted(Alarm):
    """Records its reports."""

    reported: list[float] = field(default_factory=list)
    ends: int = 0
    heard: threading.Event = field(default_factory=threading.Event)

    def report(self, stalled_s: float) -> None:
        self.reported.append(stalled_s)
        self.heard.set()

    def end(self) -> None:
        self.ends += 1


@dataclass
class Bed:
    """A watchdog whose time passes in steps of 0.1 s."""

    now: float = 1000.0
    alarm: Noted = field(default_factory=Noted)

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.alarm, clock=lambda: self.now)

    def stand_still(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.watchdog.look()

    def run_well(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.watchdog.beat()
            self.now += 0.1
            self.watchdog.look()


def test_running_loop_is_not_reported() -> None:
    bed = Bed()
    bed.run_well(120)
    assert (bed.alarm.reported, bed.alarm.ends, bed.watchdog.readiness().passed) == ([], 0, True)


def test_short_stall_is_not_reported() -> None:
    bed = Bed()
    bed.stand_still(0.2)
    assert bed.alarm.reported == []


def test_stall_is_reported_once() -> None:
    bed = Bed()
    bed.stand_still(10)
    assert bed.alarm.reported == [pytest.approx(0.3)]


def test_repeated_stalls_are_reported_once_a_minute() -> None:
    bed = Bed()
    for _ in range(70):
        bed.stand_still(0.5)
        bed.run_well(0.5)
    assert len(bed.alarm.reported) == 2


def test_stall_of_more_than_2_s_makes_readiness_fail_until_the_loop_runs_again() -> None:
    bed = Bed()
    bed.stand_still(2.2)
    assert not bed.watchdog.readiness().passed
    bed.run_well(0.1)
    assert bed.watchdog.readiness().passed


def test_stall_of_more_than_20_s_ends_the_process() -> None:
    bed = Bed()
    bed.stand_still(19.9)
    assert bed.alarm.ends == 0
    bed.stand_still(0.3)
    assert bed.alarm.ends > 0


def test_process_that_was_stopped_as_a_whole_is_not_ended_when_it_continues() -> None:
    bed = Bed()
    bed.run_well(1)
    bed.now += 3600
    bed.watchdog.look()
    assert (bed.alarm.ends, bed.watchdog.readiness().passed) == (0, True)


def test_stopped_watchdog_makes_liveness_fail() -> None:
    bed = Bed()
    bed.run_well(1)
    assert bed.watchdog.liveness().passed
    bed.now += 21
    assert not bed.watchdog.liveness().passed


async def test_blocked_loop_is_noticed_from_outside_while_it_is_blocked() -> None:
    alarm = Noted()
    watchdog = Watchdog(alarm)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watchdog.run())
        await asyncio.sleep(0)
        assert alarm.heard.wait(10)  # blocks this loop, which is the point
        running.cancel()


def test_report_is_counted_and_shows_the_stack_of_every_thread() -> None:
    metrics = Metrics()
    with capture_logs() as logs:
        Alarm(metrics).report(0.31)
    assert metrics.registry.get_sample_value("leeboard_loop_stalls_total") == 1
    assert [(line["event"], line["stalled_s"]) for line in logs] == [("event loop is blocked", 0.31)]
    assert "test_report_is_counted_and_shows_the_stack_of_every_thread" in logs[0]["stacks"]


def test_a_hanging_process_is_ended_without_its_cooperation(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    Alarm(Metrics()).end()

    assert codes == [EXIT_CODE]
