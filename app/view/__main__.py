"""The view as a program: `python -m app.view CONTROL LISTENER`, two open sockets. The service starts it."""

import asyncio
import gc
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack, suppress

import aiohttp

from app.kube.client import KubeCluster
from app.telemetry import Logging, Metrics
from app.view import application, messages
from app.view.kept_state import KeptState
from app.view.page import Page
from app.view.passing import Passing
from app.view.source import FrameSource
from app.view.vouched import VouchedCallers
from app.web.callers import Anybody, CallersByName, Nobody, Reviewed
from app.web.listener import serving_on
from app.web.visits import OnTheSpot


async def serve(control: socket.socket, listening: socket.socket) -> None:
    """Serve until the deciding process is gone."""
    reader, writer = await asyncio.open_connection(sock=control)
    setup = messages.Setup.of(await messages.read(reader))
    async with AsyncExitStack() as opened:
        callers = VouchedCallers(await _callers(setup, opened), setup.secret)
        session = await opened.enter_async_context(aiohttp.ClientSession(trust_env=False))
        kept = KeptState()
        source = FrameSource(kept, reader, writer)
        app = application.application(kept, callers, source, Passing(session, setup.operations), Page.installed())
        listener = serving_on(listening, app, application.VIEW_CONNECTIONS, grace_s=0.5)
        reading, answering = asyncio.ensure_future(source.run()), asyncio.ensure_future(listener.run())
        try:
            done, _ = await asyncio.wait((reading, answering), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (reading, answering):
                task.cancel()
            await asyncio.gather(reading, answering, return_exceptions=True)


async def _callers(setup: messages.Setup, opened: AsyncExitStack) -> CallersByName:
    if setup.anonymous:
        return Anybody()
    if not setup.reviews:
        return Nobody()
    cluster = await opened.enter_async_context(await KubeCluster.connect(setup.kubeconfig))
    return Reviewed(cluster.reviews(), OnTheSpot(), clock=time.monotonic)


def main() -> None:
    """Run the view on two sockets that this process has inherited."""
    # Ctrl-C reaches every process of a terminal. The view ends with the deciding process, which closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    gc.freeze()
    with Logging(dropped=Metrics().log_lines_dropped), suppress(EOFError):
        asyncio.run(serve(control, listening))


if __name__ == "__main__":
    main()
