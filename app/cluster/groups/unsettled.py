"""Keeps which pending groups no plan has considered in their present state."""

from collections.abc import Iterable, Iterator, KeysView, Mapping

from app.cluster.changes import ChangeLog
from app.model.names import GroupKey


class UnsettledGroups(Mapping[GroupKey, int]):
    """Pending groups that have changed since a plan considered them, with the version of the change."""

    def __init__(self, changes: ChangeLog) -> None:
        """Start without groups."""
        self._changes = changes
        self._since: dict[GroupKey, int] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(self._since)

    def __getitem__(self, key: GroupKey) -> int:
        return self._since[key]

    def keys(self) -> KeysView[GroupKey]:
        """Return the groups; a view of the dict itself, which can be compared with thousands of other keys at once."""
        return self._since.keys()

    def add(self, key: GroupKey) -> None:
        """Mark a pending group to be planned again although it has not changed."""
        self._changes.version += 1
        self.note(key, waits=True)

    def note(self, key: GroupKey, *, waits: bool) -> None:
        """Note that the pending state of a group has changed, or that it is no longer pending."""
        if waits:
            self._since[key] = self._changes.version
        else:
            self._since.pop(key, None)
            self._changes.stop_waiting(key)

    def considered(self, keys: Iterable[GroupKey], version: int) -> None:
        """Note that a plan of this version has considered these groups."""
        for key in keys:
            if self._since.get(key, version + 1) <= version:
                del self._since[key]
