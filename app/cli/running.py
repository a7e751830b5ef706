"""Runs a service until it is asked to end. One line says what prevents it from running."""

import asyncio
import errno
import faulthandler
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from app.model.seam import KubeError

OTHER_PORT = (
    "choose another port with --webhook-port (LEEBOARD_WEBHOOK_PORT) or --operations-port (LEEBOARD_OPERATIONS_PORT)"
)

E = TypeVar("E", bound=Exception)


def run_until_asked(work: Coroutine[Any, Any, None]) -> None:
    """Run until done, or until SIGINT or SIGTERM, which end it cleanly.

    The loop is asyncio's own. uvloop ends the process when epoll refuses a socket (libuv issue 5130). That happens when
    a dead API server refuses some forty connections at once.
    """
    # A crash inside a library writes its stack to stderr. `sys.stderr` may be another object.
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    try:
        asyncio.run(_until_asked(work))
    except Exception as error:
        cause = _first_cause(error)
        if isinstance(cause, OSError | KubeError):
            raise click.ClickException(_sentence(cause)) from error
        raise


def _sentence(cause: OSError | KubeError) -> str:
    if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
        return f"{cause.strerror}; {OTHER_PORT}"
    return str(cause)


async def _until_asked(work: Coroutine[Any, Any, None]) -> None:
    running = asyncio.ensure_future(work)
    asked = asyncio.Event()

    def end() -> None:
        asked.set()
        running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
    try:
        await running
    except asyncio.CancelledError:
        if not asked.is_set():
            raise


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def first_of(error: Exception, kind: type[E]) -> E | None:
    """Return the first error of a type at any depth of groups; None when there is none."""
    if isinstance(error, kind):
        return error
    within = error.exceptions if isinstance(error, ExceptionGroup) else ()
    return next((found for each in within if (found := first_of(each, kind))), None)
