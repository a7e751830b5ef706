"""The shell around the core: it tells the core the time, carries out its Commands, and delivers what happened.

The shell decides nothing. Rounds run in callbacks of the main event loop. A question that is answered at once enters
the core in the task of its asker.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import structlog

from app.core.commands import READS, Command, Keep
from app.core.loop import Job
from app.model.admission import AdmissionAnswer, AdmissionQuestion
from app.model.question import BindQuestion, Check, FilterAnswer, PodQuestion, Scores
from app.model.seam import Cluster, NotSentError, OutcomeUnknownError, RawObject
from app.recording.writer import RecordingWriter, begun
from app.service.components import Clocks
from app.service.inputs import MICROSECONDS, Core, Stamp
from app.service.recorded import RecordedCore
from app.settings import Settings
from app.telemetry import Metrics

log = structlog.get_logger()

TURN_US = 500
"""How long the shell runs one round after another before the main loop looks at its sockets again."""

DRIFT_US = 1000
"""Two clocks that are read one after the other differ by a little more each time; a smaller change is none."""

SEND_WITHIN_S = 0.5
"""How long after its decision a write may be sent; less than the margin of the lease (`leadership.MARGIN_S`)."""

NOT_SENT = f"more than {SEND_WITHIN_S} s had passed since it was decided, so another replica may decide now"

CANCELLED = "the call was cancelled before the API server replied"

AHEAD = 64
"""How many events of one watch may wait for the core; then its stream is not read on."""


class Shell:
    """Runs a core on the event loop that is running when the shell is made."""

    def __init__(self, settings: Settings, cluster: Cluster, metrics: Metrics, *, clocks: Clocks | None = None) -> None:
        """`cluster` carries out the Commands. Nothing runs until `run`."""
        self._clocks = clocks or Clocks()
        self._main = asyncio.get_running_loop()
        self._cluster = cluster
        self._has_lease = bool(settings.scheduler_lease)
        self._offset_us = 0
        self._next_turn: asyncio.Handle | None = None
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._running: dict[int, asyncio.Task[None]] = {}
        self._room: dict[int, asyncio.Semaphore] = {}
        self._numbers = count(1)
        self._askers: dict[int, asyncio.Future[Any]] = {}
        self._failed: asyncio.Future[None] = self._main.create_future()
        self._writer = _writer(settings)
        self._core = self._built(settings, metrics)
        self.components = self._core.components

    def _built(self, settings: Settings, metrics: Metrics) -> Core:
        if self._writer is None:
            return Core(settings, metrics, self, self._stamp())
        return RecordedCore(settings, metrics, self, self._stamp(), writer=self._writer)

    # Time and rounds --------------------------------------------------------------------------------------------------

    def _stamp(self) -> Stamp:
        now_us = int(self._clocks.monotonic() * MICROSECONDS)
        offset_us = int(self._clocks.wall() * MICROSECONDS) - now_us
        if abs(offset_us - self._offset_us) > DRIFT_US:
            self._offset_us = offset_us
        return Stamp(now_us, self._offset_us)

    def wake(self) -> None:
        """Run a round in the next iteration of the main loop."""
        if self._next_turn is None and not self._is_closed:
            self._next_turn = self._main.call_soon(self._turn)

    def _turn(self) -> None:
        if self._next_turn is not None:
            # When the timer rings: otherwise there would be two turns in each iteration of the main loop from now on.
            self._next_turn.cancel()
            self._next_turn = None
        if self._is_closed:
            return
        stamp = self._stamp()
        until_us = stamp.monotonic_us + TURN_US
        # A time-out that is due now withdraws its write in the round after this one.
        rounds = 2 if self._core.due_at() <= stamp.monotonic_s else 1
        for number in count(1):
            self._core.run_round(stamp)
            if not self._core.is_ready:
                self._set_timer(stamp)
                return
            stamp = self._stamp()
            if number >= rounds and stamp.monotonic_us > until_us:
                break
        self.wake()

    def _set_timer(self, stamp: Stamp) -> None:
        due = self._core.due_at()
        if due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        # A stamp leaves out what is less than a microsecond, and must not be before the time that is due.
        self._timer = self._main.call_later(max(0.0, due - stamp.monotonic_s) + 1 / MICROSECONDS, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, inf
        # At once: after a pause, a time-out must withdraw a write before the write notes that it has a connection now.
        self._turn()

    # Questions --------------------------------------------------------------------------------------------------------

    async def filter(self, question: PodQuestion) -> FilterAnswer:
        """Choose among the offered nodes."""
        answer = self._core.filter_at_once(question, self._stamp())
        if answer is None:
            later: FilterAnswer = await self._ask("filter", question)
            return later
        return answer

    async def bind(self, question: BindQuestion) -> str:
        """Bind the pod. Return "" when it is bound, otherwise why not."""
        answer: str = await self._ask("bind", question)
        return answer

    def prioritize(self, question: PodQuestion) -> Scores:
        """Score the offered nodes."""
        return self._core.prioritize(question, self._stamp())

    def preempt(self, pod: RawObject, candidates: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the victims that may be preempted."""
        return self._core.preempt(pod, candidates, self._stamp())

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Return the patch that an object needs."""
        return self._core.mutate(question, self._stamp())

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Return whether an object may be stored."""
        return self._core.validate(question, self._stamp())

    async def _ask(self, verb: str, question: PodQuestion | BindQuestion) -> Any:
        number = next(self._numbers)
        answered = self._askers[number] = self._main.create_future()
        self._core.ask(number, verb, question)
        try:
            return await answered
        except asyncio.CancelledError:
            if not self._is_closed:
                self._core.withdraw(number)
            raise
        finally:
            del self._askers[number]

    def answer(self, number: int, answered: asyncio.Future[Any]) -> None:
        """Give an answer to its asker, who may have left."""
        asker = self._askers.get(number)
        if asker is None or asker.done():
            return
        if answered.cancelled():
            asker.cancel()
        elif (error := answered.exception()) is not None:
            asker.set_exception(error)
        else:
            asker.set_result(answered.result())

    # Reads ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let code outside of the core read the components. It must change nothing."""
        with self._core.reading(self._stamp()):
            yield

    def checks(self) -> tuple[Check, ...]:
        """Return the components' lines of /readyz."""
        with self._core.entered(self._stamp()):
            return tuple(self.components.inspect.checks())

    async def seen(self, wait: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Wait for something in the core, such as `freshness.synced`."""
        told: asyncio.Future[None] = self._main.create_future()
        self._core.observe(wait, lambda: None if told.done() else told.set_result(None), self._stamp())
        await told

    # Commands ---------------------------------------------------------------------------------------------------------

    def execute(self, number: int, command: Command) -> None:
        """Begin a Command."""
        until = self._core.now_s + SEND_WITHIN_S if self._has_lease and command.verb not in READS else inf
        outcome = self._followed(number, command) if command.follows else self._done(number, command, until)
        self._running[number] = self._main.create_task(outcome, name=f"{command.verb} {number}")

    def withdraw(self, number: int) -> None:
        """Stop a Command."""
        self._room.pop(number, None)
        if (task := self._running.pop(number, None)) is not None:
            task.cancel()

    def consumed(self, number: int) -> None:
        """Read on in a stream."""
        if (room := self._room.get(number)) is not None:
            room.release()

    async def _done(self, number: int, command: Command, until: float) -> None:
        try:
            if self._clocks.monotonic() > until:
                raise NotSentError(NOT_SENT)  # noqa: TRY301 # it goes the way of the cluster's own errors
            result = await self._begun(number, command)
        except asyncio.CancelledError:
            if number not in self._running or self._is_closed:
                raise
            # Nobody withdrew it: a library has cancelled itself, and the core must not wait for ever.
            self._core.fail(number, OutcomeUnknownError(CANCELLED))
        except Exception as error:  # noqa: BLE001 # the core gets every error
            self._core.fail(number, error)
        else:
            self._core.deliver(number, result)
        finally:
            self._running.pop(number, None)

    async def _followed(self, number: int, command: Command) -> None:
        room = self._room[number] = asyncio.Semaphore(AHEAD)
        try:
            async for event in self._begun(number, command):
                await room.acquire()
                self._core.show(number, event)
        except Exception as error:  # noqa: BLE001 # the core gets every error
            self._core.fail(number, error)

    def _begun(self, number: int, command: Command) -> Any:
        """Call the method of the cluster, which returns a coroutine or a stream."""
        keep = {} if command.keep is None else {"keep": partial(self._keep, number, command.keep)}
        return getattr(self._cluster, command.verb)(*command.arguments, **command.options, **keep)

    def _keep(self, number: int, keep: Keep, raw: RawObject) -> Any:
        return self._core.keep(number, keep, raw, self._stamp())

    # Jobs -------------------------------------------------------------------------------------------------------------

    def start_job(self, number: int, job: Job) -> None:
        """Run a job in a thread."""
        self._main.run_in_executor(None, job).add_done_callback(partial(self._finish, number))

    def _finish(self, number: int, done: asyncio.Future[Any]) -> None:
        if self._is_closed or done.cancelled():
            return
        error = done.exception()
        self._core.finish(number, None if error else done.result(), error)

    # From start to end ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the core until cancelled; raise the error of a component that fails."""
        self._core.start(self._stamp())
        try:
            await self._failed
        finally:
            self._core.begin_stop("Leeboard is stopping", self._stamp())

    def note_failure(self, error: BaseException) -> None:
        """End `run` with this error."""
        if not self._failed.done():
            self._failed.set_exception(error)

    def close(self) -> None:
        """Stop the core, and what the shell does for it."""
        if self._writer is not None:
            self._writer.close()
        self._core.stop(self._stamp())
        self._is_closed = True
        for task in self._running.values():
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._failed.cancel()


def _writer(settings: Settings) -> RecordingWriter | None:
    if settings.record_dir is None:
        return None
    try:
        return begun(Path(settings.record_dir), most_bytes=settings.record_mib << 20)
    except OSError as error:
        # A recording is for later; the service is needed now.
        log.warning("nothing is recorded", record_dir=settings.record_dir, error=str(error))
        return None
