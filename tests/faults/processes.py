"""Processes on one deterministic loop. A process that is killed runs no further callback, as after SIGKILL."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from app.core.loop import Callback, DeterministicLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Process:
    """Everything that ends together. The world itself is no process, and never ends."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host
        self.is_dead = False
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)
        self._ends: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name} on {self.host}>"

    def at_end(self, act: Callable[[], None]) -> None:
        """Have this done when the process is killed: what others notice of it, such as a closed connection."""
        self._ends.append(act)

    def within(self, act: Callable[[], T]) -> T:
        """Do something as a part of the process, whoever calls: what it leaves to be done belongs to the process."""
        return self.context.copy().run(act)

    def kill(self) -> None:
        self.is_dead = True
        ends, self._ends = self._ends, []
        for act in ends:
            act()


CURRENT: ContextVar[Process | None] = ContextVar("current", default=None)


class WorldLoop(DeterministicLoop):
    """The loop of a whole world. A job takes as long as `job_takes_s` says, and runs when its result is due."""

    def __init__(self, job_takes_s: Callable[[], float]) -> None:
        super().__init__(self)
        self._job_takes_s = job_takes_s
        self.errors: list[str] = []
        self.is_ending = False
        self._withheld: list[Callback] = []
        """What dead processes would have run. Their tasks need it to end when the world ends."""
        self._ends: list[Callable[[], None]] = []
        self.jobs = 0

    def spawn(self, process: Process | None, coro: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run a coroutine in a process."""
        context = copy_context() if process is None else process.context
        return self.create_task(coro, name=name or None, context=context)

    def at_end(self, act: Callable[[], None]) -> None:
        """Have this done when the world ends, after all tasks were cancelled."""
        self._ends.append(act)

    def cancel_all(self) -> None:
        """Cancel the tasks of all processes, dead ones too, so that no task is left to the garbage collector."""
        self.is_ending = True
        self._ready.extend(self._withheld)
        self._cancel()
        for act in self._ends:
            act()
        self._cancel()
        self.close()

    def _cancel(self) -> None:
        for _ in range(50):
            left = asyncio.all_tasks(self)
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_round(self.time())

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        self.jobs += 1
        return super().run_in_executor(executor, func, *args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_ending:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _run(self, callback: Callback) -> None:
        process = callback.in_context.get(CURRENT)
        if process is None or not process.is_dead or self.is_ending:
            super()._run(callback)
        else:
            self._withheld.append(callback)

    def wake(self) -> None:
        """Do nothing: rounds run until nothing is left to do."""

    def run_job(self, job: Callable[[], Any], result: "asyncio.Future[Any]") -> None:
        self.call_later(self._job_takes_s(), self._deliver, job, result)

    def _deliver(self, job: Callable[[], Any], result: "asyncio.Future[Any]") -> None:
        if self.is_ending:
            result.cancel()
        if result.done():
            return
        try:
            result.set_result(job())
        except Exception as error:  # noqa: BLE001 # an error of the thread is raised in its caller
            result.set_exception(error)
