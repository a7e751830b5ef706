"""Limits the work of the victim searches of a plan. Work is counted, not timed, so that a plan can be repeated."""

PARTS = 5
"""One search may use this part of the action's remaining budget."""

VICTIMS = 4096
"""For each what-if, a search may walk over so many victims without trying them: that takes about the same time."""

NAMED = 128
"""One victim that is named individually counts as so many victims that are compared all at once."""


class Budget:
    """How many what-ifs an action, or one of its searches, may still try."""

    def __init__(self, most: int, whole: "Budget | None" = None) -> None:
        self.most = most
        """How many what-ifs may be tried in all."""
        self.left = most
        """How many what-ifs may still be tried."""
        self.used = 0
        """How many what-ifs were tried."""
        self._victims_left = most * VICTIMS
        self._whole = whole
        self._is_closed = False
        self.spent = False
        """Whether a search had to stop before its end."""

    def grow(self, most: int) -> None:
        """Allow so many what-ifs, with their victims, if fewer are left."""
        more = max(0, most - self.left)
        self.left += more
        self._victims_left += more * VICTIMS

    def part(self, most: int) -> "Budget":
        """Return the budget of one search, at most so many what-ifs."""
        return Budget(max(1, min(most, self.left)), self)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.common <= 0

    @property
    def common(self) -> int:
        """What is left of both kinds of work, in what-ifs."""
        return 0 if self._is_closed else min(self.left, -(-self._victims_left // VICTIMS))

    @property
    def victims(self) -> int:
        """How many victims may still be walked over."""
        return self._victims_left

    def complete(self, whatifs: int) -> None:
        """Allow a search that has found places so many more what-ifs; a budget with fewer left is over after that."""
        if self._whole is not None:
            self._whole.complete(whatifs)
        if self.left < whatifs:
            self.left, self._is_closed = whatifs, True

    def take(self) -> bool:
        """Take one what-if; return whether one was left."""
        if self.left <= 0 or (self._whole is not None and not self._whole.take()):
            self.spent = True
            return False
        self.left -= 1
        self.used += 1
        return True

    def walk(self, victims: int = 1) -> bool:
        """Walk over so many more victims, as far as allowed; return whether all were allowed."""
        walked = min(victims, self._victims_left)
        self._victims_left -= walked
        if (self._whole is not None and not self._whole.walk(walked)) or walked < victims:
            self.spent = True
            return False
        return True
