"""Holds a program back that would begin as soon as it has started: its process waits, paused, before it becomes it."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.system.bed import Bed
from tests.system.children import Child
from tests.system.waiting import eventually

PAUSED = "T"


def start(bed: Bed, name: str, command: Sequence[str | Path], env: Mapping[str, str]) -> Child:
    """Start a process that pauses itself and becomes the program when it is resumed: it keeps its process id."""
    child = bed.start(name, ["sh", "-c", 'kill -STOP $$; exec "$@"', name, *command], env)
    eventually(lambda: _state(child), until=lambda state: state == PAUSED, within_s=10.0, what=f"{name} waits")
    return child


def resume(child: Child) -> None:
    """Let it become its program, and that begin."""
    os.kill(child.pid, signal.SIGCONT)


def _state(child: Child) -> str:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
