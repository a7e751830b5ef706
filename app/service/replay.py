"""Feeds a recording to a core, and compares what the core does with what is recorded."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from app.core.commands import Command
from app.core.loop import Job
from app.model.seam import rfc3339
from app.recording import fields, reader
from app.recording.lines import TIMED, UnreadableLineError, error_fields, error_of, event_of, plain, result_of
from app.recording.name_table import NameTable
from app.service.inputs import MICROSECONDS, Core, Stamp
from app.service.past_state import PastState, past_state
from app.service.recorded import answer_of
from app.settings import Settings
from app.telemetry import Metrics

MOST_DIFFERENCES = 100
"""One difference leads to others. After so many the replay stops."""

UNREADABLE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)
"""What values that no core has recorded lead to."""

Line = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One output that is not the recorded one."""

    at: str
    """The wall time, RFC 3339."""
    line: int
    """The number of the line of the recording."""
    recorded: Line | None
    """None when the core did something that is not recorded."""
    replayed: Line | None
    """None when the core did not do what is recorded."""


@dataclass(slots=True, kw_only=True)
class Replayed:
    """The result of a replay. Only `Replay` changes it."""

    recording: str
    version: str
    began: str
    ended: str = ""
    lasted_s: float = 0.0
    """From the first line to the last one with a time."""
    inputs: int = 0
    commands: int = 0
    answers: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of lines of each kind, see `app.recording.lines`."""
    differences: list[Difference] = field(default_factory=list)
    end: str = ""
    """Why the recording ends; empty when the process was killed, or the replay stopped before."""
    state: PastState | None = None
    """The state at the end of a replay that was to stop at a time."""


class Replay:
    """One recording and the core that replays it."""

    def __init__(self, recording: Path) -> None:
        """Build the core of the recording's header; raise `UnreadableLineError`."""
        head = reader.header(recording)
        self._recording = recording
        try:
            self._stamp, settings = Stamp(head["monotonic_us"], head["offset_us"]), _settings(head["settings"])
            began = rfc3339(self._stamp.wall_s)
        except UNREADABLE as error:
            raise UnreadableLineError(f"{recording} has a header that this version cannot use: {error}") from error
        self._begun = self._stamp
        self._shell = _Outputs()
        self._core = Core(settings, Metrics(), self._shell, self._stamp)
        self._names = NameTable()
        self._kept = _Records()
        self._number = 0
        self.components = self._core.components
        self.result = Replayed(recording=str(recording), version=str(head.get("version")), began=began)
        self._inputs: Mapping[str, Callable[..., None]] = {
            "O": self._take_offset,
            "R": self._run_round,
            "G": self._read,
            "V": self._keep,
            "Q": self._answer_at_once,
            "T": self._start,
            "B": self._begin_stop,
            "A": self._ask,
            "X": self._core.withdraw,
            "D": self._deliver,
            "F": self._fail,
            "S": self._show,
            "J": self._finish,
        }

    def run(self, until_s: float | None = None) -> Replayed:
        """Replay to the end, or to a wall time in seconds since the epoch; raise `UnreadableLineError`."""
        try:
            self._repeat(until_s)
            self._note_unrecorded()
            self.result.ended = rfc3339(self._stamp.wall_s)
        except UNREADABLE as error:
            raise UnreadableLineError(f"line {self._number} of {self._recording} has no use: {error!r}") from error
        self.result.lasted_s = (self._stamp.monotonic_us - self._begun.monotonic_us) / MICROSECONDS
        if until_s is not None:
            with self._core.reading(self._stamp):
                self.result.state = past_state(self.components, at=self.result.ended)
        return self.result

    def close(self) -> None:
        """Stop the core."""
        self._core.stop(self._stamp)

    def _repeat(self, until_s: float | None) -> None:
        for number, read in enumerate(reader.lines(self._recording)):
            self._number = number
            kind = str(read[0])
            if until_s is not None and self._is_later(read, until_s):
                self._stop_at(until_s)
                break
            self.result.kinds[kind] += 1
            if kind == "H":
                continue
            if kind == "E":
                self.result.end = read[1]
                break
            if len(self.result.differences) >= MOST_DIFFERENCES:
                break
            self._take(kind, read)

    def _take(self, kind: str, read: Line) -> None:
        if kind.islower():
            self._compare(read)
        else:
            self._note_unrecorded()
            self._apply(kind, read)

    def _is_later(self, read: Line, until_s: float) -> bool:
        return read[0] in TIMED and self._stamp.wall_s + read[1] / MICROSECONDS > until_s

    def _stop_at(self, until_s: float) -> None:
        monotonic_us = round(until_s * MICROSECONDS) - self._stamp.offset_us
        self._stamp = Stamp(max(self._stamp.monotonic_us, monotonic_us), self._stamp.offset_us)

    # Comparing --------------------------------------------------------------------------------------------------------

    def _compare(self, recorded: Line) -> None:
        if recorded[0] == "c":
            self.result.commands += 1
        elif recorded[0] == "a":
            self.result.answers += 1
        replayed = self._shell.done.popleft() if self._shell.done else None
        if replayed != recorded:
            self._differ(recorded, replayed)

    def _note_unrecorded(self) -> None:
        while self._shell.done:
            self._differ(None, self._shell.done.popleft())

    def _differ(self, recorded: Line | None, replayed: Line | None) -> None:
        at = rfc3339(self._stamp.wall_s)
        self.result.differences.append(Difference(at=at, line=self._number, recorded=recorded, replayed=replayed))

    # Inputs -----------------------------------------------------------------------------------------------------------

    def _apply(self, kind: str, read: Line) -> None:
        self.result.inputs += 1
        act = self._inputs.get(kind)
        if act is None:
            raise UnreadableLineError(f"line {self._number} of {self._recording} has the unknown kind {kind!r}")
        act(*read[1:])

    def _passed(self, passed_us: int) -> Stamp:
        self._stamp = Stamp(self._stamp.monotonic_us + passed_us, self._stamp.offset_us)
        return self._stamp

    def _take_offset(self, offset_us: int) -> None:
        self._stamp = Stamp(self._stamp.monotonic_us, offset_us)

    def _run_round(self, passed_us: int) -> None:
        self._core.run_round(self._passed(passed_us))

    def _read(self, passed_us: int) -> None:
        with self._core.reading(self._passed(passed_us)):
            pass

    def _keep(self, passed_us: int, number: int, raw: Any) -> None:
        stamp, command = self._passed(passed_us), self._shell.sent.get(number)
        # After a difference, numbers may belong to other Commands.
        keep = None if command is None else command.keep
        self._kept.add(None if keep is None else self._core.keep(number, keep, raw, stamp))

    def _answer_at_once(self, passed_us: int, verb: str, question: Any, recorded: Any) -> None:
        answer, error = _worked(self._question(verb, question, self._passed(passed_us)))
        replayed = plain(fields.answer_fields(answer) if error is None else ["error", error_fields(error)])
        self.result.answers += 1
        if replayed != recorded:
            self._differ(["Q", verb, recorded], ["Q", verb, replayed])

    def _question(self, verb: str, question: Any, stamp: Stamp) -> Job:
        """Return what asks a question again."""
        core = self._core
        match verb:
            case "filter":
                return partial(core.filter_at_once, fields.pod_question_of(question, self._names), stamp)
            case "prioritize":
                return partial(core.prioritize, fields.pod_question_of(question, self._names), stamp)
            case "preempt":
                pod, names = question
                return lambda: sorted(core.preempt(pod, dict.fromkeys(names), stamp))
            case "mutate":
                return partial(core.mutate, fields.admission_question_of(question), stamp)
            case "validate":
                return partial(core.validate, fields.admission_question_of(question), stamp)
            case _:
                raise UnreadableLineError(f"line {self._number} of {self._recording} asks {verb!r}")

    def _start(self, passed_us: int) -> None:
        self._core.start(self._passed(passed_us))

    def _begin_stop(self, passed_us: int, why: str) -> None:
        self._core.begin_stop(why, self._passed(passed_us))

    def _ask(self, number: int, verb: str, question: Any) -> None:
        if verb == "bind":
            self._core.ask(number, verb, fields.bind_question_of(question))
        else:
            self._core.ask(number, verb, fields.pod_question_of(question, self._names))

    def _deliver(self, number: int, result: Any) -> None:
        command = self._shell.sent.pop(number, None)
        if command is not None:
            self._core.deliver(number, result_of(command.verb, result, self._kept))

    def _fail(self, number: int, error: Any) -> None:
        self._shell.sent.pop(number, None)
        self._core.fail(number, error_of(error))

    def _show(self, number: int, event: Any) -> None:
        self._core.show(number, event_of(event, self._kept))

    def _finish(self, number: int, recorded: Any) -> None:
        job = self._shell.jobs.pop(number, None)
        if job is None:
            return
        result, error = _worked(job)
        replayed = None if error is None else plain(error_fields(error))
        if replayed != recorded:
            self._differ(["J", number, recorded], ["J", number, replayed])
        self._core.finish(number, result, error)


class _Outputs:
    """The shell of a replay: it carries nothing out."""

    def __init__(self) -> None:
        self.done: deque[Line] = deque()
        """What the core did since the last line that was compared."""
        self.sent: dict[int, Command] = {}
        """The Commands without an outcome."""
        self.jobs: dict[int, Job] = {}

    def execute(self, number: int, command: Command) -> None:
        self.sent[number] = command
        shown = fields.command_fields(command.verb, command.arguments, command.options)
        self._note("c", number, command.verb, shown)

    def withdraw(self, number: int) -> None:
        if self.sent.pop(number, None) is not None:
            self._note("x", number)

    def consumed(self, number: int) -> None:
        pass

    def start_job(self, number: int, job: Job) -> None:
        self.jobs[number] = job
        self._note("j", number)

    def answer(self, number: int, answered: asyncio.Future[Any]) -> None:
        self._note("a", number, answer_of(answered))

    def note_failure(self, error: BaseException) -> None:
        self._note("e", error_fields(error))

    def wake(self) -> None:
        pass

    def _note(self, *content: Any) -> None:
        self.done.append(plain([*content]))


class _Records:
    """What `keep` has returned, by number, until it is shown: a recording of a day has millions of objects."""

    def __init__(self) -> None:
        self._records: dict[int, Any] = {}
        self._added = 0

    def add(self, record: Any) -> None:
        self._records[self._added] = record
        self._added += 1

    def waiting(self) -> int:
        return len(self._records)

    def __len__(self) -> int:
        return self._added

    def __getitem__(self, number: int) -> Any:
        """Return a record, which is shown once."""
        return self._records.pop(number)


def _worked(job: Job) -> tuple[Any, Exception | None]:
    try:
        return job(), None
    except Exception as error:  # noqa: BLE001 # the core gets every error
        return None, error


class _RecordedSettings(Settings):
    """Settings of a recording alone: the environment of the replay is another one."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read what the caller gives."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def _settings(recorded: Mapping[str, Any]) -> Settings:
    """Return recorded settings without those that this version does not have; raise ValueError."""
    return _RecordedSettings(**{name: value for name, value in recorded.items() if name in Settings.model_fields})
