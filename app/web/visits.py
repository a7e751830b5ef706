"""Lets the loops of other threads ask what only the main event loop may read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol, TypeVar

from fastapi import HTTPException

T = TypeVar("T")

PATIENCE_S = 10.0
NO_ANSWER = "the event loop has not answered for {seconds:g} s; /readyz says for how long it has stood still"


class Asks(Protocol):
    """A way to the main loop."""

    async def ask(self, question: Callable[[], T]) -> T:
        """Return what a function says that runs on the main loop; raises HTTPException when that takes too long."""
        ...

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what a coroutine says that runs on the main loop; raises HTTPException when that takes too long."""
        ...


class OnTheSpot:
    """For those who are on the main loop."""

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer."""
        return question()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the answer."""
        return await work()


class Visits:
    """The way from one other loop: one question at a time, with half of the main loop's time at most."""

    def __init__(self, main: asyncio.AbstractEventLoop, *, patience_s: float = PATIENCE_S) -> None:
        self._main = main
        self._patience_s = patience_s
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, question: Callable[[], T]) -> T:
        """Put a question, and leave the main loop to others for as long as the answer took."""

        async def answered() -> tuple[T, float]:
            began = time.perf_counter()
            return question(), time.perf_counter() - began

        async with self._one_at_a_time:
            answer, took_s = await self.run(answered)
            await asyncio.sleep(took_s)
        return answer

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done that mostly waits."""

        async def done() -> T:
            return await work()

        running = asyncio.run_coroutine_threadsafe(done(), self._main)
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, NO_ANSWER.format(seconds=self._patience_s)) from None
