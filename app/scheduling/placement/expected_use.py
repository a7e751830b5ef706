"""Judges a placement by what typical pods can still use of the node's GPUs afterwards.

The worth of a node is the amount of its GPUs that typical pods would fill, less what would stay idle because the node
runs out of CPU or memory. A pod goes where it reduces the worth least. The measure follows FGD ("Beware of
Fragmentation", USENIX ATC'23), with three differences, each measured on the published traces (docs/measurements.md):

* Offers: a node is offered a sequence of typical pods, and a GPU may be filled by several of them. FGD counts one pod.
* Scarcity: a kind of pod for which few nodes have room is offered more often, because fewer nodes compete for it.
* CPU and memory: the expected shortage follows from the mean and the variance of what typical pods request per GPU.

All costs are integers. They follow from sums, products, quotients and square roots in one order, which every machine
rounds alike, and from one table.
"""

# ruff: noqa: FURB136 - each change of a node in a plan calls the functions for one node: min and max are calls

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import erf, exp, floor, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from app.model.mix import TypicalMix, TypicalPod, competing
from app.model.resources import GPU_MILLI, Amounts

UNIT = 1024
"""The worth is counted in this part of a milli-GPU."""

MOST_GPUS = 64
"""A node with more free GPUs is judged like one with this number."""

MOST_SHAPES = 64
"""The most kinds of offers, by number and part of GPUs. The rarest others are left out: tenants choose the requests."""

PART_OFFERS = 40
"""The number of typical pods that a part of a GPU is offered."""

NODE_OFFERS = 20
"""The number of typical pods that the whole GPUs of a node are offered."""

_FEW_PARTS, _OPENING_MILLI = 0.25, 200
"""Where less than this portion of the requested GPUs is parts, sharing an idle GPU costs up to so many milli-GPUs.

The offers alone assume that parts arrive until the rest is full. Where few parts are requested, the rest stays idle.
"""

_SHORTAGE_WEIGHT = 0.5
"""The weight of the expected shortage of CPU or memory against the expected use."""

_NOTHING = 1e-9
"""Less of a resource per milli-GPU is no demand."""

_STEPS, _FARTHEST = 64, 8
"""The table of `_loss` has this number of steps for one standard deviation, and ends at so many deviations."""


def _loss(z: float) -> float:
    """Return the expected positive part of z plus a standard normal value."""
    return z * 0.5 * (1 + erf(z / sqrt(2))) + exp(-z * z / 2) / sqrt(2 * pi)


_LOSSES = np.array([round(_loss(i / _STEPS - _FARTHEST) * 2**40) / 2**40 for i in range(2 * _FARTHEST * _STEPS + 2)])
_LOSS_LIST: Sequence[float] = _LOSSES.tolist()


@dataclass(frozen=True, slots=True)
class Demand:
    """How much of one resource typical pods request per milli-GPU."""

    mean: float
    variance: float
    """Of a pod's request around `mean` times its GPUs, per milli-GPU."""

    def shortages(self, gpu_milli: Amounts, free: Amounts) -> Amounts:
        """Return how much of these free GPUs is expected to lack the resource, in `UNIT`, shape as given."""
        if self.mean < _NOTHING:
            return np.zeros_like(gpu_milli)
        deviation = np.sqrt(self.variance * np.maximum(gpu_milli, 1))
        z = (self.mean * gpu_milli - free) / deviation
        at = (np.clip(z, -_FARTHEST, _FARTHEST) + _FARTHEST) * _STEPS
        step = at.astype(np.int64)
        lower = _LOSSES[step]
        loss = np.where(z > _FARTHEST, z, lower + (at - step) * (_LOSSES[step + 1] - lower))
        lost = deviation * loss / self.mean
        return np.floor(np.minimum(lost, gpu_milli) * (UNIT * _SHORTAGE_WEIGHT) + 0.5).astype(np.int64)

    def shortage(self, gpu_milli: int, free: int) -> int:
        """Return the same for one node."""
        if self.mean < _NOTHING:
            return 0
        deviation = sqrt(self.variance * (gpu_milli or 1))
        z = loss = (self.mean * gpu_milli - free) / deviation
        if z <= _FARTHEST:
            at = (z + _FARTHEST) * _STEPS if z > -_FARTHEST else 0.0
            step = int(at)
            lower = _LOSS_LIST[step]
            loss = lower + (at - step) * (_LOSS_LIST[step + 1] - lower)
        lost = deviation * loss / self.mean
        return int((lost if lost < gpu_milli else gpu_milli) * (UNIT * _SHORTAGE_WEIGHT) + 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedUse:
    """The worth of free GPUs under one typical mix, in `UNIT`."""

    whole: Amounts
    """By the number of whole GPUs, 0 .. `MOST_GPUS`."""
    part: Amounts
    """By the free part of a GPU in milli-GPUs, 0 .. 1000."""
    whole_list: Sequence[int]
    part_list: Sequence[int]
    opening: int
    """What it costs to share an idle GPU, whose rest may stay idle."""
    cpu: Demand
    memory: Demand

    def shortages(self, gpu_milli: Amounts, cpu_milli: Amounts, memory_bytes: Amounts) -> Amounts:
        """Return how much of the free GPUs is expected to lack CPU or memory, whichever is more, shape [node]."""
        by_cpu, by_memory = self.cpu.shortages(gpu_milli, cpu_milli), self.memory.shortages(gpu_milli, memory_bytes)
        return np.maximum(by_cpu, by_memory)

    def shortage(self, gpu_milli: int, cpu_milli: int, memory_bytes: int) -> int:
        """Return the same for one node."""
        by_cpu, by_memory = self.cpu.shortage(gpu_milli, cpu_milli), self.memory.shortage(gpu_milli, memory_bytes)
        return by_cpu if by_cpu > by_memory else by_memory


@lru_cache(maxsize=8)
def expected_use(mix: TypicalMix) -> ExpectedUse | None:
    """Return the worth of free GPUs under the mix. Return None when all typical pods request too many GPUs."""
    known = [kind for kind in zip(mix.pods, mix.counts, mix.rooms, strict=True) if kind[0].devices <= MOST_GPUS]
    # What is free now is of no use to a kind of pod for which no node has room.
    kinds = [kind for kind in known if kind[2]] or known
    if not kinds:
        return None
    offers: dict[tuple[int, int], float] = {}
    for pod, count, room in kinds:
        shape = pod.devices, pod.part_milli
        offers[shape] = offers.get(shape, 0.0) + count / competing(room, mix.gpu_nodes)
    whole, part = _whole_and_part(offers)
    gpus = [(pod.gpu_milli, count) for pod, count, _ in kinds]
    return ExpectedUse(
        whole=whole,
        part=part,
        whole_list=whole.tolist(),
        part_list=part.tolist(),
        opening=_opening(kinds),
        cpu=_demand([pod.cpu_milli for pod, *_ in kinds], gpus),
        memory=_demand([pod.memory_bytes for pod, *_ in kinds], gpus),
    )


def _opening(kinds: Sequence[tuple[TypicalPod, int, int]]) -> int:
    """Return what it costs to share an idle GPU, given the typical pods with GPUs, their counts and rooms."""
    parts = sum(pod.gpu_milli * count for pod, count, _ in kinds if pod.part_milli < GPU_MILLI)
    portion = parts / sum(pod.gpu_milli * count for pod, count, _ in kinds)
    return floor(UNIT * _OPENING_MILLI * max(1 - portion / _FEW_PARTS, 0.0) + 0.5)


def _whole_and_part(offers: dict[tuple[int, int], float]) -> tuple[Amounts, Amounts]:
    """Return the expected use of whole GPUs by number, and of a part of a GPU by its size, in `UNIT`.

    `offers` tells how often pods with so many devices, and such a part of each, are offered; only the ratios count.
    Each table entry after n offers follows from the entries after n - 1 offers: a pod that fits takes its GPUs, and the
    next offers meet what is left.
    """
    part: NDArray[np.float64] = np.zeros(GPU_MILLI + 1)
    whole: NDArray[np.float64] = np.zeros(MOST_GPUS + 1)
    common = sorted(offers.items(), key=lambda offer: (-offer[1], offer[0]))[:MOST_SHAPES]
    total = sum(weight for _, weight in common)
    shapes = [(devices, milli, weight / total) for (devices, milli), weight in common]
    for offer in range(PART_OFFERS):
        next_part, next_whole = part.copy(), whole.copy()
        for devices, milli, weight in shapes:
            if devices == 1:
                next_part[milli:] += weight * (milli + part[: GPU_MILLI + 1 - milli] - part[milli:])
            if offer < NODE_OFFERS:
                used = devices * (milli + part.item(GPU_MILLI - milli))
                next_whole[devices:] += weight * (used + whole[: MOST_GPUS + 1 - devices] - whole[devices:])
        part, whole = next_part, next_whole
    return np.floor(whole * UNIT + 0.5).astype(np.int64), np.floor(part * UNIT + 0.5).astype(np.int64)


def _demand(amounts: Sequence[int], gpus: Sequence[tuple[int, int]]) -> Demand:
    """Return the demand of pods with these amounts of a resource, and these milli-GPUs and counts."""
    total_milli = sum(milli * count for milli, count in gpus)
    mean = sum(amount * count for amount, (_, count) in zip(amounts, gpus, strict=True)) / total_milli
    squares = sum((amount - mean * milli) ** 2 * count for amount, (milli, count) in zip(amounts, gpus, strict=True))
    return Demand(mean, max(squares / total_milli, mean * mean))
