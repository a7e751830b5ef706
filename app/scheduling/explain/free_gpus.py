"""Counts the free GPUs, and how many of them typical pods cannot use."""

from collections import Counter

import numpy as np

from app.model.occupancy import FreeGpus
from app.model.resources import GPU, GPU_MILLI
from app.model.snapshot import Mask, Snapshot
from app.scheduling.placement.expected_use import MOST_GPUS, expected_use
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.packing import PackingCosts
from app.settings import PlacementStrategy


def free_gpus(snapshot: Snapshot) -> FreeGpus:
    """Count the free GPUs of the nodes that take pods. Cordoned nodes take none; pods that terminate count as gone.

    A node with more than `MOST_GPUS` free GPUs counts like one with this number.
    """
    nodes = snapshot.nodes
    cordoned = np.array([node.unschedulable for node in nodes.nodes], dtype=np.bool_)
    takes = nodes.takes_work & ~cordoned & (nodes.allocatable[GPU] > 0)
    stock = FreeResources(snapshot, PlacementStrategy.BINPACK)
    whole = np.clip(stock.future[GPU] // GPU_MILLI, 0, MOST_GPUS)
    most = int(whole.max(where=takes, initial=0))
    counts = Counter(whole[takes].tolist())
    return FreeGpus(
        nodes={number: counts[number] for number in range(most + 1)} if takes.any() else {},
        unusable_ratio=_unusable_ratio(snapshot, takes, stock),
    )


def _unusable_ratio(snapshot: Snapshot, among: Mask, stock: FreeResources) -> float | None:
    """Return which part of the free GPUs typical pods are not expected to fill; None where that is unknown."""
    use = expected_use(snapshot.mix) if snapshot.mix is not None else None
    if use is None:
        return None
    free, usable = PackingCosts.of(use, snapshot.nodes, stock.rows, opens_first=False).usable_milli(among, stock)
    return 1 - usable / free if free else 0.0
