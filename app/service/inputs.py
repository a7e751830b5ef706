"""The core of the service: all components on a loop of their own, reached only by inputs and calls with a stamp.

    inputs   outcomes of Commands, watch events, questions that may wait, results of jobs: delivered in the next round
    calls    questions that are answered at once, and raw objects that a watch shows: carried out on the spot
    rounds   the loop runs what is ready, at the time of the stamp

Two cores that receive the same inputs, calls and rounds send the same Commands and give the same answers. Reads between
them change nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

from app.core.commands import CommandCluster, Executes, Keep
from app.core.loop import DeterministicLoop, Entry, Job
from app.model.admission import AdmissionAnswer, AdmissionQuestion
from app.model.question import BindQuestion, FilterAnswer, PodQuestion, Scores
from app.model.seam import RawObject, WatchEvent
from app.service.components import Clocks, Components
from app.settings import Settings
from app.telemetry import Metrics

MICROSECONDS = 1_000_000

ROUNDS_AT_THE_END = 1000
"""How many rounds cancelled coroutines get to end."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """When something reached the core, in whole microseconds."""

    monotonic_us: int
    offset_us: int
    """Wall time less monotonic time."""

    @property
    def monotonic_s(self) -> float:
        """The monotonic time."""
        return self.monotonic_us / MICROSECONDS

    @property
    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return (self.monotonic_us + self.offset_us) / MICROSECONDS


class RunsCore(Executes, Protocol):
    """What the core needs of its shell. Every method is called inside a round or a call."""

    def start_job(self, number: int, job: Job) -> None:
        """Run a job in a thread; its result is an input."""
        ...

    def answer(self, number: int, answered: asyncio.Future[Any]) -> None:
        """Give the answer to the question of this number: the result, the error or the end of its coroutine."""
        ...

    def note_failure(self, error: BaseException) -> None:
        """End the process: a component has failed."""
        ...

    def wake(self) -> None:
        """Run a round soon: something is ready, or due earlier."""
        ...


class Core:
    """The components, and the only ways to them."""

    def __init__(self, settings: Settings, metrics: Metrics, shell: RunsCore, stamp: Stamp) -> None:
        self._shell = shell
        self._wall_s = stamp.wall_s
        # The loop has none of asyncio's methods for I/O, which are abstract.
        self._loop = DeterministicLoop(self, now_s=stamp.monotonic_s)  # type: ignore[abstract]
        self.cluster = CommandCluster(self._loop, shell)
        clocks = Clocks(monotonic=self._loop.time, wall=lambda: self._wall_s)
        with self.entered(stamp):
            self.components = Components(settings, self.cluster, metrics, clocks=clocks)
        self._job_numbers = count(1)
        self._jobs: dict[int, asyncio.Future[Any]] = {}
        self._asked: dict[int, asyncio.Task[Any]] = {}
        self._parts: list[asyncio.Task[None]] = []
        extender = self.components.extender
        self._verbs: Mapping[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            "filter": extender.filter,
            "bind": extender.bind,
        }

    # Time -------------------------------------------------------------------------------------------------------------

    def entered(self, stamp: Stamp) -> Entry:
        """Let code of the components run at this time, until the end of the block."""
        self._wall_s = stamp.wall_s
        return self._loop.entered(stamp.monotonic_s)

    @contextmanager
    def reading(self, stamp: Stamp) -> Iterator[None]:
        """Let code outside read the components, with all groups formed beforehand: then a read changes nothing."""
        with self.entered(stamp):
            self.components.cache.snapshot()
            self.components.cache.groups.waiting()
            self.components.cache.groups.running()
            yield

    def run_round(self, stamp: Stamp) -> None:
        """Run what is ready or due."""
        self._wall_s = stamp.wall_s
        self._loop.run_round(stamp.monotonic_s)

    @property
    def is_ready(self) -> bool:
        """Whether another round would run something."""
        return self._loop.is_ready

    @property
    def now_s(self) -> float:
        """The monotonic time of the last stamp."""
        return self._loop.time()

    def due_at(self) -> float:
        """Return when the next timer is due, in monotonic seconds; infinity for never."""
        return self._loop.due_at()

    # Inputs, delivered in the next round ------------------------------------------------------------------------------

    def deliver(self, number: int, result: Any) -> None:
        """Take the result of a Command."""
        self._loop.call_soon(self.cluster.deliver, number, result)

    def fail(self, number: int, error: Exception) -> None:
        """Take the error of a Command."""
        self._loop.call_soon(self.cluster.fail, number, error)

    def show(self, number: int, event: WatchEvent[Any]) -> None:
        """Take an event of a watch; its objects are what `keep` returned."""
        self._loop.call_soon(self.cluster.show, number, event)

    def finish(self, number: int, result: Any, error: BaseException | None) -> None:
        """Take the result of a job."""
        self._loop.call_soon(self._finish, number, result, error)

    def ask(self, number: int, verb: str, question: PodQuestion | BindQuestion) -> None:
        """Take a question that may wait: `filter` or `bind`."""
        self._loop.call_soon(self._begin, number, verb, question)

    def withdraw(self, number: int) -> None:
        """Take the end of the caller of a question."""
        self._loop.call_soon(self._withdraw, number)

    # Calls ------------------------------------------------------------------------------------------------------------

    def keep(self, number: int, keep: Keep, raw: RawObject, stamp: Stamp) -> Any:
        """Reduce a raw object, which Command `number` reads, to its record."""
        del number
        with self.entered(stamp):
            return keep(raw)

    def filter_at_once(self, question: PodQuestion, stamp: Stamp) -> FilterAnswer | None:
        """Answer filter; None if that takes waiting, and `ask` is the way."""
        with self.entered(stamp):
            return self.components.extender.filter_at_once(question)

    def prioritize(self, question: PodQuestion, stamp: Stamp) -> Scores:
        """Answer prioritize."""
        with self.entered(stamp):
            return self.components.extender.prioritize(question)

    def preempt(self, pod: RawObject, candidates: Mapping[Any, Any], stamp: Stamp) -> Mapping[Any, Any]:
        """Answer preempt."""
        with self.entered(stamp):
            return self.components.extender.preempt(pod, candidates)

    def mutate(self, question: AdmissionQuestion, stamp: Stamp) -> AdmissionAnswer:
        """Answer the mutating webhook."""
        with self.entered(stamp):
            return self.components.admission.mutate(question)

    def validate(self, question: AdmissionQuestion, stamp: Stamp) -> AdmissionAnswer:
        """Answer the validating webhook."""
        with self.entered(stamp):
            return self.components.admission.validate(question)

    def start(self, stamp: Stamp) -> None:
        """Start every component."""
        with self.entered(stamp):
            for part in self.components.running:
                task = self._loop.create_task(part.run(), name=type(part).__name__)
                task.add_done_callback(self._note_end)
                self._parts.append(task)

    def begin_stop(self, why: str, stamp: Stamp) -> None:
        """Decide nothing more, and answer the binds that wait for their gang; other questions are still answered."""
        with self.entered(stamp):
            for part in self._parts:
                part.cancel()
            # They would needlessly delay the end of the listeners.
            self.components.barrier.fail_all(why)

    def stop(self, stamp: Stamp) -> None:
        """Cancel everything that runs, and let it end."""
        with self.entered(stamp):
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
        for _ in range(ROUNDS_AT_THE_END):
            if not self._loop.is_ready:
                break
            self.run_round(stamp)
        self._loop.close()

    # For one who reads ------------------------------------------------------------------------------------------------

    def observe(self, begin: Callable[[], Coroutine[Any, Any, Any]], told: Callable[[], None], stamp: Stamp) -> None:
        """Run a coroutine that waits for something and changes nothing; then call `told`."""
        with self.entered(stamp):
            # Not by the loop's method, which counts the tasks: a replay has no observers.
            asyncio.Task(begin(), loop=self._loop).add_done_callback(lambda _: told())

    # For the loop -----------------------------------------------------------------------------------------------------

    def run_job(self, job: Job, result: asyncio.Future[Any]) -> None:
        """Let the shell run a job under a number."""
        number = next(self._job_numbers)
        self._jobs[number] = result
        self._shell.start_job(number, job)

    def wake(self) -> None:
        """Let the shell run a round soon."""
        self._shell.wake()

    # Inside -----------------------------------------------------------------------------------------------------------

    def _finish(self, number: int, result: Any, error: BaseException | None) -> None:
        waits = self._jobs.pop(number, None)
        if waits is None or waits.done():
            return
        if error is None:
            waits.set_result(result)
        else:
            waits.set_exception(error)

    def _begin(self, number: int, verb: str, question: PodQuestion | BindQuestion) -> None:
        task = self._asked[number] = self._loop.create_task(self._verbs[verb](question))
        task.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, task: asyncio.Task[Any]) -> None:
        del self._asked[number]
        self._shell.answer(number, task)

    def _withdraw(self, number: int) -> None:
        if (task := self._asked.get(number)) is not None:
            task.cancel()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._shell.note_failure(error)
        # The others would decide on what it left behind until the last request is answered.
        for part in self._parts:
            part.cancel()
