"""Rates how well each node would connect the devices of a pod, as reported by its agent. `cliques` chooses the devices.

A node is rated by the set that would be taken of its idle devices. The pairs without NVLink count first. After them
counts how many NVLinks the set lacks against the best set of that size on such a machine. PCIe paths count only where a
machine has no NVLink at all: elsewhere PCIe would outweigh the utilization of the nodes for almost no benefit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from app.model.layout import NVLINK_SCORE, Layout
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import Snapshot
from app.scheduling.placement import cliques, score

_PER_MILLE = 1000

_FEW = 64
"""Up to this number of nodes, rating them one by one is faster than rating all nodes at once."""

_MOST_KINDS = 1024
"""The most kinds of machines that are remembered. Beyond it, kinds that no node has any more are dropped."""


@lru_cache(maxsize=cliques.MOST_REMEMBERED)
def loss(layout: Layout, size: int, idle: int, left: int) -> int:
    """Return the loss of the best `size` devices, 0 .. 1,002,000: pairs without NVLink first, each per mille.

    Only `left` of the idle devices are really idle, because the agent may not report the latest pods yet. The other
    devices are assumed to be taken together, chosen in the same way. Where too few devices are left, devices of pods
    that are deleted or will be deleted are used. These devices are unknown, so the best possible set is assumed.
    """
    taken = cliques.choose(layout, idle.bit_count() - left, idle)
    chosen = cliques.choose(layout, size, idle & ~taken) or cliques.choose(layout, size, (1 << layout.size) - 1)
    if not chosen:
        return 0  # more devices than the agent reports
    linked, judged = _linked(layout), _judged(layout)
    pairs, most = size * (size - 1) // 2, cliques.most(judged, size)
    unlinked = pairs - cliques.worth(linked, chosen)
    short = max(most - cliques.worth(judged, chosen), 0)
    return unlinked * _PER_MILLE // pairs * (_PER_MILLE + 1) + short * _PER_MILLE // max(most, 1)


@lru_cache(maxsize=256)
def _linked(layout: Layout) -> Layout:
    """Return 1 for each pair with an NVLink, else 0."""
    return Layout(tuple(tuple(int(score >= NVLINK_SCORE) for score in row) for row in layout.scores))


@lru_cache(maxsize=256)
def _judged(layout: Layout) -> Layout:
    """Return the number of NVLinks of each pair. On a machine without NVLink, return the worth of its PCIe path."""
    nvlinks = tuple(tuple(score // NVLINK_SCORE for score in row) for row in layout.scores)
    return Layout(nvlinks) if any(map(any, nvlinks)) else layout


class Connections:
    """Remembers the connection losses of the nodes in one plan. Questions change no answer."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Use the layouts and idle devices of the snapshot."""
        self._machines = _machines(snapshot)
        # By size: the free GPUs of each node when its loss was last calculated, and the losses, both shape [node].
        self._found: dict[int, tuple[Amounts, Amounts]] = {}

    def losses(self, size: int, free_milli: Amounts) -> Amounts | None:
        """Return the loss of each node in steps of `score.PER_LOSS`, shape [node]. Return None when all are equal.

        `free_milli` is the free amount of the node's GPUs. Callers must not write to the answer. It is valid until the
        next question.
        """
        if self._machines is None or size <= 1:
            return None
        if size not in self._found:
            self._found[size] = free_milli.copy(), self._machines.losses(size, free_milli)
        seen, losses = self._found[size]
        changed = np.nonzero(seen != free_milli)[0]
        if changed.size > _FEW:
            seen[:], losses[:] = free_milli, self._machines.losses(size, free_milli)
            return losses
        for column in changed.tolist():
            seen[column] = milli = free_milli.item(column)
            losses[column] = self._machines.loss(size, column, milli)
        return losses

    def loss(self, size: int, column: int, free_milli: int) -> int:
        """Return the same for one node."""
        return 0 if self._machines is None or size <= 1 else self._machines.loss(size, column, free_milli)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Machines:
    """The nodes by kind. Nodes of one layout with the same idle devices are one kind and are rated once."""

    layouts: tuple[Layout | None, ...]
    """Shape [node]."""
    idle: NDArray[np.int64]
    """Shape [node], as in the snapshot."""
    kinds: Mapping[tuple[Layout, int], int] = field(default_factory=dict)
    """The number of each layout with idle devices, from 1 on."""
    codes: NDArray[np.int64]
    """Shape [node]: the number of its kind; 0 where the layout is unknown."""
    counts: NDArray[np.int64]
    """Shape [kind]: the number of idle devices."""
    found: dict[int, Amounts] = field(default_factory=dict)
    """By size, shape [kind, devices left]: the losses; -1 until they are calculated."""

    @staticmethod
    def of(layouts: tuple[Layout | None, ...], idle: NDArray[np.int64]) -> "_Machines":
        """Group the nodes by kind."""
        nothing = np.zeros(len(layouts), dtype=np.int64)
        return _Machines(layouts=layouts, idle=~idle, codes=nothing, counts=nothing[:1]).after(idle)

    def after(self, idle: NDArray[np.int64]) -> "_Machines":
        """Return the nodes by kind for a later snapshot, in which only a few nodes have other idle devices."""
        changed = np.flatnonzero(idle != self.idle).tolist()
        if not changed:
            return self
        kinds, codes = dict(self.kinds), self.codes.copy()
        for column in changed:
            layout = self.layouts[column]
            if layout is not None:
                # The 64th device is the sign bit of an int64. Devices that the layout does not list are unknown and
                # ignored.
                kind = layout, idle.item(column) & ((1 << layout.size) - 1)
                codes[column] = kinds.setdefault(kind, len(kinds) + 1)
        if len(kinds) > _MOST_KINDS and self.kinds:
            return _Machines.of(self.layouts, idle)
        new = [mask.bit_count() for _, mask in islice(kinds, len(self.kinds), None)]
        counts = np.append(self.counts, np.array(new, dtype=np.int64))
        # Copied, because another thread may have added other kinds to the earlier table.
        found = {size: self._grown(known, len(new)) for size, known in dict(self.found).items()}
        return replace(self, idle=idle, kinds=kinds, codes=codes, counts=counts, found=found)

    @staticmethod
    def _grown(known: Amounts, kinds: int) -> Amounts:
        return np.vstack([known, np.full((kinds, known.shape[1]), -1, dtype=np.int64)])

    def losses(self, size: int, free_milli: Amounts) -> Amounts:
        """Return the losses of all nodes, shape [node]."""
        known = self._known(size)
        left = np.maximum(np.minimum(free_milli // GPU_MILLI, self.counts[self.codes]), 0)
        losses: Amounts = known[self.codes, left]
        unknown = np.flatnonzero(losses < 0)
        if not unknown.size:
            return losses
        kinds = tuple(self.kinds)
        for kind, count in dict.fromkeys(zip(self.codes[unknown].tolist(), left[unknown].tolist(), strict=True)):
            known[kind, count] = _cost(kinds[kind - 1], size, count)
        return known[self.codes, left]

    def loss(self, size: int, column: int, free_milli: int) -> int:
        """Return the loss of one node."""
        known, kind = self._known(size), self.codes.item(column)
        left = max(min(free_milli // GPU_MILLI, self.counts.item(kind)), 0)
        if known.item(kind, left) < 0:
            known[kind, left] = _cost(tuple(self.kinds)[kind - 1], size, left)
        return known.item(kind, left)

    def _known(self, size: int) -> Amounts:
        known = self.found.get(size)
        if known is None:
            most = max(layout.size for layout, _ in self.kinds)  # `self.kinds` holds every layout of the table
            known = self.found[size] = np.full((self.counts.size, most + 1), -1, dtype=np.int64)
            known[0] = 0
        return known


def _cost(kind: tuple[Layout, int], size: int, left: int) -> int:
    layout, idle = kind
    return score.PER_LOSS * loss(layout, size, idle, left)


def _machines(snapshot: Snapshot) -> _Machines | None:
    """Return the nodes by kind. Return None when no layout is known."""
    idle, memo = snapshot.idle_devices, snapshot.nodes.memo
    if idle is None:
        return None
    last = memo.get("machines") or _Machines.of(tuple(node.layout for node in snapshot.nodes.nodes), idle)
    machines = last.after(idle)
    if machines is not last or "machines" not in memo:
        memo.remember("machines", machines)
    return machines if machines.kinds else None
