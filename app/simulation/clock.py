"""The time in a simulated cluster. The builder of the cluster chooses its speed."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """The clock of the actors in a simulated cluster."""

    def now(self) -> float:
        """Return the seconds since the epoch, for timestamps."""
        ...

    async def sleep(self, simulated_s: float) -> None:
        """Wait for this many simulated seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """Real waits are `speed` times shorter than simulated ones. Timestamps are real, so ages never exceed real ages."""

    speed: float = 1.0

    def now(self) -> float:
        """Return the real time."""
        return time.time()

    async def sleep(self, simulated_s: float) -> None:
        """Wait for `simulated_s / speed` real seconds."""
        await asyncio.sleep(simulated_s / self.speed)
