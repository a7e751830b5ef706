"""Writes log lines without ever blocking the event loop."""

import io
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Self, TextIO

import orjson
import structlog
from prometheus_client import Counter
from structlog.typing import EventDict, Processor

QUEUED_LINES = 10_000
FLUSH_S = 2.0
"""How long a stopping process waits for a blocked reader of its log."""


REPEATS = 50
"""The most warnings of one text within `WINDOW_S`. A client must not be able to fill the disk with them."""

WINDOW_S = 10.0


class Repeats:
    """Drops warnings and errors of a text that was written too often. The next line says how many were dropped.

    The text of an event is a constant and never quotes input, so there are few texts.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        """`clock` is monotonic."""
        self._clock = clock
        # By text: the start of its window, and the number of lines since. Any logging thread writes it.
        self._windows: dict[str, tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Return the event to be written; raise `DropEvent` when it is dropped."""
        if event.get("level") not in {"warning", "error", "critical"}:
            return event
        text, now = str(event.get("event")), self._clock()
        began, number = self._windows.get(text, (now, 0))
        left_out = 0
        if now - began >= WINDOW_S:
            began, number, left_out = now, 0, max(0, number - REPEATS)
        self._windows[text] = began, number + 1
        if number >= REPEATS:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
        return event


class LogWriter:
    """Writes lines to a stream from its own thread. When nothing reads the stream, it drops lines."""

    def __init__(self, stream: TextIO, *, dropped: Counter, queued_lines: int = QUEUED_LINES) -> None:
        """Count dropped lines by `dropped`."""
        self._stream = stream
        self._dropped = dropped
        # Any thread fills it; only `_thread` empties it. None ends the thread.
        self._lines: queue.Queue[str | None] = queue.Queue(queued_lines)
        # A daemon thread: a reader that stays blocked must not keep the process alive.
        self._thread = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Queue one line without its newline; drop it when the queue is full."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped.inc()

    def close(self) -> None:
        """Write the queued lines, for at most about `FLUSH_S`."""
        try:
            self._lines.put(None, timeout=FLUSH_S)
        except queue.Full:
            return
        self._thread.join(FLUSH_S)

    def _write_on(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # a full disk, or a closed stream
                self._dropped.inc()


@dataclass(frozen=True, slots=True)
class _Sink:
    """The logger object of structlog. Every level goes to the same queue."""

    writer: LogWriter

    def msg(self, line: str) -> None:
        self.writer.put(line)

    debug = info = warning = warn = error = exception = critical = fatal = msg


class _Bridge(logging.Handler):
    """Writes the log records of libraries to the same queue."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self.format(record))


class Logging:
    """The logging of the whole process, for the time of a `with` block.

    Keys: event, pod, pod_uid, podgroup, queue, node, plan, verdict, reason; one event per decision.
    """

    def __init__(self, *, dropped: Counter, stream: TextIO | None = None) -> None:
        self._stream = stream or _own_stderr()
        self.writer = LogWriter(self._stream, dropped=dropped)
        self._bridge = _Bridge(self.writer)

    def __enter__(self) -> Self:
        shared = _shared_processors()
        renderer: list[Processor] = _console() if self._stream.isatty() else _json()
        structlog.configure(
            processors=[*shared, Repeats(), *renderer],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=lambda *_: _Sink(self.writer),
        )
        strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
        self._bridge.setFormatter(
            structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[strip, *renderer])
        )
        logging.getLogger().addHandler(self._bridge)
        # uvicorn logs a warning for every invalid line that a client sends. Leeboard's counters report them.
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger().removeHandler(self._bridge)
        structlog.reset_defaults()
        self.writer.close()


def _own_stderr() -> TextIO:
    # `sys.stderr` has a lock. A thread that is blocked in it makes the interpreter abort at its end.
    return io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="replace", write_through=True)


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, _as_json]


def _console() -> list[Processor]:
    # The default would print the local variables of every frame: whole pods, including confidential values.
    return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]


def _as_json(_logger: object, _method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
