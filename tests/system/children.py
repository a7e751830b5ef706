"""Starts programs that cannot survive this process, writes their output to files, and stops them in order."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOP_WITHIN_S = 10.0
# Loaded before any fork: dlopen between fork and exec could deadlock on a lock of another thread.
_libc = ctypes.CDLL(None, use_errno=True)


class ChildDiedError(AssertionError):
    """A program ended by itself while the bed still needed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One running program, its log and its place in the process table."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Return the process id, which is also its process group."""
        return self.process.pid

    def check_alive(self) -> None:
        """Raise `ChildDiedError` with the end of the log when the program is gone."""
        if self.process.poll() is not None:
            raise ChildDiedError(f"{self.name} ended with {self.process.returncode}; {self.log} ends:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last 2,000 characters it wrote."""
        return self.log.read_text(errors="replace")[-2000:]

    def cpu_s(self) -> float:
        """Return the CPU seconds (user and system) spent so far by the program itself."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ask it to end, and kill it after `STOP_WITHIN_S`, with its whole process group."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_WITHIN_S)
        self.kill()

    def kill(self) -> None:
        """End it at once, like a machine failure, together with all programs that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def start(name: str, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> Child:
    """Start a program that ends with this process; `env` is added to the environment of this process.

    Call it from a thread that lives as long as the program: Linux sends the parent-death signal when the *thread* that
    forked ends.
    """
    us = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died between fork and prctl; then no signal is ever sent.
        if os.getppid() != us:
            os._exit(1)

    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            # Its own group: Ctrl-C reaches only this process, so that it can stop everything in order.
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads run at this point that hold locks it needs
        )
    return Child(name=name, process=process, log=log)
