"""Runs the view beside the deciding process: starts it, feeds it, and starts it again when it ends."""

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import structlog

import app
from app.model.retry import RetryPolicy
from app.service.components import Runs
from app.service.feed import Feed
from app.web.listener import bound

log = structlog.get_logger()

RETRY = RetryPolicy(first_s=0.5, longest_s=30.0)
LASTING_S = 60.0
"""A view that ran for so long is started again without a pause."""
GRACE_S = 3.0
"""How long a view may take to end after its socket was closed."""


class ViewProcess:
    """The process and its port. The port stays open between two processes: clients wait, and are not refused."""

    def __init__(self, feed: Feed, host: str, port: int) -> None:
        """Bind the port; raise OSError when it is in use."""
        self._feed = feed
        self._host = host
        self._listening = bound(host, port)
        self.pid: int | None = None
        """Of the running process."""

    @property
    def url(self) -> str:
        """The URL, without a trailing slash."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._listening.getsockname()[1]}"

    @property
    def running(self) -> tuple[Runs, ...]:
        """What must run so that it answers."""
        return (self._feed.condition, self)

    def close(self) -> None:
        """Release the port."""
        self._listening.close()

    async def run(self) -> None:
        """Keep a view running until cancelled."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except OSError as error:
                log.warning("the view was not started", error=str(error))
            failures = 1 if loop.time() - began > LASTING_S else failures + 1
            log.warning("the view has ended and is started again", failures=failures)
            await asyncio.sleep(RETRY.after(failures))

    async def _run_once(self) -> None:
        """Start a view, and feed it until it ends."""
        mine, its = socket.socketpair()
        with mine, its:
            numbers = its.fileno(), self._listening.fileno()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "app.view",
                *map(str, numbers),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=numbers,
                env=os.environ | {"PYTHONPATH": _path()},
            )
            self.pid = process.pid
            its.close()
            mine.settimeout(0)
            writer: asyncio.StreamWriter | None = None
            try:
                reader, writer = await asyncio.open_connection(sock=mine)
                await self._feed.serve(reader, writer)
            finally:
                self.pid = None
                if writer is not None:
                    writer.close()
                await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for a process whose socket is closed; kill it if it does not end."""
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError) as error:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise


def _path() -> str:
    """Return a PYTHONPATH by which the view has the same code as this process."""
    here = str(Path(app.__file__).parent.parent)
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
