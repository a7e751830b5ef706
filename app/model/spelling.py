"""Finds which existing name a user may have meant by a wrong one, with bounded work.

Wrong names come from any user, and there may be thousands of existing names: only the neighbours of the wrong name in
alphabetical order, read forwards and backwards, are compared with it. `difflib` takes milliseconds for two names of
few different letters.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, takewhile

NEIGHBOURS = 4
"""How many names are compared on each side, in each of the two orders."""

LONGEST = 63
"""Longer names are not compared."""

MOST_WRONG = 2
"""How many letters in a row may differ, as in `visoin`."""

LEAST_RIGHT = 2
"""How many letters must be the same."""

AMONG = 500
"""How many names `hint_among` sorts for one question."""


class KnownNames:
    """Existing names, sorted for `hint`. They do not change."""

    def __init__(self, names: Iterable[str]) -> None:
        """Sort the names."""
        short = [name for name in names if len(name) <= LONGEST]
        self._forwards = sorted(short)
        self._backwards = sorted(name[::-1] for name in short)

    def hint(self, wrong: str) -> str:
        """Return `did you mean ...?` when a known name looks like this one; otherwise nothing."""
        if len(wrong) > LONGEST:
            return ""
        near = [*_around(self._forwards, wrong), *(name[::-1] for name in _around(self._backwards, wrong[::-1]))]
        found = _most_alike(wrong, tuple(dict.fromkeys(near)))
        return f"did you mean {found}?" if found else ""


def hint_among(names: Iterable[str], wrong: str) -> str:
    """Return `did you mean ...?` when one of the first names looks like this one; otherwise nothing."""
    return KnownNames(islice(names, AMONG)).hint(wrong)


def _around(names: Sequence[str], wrong: str) -> Sequence[str]:
    at = bisect(names, wrong)
    return names[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS]


@lru_cache(maxsize=1024)
def _most_alike(wrong: str, names: tuple[str, ...]) -> str:
    # Many pods have the same wrong name, and each plan explains it again.
    return min(_alike(wrong, names), default=(0, ""))[1]


def _alike(wrong: str, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the names that differ in one place, and in how many letters."""
    for name in names:
        most = min(len(wrong), len(name))
        begin = _same(wrong, name)
        end = min(_same(wrong[::-1], name[::-1]), most - begin)
        differs = max(len(wrong), len(name)) - begin - end
        if begin + end >= LEAST_RIGHT and differs <= MOST_WRONG:
            yield differs, name


def _same(one: str, other: str) -> int:
    """Return with how many equal letters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
