"""Finds the pod of a process by its cgroup: the one thing that a process in a container cannot choose.

The path depends on the cgroup version, on the kubelet's cgroup driver, on the container runtime and on where it is
read, but each of them has a part named after the pod's uid.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from app.agent.readings import Owners
from app.model.names import PodUid

DASHED = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
HASHED = r"[0-9a-f]{32}"
"""The uid of a static pod, which is a hash of its file."""

OF_POD = re.compile(rf"(?:^|[-/])pod({DASHED}|{HASHED})(?:\.slice)?(?:[/:]|$)")
"""`/kubepods/burstable/pod<uid>/..` of cgroupfs, `..-pod<uid with underscores>.slice/..` of systemd, both also below
other parts, or relative to our own cgroup (`/../../pod<uid>`) where we have a cgroup namespace of our own."""


def owners(pids: Iterable[int], proc_root: Path) -> Owners:
    """Return the pod of each process that is there."""
    found = {pid: _lines(proc_root / str(pid) / "cgroup") for pid in pids}
    return {pid: pod_of(lines) for pid, lines in found.items() if lines is not None}


def pod_of(cgroup: str) -> PodUid | None:
    """Return the pod that a `/proc/<pid>/cgroup` names; None when it is of no pod."""
    for line in cgroup.splitlines():
        path = line.rpartition("::")[2] if "::" in line else line.split(":", 2)[-1]
        # The outermost: below its own, a container may make groups of any name.
        if of_pod := OF_POD.search(path):
            return PodUid(of_pod.group(1).replace("_", "-"))
    return None


def _lines(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
