"""Tells whether this replica may decide now: it is active, and its picture of the cluster is complete and fresh."""

from collections.abc import Sequence
from typing import Protocol

from app.control.leadership.freshness import Freshness
from app.control.leadership.leadership import Leadership
from app.model.question import Check


class Precondition(Protocol):
    """A condition of decisions or writes: leadership, freshness, or both."""

    def failure(self) -> str:
        """Return why the condition does not hold, "" when it does."""
        ...


class Readiness:
    """Both conditions of decisions. A part that needs only one of them uses that one."""

    def __init__(self, leadership: Leadership, freshness: Freshness) -> None:
        """Store the two conditions."""
        self.leadership, self.freshness = leadership, freshness

    def failure(self) -> str:
        """Return why this replica may not decide now, "" when it may."""
        return self.leadership.failure() or self.freshness.failure()

    def checks(self) -> Sequence[Check]:
        """Return every condition of readiness, for /readyz."""
        return (self.leadership.check(), *self.freshness.checks())
