"""How the commands that run until Ctrl-C end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

import click


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Run the block to its end or until Ctrl-C, which is no error."""
    # A command that a script starts in the background ignores SIGINT. Only the main thread may change that.
    is_main = current_thread() is main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    try:
        yield
    except KeyboardInterrupt:
        click.echo(err=True)
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
