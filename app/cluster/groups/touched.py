"""Notes which groups have changed: for forming them again, for telling about them, and as a number for comparing."""

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
        self._stale: set[GroupKey] = set()
        """Groups that have changed since the waiting groups were last asked for."""
        self._told: set[GroupKey] = set()
        self._numbers = count(1)
        self._revisions: dict[GroupKey, int] = {}
        """Of the groups with pods; no number is ever given twice."""

    def mark(self, key: GroupKey) -> None:
        """Have a group formed again: something about it, or about the places of its pods, has changed."""
        self._changes.version += 1
        self._stale.add(key)
        self._told.add(key)
        if key in self._pods:
            self._revisions[key] = next(self._numbers)
        else:
            self._revisions.pop(key, None)

    def note(self) -> None:
        """Note a change that is about no group alone."""
        self._changes.version += 1

    def revision(self, key: GroupKey) -> int:
        """Return a number that changes whenever anything about a group does, its pods, promises and object included."""
        return self._revisions.get(key, 0)

    def tell(self, told: set[GroupKey]) -> None:
        """Add to this set from now on each group about which anything changes."""
        self._told = told

    def note_news(self, key: GroupKey) -> None:
        """Note that there is something new to say of a group, which is as it was."""
        self._told.add(key)

    def drain_stale(self) -> set[GroupKey]:
        """Return the groups that are to be formed again, for one reader: `Membership`."""
        stale, self._stale = self._stale, set()
        return stale
