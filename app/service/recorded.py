"""A core whose inputs, answers and Commands are recorded. It acts as a core without a recording does."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

from app.core.commands import Command, Keep
from app.core.loop import Job
from app.model.admission import AdmissionAnswer, AdmissionQuestion
from app.model.question import BindQuestion, FilterAnswer, PodQuestion, Scores
from app.model.seam import Changed, Deleted, Listed, RawObject, WatchEvent
from app.recording import fields
from app.recording.lines import FORMAT, LISTS, error_fields, event_fields, line, runs
from app.recording.name_table import NameTable
from app.recording.reduce import reduced
from app.recording.writer import RecordingWriter
from app.service.inputs import Core, RunsCore, Stamp
from app.settings import Settings
from app.telemetry import Metrics

T = TypeVar("T")

UNRECORDED = frozenset({"kubeconfig", "webhook_tls_dir", "admission_tls_dir", "record_dir", "record_mib"})
"""Settings of the shell alone, some of which name files of the machine."""


class NumberedRecord(NamedTuple):
    """What `keep` returned, and its number in the recording."""

    number: int
    record: Any


class Tape:
    """Adds lines to a recording."""

    def __init__(self, writer: RecordingWriter) -> None:
        self._writer = writer
        self._at_us = 0
        self._offset_us = 0

    def begin(self, settings: Settings, stamp: Stamp) -> None:
        """Write the header: what a replay needs to build the same core."""
        self._at_us, self._offset_us = stamp.monotonic_us, stamp.offset_us
        head = {
            "format": FORMAT,
            "version": version("leeboard"),
            "monotonic_us": stamp.monotonic_us,
            "offset_us": stamp.offset_us,
            "settings": settings.model_dump(mode="json", exclude=set(UNRECORDED)),
        }
        self.add("H", head)

    def add(self, kind: str, *content: Any) -> None:
        """Add a line."""
        if self._writer.is_over:
            return
        try:
            written = line(kind, *content)
        except TypeError as error:  # such as the text of an error that is no UTF-8
            self._writer.end(f"a line of kind {kind} cannot be written: {error}")
        else:
            self._writer.add(written)

    def timed(self, stamp: Stamp, kind: str, *content: Any) -> None:
        """Add a line that says when it was."""
        if stamp.offset_us != self._offset_us:
            self._offset_us = stamp.offset_us
            self.add("O", stamp.offset_us)
        passed, self._at_us = stamp.monotonic_us - self._at_us, stamp.monotonic_us
        self.add(kind, passed, *content)


class _RecordedShell:
    """Writes what leaves the core, and hands it to the shell."""

    def __init__(self, shell: RunsCore, tape: Tape) -> None:
        self._shell = shell
        self._tape = tape
        self.sent: dict[int, Command] = {}
        """The Commands without an outcome."""

    def execute(self, number: int, command: Command) -> None:
        self.sent[number] = command
        shown = fields.command_fields(command.verb, command.arguments, command.options)
        self._tape.add("c", number, command.verb, shown)
        self._shell.execute(number, command)

    def withdraw(self, number: int) -> None:
        if self.sent.pop(number, None) is not None:
            self._tape.add("x", number)
        self._shell.withdraw(number)

    def consumed(self, number: int) -> None:
        self._shell.consumed(number)

    def start_job(self, number: int, job: Job) -> None:
        self._tape.add("j", number)
        self._shell.start_job(number, job)

    def answer(self, number: int, answered: asyncio.Future[Any]) -> None:
        self._tape.add("a", number, answer_of(answered))
        self._shell.answer(number, answered)

    def note_failure(self, error: BaseException) -> None:
        self._tape.add("e", error_fields(error))
        self._shell.note_failure(error)

    def wake(self) -> None:
        self._shell.wake()


class RecordedCore(Core):
    """Writes each input before it acts on it, and each answer."""

    def __init__(
        self, settings: Settings, metrics: Metrics, shell: RunsCore, stamp: Stamp, *, writer: RecordingWriter
    ) -> None:
        self._tape = Tape(writer)
        self._tape.begin(settings, stamp)
        self._out = _RecordedShell(shell, self._tape)
        self._names = NameTable()
        self._kept = 0
        super().__init__(settings, metrics, self._out, stamp)

    @contextmanager
    def reading(self, stamp: Stamp) -> Iterator[None]:
        """Record that somebody reads, then let the code read."""
        self._tape.timed(stamp, "G")
        with super().reading(stamp):
            yield

    def run_round(self, stamp: Stamp) -> None:
        """Record a round, then run it."""
        self._tape.timed(stamp, "R")
        super().run_round(stamp)

    # Inputs -----------------------------------------------------------------------------------------------------------

    def deliver(self, number: int, result: Any) -> None:
        """Record a result, then take it."""
        command = self._out.sent.pop(number, None)
        if command is None:  # withdrawn
            return
        if command.verb in LISTS:
            self._tape.add("D", number, runs([one.number for one in result]))
            result = [one.record for one in result]
        else:
            self._tape.add("D", number, fields.result_fields(command.verb, command.arguments, result))
        super().deliver(number, result)

    def fail(self, number: int, error: Exception) -> None:
        """Record an error, then take it."""
        self._out.sent.pop(number, None)
        self._tape.add("F", number, error_fields(error))
        super().fail(number, error)

    def show(self, number: int, event: WatchEvent[Any]) -> None:
        """Record an event, then take it."""
        self._tape.add("S", number, event_fields(_each(event, "number")))
        super().show(number, _each(event, "record"))

    def finish(self, number: int, result: Any, error: BaseException | None) -> None:
        """Record the end of a job, then take its result."""
        self._tape.add("J", number, None if error is None else error_fields(error))
        super().finish(number, result, error)

    def ask(self, number: int, verb: str, question: PodQuestion | BindQuestion) -> None:
        """Record a question, then take it."""
        if isinstance(question, PodQuestion):
            shown = fields.pod_question_fields(question, self._names)
        else:
            shown = fields.bind_question_fields(question)
        self._tape.add("A", number, verb, shown)
        super().ask(number, verb, question)

    def withdraw(self, number: int) -> None:
        """Record that an asker left, then stop its question."""
        self._tape.add("X", number)
        super().withdraw(number)

    # Calls ------------------------------------------------------------------------------------------------------------

    def keep(self, number: int, keep: Keep, raw: RawObject, stamp: Stamp) -> Any:
        """Record a reduced object, and return its record with a number."""
        command = self._out.sent.get(number)
        path = "" if command is None else _path(command)
        self._tape.timed(stamp, "V", number, reduced(path, raw))
        self._kept += 1
        return NumberedRecord(self._kept - 1, super().keep(number, keep, raw, stamp))

    def filter_at_once(self, question: PodQuestion, stamp: Stamp) -> FilterAnswer | None:
        """Record a question and its answer; without one it is recorded again when it is asked."""
        shown = fields.pod_question_fields(question, self._names)
        return self._answered(stamp, "filter", shown, partial(super().filter_at_once, question, stamp))

    def prioritize(self, question: PodQuestion, stamp: Stamp) -> Scores:
        """Record a question and its answer."""
        shown = fields.pod_question_fields(question, self._names)
        return self._answered(stamp, "prioritize", shown, partial(super().prioritize, question, stamp))

    def preempt(self, pod: RawObject, candidates: Mapping[Any, Any], stamp: Stamp) -> Mapping[Any, Any]:
        """Record a question, and the names of the nodes of its answer."""
        shown = fields.victims_fields(pod, candidates)
        return self._answered(stamp, "preempt", shown, partial(super().preempt, pod, candidates, stamp), told=sorted)

    def mutate(self, question: AdmissionQuestion, stamp: Stamp) -> AdmissionAnswer:
        """Record a question and its answer."""
        shown = fields.admission_question_fields(question)
        return self._answered(stamp, "mutate", shown, partial(super().mutate, question, stamp))

    def validate(self, question: AdmissionQuestion, stamp: Stamp) -> AdmissionAnswer:
        """Record a question and its answer."""
        shown = fields.admission_question_fields(question)
        return self._answered(stamp, "validate", shown, partial(super().validate, question, stamp))

    def start(self, stamp: Stamp) -> None:
        """Record the start, then start."""
        self._tape.timed(stamp, "T")
        super().start(stamp)

    def begin_stop(self, why: str, stamp: Stamp) -> None:
        """Record that the service stops, then begin to stop."""
        self._tape.timed(stamp, "B", why)
        super().begin_stop(why, stamp)

    def _answered(
        self, stamp: Stamp, verb: str, question: Any, ask: Callable[[], T], *, told: Callable[[Any], Any] | None = None
    ) -> T:
        """Record a question with what came of it: an answer, or an error, after which the state may have changed."""
        try:
            answer = ask()
        except Exception as error:
            self._tape.timed(stamp, "Q", verb, question, ["error", error_fields(error)])
            raise
        self._tape.timed(stamp, "Q", verb, question, fields.answer_fields(told(answer) if told else answer))
        return answer


def answer_of(answered: asyncio.Future[Any]) -> list[Any]:
    """Return what became of a question: its answer, its error, or that it was withdrawn."""
    if answered.cancelled():
        return ["withdrawn"]
    error = answered.exception()
    return ["error", error_fields(error)] if error is not None else ["ok", fields.answer_fields(answered.result())]


def _path(command: Command) -> str:
    """Return the API path of the kind whose objects a Command reads."""
    path = command.arguments[0] if command.arguments and command.verb != "pods_in" else fields.PODS
    return path if isinstance(path, str) else str(path.value)


def _each(event: WatchEvent[Any], field: str) -> WatchEvent[Any]:
    match event:
        case Listed(objects):
            return Listed([getattr(one, field) for one in objects], restored=event.restored)
        case Changed(one):
            return Changed(getattr(one, field))
        case Deleted(one):
            return Deleted(getattr(one, field))
        case _:
            return event
