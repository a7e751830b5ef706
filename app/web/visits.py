"""Lets other threads' event loops read state that only the main event loop may read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Protocol, TypeVar

from fastapi import HTTPException

T = TypeVar("T")

PATIENCE_S = 10.0
NO_ANSWER = "the event loop has not answered for {seconds:g} s; /readyz says for how long it has been blocked"


class Asks(Protocol):
    """Calls functions on the main loop."""

    async def ask(self, question: Callable[[], T]) -> T:
        """Call a function on the main loop and return its result; raise HTTPException after a timeout."""
        ...

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine on the main loop and return its result; raise HTTPException after a timeout."""
        ...


class Readable(Protocol):
    """State that is read only within a block."""

    def reading(self) -> AbstractContextManager[None]:
        """Let the block read."""
        ...


class OnTheSpot:
    """For callers that run on the main loop."""

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the function's result."""
        return question()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the coroutine's result."""
        return await work()


class Visits:
    """Calls from one other loop: one at a time, using at most half of the main loop's time."""

    def __init__(
        self,
        main: asyncio.AbstractEventLoop,
        *,
        state: Readable | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Questions read `state`; without it they may read at any time."""
        self._main = main
        self._state = state
        self._patience_s = patience_s
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, question: Callable[[], T]) -> T:
        """Call the function, then pause for as long as it took, to leave time for other work of the main loop."""

        async def answered() -> tuple[T, float]:
            began = time.perf_counter()
            with self._state.reading() if self._state else nullcontext():
                return question(), time.perf_counter() - began

        async with self._one_at_a_time:
            answer, took_s = await self.run(answered)
            await asyncio.sleep(took_s)
        return answer

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine that mostly waits."""

        async def done() -> T:
            return await work()

        running = asyncio.run_coroutine_threadsafe(done(), self._main)
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, NO_ANSWER.format(seconds=self._patience_s)) from None
