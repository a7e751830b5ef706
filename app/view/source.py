"""Reads frames from the deciding process while somebody watches."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from app.model.seam import rfc3339
from app.view import messages
from app.view.kept_state import KeptState

WATCHED_S = 30.0
"""For so long after a client was last there, frames are asked for."""
OLD_S = 3.0
"""A state that was read longer ago is not shown before another frame has come, if one comes."""
PATIENCE_S = 8.0
SILENCE_S = 12.0
"""After so long without the frame that was asked for, the state is stale. A large cluster has a frame in 10 s."""
SILENT = "Leeboard sends no newer state; the page shows its last one."


class FrameSource:
    """The connection to the deciding process."""

    def __init__(
        self,
        kept: KeptState,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic."""
        self._kept = kept
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._wall_clock = wall_clock
        self._wanted = asyncio.Event()
        self._wanted_until = 0.0
        self._heard_at = float("-inf")
        self._heard = asyncio.Event()

    def want(self) -> None:
        """Let frames come for some time."""
        self._wanted_until = self._clock() + WATCHED_S
        self._wanted.set()

    async def fresh(self) -> bool:
        """Return whether there is a state that is not old; wait for it for some seconds."""
        self.want()
        if self._clock() - self._heard_at > OLD_S:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._heard.wait()
            except TimeoutError:
                # An old state says that it is old.
                pass
        return self._kept.tick > 0

    async def run(self) -> None:
        """Read frames until the deciding process is gone; then raise EOFError."""
        while True:
            wanted = asyncio.ensure_future(self._wanted.wait())
            # Nothing comes that was not asked for: what can be read now is the end.
            ended = asyncio.ensure_future(self._reader.read(1))
            await asyncio.wait((wanted, ended), return_when=asyncio.FIRST_COMPLETED)
            wanted.cancel()
            ended.cancel()
            await asyncio.gather(wanted, ended, return_exceptions=True)
            if self._reader.at_eof():
                raise EOFError("the process that decides is gone")
            self._writer.write(messages.NEXT)
            await self._take_frame()
            if self._clock() > self._wanted_until:
                self._wanted.clear()

    async def _take_frame(self) -> None:
        self._kept.drop_parts()
        while True:
            message = await self._message()
            if "frame" not in message:
                self._kept.add_part(message)
                continue
            self._kept.take(message["frame"])
            self._heard_at = self._clock()
            heard, self._heard = self._heard, asyncio.Event()
            heard.set()
            return

    async def _message(self) -> Mapping[str, Any]:
        reading = asyncio.ensure_future(messages.read(self._reader))
        since = rfc3339(self._wall_clock())
        try:
            done, _ = await asyncio.wait((reading,), timeout=SILENCE_S)
            if not done:
                self._kept.note_silence({"since": since, "sentence": SILENT})
            return await reading
        finally:
            reading.cancel()
