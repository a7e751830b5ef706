"""Time in a simulated cluster: how long a wait is, said by whoever builds it."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What the actors of a simulated cluster know of time."""

    def now(self) -> float:
        """Return the seconds since the epoch, for timestamps."""
        ...

    async def sleep(self, simulated_s: float) -> None:
        """Wait for so many seconds of the simulated world."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """Waits are `speed` times shorter than they say; timestamps are real, so that ages never run ahead of us."""

    speed: float = 1.0

    def now(self) -> float:
        """Return the real time."""
        return time.time()

    async def sleep(self, simulated_s: float) -> None:
        """Wait for `simulated_s / speed` real seconds."""
        await asyncio.sleep(simulated_s / self.speed)
