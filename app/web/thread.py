"""Runs listeners on an event loop of their own, in a thread.

Their clients delay the main loop by at most one thread switch of the interpreter.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from app.web.listener import Listener


class Threaded:
    """Listeners in one thread. It is used in a TaskGroup; cancelling it shuts them down gracefully."""

    def __init__(self, *listeners: Listener, name: str) -> None:
        """Prepare the thread with this name; `run` starts it."""
        self._listeners = listeners
        self._name = name
        # `_until_asked` sets it on the thread's loop.
        self._end: Callable[[], None] | None = None
        self._asked = threading.Event()

    async def run(self) -> None:
        """Serve until cancelled; raise the exception of a listener."""
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
            # The thread has no work left, so the join is short.
            thread.join()
            raise

    def _work(self, ended: Future[None]) -> None:
        try:
            asyncio.run(self._until_asked())
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            ended.set_exception(error)
        else:
            ended.set_result(None)

    async def _until_asked(self) -> None:
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(self._all())

        def end() -> None:
            # A closed loop has no task to cancel.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(running.cancel)

        self._end = end
        if self._asked.is_set():
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def _all(self) -> None:
        if len(self._listeners) == 1:
            await self._listeners[0].run()
            return
        async with asyncio.TaskGroup() as tasks:
            for each in self._listeners:
                tasks.create_task(each.run())
