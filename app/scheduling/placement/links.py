"""What leaves other nodes when PodGroups leave a node: pods that leave it may move to those places.

A bound that never errs on the no. It is made once a plan; what is not known of a node is taken to be without limit.
Where f GPUs are free and pods of a, b... GPUs leave that need other places, there are as many slots of s GPUs as they
took before, and at most (f mod s + a mod s + b mod s...) / s more.
"""

import numpy as np
from numpy.typing import NDArray

from app.model.resources import GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.rows import Rows
from app.scheduling.placement.slots import SIZES

MOST_NODES = 8
"""A PodGroup on more nodes is taken to make room without limit."""

Levels = NDArray[np.float64]

MANY = 1 << 40
"""Without limit, in any unit."""


class Links:
    """The running PodGroups with pods on several nodes; `change` alone changes it."""

    def __init__(self, rows: Rows, groups: int, nodes: int) -> None:
        """Find every pair of nodes that a PodGroup joins."""
        self._nodes = nodes
        self._changed = np.zeros(groups, dtype=np.bool_)
        self.open: Mask = np.zeros(nodes, dtype=np.bool_)
        """The nodes of which it is not known what is linked to them, shape [node]."""
        keys, inverse = np.unique(rows.group * nodes + rows.node, return_inverse=True)
        group, node = np.divmod(keys, nodes)
        gpus = rows.amounts[:, GPU] // GPU_MILLI
        held = np.bincount(inverse, weights=gpus, minlength=len(keys))
        over = [np.bincount(inverse, weights=gpus % size, minlength=len(keys)) for size in SIZES]
        shares = np.bincount(inverse, weights=rows.shares, minlength=len(keys)) > 0
        wide = np.bincount(group, minlength=groups) > MOST_NODES
        wide[group[shares]] |= np.bincount(group, minlength=groups)[group[shares]] > 1
        self.open[node[wide[group]]] = True
        here, there = joined(group)
        narrow = ~wide[group[here]]
        here, there = here[narrow], there[narrow]
        self._group, self._gpus = group[here], held[there]
        # Beyond multiples of each size, shape [size, pair].
        self._over = [each[there] for each in over]
        keys, self._joint = np.unique(node[here] * nodes + node[there], return_inverse=True)
        self._here, self._there = np.divmod(keys, nodes)

    def change(self, groups: Mask, nodes: Mask) -> None:
        """Take it that nothing is known of these PodGroups, which are on these nodes now, shapes [group] and [node]."""
        self._changed |= groups
        self.open |= nodes

    def freed(self, lost: Mask) -> Amounts:
        """Return how many milli-GPUs become free elsewhere when these are lost on a node at most, shape [node]."""
        gpus = self._gpus * self._known(lost)
        found = GPU_MILLI * np.bincount(self._here[self._joint], weights=gpus, minlength=self._nodes).astype(np.int64)
        found[self.open] = MANY
        return found

    def gained(self, lost: Mask, moved: Mask, future: Amounts, scarce: Mask | None = None) -> Amounts:
        """Return how many more slots there are elsewhere when all leave a node at most, shape [size, node].

        Those that the `moved` take again, shape [group], are left out. `future` is what is free on the nodes when
        everything that is leaving has left, in milli-GPUs, shape [node]. `scarce`, shape [size], are those that matter.
        """
        free = np.maximum(future[self._there], 0) // GPU_MILLI
        whole, rest = self._gpus * self._known(lost), self._known(moved & ~lost)
        found = np.zeros((len(SIZES), self._nodes), dtype=np.int64)
        for index, (size, over) in enumerate(zip(SIZES, self._over, strict=True)):
            if scarce is None or scarce[index]:
                found[index] = self._more(free % size, whole + over * rest, size)
        found[:, self.open] = MANY
        return found

    def _more(self, free: Amounts, leaving: Levels, size: int) -> Amounts:
        joint = free + np.bincount(self._joint, weights=leaving, minlength=len(self._here)).astype(np.int64)
        return np.bincount(self._here, weights=joint // size, minlength=self._nodes).astype(np.int64)

    def _known(self, groups: Mask) -> Mask:
        found: Mask = (groups & ~self._changed)[self._group]
        return found


def joined(group: Amounts) -> tuple[Amounts, Amounts]:
    """Return all pairs of entries, sorted by group, that are of one group; not all of a group of many."""
    pairs = [_pairs(group, distance) for distance in range(1, MOST_NODES)]
    one, other = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return np.concatenate([one, other]), np.concatenate([other, one])


def _pairs(group: Amounts, distance: int) -> tuple[Amounts, Amounts]:
    """Return which entries, sorted by group, and which so far behind them are of one group."""
    (found,) = np.nonzero(group[distance:] == group[:-distance])
    return found, found + distance
