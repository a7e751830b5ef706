"""Lets writes that are requested within a short time begin together.

Each write then costs less for etcd, for the API server and for all watchers, which wake up once for several writes.
"""

import asyncio


class WriteCoalescer:
    """Begins at most one burst per `every_s` seconds; a write begins at once if no burst began within that time."""

    def __init__(self, every_s: float) -> None:
        """Start with no waiting write."""
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
