"""Bounds whether a victim search can help at all, by what nodes could ever have free. A "no" is always right.

1. each pod alone: whether any node could have room for it
2. size by size, from the largest: how many places of this size there could be, and how many the pods need together
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from app.model.pod import Pod
from app.model.resources import GPU, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement import fit
from app.scheduling.placement.state import PlacementState
from app.scheduling.placement.topology import fitting_counts

MOST_SIZES = 8
"""How many sizes of pods are counted for each resource, the largest first."""

Size = tuple[int, ...]
"""The requests of a pod, in the order of the rows of the free resources."""


def may_suffice(board: PlacementState, pods: Sequence[Pod], most: Amounts) -> bool:
    """Return whether the pods might find places together where nodes have `most`, shape [resource, node]."""
    # Evicting a pod may also remove what keeps these pods away.
    judged = [pod for pod in pods if not (pod.near or pod.labels is not None or pod.claims)]
    fitting = _fitting(board, judged, most)
    if fitting is None or not all(mask.any() for mask in fitting.values()):
        return False
    if not judged:
        return True
    asked = [tuple(board.stock.taken(pod)) for pod in judged]
    if len(fitting) > 1:
        counts = fitting_counts(np.array(asked, dtype=np.int64), most)
        if counts[np.logical_or.reduce(list(fitting.values()))].sum() < len(asked):
            return False
    counted = Counter(asked)
    return all(_has_places(size, counted, fitting, most) for size in _sizes(counted))


def candidates(board: PlacementState, pods: Iterable[Pod], most: Amounts) -> Mask:
    """Return the nodes on which one of the pods might fit where nodes have `most`, shape [node]."""
    found = np.zeros(most.shape[1], dtype=np.bool_)
    for pod in board.unlike(pods):
        asked = board.stock.amounts(pod)
        if asked is not None:
            found |= _room(board, pod, asked, most)
    return found


def _fitting(board: PlacementState, pods: Iterable[Pod], most: Amounts) -> Mapping[Size, Mask] | None:
    """Return for each size where a pod of it might fit, shape [node]; None when a pod requests what no node has."""
    found = dict[Size, Mask]()
    for pod in board.unlike(pods):
        asked = board.stock.amounts(pod)
        if asked is None:
            return None
        size, mask = tuple(asked), _room(board, pod, asked, most)
        if not mask.any():
            return {size: mask}
        found[size] = found[size] | mask if size in found else mask
    return found


def _room(board: PlacementState, pod: Pod, asked: Sequence[int], most: Amounts) -> Mask:
    mask = board.eligible(pod) & fit.room(asked, most)
    if pod.sharing is not None:
        mask &= board.stock.devices.may_take(pod.sharing, most[GPU])
    return mask


def _sizes(counted: Iterable[Size]) -> Iterable[Size]:
    """Return the sizes whose places are counted: for each resource, the smallest requests of the largest pods."""
    sizes = list(counted)
    rows = range(len(sizes[0]))
    return dict.fromkeys(size for row in rows for size in _common(sizes, row) if any(size))


def _common(sizes: Sequence[Size], row: int) -> Iterator[Size]:
    """Yield, for each amount of a resource, the least requests of all pods that request at least this amount."""
    ordered = sorted(sizes, key=lambda size: -size[row])
    amounts = sorted({size[row] for size in sizes}, reverse=True)
    for amount in dict.fromkeys((*amounts[:MOST_SIZES], amounts[-1])):
        larger = [size for size in ordered if size[row] >= amount]
        yield tuple(min(each) for each in zip(*larger, strict=True))


def _has_places(size: Size, counted: Mapping[Size, int], fitting: Mapping[Size, Mask], most: Amounts) -> bool:
    """Return whether there could be as many places of a size as the pods need: a larger pod needs several."""
    rows, needed, chosen = [row for row, amount in enumerate(size) if amount > 0], 0, list[Mask]()
    for asked, count in counted.items():
        places = min(asked[row] // size[row] for row in rows)
        if places:
            needed += places * count
            chosen.append(fitting[asked])
    where = np.logical_or.reduce(chosen)
    there = np.min([np.maximum(most[row, where], 0) // size[row] for row in rows], axis=0)
    return int(there.sum()) >= needed
