"""How much a plan may look for victims: what was found is kept when it is used up, and the next plan goes on."""

PARTS = 5
"""One search may use up this part of a plan's budget, so that one hopeless PodGroup does not cost all others theirs."""


class Budget:
    """How many what-ifs may still be tried, by a plan or by one of its searches."""

    def __init__(self, most: int, whole: "Budget | None" = None) -> None:
        self._most = most
        self._left = most
        self._whole = whole
        self.spent = False
        """Whether somebody had to stop before the end; of a plan, also when one of its searches had to."""

    def part(self) -> "Budget":
        """Return the budget of one search."""
        return Budget(self._most // PARTS, self)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self._left <= 0

    def take(self) -> bool:
        """Take one what-if; return whether there was one left."""
        if self._left <= 0 or (self._whole is not None and not self._whole.take()):
            self.spent = True
            if self._whole is not None:
                self._whole.spent = True
            return False
        self._left -= 1
        return True
