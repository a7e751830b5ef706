"""Says whether this replica may decide now: it is the active one, and its picture of the cluster is whole and fresh."""

from collections.abc import Sequence
from typing import Protocol

from app.control.leadership.freshness import Freshness
from app.control.leadership.leadership import Leadership
from app.model.question import Check


class Precondition(Protocol):
    """What must hold before something is decided or written: leadership, freshness, or both."""

    def failure(self) -> str:
        """Return why it does not hold, "" when it does."""
        ...


class Readiness:
    """Both conditions of deciding. A part that needs one of them alone asks that one."""

    def __init__(self, leadership: Leadership, freshness: Freshness) -> None:
        """Hold the two."""
        self.leadership, self.freshness = leadership, freshness

    def failure(self) -> str:
        """Return why this replica may not decide now, "" when it may."""
        return self.leadership.failure() or self.freshness.failure()

    def checks(self) -> Sequence[Check]:
        """Return every condition of being ready, for /readyz."""
        return (self.leadership.check(), *self.freshness.checks())
