"""An event loop whose time stops while any task can run, and jumps to the next timer when all tasks wait."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Patience(selectors.DefaultSelector):
    """Passes virtual time where other loops wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if timeout is None:
            raise RuntimeError("everything waits for something that nobody will do")
        self.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Does no I/O. Thread work of production takes `thread_takes_s`, during which the loop continues."""

    def __init__(self) -> None:
        self._patience = _Patience()
        self.thread_takes_s = 0.0
        super().__init__(self._patience)

    def time(self) -> float:
        return self._patience.now_s

    def pause(self, seconds: float) -> None:
        """Let time pass as if the process had been stopped."""
        self._patience.now_s += seconds

    def turns(self) -> int:
        return self._patience.turns

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        assert executor is None
        result: asyncio.Future[T] = self.create_future()
        self.call_later(self.thread_takes_s, _finish, result, partial(func, *args))
        return result


def _finish(result: asyncio.Future[T], work: Callable[[], T]) -> None:
    if result.done():
        return
    try:
        result.set_result(work())
    except Exception as error:  # noqa: BLE001 # an error of the thread is raised in its caller
        result.set_exception(error)


def threads_take(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.thread_takes_s = seconds


def turns() -> int:
    """Return the number of turns of the loop: work in one turn delays everything else."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop.turns()
