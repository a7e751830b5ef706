"""The API server's audit log as an instrument: when each pod was bound, and who wrote how often."""

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
- level: None
"""


def flags(policy: Path, log: Path) -> list[str]:
    """Return the API server's flags; in batch mode, with room for a burst: a full buffer drops events silently."""
    policy.write_text(POLICY)
    return [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        # By default the file is renamed at 100 MB, under the hands of whoever reads it.
        "--audit-log-maxsize=100000",
        "--audit-log-mode=batch",
        "--audit-log-batch-max-wait=200ms",
        "--audit-log-batch-buffer-size=100000",
    ]


def events(log: Path) -> Iterator[dict[str, Any]]:
    """Yield every completed write; a line still being written is left out."""
    for line in log.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def bind_times_s(log: Path) -> list[float]:
    """Return when each successful Binding was answered, in seconds since the epoch, in order."""
    return sorted(
        datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        for event in events(log)
        if event["objectRef"].get("subresource") == "binding" and event["responseStatus"]["code"] < 300
    )


def writes_by_agent(log: Path, *, since_s: float = 0.0) -> Counter[str]:
    """Count the writes that succeeded, by the program that sent them (the User-Agent up to the first slash)."""
    return Counter(
        event.get("userAgent", "").partition("/")[0]
        for event in events(log)
        if event["responseStatus"]["code"] < 300
        and datetime.fromisoformat(event["stageTimestamp"]).timestamp() >= since_s
    )
