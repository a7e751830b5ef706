"""Measures for how long an event loop is held at a time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

TICK_S = 0.001


@dataclass(slots=True)
class Holds:
    """For how long the event loop was held at a time, in CPU time of its thread: a busy machine does not change it."""

    longest_s: float = 0.0

    async def watch(self) -> None:
        """Wake up all the time, and see how much was done in between."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - before)
            before = now


@asynccontextmanager
async def watched() -> AsyncIterator[Holds]:
    """Watch the running loop while the block runs."""
    holds = Holds()
    watching = asyncio.create_task(holds.watch())
    try:
        yield holds
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
