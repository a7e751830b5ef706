"""An event loop without a clock and without I/O. Its owner decides when a round runs, and what time it is then.

asyncio needs an event loop only for the order of callbacks. Here the order follows from the calls alone: two loops that
receive the same calls run the same callbacks in the same order. asyncio's own loops ask the operating system in
between, and their order depends on its answers.
"""

import asyncio
import heapq
import sys
from asyncio import events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from itertools import count
from math import inf
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

import structlog

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Job = Callable[[], Any]
"""Work for a thread. It reads only frozen values."""

Outside = tuple[asyncio.AbstractEventLoop | None, "asyncio.Task[Any] | None"]
"""The loop and the task that run where the core is entered."""

FEW_TIMERS = 128
"""So many timers are not searched for cancelled ones."""

log = structlog.get_logger()


class OwnsLoop(Protocol):
    """Says when rounds run."""

    def run_job(self, job: Job, result: "asyncio.Future[Any]") -> None:
        """Start a job, and set its result on the future in a later round."""
        ...

    def wake(self) -> None:
        """Run a round soon: something became ready, or due earlier, outside of a round."""
        ...


class Callback(asyncio.TimerHandle):
    """A callback that runs in a later round, unless it is cancelled before."""

    __slots__ = ("act", "in_context", "is_cancelled", "when_s")

    def __init__(self, act: Callable[[], object], context: Context | None, when_s: float) -> None:
        """Hold what to run; the fields of asyncio's handles serve asyncio's own loops only and stay unset."""
        self.act = act
        self.in_context = copy_context() if context is None else context
        self.when_s = when_s
        self.is_cancelled = False

    def __repr__(self) -> str:
        return f"<Callback {self.act!r}>"

    def cancel(self) -> None:
        """Do not run, and let go of what would have run: a timer may be due only in an hour."""
        self.is_cancelled = True
        self.act = _nothing

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """Return when it is due, in seconds of the loop's time."""
        return self.when_s


class Entry:
    """A block in which code of the core runs outside of a round. A generator for this takes five times as long."""

    __slots__ = ("_due_s", "_loop", "_now_s", "_outside")

    def __init__(self, loop: "DeterministicLoop", now_s: float) -> None:
        self._loop, self._now_s, self._due_s = loop, now_s, inf
        self._outside: Outside = (None, None)

    def __enter__(self) -> None:
        self._due_s = self._loop.due_at()
        self._outside = self._loop.begin(self._now_s)

    def __exit__(self, *_: object) -> None:
        self._loop.finish(self._outside)
        # Also after an error: what became ready before it must not wait for the next input.
        self._loop.wake_if_earlier(self._due_s)


class NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number. A TaskGroup keeps its tasks in a set, and cancels them in the set's order."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        # asyncio itself puts the task into a set.
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class DeterministicLoop(asyncio.AbstractEventLoop):
    """Runs coroutines in rounds. A round runs what was ready when it began, in the order in which it became ready."""

    def __init__(self, owner: OwnsLoop, *, now_s: float = 0.0) -> None:
        """Start at a time in seconds."""
        self._owner = owner
        self._now_s = now_s
        self._ready: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._most_timers = FEW_TIMERS
        """With more timers, cancelled ones are removed. Most time-outs are cancelled long before they are due."""
        self._order = count()
        self._tasks = count(1)
        self._is_entered = False
        self._is_closed = False

    # The owner's side -------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a round would run something now, whatever the time is."""
        return bool(self._ready)

    def due_at(self) -> float:
        """Return when the next timer is due, infinity without a timer."""
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else inf

    def entered(self, now_s: float) -> "Entry":
        """Let code of the core run at this time, and wake the owner if it left work.

        The time never goes back: an earlier time counts as the last one.
        """
        return Entry(self, now_s)

    def run_round(self, now_s: float) -> None:
        """Run what is ready or due at this time. What becomes ready meanwhile waits for the next round."""
        outside, hooks = self.begin(now_s), sys.get_asyncgen_hooks()
        # A watch that is left in the middle ends in a round of this loop, and not on the loop outside.
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._end)
        try:
            while self._timers and self._timers[0][0] <= self._now_s:
                self._ready.append(heapq.heappop(self._timers)[2])
            for _ in range(len(self._ready)):
                callback = self._ready.popleft()
                if not callback.is_cancelled:
                    self._run(callback)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self.finish(outside)

    def begin(self, now_s: float) -> Outside:
        """Become the running loop; return what ran before. `entered` and `run_round` do this for their callers."""
        self._now_s = max(self._now_s, now_s)
        outer = events._get_running_loop()  # noqa: SLF001 # exported by asyncio for those who write event loops
        # From Python 3.14 on, a thread enters no task within another, also not one of another loop: `close` needs this.
        task = None if outer is None else asyncio.current_task(outer)
        if outer is not None and task is not None:
            tasks._leave_task(outer, task)  # noqa: SLF001
        events._set_running_loop(self)  # noqa: SLF001
        self._is_entered = True
        return outer, task

    def finish(self, outside: Outside) -> None:
        """Let run again what ran before."""
        outer, task = outside
        self._is_entered = False
        events._set_running_loop(outer)  # noqa: SLF001
        if outer is not None and task is not None:
            tasks._enter_task(outer, task)  # noqa: SLF001

    def wake_if_earlier(self, due_s: float) -> None:
        """Wake the owner if something is ready, or due before a time."""
        if self._ready or self.due_at() < due_s:
            self._owner.wake()

    def _end(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._is_closed:
            self.call_soon(self.create_task, generator.aclose())

    def _run(self, callback: Callback) -> None:
        try:
            callback.in_context.run(callback.act)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 # as in asyncio's own loops: a callback's error ends no loop
            self.call_exception_handler({"message": f"exception in {callback!r}", "exception": error})

    def _remove_cancelled(self) -> None:
        self._timers = [timer for timer in self._timers if not timer[2].is_cancelled]
        heapq.heapify(self._timers)
        self._most_timers = max(FEW_TIMERS, 2 * len(self._timers))

    # The side of asyncio ----------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the time of the round."""
        return self._now_s

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Callback:
        """Run a callback in the next round."""
        handle = Callback(partial(callback, *args), context, self._now_s)
        self._ready.append(handle)
        if not self._is_entered:
            self._owner.wake()
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Callback:
        """Run a callback in the first round after `delay` seconds."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Callback:
        """Run a callback in the first round at or after `when`; those due at one time run in the order of the calls."""
        handle = Callback(partial(callback, *args), context, when)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        if len(self._timers) > self._most_timers:
            self._remove_cancelled()
        if not self._is_entered:
            self._owner.wake()
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future whose callbacks run on this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Run a coroutine from the next round on."""
        number = next(self._tasks)
        return NumberedTask(number, coro, loop=self, name=None if name is None else str(name), context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Start a job. The owner of the loop chooses the thread, so `executor` must be None."""
        if executor is not None:
            raise ValueError("the owner of the loop runs its jobs")
        result: asyncio.Future[T] = self.create_future()
        self._owner.run_job(partial(func, *args), result)
        return result

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode measures time."""
        return False

    def is_running(self) -> bool:
        """Return whether a round runs."""
        return self._is_entered

    def is_closed(self) -> bool:
        """Return whether the loop was closed."""
        return self._is_closed

    def close(self) -> None:
        """Forget what has not run."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that no task receives."""
        log.error(context.get("message", "error in the core"), exc_info=context.get("exception"))


def _nothing() -> None:
    """Do what a cancelled callback does."""
