"""A shell that belongs to a process, and that counts what its core says."""

from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from app.core.commands import Command, Keep
from app.model.admission import AdmissionAnswer, AdmissionQuestion
from app.model.question import FilterAnswer, PodQuestion, Scores
from app.model.seam import Cluster, RawObject
from app.recording.fields import answer_fields, command_fields
from app.recording.lines import line
from app.service.components import Clocks
from app.service.inputs import Core, Stamp
from app.service.recorded import answer_of
from app.service.shell import Shell
from app.settings import Settings
from app.telemetry import Metrics
from tests.faults.processes import Process


class Said:
    """All Commands and answers of the lives of Leeboard in a world, in their order."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=8)
        self.commands = self.answers = 0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def command(self, who: str, number: int, verb: str, arguments: Any) -> None:
        self.commands += 1
        self._digest.update(line(who, number, verb, arguments))

    def answer(self, who: str, *answer: Any) -> None:
        self.answers += 1
        self._digest.update(line(who, *answer))


class OwnedShell(Shell):
    """The shell of one life. What it leaves to be done belongs to its process, whoever has called it."""

    def __init__(self, process: Process, said: Said, settings: Settings, cluster: Cluster, clocks: Clocks) -> None:
        self._process, self._said = process, said
        super().__init__(settings, cluster, Metrics(), clocks=clocks)
        filter_at_once = self._core.filter_at_once

        def told(question: PodQuestion, stamp: Stamp) -> FilterAnswer | None:
            answer = filter_at_once(question, stamp)
            said.answer(process.host, "filter", answer_fields(answer))
            return answer

        self._core.filter_at_once = told  # type: ignore[method-assign]

    @property
    def core(self) -> Core:
        return self._core

    def end_recording(self) -> None:
        """End the recording where the process was killed."""
        if self._writer is not None:
            self._writer.close()

    def end(self) -> None:
        """Let the tasks of the core end, with the world. Nothing that they do then counts."""
        self._core._loop.call_exception_handler = _ignore  # type: ignore[method-assign]
        self.close()

    # What belongs to the process --------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._process.within(super().wake)

    def _turn(self) -> None:
        if not self._process.is_dead:
            super()._turn()

    def _keep(self, number: int, keep: Keep, raw: RawObject) -> Any:
        return self._process.within(partial(super()._keep, number, keep, raw))

    # What the core says -----------------------------------------------------------------------------------------------

    def execute(self, number: int, command: Command) -> None:
        if not self._process.is_dead:
            self._said.command(self._process.host, number, command.verb, _arguments(command))
        super().execute(number, command)

    def answer(self, number: int, answered: Any) -> None:
        if not self._process.is_dead:
            self._said.answer(self._process.host, number, answer_of(answered))
        super().answer(number, answered)

    def prioritize(self, question: PodQuestion) -> Scores:
        answer = super().prioritize(question)
        self._said.answer(self._process.host, "prioritize", answer_fields(answer))
        return answer

    def preempt(self, pod: RawObject, candidates: Mapping[Any, Any]) -> Mapping[Any, Any]:
        answer = super().preempt(pod, candidates)
        self._said.answer(self._process.host, "preempt", sorted(answer))
        return answer

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        answer = super().mutate(question)
        self._said.answer(self._process.host, "mutate", answer_fields(answer))
        return answer

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        answer = super().validate(question)
        self._said.answer(self._process.host, "validate", answer_fields(answer))
        return answer


def _ignore(context: Mapping[str, Any]) -> None:
    del context


def _arguments(command: Command) -> Any:
    return command_fields(command.verb, command.arguments, command.options)
