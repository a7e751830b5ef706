"""Tells which node with room is best for a pod: the best connected one, then a full (binpack) or empty (spread) one."""

import numpy as np

from app.model.pod import Pod
from app.model.question import MAX_SCORE
from app.model.resources import CPU, GPU, Amounts, mig_gpus
from app.model.snapshot import Mask
from app.settings import PlacementStrategy

WRONG_KIND = 1 << 60
"""A pod without GPUs uses a node with GPUs only when no other node has room (KAI's resourcetype rule)."""

_CEILING = (1 << 40) - 1
"""More than any node has of the compared resources, in thousandths."""

PER_LOSS = _CEILING + 1
"""The cost of each connection loss. No utilization outweighs one loss. 2^20 losses stay below `WRONG_KIND`."""

FORBIDDEN = (1 << 63) - 1
"""The cost of a node that the pod cannot use."""


def axis(pod: Pod) -> int:
    """Return the resource by which nodes are compared for a pod: GPUs when the pod uses any in any form, else CPU."""
    is_mig = any(mig_gpus(name) for name, _ in pod.scalars)
    return GPU if pod.request.gpu_milli or pod.sharing is not None or pod.claims or is_mig else CPU


def scarcity(free: Amounts, strategy: PlacementStrategy) -> Amounts:
    """Return the cost of each node by the free amount of the compared resource, shape [node]. The lowest is best.

    Binpack: the lowest free amount is best (KAI's nodeplacement). Spread: the highest.
    """
    scarce: Amounts = np.minimum(np.maximum(free, 0), _CEILING)
    return _CEILING - scarce if strategy is PlacementStrategy.SPREAD else scarce


def scarcity_of(free: int, strategy: PlacementStrategy) -> int:
    """Return the same for one node."""
    scarce = min(max(free, 0), _CEILING)
    return _CEILING - scarce if strategy is PlacementStrategy.SPREAD else scarce


def best(costs: Amounts, allowed: Mask) -> int | None:
    """Return the cheapest allowed column. Return None when no column is allowed."""
    if not allowed.any():
        return None
    return int(np.where(allowed, costs, np.int64(FORBIDDEN)).argmin())


def scores(costs: Amounts, allowed: Mask) -> Amounts:
    """Return a score of 0..10, shape [node]: 10 for the cheapest, in even steps of rank; 0 where it is not allowed.

    The score uses ranks, not differences: otherwise one nearly full node would give all other nodes almost equal
    scores.
    """
    result = np.zeros(costs.shape[0], dtype=np.int64)
    levels, ranks = np.unique(costs[allowed], return_inverse=True)
    if levels.size:
        # The best of several nodes gets 10 and the worst 1, because room is better than no room.
        steps = max(levels.size - 1, 1)
        result[allowed] = MAX_SCORE - (ranks * (MAX_SCORE - 1)) // steps
    return result
