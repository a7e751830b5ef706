"""How a service runs, and the message of a command for several errors at once."""

import subprocess
import sys

from app.cli.running import first_of


def test_the_decisive_error_is_found_at_any_depth_beside_any_others() -> None:
    sought = KeyError("sought")
    nested = ExceptionGroup("outer", [ValueError("first"), ExceptionGroup("inner", [OSError("other"), sought])])

    assert (first_of(nested, KeyError), first_of(sought, KeyError), first_of(nested, TypeError)) == (
        sought,
        sought,
        None,
    )


SOCKET_CLOSED_BENEATH_THE_LOOP = """
import asyncio
import os
import socket

from app.cli.running import run_until_asked


async def work():
    here, there = socket.socketpair()
    asyncio.get_running_loop().add_writer(here, lambda: None)
    os.close(here.detach())
    await asyncio.sleep(0.01)
    print("runs on")


run_until_asked(work())
"""


def test_a_service_survives_a_socket_that_the_kernel_refuses_to_watch() -> None:
    # uvloop 0.23 aborts here. Refused connections to a dead API server have the same effect, in one of some ten
    # outages.
    ran = subprocess.run(
        [sys.executable, "-c", SOCKET_CLOSED_BENEATH_THE_LOOP], capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout) == (0, "runs on\n"), ran.stderr
