"""Codes lists of node names as runs of numbers: a question offers 5,000 names, mostly in the order of the last one.

Each name gets the next number when it is first seen. The list that is coded then needs one run for each stretch of
consecutive numbers. The reader gets the same new names in the same order, and so the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_NAMES = 100_000
"""Names that are remembered: a cluster has fewer nodes. Beyond that, numbers begin again at 0."""

Run = tuple[int, int]
"""The first of some consecutive numbers, and how many there are."""


class UnknownRunError(ValueError):
    """A run names a number that has no name: a part of the recording is missing."""


@dataclass(frozen=True, slots=True)
class CodedNames:
    """A list of names, in numbers."""

    new: tuple[str, ...]
    """Names that get the next numbers before `runs` are read."""
    runs: tuple[Run, ...]
    starts_over: bool = False
    """Whether all former numbers are forgotten first."""


class NameTable:
    """The numbers of names, the same for the writer and the reader of a recording. `coded` and `names` change it."""

    def __init__(self, *, most: int = MOST_NAMES) -> None:
        """Remember up to `most` names, or those of one list if it has more."""
        self._most = most
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._last: Sequence[str] = ()
        self._last_runs: tuple[Run, ...] = ()

    def coded(self, names: Sequence[str]) -> CodedNames:
        """Code a list; its order is kept, and so is a name that is listed twice."""
        # A comparison takes a tenth of the time of a new coding.
        if names == self._last:
            return CodedNames((), self._last_runs)
        new: list[str] = []
        starts_over = False
        try:
            numbers = self._numbered(names)
        except KeyError:
            new = [name for name in dict.fromkeys(names) if name not in self._numbers]
            if self._names and len(self._names) + len(new) > self._most:
                starts_over = True
                self.start_over()
                new = list(dict.fromkeys(names))
            self._learn(new)
            numbers = self._numbered(names)
        self._last, self._last_runs = names, _runs(numbers)
        return CodedNames(tuple(new), self._last_runs, starts_over)

    def names(self, coded: CodedNames) -> tuple[str, ...]:
        """Return the list that was coded; raise `UnknownRunError` when a former list is missing."""
        if coded.starts_over:
            self.start_over()
        self._learn(coded.new)
        found: list[str] = []
        for start, length in coded.runs:
            if not 0 <= start <= start + length <= len(self._names):
                raise UnknownRunError(f"names {start} to {start + length} of {len(self._names)} are not known")
            found += self._names[start : start + length]
        return tuple(found)

    def start_over(self) -> None:
        """Forget all names, as at the begin of a part of a recording that can be read by itself."""
        self._names.clear()
        self._numbers.clear()
        self._last, self._last_runs = (), ()

    def __len__(self) -> int:
        """Return how many names are remembered."""
        return len(self._names)

    def _numbered(self, names: Sequence[str]) -> list[int]:
        return list(map(self._numbers.__getitem__, names))

    def _learn(self, new: Sequence[str]) -> None:
        first = len(self._names)
        self._names += new
        self._numbers.update(zip(new, range(first, first + len(new)), strict=True))


def _runs(numbers: list[int]) -> tuple[Run, ...]:
    """Return the stretches of consecutive numbers."""
    if not numbers:
        return ()
    column = np.array(numbers)  # [name]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(column) != 1) + 1))
    lengths = np.diff(starts, append=len(column))
    return tuple(zip(column[starts].tolist(), lengths.tolist(), strict=True))
