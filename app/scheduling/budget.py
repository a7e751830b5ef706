"""How much a plan may look for victims: what was found is kept when it is used up, and the next plan goes on."""

PARTS = 5
"""One search may use up this part of what a plan's budget has left, so that hopeless PodGroups never cost all others
theirs: the next plan asks in the same order again."""

VICTIMS = 64
"""For every what-if a search may walk over so many victims of whom it tries none: together that takes about as long."""


class Budget:
    """How many what-ifs may still be tried, by a plan or by one of its searches."""

    def __init__(self, most: int, whole: "Budget | None" = None) -> None:
        self._left = most
        self._victims_left = most * VICTIMS
        self._whole = whole
        self.spent = False
        """Whether somebody had to stop before the end; of a plan, also when one of its searches had to."""

    def part(self) -> "Budget":
        """Return the budget of one search."""
        return Budget(max(1, self._left // PARTS), self)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self._left <= 0 or self._victims_left <= 0

    def take(self) -> bool:
        """Take one what-if; return whether there was one left."""
        if self._left <= 0 or (self._whole is not None and not self._whole.take()):
            return self._stop()
        self._left -= 1
        return True

    def walk(self) -> bool:
        """Walk over one more victim; return whether that was still allowed."""
        if self._victims_left <= 0 or (self._whole is not None and not self._whole.walk()):
            return self._stop()
        self._victims_left -= 1
        return True

    def _stop(self) -> bool:
        self.spent = True
        if self._whole is not None:
            self._whole.spent = True
        return False
