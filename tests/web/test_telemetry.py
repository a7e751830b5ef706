"""Log lines are complete, have one form, and never block a program."""

import io
import logging
import threading
from collections.abc import Callable

import orjson
import structlog

from app.telemetry import OUTCOMES, Logging, LogWriter, Metrics, Verb
from app.telemetry.logs import REPEATS, WINDOW_S, Repeats


class BlockedStream(io.StringIO):
    """A full pipe: a write waits until it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.reader = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.reader.wait(10)
        return super().write(text)


class FullDisk(io.StringIO):
    """Accepts nothing."""

    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def logged(say: Callable[[], object], stream: io.StringIO | None = None) -> str:
    target, metrics = stream or io.StringIO(), Metrics()
    with Logging(dropped=metrics.log_lines_dropped, stream=target):
        say()
    assert dropped(metrics) == 0
    return target.getvalue()


def dropped(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("leeboard_log_lines_dropped_total")


def test_event_is_one_json_line_with_its_keys() -> None:
    text = logged(lambda: structlog.get_logger().info("pod promised", pod="d/p", node="n1"))
    line = orjson.loads(text)
    assert text.endswith("}\n")
    assert (line["event"], line["pod"], line["node"], line["level"]) == ("pod promised", "d/p", "n1", "info")
    assert line["timestamp"].endswith("Z")


def test_logs_of_libraries_have_the_same_form() -> None:
    line = orjson.loads(logged(lambda: logging.getLogger("kubernetes").warning("slow %s", "watch")))
    assert (line["event"], line["level"]) == ("slow watch", "warning")


def test_exception_is_logged_with_its_traceback() -> None:
    def fail() -> None:
        try:
            orjson.loads(b"broken")
        except orjson.JSONDecodeError:
            structlog.get_logger().exception("webhook call failed")

    assert "JSONDecodeError: " in orjson.loads(logged(fail))["exception"]


def test_object_that_json_cannot_encode_is_logged_by_its_repr() -> None:
    assert orjson.loads(logged(lambda: structlog.get_logger().info("seen", queue={1, 2})))["queue"] == "{1, 2}"


def test_terminal_gets_no_json() -> None:
    assert not logged(lambda: structlog.get_logger().info("started"), Terminal()).startswith("{")


def test_the_same_warning_is_written_a_number_of_times_and_then_counted() -> None:
    now = 0.0
    repeats = Repeats(clock=lambda: now)

    def written(level: str, text: str = "junk") -> bool:
        try:
            return bool(repeats(None, level, {"event": text, "level": level}))
        except structlog.DropEvent:
            return False

    assert sum(written("warning") for _ in range(1_000)) == REPEATS
    assert (written("warning", "other"), written("info")) == (True, True)
    now = WINDOW_S
    assert repeats(None, "warning", {"event": "junk", "level": "warning"})["left_out"] == 1_000 - REPEATS
    assert "left_out" not in repeats(None, "warning", {"event": "junk", "level": "warning"})


def test_the_log_leaves_repeated_warnings_out() -> None:
    def say() -> None:
        for _ in range(1_000):
            structlog.get_logger().warning("junk")

    assert len(logged(say).splitlines()) == REPEATS


def test_blocked_reader_loses_lines_and_never_costs_time() -> None:
    stream, metrics = BlockedStream(), Metrics()
    writer = LogWriter(stream, dropped=metrics.log_lines_dropped, queued_lines=2)
    writer.put("first")
    stream.entered.wait(10)
    for _ in range(5):
        writer.put("more")
    assert dropped(metrics) == 3
    stream.reader.set()
    writer.close()
    assert stream.getvalue() == "first\nmore\nmore\n"


def test_full_disk_loses_lines_and_costs_nothing_else() -> None:
    metrics = Metrics()
    writer = LogWriter(FullDisk(), dropped=metrics.log_lines_dropped)
    writer.put("first")
    writer.put("second")
    writer.close()
    assert dropped(metrics) == 2


def test_outcomes_are_bound_before_the_first_call() -> None:
    assert set(Metrics().webhooks) == {(verb, outcome) for verb in Verb for outcome in OUTCOMES[verb]}


def test_two_metrics_do_not_share_a_registry() -> None:
    one, other = Metrics(), Metrics()
    one.wakes.inc()
    assert other.registry.get_sample_value("leeboard_wakes_total") == 0
