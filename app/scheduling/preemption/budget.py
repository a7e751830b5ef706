"""How much work the victim searches of a plan may do: counted, never timed, so that a plan can be repeated."""

PARTS = 5
"""One search may use up this part of what its action has left."""

VICTIMS = 4096
"""For every what-if a search may walk over so many victims of whom it tries none: together that takes about as long."""

NAMED = 128
"""One that is named by itself counts as so many that are compared all at once."""


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
        self._is_closed = False
        self.spent = False
        """Whether somebody had to stop before the end."""

    def grow(self, most: int) -> None:
        """Allow so many what-ifs, and victims with them, if fewer are left."""
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
        """Let a search that has found places try so many what-ifs more; what had not so many left is over then."""
        if self._whole is not None:
            self._whole.complete(whatifs)
        if self.left < whatifs:
            self.left, self._is_closed = whatifs, True

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
