"""What other nodes gain when PodGroups leave a node: the pods on that node may move to the freed places.

The result is an upper bound: "no room" is always right, and what is unknown of a node counts as unlimited. Where f GPUs
are free and pods with a, b... GPUs that need other places leave, there are as many slots of s GPUs as these pods took,
and at most (f mod s + a mod s + b mod s...) / s more.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.model.resources import GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.rows import Numbers, Rows
from app.scheduling.placement.slots import SIZES

MOST_NODES = 8
"""A PodGroup on more nodes counts as making unlimited room."""

Levels = NDArray[np.float64]

MANY = 1 << 40
"""Unlimited, in any unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """What PodGroups hold on their nodes, and every pair of nodes that one PodGroup uses."""

    group: Numbers
    """Shape [part]: the PodGroup. A part is what one PodGroup holds on one node."""
    node: Numbers
    """Shape [part]."""
    elsewhere: Levels
    """Shape [part]: how many GPUs the PodGroup holds on other nodes; unlimited where it shares GPUs."""
    is_open: Mask
    """Shape [part]: whether its pairs are left out, so that what it frees on other nodes is unknown."""
    here: Numbers
    """Shape [pair]: the part on the first node."""
    there: Numbers
    """Shape [pair]: the other node."""
    gpus: Levels
    """Shape [pair]: what the PodGroup holds on the other node."""
    over: Levels
    """Shape [size, pair]: the remainder of `gpus` beyond multiples of each size, pod by pod."""

    @classmethod
    def of(cls, rows: Rows, nodes: int) -> Self:
        """Build the table from the pods of some PodGroups."""
        keys, inverse = np.unique(rows.group * nodes + rows.node, return_inverse=True)
        group, node = np.divmod(keys, nodes)
        gpus = rows.amounts[:, GPU] // GPU_MILLI
        held: Levels = np.bincount(inverse, weights=gpus, minlength=len(keys)).astype(np.float64)
        over = np.array([np.bincount(inverse, weights=gpus % size, minlength=len(keys)) for size in SIZES])
        count = np.bincount(group)[group]
        parts = np.bincount(inverse, weights=rows.shares, minlength=len(keys))
        shares: Mask = (np.bincount(group, weights=parts)[group] > 0) & (count > 1)
        elsewhere = np.where(shares, MANY, np.bincount(group, weights=held)[group] - held)
        is_open: Mask = shares | (count > MOST_NODES)
        here, there = joined(group)
        narrow = ~is_open[here]
        here, there = here[narrow], there[narrow]
        return cls(
            group=group,
            node=node,
            elsewhere=elsewhere,
            is_open=is_open,
            here=here,
            there=node[there],
            gpus=held[there],
            over=over[:, there],
        )

    def without(self, groups: Mask) -> Self:
        """Return the table without these PodGroups, shape [group]."""
        stays = ~groups[self.group]
        number, pairs = np.cumsum(stays) - 1, stays[self.here]
        return type(self)(
            group=self.group[stays],
            node=self.node[stays],
            elsewhere=self.elsewhere[stays],
            is_open=self.is_open[stays],
            here=number[self.here[pairs]],
            there=self.there[pairs],
            gpus=self.gpus[pairs],
            over=self.over[:, pairs],
        )

    def followed_by(self, more: Self) -> Self:
        """Return this table extended by another one."""
        return type(self)(
            group=np.concatenate([self.group, more.group]),
            node=np.concatenate([self.node, more.node]),
            elsewhere=np.concatenate([self.elsewhere, more.elsewhere]),
            is_open=np.concatenate([self.is_open, more.is_open]),
            here=np.concatenate([self.here, more.here + len(self.group)]),
            there=np.concatenate([self.there, more.there]),
            gpus=np.concatenate([self.gpus, more.gpus]),
            over=np.concatenate([self.over, more.over], axis=1),
        )


class Links:
    """The running PodGroups and the nodes that they connect. Only `change` changes it."""

    def __init__(self, rows: Rows, groups: int, nodes: int) -> None:
        """Find every pair of nodes that one PodGroup uses."""
        self._nodes = nodes
        self._changed: Mask = np.zeros(groups, dtype=np.bool_)
        # The initial state. Changed PodGroups are masked out of it and kept in a second, small table.
        self._first = _Joined.of(rows, nodes)
        self._now = self._first.without(np.ones(groups, dtype=np.bool_))
        here = self._first.node[self._first.here]
        keys, self._joint = np.unique(here * nodes + self._first.there, return_inverse=True)
        self._here, self._there = np.divmod(keys, nodes)

    def change(self, groups: Mask, rows: Rows) -> None:
        """Replace what these PodGroups hold with these rows, shape [group]."""
        self._changed |= groups
        self._now = self._now.without(groups).followed_by(_Joined.of(rows, self._nodes))

    def freed(self, lost: Mask) -> Amounts:
        """Return how many milli-GPUs other nodes gain at most when a node loses these PodGroups, shape [node]."""
        found: Amounts = np.zeros(self._nodes, dtype=np.int64)
        for held, groups in ((self._first, lost & ~self._changed), (self._now, lost)):
            gpus = held.elsewhere * groups[held.group]
            found += GPU_MILLI * np.bincount(held.node, weights=gpus, minlength=self._nodes).astype(np.int64)
        return found

    def gained(self, lost: Mask, moved: Mask, future: Amounts, scarce: Mask | None = None) -> Amounts:
        """Return how many slots other nodes gain at most when these PodGroups leave a node, shape [size, node].

        The places that the `moved` PodGroups, shape [group], take again are not counted. `future` is the free amount of
        the nodes after all terminating pods are gone, in milli-GPUs, shape [node]. `scarce`, shape [size], selects the
        sizes that matter.
        """
        free = np.maximum(future[self._there], 0) // GPU_MILLI
        found = np.zeros((len(SIZES), self._nodes), dtype=np.int64)
        first, now = _leaving(self._first, lost, moved, self._changed), _leaving(self._now, lost, moved, None)
        here = self._now.node[self._now.here]
        for index, size in enumerate(SIZES):
            if scarce is None or scarce[index]:
                # The free amount of a node is counted only once.
                more = np.bincount(here, weights=np.ceil(now[index] / size), minlength=self._nodes)
                found[index] = self._more(free % size, first[index], size) + more.astype(np.int64)
        leaving = lost | moved
        for held, groups in ((self._first, leaving & ~self._changed), (self._now, leaving)):
            found[:, held.node[held.is_open & groups[held.group]]] = MANY
        return found

    def _more(self, free: Amounts, leaving: Levels, size: int) -> Amounts:
        joint = free + np.bincount(self._joint, weights=leaving, minlength=len(self._here)).astype(np.int64)
        return np.bincount(self._here, weights=joint // size, minlength=self._nodes).astype(np.int64)


def _leaving(held: _Joined, lost: Mask, moved: Mask, changed: Mask | None) -> Levels:
    """Return what the other node of each pair gains, minus what is taken again, shape [size, pair]."""
    group = held.group[held.here]
    known: Mask = np.ones(len(group), dtype=np.bool_) if changed is None else ~changed[group]
    found: Levels = held.gpus * (lost[group] & known) + held.over * ((moved & ~lost)[group] & known)
    return found


def joined(group: Amounts) -> tuple[Amounts, Amounts]:
    """Return all pairs of entries, sorted by group, that belong to one group; not all pairs of a large group."""
    pairs = [_pairs(group, distance) for distance in range(1, MOST_NODES)]
    one, other = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return np.concatenate([one, other]), np.concatenate([other, one])


def _pairs(group: Amounts, distance: int) -> tuple[Amounts, Amounts]:
    """Return which entries, sorted by group, belong to the same group as the entry at this distance behind them."""
    (found,) = np.nonzero(group[distance:] == group[:-distance])
    return found, found + distance
