"""Remembers what is asked of all nodes again and again while single nodes change."""

from collections.abc import Callable, Hashable

from app.model.resources import Amounts
from app.scheduling.copies import Claims, Copied, Owned, Value

ALONE = 200
"""A node looked at alone costs about as much as so many that are looked at together."""

MOST_CHANGES = 4096
MOST_ANSWERS = 128


class Remembered(Copied):
    """Local to one stock, which tells of every change of a node."""

    _few: Value[int]
    _changed: Owned[list[int]]
    """The columns of the nodes that have changed, in order."""
    _answers: Owned[dict[Hashable, tuple[Amounts, int]]]
    """What was answered, and how many changes it takes into account."""
    _own: Claims[set[Hashable]]
    """The answers that are mended in place; all others are copied before."""

    def __init__(self, nodes: int) -> None:
        """Start with nothing."""
        self._few = max(1, nodes // ALONE)
        self._changed, self._answers, self._own = [], {}, set()

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
