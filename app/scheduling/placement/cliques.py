"""Chooses whole devices of one machine: the best connected set, while the remaining devices stay well connected.

The available devices are divided into sets of the requested size and one set of the rest. The division with the highest
total worth counts, and its best set is chosen. Between equal divisions or sets the first in order counts (NVIDIA's
go-gpuallocator, best-effort policy). The worth of a set is the sum over its pairs. A set of devices is a mask: bit i is
device i of the layout. Up to `MOST_EXACT` devices the answer is exact. Beyond that, sets grow device by device.
"""

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from app.model.layout import Layout

MOST_EXACT = 16
"""The most devices of a machine for which every division is compared."""

MOST_REMEMBERED = 1 << 15
"""The most answers that are remembered: about 8 MiB."""

Sets = NDArray[np.int64]
"""Masks of devices."""

Worths = NDArray[np.int64]
"""The worth of sets or divisions. 16 devices are worth at most 439,200 (36 NVLinks for each pair, all on one board)."""

Values = NDArray[np.int64]
"""Divisions in comparable form: their worth, and in the lower 16 bits the part with the first device. The bits of that
part are in reverse order, so that the first of two parts has the larger value.
"""

_PART_BITS = MOST_EXACT
_PART = (1 << _PART_BITS) - 1

_AT_ONCE = 1 << 15
"""Divisions compared at once: their columns fit in the processor's cache. No set has so many parts (12,870)."""


@lru_cache(maxsize=MOST_REMEMBERED)
def choose(layout: Layout, size: int, available: int, required: int = 0) -> int:
    """Return the set of `size` devices to take, with all required devices in it. Return 0 when there is none."""
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
    """Return the sum of the worths of all pairs in a set."""
    members = [device for device in range(layout.size) if devices >> device & 1]
    return sum(layout.scores[one][other] for one, other in combinations(members, 2))


@lru_cache(maxsize=1024)
def most(layout: Layout, size: int) -> int:
    """Return the worth of the best set of that size while no device is taken."""
    if layout.size > MOST_EXACT:
        return worth(layout, choose(layout, size, (1 << layout.size) - 1))
    worths = _worths(layout)
    return int(worths[np.bitwise_count(np.arange(worths.size)) == size].max(initial=0))


@lru_cache(maxsize=256)
def _are_alike(layout: Layout) -> bool:
    """Return whether all pairs of devices are connected equally, as behind NVSwitch."""
    pairs = {score for one, row in enumerate(layout.scores) for other, score in enumerate(row) if one != other}
    return len(pairs) <= 1


def _first(size: int, available: int, required: int) -> int:
    """Return the required devices, filled up with the first of the other devices."""
    chosen, others = required, available & ~required
    while chosen.bit_count() < size:
        lowest = others & -others
        chosen, others = chosen | lowest, others ^ lowest
    return chosen


# Exactly --------------------------------------------------------------------------------------------------------------


class _Divisions:
    """The values of the divisions of one machine, calculated on demand.

    All answers for 16 devices take 8 MiB, for 8 devices 20 KiB. Threads may share this object, because all threads
    write equal values.
    """

    def __init__(self, layout: Layout) -> None:
        self._order = _reversed(layout.size)
        """Shape [set]: the devices in reverse order, so that the first of two sets has the larger value."""
        self._alone: Values = _worths(layout) << _PART_BITS | self._order
        """Shape [set]: the value of a division that consists of this set alone."""
        # By size, shape [set]: the best division into sets of that size; -1 until it is calculated.
        self._divided: dict[int, Values] = {}

    def best(self, size: int, available: int) -> int:
        """Return the best set of the best division; the first one between equal divisions."""
        best, rest = 0, available
        while rest.bit_count() >= size:
            value = self._best(np.array([rest]), size).item()
            part = self._order.item(value & _PART)  # reversing again restores the mask
            if part.bit_count() == size and (not best or self._worth(part) > self._worth(best)):
                best = part
            rest ^= part
        return best

    def best_with(self, required: int, size: int, available: int) -> int:
        """Return the best set that holds all required devices and is part of a best division with such a set.

        Between several divisions the one whose set with the required devices is best counts.
        """
        sets = _subsets(np.array([available & ~required]), size - required.bit_count())[0] | required
        alone = self._alone[sets]
        together = (self._best(available ^ sets, size) >> _PART_BITS) + (alone >> _PART_BITS)
        return int(sets[np.lexsort((alone, together))[-1]])

    def _worth(self, part: int) -> int:
        return self._alone.item(part) >> _PART_BITS

    def _best(self, sets: Sets, size: int) -> Values:
        """Return the best division of each set into sets of the size and a rest."""
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
        """Divide sets of equal count: one part holds the first device, and the remainder is divided in the best way."""
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
    """Return the worth of every set of devices, shape [set]."""
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
    """Return the parts of this size, or of the rest's size, that hold the first device of each set, [set, part]."""
    first = sets & -sets
    others, left = sets ^ first, int(sets[0]).bit_count() % size
    parts = _subsets(others, size - 1)
    if left:
        parts = np.concatenate([parts, _subsets(others, left - 1)], axis=1)
    return parts | first[:, None]


def _part_count(count: int, size: int) -> int:
    return comb(count - 1, size - 1) + (comb(count - 1, count % size - 1) if count % size else 0)


def _subsets(sets: Sets, size: int) -> Sets:
    """Return all subsets of that size of each set, shape [set, subset]. All sets have the same number of devices."""
    count = int(sets[0]).bit_count()
    devices = np.nonzero(sets[:, None] >> np.arange(MOST_EXACT) & 1)[1].reshape(len(sets), count)
    # A matrix product is the fastest way. A float32 is exact up to 24 bits.
    masks: Sets = (np.exp2(devices).astype(np.float32) @ _memberships(count, size)).astype(np.int64)
    return masks


@lru_cache(maxsize=256)
def _memberships(count: int, size: int) -> NDArray[np.float32]:
    """Return 1 where a device belongs to a set of that size and 0 elsewhere, shape [device, set]."""
    every = np.arange(1 << count)
    sets = every[np.bitwise_count(every) == size]
    belongs: NDArray[np.float32] = (sets >> np.arange(count)[:, None] & 1).astype(np.float32)
    return belongs


# Beyond ---------------------------------------------------------------------------------------------------------------


def _grown(layout: Layout, size: int, available: int, required: int) -> int:
    """Return the best of the sets that grow from each device. Each step adds the best connected device.

    Between equally connected devices or sets, the one with the worst connection to the remaining devices is taken.
    """
    scores = np.array(layout.scores, dtype=np.int64)
    usable, needed = _flags(available, layout.size), _flags(required, layout.size)
    every = scores @ usable  # [device]: the worth of its pairs with all available devices
    joining = np.flatnonzero(usable & ~needed)  # [set]: the device that is added
    sets = np.arange(joining.size)
    chosen = np.tile(needed, (sets.size, 1))  # [set, device]
    inside = np.tile(scores @ needed, (sets.size, 1))  # [set, device]: the worth of its pairs with the chosen devices
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
    """Return a mask of devices as booleans, shape [device]."""
    return np.array([devices >> device & 1 for device in range(size)], dtype=np.bool_)
