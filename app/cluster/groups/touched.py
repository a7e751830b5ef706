"""Notes which groups have changed: to form them again, to report about them, and as a number for comparisons."""

from collections.abc import Container
from itertools import count

from app.cluster.changes import ChangeLog
from app.model.names import GroupKey


class Touched:
    """The groups that have changed. Every part of `Membership` marks groups here."""

    def __init__(self, pods: Container[GroupKey], changes: ChangeLog) -> None:
        """`pods` has the groups that have pods."""
        self._pods = pods
        self._changes = changes
        self.stale: dict[GroupKey, None] = {}
        """Groups that have changed since they were last formed. Only `Membership` empties it."""
        self._told: dict[GroupKey, None] = {}
        self._numbers = count(1)
        self._revisions: dict[GroupKey, int] = {}
        """Of the groups with pods; no number is used twice."""

    def mark(self, key: GroupKey) -> None:
        """Mark a group to be formed again: something about the group, or about the places of its pods, has changed."""
        self._changes.version += 1
        self.stale[key] = None
        self._told[key] = None
        if key in self._pods:
            self._revisions[key] = next(self._numbers)
        else:
            self._revisions.pop(key, None)

    def note(self) -> None:
        """Note a change that does not concern a single group."""
        self._changes.version += 1

    def revision(self, key: GroupKey) -> int:
        """Return a number that changes with every change of a group, including its pods, reservations and object."""
        return self._revisions.get(key, 0)

    def tell(self, told: dict[GroupKey, None]) -> None:
        """Add to this dict from now on each group about which anything changes."""
        self._told = told

    def note_news(self, key: GroupKey) -> None:
        """Note that there is something new to report about a group that has not changed itself."""
        self._told[key] = None
