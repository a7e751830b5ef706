"""Answers which of the nodes with room is best for a pod: filled nodes first (binpack) or empty ones (spread)."""

import numpy as np

from app.model.question import MAX_SCORE
from app.model.resources import CPU, GPU, Amounts, Resources
from app.model.snapshot import Mask, NodeTable
from app.settings import PlacementStrategy

_WRONG_KIND = 1 << 61
"""A pod without GPUs goes to a node with GPUs only when no other has room (KAI's resourcetype rule)."""

_CPU_CEILING = (1 << 32) - 1
"""Free cpu_milli is the lower half of the cost; four million cores are enough for one node."""


def cost(request: Resources, free: Amounts, nodes: NodeTable, strategy: PlacementStrategy) -> Amounts:
    """Return what choosing each node costs, shape [node]; the least is best, ties go to the first by name.

    Binpack: least free GPUs, then least free CPU. Spread: the contrary of both.
    """
    gpu = np.maximum(free[GPU], 0)
    cpu = np.minimum(np.maximum(free[CPU], 0), _CPU_CEILING)
    packed: Amounts = (gpu << 32) | cpu
    if strategy is PlacementStrategy.SPREAD:
        packed = (np.int64(1) << np.int64(60)) - packed
    if request.gpu_milli == 0:
        packed = packed + np.where(nodes.allocatable[GPU] > 0, np.int64(_WRONG_KIND), np.int64(0))
    return packed


def best(costs: Amounts, allowed: Mask) -> int | None:
    """Return the cheapest allowed column, None when none is allowed."""
    columns = np.flatnonzero(allowed)
    if columns.size == 0:
        return None
    return int(columns[np.argmin(costs[columns])])


def scores(costs: Amounts, allowed: Mask) -> Amounts:
    """Return 0..10 a node, shape [node]: 10 for the cheapest, in even steps of rank; 0 where it is not allowed.

    Ranks, not differences: a cluster of one nearly full node would otherwise press all others into one score.
    """
    result = np.zeros(costs.shape[0], dtype=np.int64)
    levels, ranks = np.unique(costs[allowed], return_inverse=True)
    if levels.size:
        # The best of several is 10, the worst still 1: room is better than no room.
        steps = max(levels.size - 1, 1)
        result[allowed] = MAX_SCORE - (ranks * (MAX_SCORE - 1)) // steps
    return result
