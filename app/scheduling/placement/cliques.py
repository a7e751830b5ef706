"""Chooses whole devices of one machine: those that reach each other best, while what is left stays as good as can be.

The available devices are divided into sets of the size that is asked for and one set of the rest, in the way in which
the sets are worth most together; of these sets the best is chosen, of equally good divisions and sets the first in
order (NVIDIA's go-gpuallocator, best-effort policy). A set is worth what its pairs are. Sets of devices are masks: bit
i is device i of the layout. Up to `MOST_EXACT` devices the answer is exact; beyond, sets are grown device by device.
"""

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from app.model.layout import Layout

MOST_EXACT = 16
"""Devices of a machine of which every division is looked at."""

MOST_REMEMBERED = 1 << 15
"""Answers that are remembered: some 8 MiB."""

Sets = NDArray[np.int64]
"""Masks of devices."""

Worths = NDArray[np.int64]
"""What sets, or divisions, are worth; 16 devices 439,200 at most (36 NVLinks for each pair, all on one board)."""

Values = NDArray[np.int64]
"""Divisions to be compared: what they are worth, and in the lower 16 bits the part with the first device, its bits
in reverse order, so that of two parts the first in order counts more.
"""

_PART_BITS = MOST_EXACT
_PART = (1 << _PART_BITS) - 1

_AT_ONCE = 1 << 15
"""Divisions compared at once: their columns stay in the processor's cache. No set has so many parts (12,870)."""


@lru_cache(maxsize=MOST_REMEMBERED)
def choose(layout: Layout, size: int, available: int, required: int = 0) -> int:
    """Return the set of `size` devices to take, all the required ones among them; 0 when there is none."""
    asked, left = required.bit_count(), available.bit_count()
    if required & ~available or available >> layout.size or not max(asked, 1) <= size <= left:
        return 0
    if size == left:
        return available
    if size in (1, asked) or _are_alike(layout):
        return _first(size, available, required)
    if layout.size > MOST_EXACT:
        return _grown(layout, size, available, required)
    divisions = _divisions(layout)
    return divisions.best_with(required, size, available) if required else divisions.best(size, available)


def worth(layout: Layout, devices: int) -> int:
    """Return what the pairs of a set are worth together."""
    members = [device for device in range(layout.size) if devices >> device & 1]
    return sum(layout.scores[one][other] for one, other in combinations(members, 2))


@lru_cache(maxsize=1024)
def most(layout: Layout, size: int) -> int:
    """Return what the best set of that size is worth while nothing is taken."""
    if layout.size > MOST_EXACT:
        return worth(layout, choose(layout, size, (1 << layout.size) - 1))
    worths = _worths(layout)
    return int(worths[np.bitwise_count(np.arange(worths.size)) == size].max(initial=0))


@lru_cache(maxsize=256)
def _are_alike(layout: Layout) -> bool:
    """Whether any two devices are connected as any other two, as behind NVSwitch."""
    pairs = {score for one, row in enumerate(layout.scores) for other, score in enumerate(row) if one != other}
    return len(pairs) <= 1


def _first(size: int, available: int, required: int) -> int:
    """Return the required devices and the first of the others."""
    chosen, others = required, available & ~required
    while chosen.bit_count() < size:
        lowest = others & -others
        chosen, others = chosen | lowest, others ^ lowest
    return chosen


# Exactly --------------------------------------------------------------------------------------------------------------


class _Divisions:
    """What the divisions of one machine are worth, found out as far as somebody asks.

    Takes 8 MiB when everything was asked of 16 devices, 20 KiB for 8. Threads may share it: all write the same.
    """

    def __init__(self, layout: Layout) -> None:
        self._order = _reversed(layout.size)
        """Shape [set]: its devices in reverse order, so that of two sets the first in order has more."""
        self._alone: Values = _worths(layout) << _PART_BITS | self._order
        """Shape [set]: the value of a division that is this set."""
        # By size, shape [set]: the best division into sets of that size; -1 until somebody asks.
        self._divided: dict[int, Values] = {}

    def best(self, size: int, available: int) -> int:
        """Return the best set of the first of the best divisions."""
        best, rest = 0, available
        while rest.bit_count() >= size:
            value = self._best(np.array([rest]), size).item()
            part = self._order.item(value & _PART)  # the reverse of the reverse
            if part.bit_count() == size and (not best or self._worth(part) > self._worth(best)):
                best = part
            rest ^= part
        return best

    def best_with(self, required: int, size: int, available: int) -> int:
        """Return the best of the sets with all the required devices that are part of a best division with such a set.

        Of several divisions the one counts whose set with them is the best.
        """
        sets = _subsets(np.array([available & ~required]), size - required.bit_count())[0] | required
        alone = self._alone[sets]
        together = (self._best(available ^ sets, size) >> _PART_BITS) + (alone >> _PART_BITS)
        return int(sets[np.lexsort((alone, together))[-1]])

    def _worth(self, part: int) -> int:
        return self._alone.item(part) >> _PART_BITS

    def _best(self, sets: Sets, size: int) -> Values:
        """Return the best division of each set into sets of the size and the rest."""
        known = self._divided.get(size)
        if known is None:
            small = np.bitwise_count(np.arange(self._alone.size)) <= size
            known = self._divided[size] = np.where(small, self._alone, -1)
        values = known[sets]
        if values.min() >= 0:
            return values
        asked = np.zeros(known.shape, dtype=np.bool_)
        asked[sets] = True
        unknown = np.flatnonzero(asked & (known < 0))
        counts = np.bitwise_count(unknown)
        for count in np.flatnonzero(np.bincount(counts)).tolist():
            alike = unknown[counts == count]
            step = _AT_ONCE // _part_count(count, size)
            for some in np.array_split(alike, -(-alike.size // step)):
                known[some] = self._find(some, size)
        return known[sets]

    def _find(self, sets: Sets, size: int) -> Values:
        """Divide sets of one count: one part has the first device, and what remains is divided in the best way."""
        parts = _parts(sets, size)
        values = self._best(sets[:, None] ^ parts, size)
        values &= ~_PART
        values += self._alone[parts]
        best: Values = values.max(axis=1)
        return best


@lru_cache(maxsize=8)
def _divisions(layout: Layout) -> _Divisions:
    return _Divisions(layout)


def _worths(layout: Layout) -> Worths:
    """Return what every set of devices is worth, shape [set]."""
    worth = np.zeros(1 << layout.size, dtype=np.int64)
    for device, row in enumerate(layout.scores):
        joining = np.zeros(1 << device, dtype=np.int64)
        for other in range(device):
            joining[1 << other : 2 << other] = joining[: 1 << other] + row[other]
        worth[1 << device : 2 << device] = worth[: 1 << device] + joining
    return worth


def _reversed(devices: int) -> Sets:
    """Return every set with its bits in reverse order, shape [set]."""
    masks = np.zeros(1 << devices, dtype=np.int64)
    for device in range(devices):
        masks[1 << device : 2 << device] = masks[: 1 << device] + (1 << (devices - 1 - device))
    return masks


def _parts(sets: Sets, size: int) -> Sets:
    """Return the parts of this size, or of what that leaves over, with the first device of each set, [set, part]."""
    first = sets & -sets
    others, left = sets ^ first, int(sets[0]).bit_count() % size
    parts = _subsets(others, size - 1)
    if left:
        parts = np.concatenate([parts, _subsets(others, left - 1)], axis=1)
    return parts | first[:, None]


def _part_count(count: int, size: int) -> int:
    return comb(count - 1, size - 1) + (comb(count - 1, count % size - 1) if count % size else 0)


def _subsets(sets: Sets, size: int) -> Sets:
    """Return all subsets of that size of each set, shape [set, subset]; all sets have one count of devices."""
    count = int(sets[0]).bit_count()
    devices = np.nonzero(sets[:, None] >> np.arange(MOST_EXACT) & 1)[1].reshape(len(sets), count)
    # A product of matrices is the fastest way; a float32 is exact up to 24 bits.
    masks: Sets = (np.exp2(devices).astype(np.float32) @ _memberships(count, size)).astype(np.int64)
    return masks


@lru_cache(maxsize=256)
def _memberships(count: int, size: int) -> NDArray[np.float32]:
    """Return which of so many devices belong to each set of that size, 1 or 0, shape [device, set]."""
    every = np.arange(1 << count)
    sets = every[np.bitwise_count(every) == size]
    belongs: NDArray[np.float32] = (sets >> np.arange(count)[:, None] & 1).astype(np.float32)
    return belongs


# Beyond ---------------------------------------------------------------------------------------------------------------


def _grown(layout: Layout, size: int, available: int, required: int) -> int:
    """Return the best of the sets that grow from each device, every time by the one that is connected best to them.

    Of devices, and of sets, that are connected as well: the one that is connected least to what stays behind.
    """
    scores = np.array(layout.scores, dtype=np.int64)
    usable, needed = _flags(available, layout.size), _flags(required, layout.size)
    every = scores @ usable  # [device]: what its pairs with all that are available are worth
    joining = np.flatnonzero(usable & ~needed)  # [set]: the device that comes to it
    sets = np.arange(joining.size)
    chosen = np.tile(needed, (sets.size, 1))  # [set, device]
    inside = np.tile(scores @ needed, (sets.size, 1))  # [set, device]: what its pairs with the chosen are worth
    for more in range(size - required.bit_count(), 0, -1):
        chosen[sets, joining] = True
        inside += scores[joining]
        if more > 1:
            rank = inside * (int(every.max()) + 1) - (every - inside)
            joining = np.where(usable & ~chosen, rank, np.iinfo(np.int64).min).argmax(axis=1)
    worth = (inside * chosen).sum(axis=1)
    torn = (every * chosen).sum(axis=1) - worth
    best = max(zip(worth.tolist(), (-torn).tolist(), chosen.tolist(), strict=True))
    return sum(1 << device for device, is_in in enumerate(best[2]) if is_in)


def _flags(devices: int, size: int) -> NDArray[np.bool_]:
    """Return a mask of devices as truth values, shape [device]."""
    return np.array([devices >> device & 1 for device in range(size)], dtype=np.bool_)
