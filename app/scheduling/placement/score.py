"""Answers which node with room is best for a pod: the best connected, then a full (binpack) or empty one (spread)."""

import numpy as np

from app.model.pod import Pod
from app.model.question import MAX_SCORE
from app.model.resources import CPU, GPU, Amounts, mig_gpus
from app.model.snapshot import Mask, NodeTable
from app.settings import PlacementStrategy

WRONG_KIND = 1 << 60
"""A pod without GPUs goes to a node with GPUs only when no other has room (KAI's resourcetype rule)."""

_CEILING = (1 << 40) - 1
"""More than any node has of the compared resources, in thousandths."""

PER_LOSS = _CEILING + 1
"""What each loss in connection costs: no node is so full that it makes up for one. 2^20 stay below `WRONG_KIND`."""

FORBIDDEN = (1 << 63) - 1
"""Where a pod cannot go."""


def axis(pod: Pod) -> int:
    """Return the resource by which nodes are compared for a pod: GPUs when it uses any in whatever form, else CPU."""
    is_mig = any(mig_gpus(name) for name, _ in pod.scalars)
    return GPU if pod.request.gpu_milli or pod.sharing is not None or pod.claims or is_mig else CPU


def cost(
    compared: int, free: Amounts, nodes: NodeTable, strategy: PlacementStrategy, *, losses: Amounts | None = None
) -> Amounts:
    """Return what choosing each node costs, shape [node]; the least is best, ties go to the first by name.

    Binpack: the least of the compared axis free (KAI's nodeplacement). Spread: the contrary. Before that, where there
    are any, the least of the `losses`, in steps of `PER_LOSS`.
    """
    scarce = np.maximum(free[compared], 0)
    costs: Amounts = np.minimum(scarce, _CEILING)
    if strategy is PlacementStrategy.SPREAD:
        costs = _CEILING - costs
    if losses is not None:
        costs += losses
    if compared == CPU:
        costs = costs + np.where(nodes.has_gpus, np.int64(WRONG_KIND), np.int64(0))
    return costs


def cost_of(free: int, strategy: PlacementStrategy) -> int:
    """Return what the free amount of the compared axis costs on one node: the part of `cost` that is about it."""
    scarce = min(max(free, 0), _CEILING)
    return _CEILING - scarce if strategy is PlacementStrategy.SPREAD else scarce


def best(costs: Amounts, allowed: Mask) -> int | None:
    """Return the cheapest allowed column, None when none is allowed."""
    if not allowed.any():
        return None
    return int(np.where(allowed, costs, np.int64(FORBIDDEN)).argmin())


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
