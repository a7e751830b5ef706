"""Remembers what is asked of all nodes again and again while single nodes change."""

from collections.abc import Callable, Hashable
from copy import copy
from typing import Self

from app.model.resources import Amounts

ALONE = 200
"""A node looked at alone costs about as much as so many that are looked at together."""

MOST_CHANGES = 4096
MOST_ANSWERS = 128


class Remembered:
    """Local to one stock, which tells of every change of a node."""

    def __init__(self, nodes: int) -> None:
        """Start with nothing."""
        self._few = max(1, nodes // ALONE)
        self._changed: list[int] = []
        """The columns of the nodes that have changed, in order."""
        self._answers: dict[Hashable, tuple[Amounts, int]] = {}
        """What was answered, and how many changes it takes into account."""
        # Those that no copy reads as well are mended in place: all others are copied before.
        self._own = set[Hashable]()

    def copy(self) -> Self:
        """Return a twin that may be changed."""
        self._own.clear()
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing that changes with what this was copied from."""
        self._changed, self._answers, self._own = self._changed.copy(), self._answers.copy(), set()

    def forget(self) -> None:
        """Start with nothing again."""
        self._changed, self._answers = [], {}
        self._own.clear()

    def touch(self, column: int) -> None:
        """Note that a node has changed."""
        if len(self._changed) >= MOST_CHANGES:
            self.forget()
        self._changed.append(column)

    def answer(self, question: Hashable, everywhere: Callable[[], Amounts], at: Callable[[int], int]) -> Amounts:
        """Return the answer for all nodes, shape [node]; `at` answers the same for one of them.

        It is not to be written, and true until the next node changes: whoever keeps it keeps a copy.
        """
        known, seen = self._answers.get(question, (None, 0))
        changed = set(self._changed[seen:])
        if known is None or len(changed) > self._few:
            known = everywhere()
            self._keep(question, known)
        elif changed:
            if question not in self._own:
                known = known.copy()
            for column in changed:
                known[column] = at(column)
            self._keep(question, known)
        return known

    def _keep(self, question: Hashable, answer: Amounts) -> None:
        # When there are too many questions, the first ones go on being answered fast until all are forgotten.
        if question in self._answers or len(self._answers) < MOST_ANSWERS:
            self._answers[question] = answer, len(self._changed)
            self._own.add(question)
