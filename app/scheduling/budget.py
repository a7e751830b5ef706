"""How much work the victim searches of a plan may do: counted, never timed, so that a plan can be repeated."""

PARTS = 5
"""One search may use up this part of what its action has left."""

VICTIMS = 32
"""For every what-if a search may walk over so many victims of whom it tries none: together that takes about as long."""


class Budget:
    """How many what-ifs may still be tried, by an action or by one of its searches."""

    def __init__(self, most: int, whole: "Budget | None" = None) -> None:
        self.most = most
        """What-ifs that may be tried in all."""
        self.left = most
        """What-ifs that may still be tried."""
        self.used = 0
        """What-ifs that were tried."""
        self._victims_left = most * VICTIMS
        self._whole = whole
        self.spent = False
        """Whether somebody had to stop before the end."""

    def part(self, most: int) -> "Budget":
        """Return the budget of one search, at most so many what-ifs."""
        return Budget(max(1, min(most, self.left)), self)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or self._victims_left <= 0

    def take(self) -> bool:
        """Take one what-if; return whether there was one left."""
        if self.left <= 0 or (self._whole is not None and not self._whole.take()):
            self.spent = True
            return False
        self.left -= 1
        self.used += 1
        return True

    def walk(self, victims: int = 1) -> bool:
        """Walk over so many victims more, as far as that is allowed; return whether it was."""
        walked = min(victims, self._victims_left)
        self._victims_left -= walked
        if (self._whole is not None and not self._whole.walk(walked)) or walked < victims:
            self.spent = True
            return False
        return True
