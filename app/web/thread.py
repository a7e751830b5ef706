"""Runs a listener on an event loop of its own, in a thread.

What its clients do then delays the main loop by no more than the interpreter takes to change threads.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from app.web.listener import Listener


class Threaded:
    """A listener in a thread, fit for a TaskGroup: cancelling it shuts it down gracefully."""

    def __init__(self, listener: Listener, *, name: str) -> None:
        """Serve nobody yet; `name` is the thread's."""
        self._listener = listener
        self._name = name
        # Set on the thread's loop, by `_until_asked`.
        self._end: Callable[[], None] | None = None
        self._asked = threading.Event()

    async def run(self) -> None:
        """Serve until cancelled; raises what ends the listener."""
        ended: Future[None] = Future()
        thread = threading.Thread(target=self._work, args=(ended,), name=self._name, daemon=True)
        thread.start()
        waiting = asyncio.wrap_future(ended)
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self._asked.set()
            if self._end is not None:
                self._end()
            await waiting
            # It has nothing left to do but to end.
            thread.join()
            raise

    def _work(self, ended: Future[None]) -> None:
        try:
            asyncio.run(self._until_asked())
        except BaseException as error:  # noqa: BLE001 - raised where the thread is waited for
            ended.set_exception(error)
        else:
            ended.set_result(None)

    async def _until_asked(self) -> None:
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(self._listener.run())

        def end() -> None:
            # A loop that is closed has nothing left to end.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(running.cancel)

        self._end = end
        if self._asked.is_set():
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running
