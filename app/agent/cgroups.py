"""Finds the pod of a process by its cgroup, which a process in a container cannot choose.

The path depends on the cgroup version, the kubelet's cgroup driver, the container runtime, and the place where it is
read. Each form has a part named after the pod's uid.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from app.agent.readings import Owners
from app.model.names import PodUid

DASHED = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
HASHED = r"[0-9a-f]{32}"
"""The uid of a static pod. It is a hash of the pod's file."""

OF_POD = re.compile(rf"(?:^|[-/])pod({DASHED}|{HASHED})(?:\.slice)?(?:[/:]|$)")
"""cgroupfs has `/kubepods/burstable/pod<uid>/..`; systemd has `..-pod<uid with underscores>.slice/..`.

Both may be below other parts, or relative to the agent's own cgroup (`/../../pod<uid>`) in a cgroup namespace.
"""


def owners(pids: Iterable[int], proc_root: Path) -> Owners:
    """Return the pod of each process that exists."""
    found = {pid: _lines(proc_root / str(pid) / "cgroup") for pid in pids}
    return {pid: pod_of(lines) for pid, lines in found.items() if lines is not None}


def pod_of(cgroup: str) -> PodUid | None:
    """Return the pod in a `/proc/<pid>/cgroup`; None when the process is in no pod."""
    for line in cgroup.splitlines():
        path = line.rpartition("::")[2] if "::" in line else line.split(":", 2)[-1]
        # The outermost match: a container may create groups of any name below its own.
        if of_pod := OF_POD.search(path):
            return PodUid(of_pod.group(1).replace("_", "-"))
    return None


def _lines(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
