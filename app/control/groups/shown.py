"""Records what the watch of one kind has shown, so that a list can reveal what the watch has missed."""

from dataclasses import dataclass, field
from typing import Any

MOST_ENDED = 4096
"""Deletions of one kind that are remembered: some seconds of them, longer than the audit reads one object."""


@dataclass(slots=True)
class Shown:
    """The objects of one kind, each by its key. Only the follower of the kind changes them."""

    known: dict[Any, int] = field(default_factory=dict)
    """The existing objects with their versions; 0 when a version is not a number."""
    ended: dict[Any, int] = field(default_factory=dict)
    """The last deleted objects with their versions: what the audit has read may be older."""

    def end(self, key: Any, version: int) -> None:
        """Note the deletion of an object."""
        self.known.pop(key, None)
        self.ended[key] = version
        if len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]

    def is_old(self, key: Any, version: int) -> bool:
        """Return whether the audit has already found a newer version than the version of an event."""
        return 0 < version < self.known.get(key, 0)

    def has_ended(self, key: Any, version: int) -> bool:
        """Return whether the watch has recently shown that an object was deleted after this version."""
        return version <= self.ended.get(key, 0)
