"""Remembers what the watch of one kind has shown, so that a list can tell what it has missed."""

from dataclasses import dataclass, field
from typing import Any

MOST_ENDED = 4096
"""Ends of objects of one kind that are remembered: those of some seconds, longer than the audit reads one object."""


@dataclass(slots=True)
class Shown:
    """The objects of one kind, each by its key. Changed by the follower of the kind alone."""

    known: dict[Any, int] = field(default_factory=dict)
    """What is there, with its version; 0 when that is no number."""
    ended: dict[Any, int] = field(default_factory=dict)
    """What has ended last, with its version: what the audit has read may be older."""

    def end(self, key: Any, version: int) -> None:
        """Note the end of an object."""
        self.known.pop(key, None)
        self.ended[key] = version
        if len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]

    def is_old(self, key: Any, version: int) -> bool:
        """Return whether the audit has already found a newer version than an event shows."""
        return 0 < version < self.known.get(key, 0)

    def has_ended(self, key: Any, version: int) -> bool:
        """Return whether the watch has shown lately that an object ended after this version of it."""
        return version <= self.ended.get(key, 0)
