"""What the API server's audit log tells of one run: who was bound and evicted when, and who wrote how often."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

OURSELVES = "leeboard-tests"
"""The user agent of the bench itself: what it creates and deletes is no part of what a scheduler writes."""


class Ledger:
    """All writes that succeeded since `since_s`, as far as they have been told by `note`."""

    def __init__(self, pods: Iterable[str], *, since_s: float) -> None:
        """`pods` are the names of those whose binds count, in the namespace `default`.

        The clock begins at `since_s`, in seconds since the epoch.
        """
        self._pods = frozenset(pods)
        self.since_s = since_s
        # Pod name -> when, the first time each; changed only by `note`.
        self._bound_at: dict[str, float] = {}
        self._evicted_at: dict[str, float] = {}
        self._writes: Counter[str] = Counter()

    def note(self, event: Mapping[str, Any]) -> None:
        """Count one audit event, if it is a successful write of a client other than the bench."""
        target = event.get("objectRef") or {}
        agent = event.get("userAgent", "").partition("/")[0]
        if event["responseStatus"]["code"] >= 300 or target.get("resource") == "leases":  # noqa: PLR2004 - HTTP's own
            return
        at_s = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        if agent == OURSELVES or at_s < self.since_s:
            return
        self._writes[agent] += 1
        self._note_pod(event["verb"], target, at_s - self.since_s)

    def _note_pod(self, verb: str, target: Mapping[str, Any], after_s: float) -> None:
        if target.get("resource") != "pods" or target.get("namespace") != "default":
            return
        name, part = target.get("name", ""), target.get("subresource", "")
        if part == "binding" and name in self._pods:
            self._bound_at.setdefault(name, after_s)
        elif (verb, part) in {("create", "eviction"), ("delete", "")} and name not in self._pods:
            self._evicted_at.setdefault(name, after_s)

    @property
    def bound(self) -> int:
        """How many of the pods that count have been bound."""
        return len(self._bound_at)

    @property
    def writes(self) -> int:
        """How many writes there were."""
        return self._writes.total()

    @property
    def writes_by_agent(self) -> Mapping[str, int]:
        """How many each program sent, by the user agent up to the first slash; the most first."""
        return dict(self._writes.most_common())

    @property
    def binds_s(self) -> list[float]:
        """When each was bound, in seconds since the clock began, in order."""
        return sorted(self._bound_at.values())

    @property
    def evictions_s(self) -> list[float]:
        """When each other pod was told to leave, the same way."""
        return sorted(self._evicted_at.values())
