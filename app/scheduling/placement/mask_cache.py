"""Caches the answers to repeated questions about all nodes while single nodes change."""

from collections.abc import Callable, Hashable, Sequence

from app.model.resources import Amounts
from app.scheduling.copies import Claims, Copied, Owned, Value

ALONE = 200
"""Asking about one node alone costs about as much as this number of nodes asked together."""

MOST_CHANGES = 4096
MOST_ANSWERS = 128


class Remembered(Copied):
    """Local to one `FreeResources`, which reports every change of a node."""

    _few: Value[int]
    _changed: Owned[list[int]]
    """The columns of the changed nodes, in order."""
    _answers: Owned[dict[Hashable, tuple[Amounts, int]]]
    """The answers, each with the number of changes that it includes."""
    _own: Claims[set[Hashable]]
    """The answers that are updated in place. All other answers are copied first."""

    def __init__(self, nodes: int) -> None:
        """Start empty."""
        self._few = max(1, nodes // ALONE)
        self._changed, self._answers, self._own = [], {}, set()

    def forget(self) -> None:
        """Drop all answers."""
        self._changed, self._answers = [], {}
        self._own.clear()

    def touch(self, column: int) -> None:
        """Record that a node has changed."""
        if len(self._changed) >= MOST_CHANGES:
            self.forget()
        self._changed.append(column)

    def answer(
        self, question: Hashable, everywhere: Callable[[], Amounts], at: Callable[[int], int | Sequence[int]]
    ) -> Amounts:
        """Return the answer for all nodes, shape [..., node]. `at` answers the same for one node.

        Callers must not write to the answer. It is valid until the next node changes; copy it to keep it.
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
                known[..., column] = at(column)
            self._keep(question, known)
        return known

    def _keep(self, question: Hashable, answer: Amounts) -> None:
        # When there are too many questions, the first ones stay cached until all are dropped.
        if question in self._answers or len(self._answers) < MOST_ANSWERS:
            self._answers[question] = answer, len(self._changed)
            self._own.add(question)
