"""The API server's audit log as an instrument: when each pod was bound, and which program wrote how often."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
{more}- level: None
"""
READS_OF = """\
- level: Metadata
  users: ["{user}"]
"""

Verb = tuple[str, str, str]
"""API group, resource with its subresource, and verb, as a rule of a Role names them."""


def flags(policy: Path, log: Path, *, reads_of: str | None = None) -> list[str]:
    """Return the API server's flags; in batch mode, with room for a burst: a full buffer drops events silently.

    Every write is logged, and all requests of the user `reads_of`.
    """
    policy.write_text(POLICY.format(more=READS_OF.format(user=reads_of) if reads_of else ""))
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        # By default the file is renamed at 100 MB, while a reader has it open.
        "--audit-log-maxsize=100000",
        "--audit-log-mode=batch",
        "--audit-log-batch-max-wait=200ms",
        "--audit-log-batch-buffer-size=100000",
    ]


def events(log: Path) -> Iterator[dict[str, Any]]:
    """Yield every completed request that is logged; a line still being written is left out."""
    for line in log.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


class Tail:
    """Reads the log as it grows, each line once: a bench that polls must not cost what it measures."""

    def __init__(self, log: Path) -> None:
        """Start at the end of the log as it is now."""
        self._file = log.open("rb")
        self._file.seek(0, 2)
        self._rest = b""

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the writes completed since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        yield from map(json.loads, lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def is_bind(event: dict[str, Any]) -> bool:
    """Return whether the event is a written Binding."""
    return succeeded(event) and bool(event["objectRef"].get("subresource") == "binding")


def succeeded(event: dict[str, Any]) -> bool:
    """Return whether the write was done."""
    return bool(event["responseStatus"]["code"] < 300)


def written_at_s(event: dict[str, Any]) -> float:
    """Return when the request was answered, in seconds since the epoch."""
    return datetime.fromisoformat(event["stageTimestamp"]).timestamp()


def bind_times_s(log: Path) -> list[float]:
    """Return when each successful Binding was answered, in seconds since the epoch, in order."""
    return sorted(written_at_s(event) for event in events(log) if is_bind(event))


def writes_by_agent(log: Path, *, since_s: float = 0.0) -> Counter[str]:
    """Count the writes that succeeded, by the program that sent them (the User-Agent up to the first slash)."""
    return Counter(
        event.get("userAgent", "").partition("/")[0]
        for event in events(log)
        if succeeded(event) and written_at_s(event) >= since_s
    )


def rights_used(log: Path, agent: str = "leeboard") -> set[Verb]:
    """Return what a program requested from the API server, granted or not, without paths that are no resource."""
    asked = (event for event in events(log) if event.get("userAgent", "").partition("/")[0] == agent)
    return {
        (ref.get("apiGroup", ""), "/".join(filter(None, (ref["resource"], ref.get("subresource")))), event["verb"])
        for event in asked
        if "resource" in (ref := event.get("objectRef") or {})
    }
