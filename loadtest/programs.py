"""What runs during one run, as an instrument: CPU time, peak memory and command lines, and how fast the machine is."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from loadtest.results import OURSELVES
from tests.system.bed import Bed
from tests.system.children import Child

CONTROL_PLANE = ("etcd", "kube-apiserver")
PATH = re.compile(r"(?<![\w:/])/[\w.\-]+(?:/[\w.\-]*)+")
LOOP = 1_000_000
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Programs:
    """The programs of the control plane and of one scheduler."""

    def __init__(self, bed: Bed, names: Iterable[str]) -> None:
        """`names` are those of the scheduler's."""
        self._scheduler = {name: bed.child(name) for name in names}
        self._control_plane = {name: bed.child(name) for name in CONTROL_PLANE}

    def check_alive(self) -> None:
        """Raise `ChildDiedError` when one is gone."""
        for child in self._all.values():
            child.check_alive()

    def cpu_s(self) -> Mapping[str, float]:
        """Return the CPU seconds of each so far, and our own; a program that is gone is missing."""
        spent = {name: child.cpu_s() for name, child in self._all.items() if _is_there(child)}
        return spent | {OURSELVES: time.process_time()}

    def peak_mib(self) -> Mapping[str, float]:
        """Return the most memory that each of the scheduler's has held so far, the same way."""
        return {name: _peak_mib(child) for name, child in self._scheduler.items() if _is_there(child)}

    @property
    def _all(self) -> Mapping[str, Child]:
        return {**self._control_plane, **self._scheduler}


def command_line(child: Child) -> Sequence[str]:
    """Return the arguments with which a program was started; paths left out."""
    arguments = child.process.args
    if not isinstance(arguments, list):
        raise TypeError(f"{child.name} was started by a shell")
    return without_paths([str(one) for one in arguments[1:]])


def without_paths(arguments: Iterable[str]) -> Sequence[str]:
    """Return arguments in which each path is shortened to `...`: a report must not show the folders of a machine."""
    return [PATH.sub("...", one) for one in arguments]


def loop_ms() -> float:
    """Return how long a fixed piece of work takes now."""
    began_s = time.perf_counter()
    for _ in range(LOOP):
        pass
    return (time.perf_counter() - began_s) * 1000


def _is_there(child: Child) -> bool:
    return child.process.poll() is None


def _peak_mib(child: Child) -> float:
    found = PEAK.search(Path(f"/proc/{child.pid}/status").read_text())
    # A program that has just ended has none.
    return int(found[1]) / 1024 if found else 0.0
