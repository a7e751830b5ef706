"""Has writes that are wanted within a moment of each other begin together.

Each costs less then, for etcd, for the API server and for all who watch: they are woken once for several.
"""

import asyncio


class WriteCoalescer:
    """Begins at most one burst in `every_s`: who comes when there was none for so long goes on at once."""

    def __init__(self, every_s: float) -> None:
        """Start with nobody who waits."""
        self._every_s = every_s
        self._next: asyncio.Event | None = None
        self._begun_at = float("-inf")

    async def wait(self) -> None:
        """Return when the next burst begins."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            if loop.time() >= self._begun_at + self._every_s:
                self._begun_at = loop.time()
                return
            self._next = asyncio.Event()
            loop.call_at(self._begun_at + self._every_s, self._begin, self._next)
        await self._next.wait()

    def _begin(self, burst: asyncio.Event) -> None:
        self._next, self._begun_at = None, asyncio.get_running_loop().time()
        burst.set()
