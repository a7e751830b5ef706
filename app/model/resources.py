"""The resources of pods and nodes: exact integers, with the unit in the name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Amounts = NDArray[np.int64]
"""Amounts in the order of `AXES`, with the shape [resource] or [resource, node]."""

AXES = ("cpu_milli", "memory_bytes", "gpu_milli", "pods")
CPU, MEMORY, GPU, PODS = range(len(AXES))
QUOTA_AXES = (CPU, MEMORY, GPU)
"""The resources that queues divide. The number of pods is only a limit of nodes."""

GPU_MILLI = 1000
"""One whole GPU in the unit of the `GPU` axis."""

Scalars = tuple[tuple[str, int], ...]
"""Amounts of extended resources, sorted by name, none of them 0. It is usually empty."""

UNLIMITED = 1 << 62
""""No limit" in comparisons. It is never an operand of a sum."""

MAX_AMOUNT = 1 << 47
"""The largest amount of one resource of one pod or node (128 TiB, 140 million cores or GPUs), stated or computed.

65,535 such amounts still sum to less than 2^63, so an int64 sum over all nodes cannot overflow. The number of pods has
no bound, so sums over pods are Python integers, which cannot overflow.
"""

MAX_COLUMN = 1 << 60
"""The largest sum over pods in a column. A larger sum counts as this. 50,000 further amounts can be added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A vector of amounts. One whole GPU is 1000 `gpu_milli`."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: int = 0
    pods: int = 0

    # Written out for each amount, because every pod's charge to queues and nodes is added here.

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            cpu_milli=self.cpu_milli + other.cpu_milli,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            gpu_milli=self.gpu_milli + other.gpu_milli,
            pods=self.pods + other.pods,
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            cpu_milli=self.cpu_milli - other.cpu_milli,
            memory_bytes=self.memory_bytes - other.memory_bytes,
            gpu_milli=self.gpu_milli - other.gpu_milli,
            pods=self.pods - other.pods,
        )

    def __mul__(self, count: int) -> "Resources":
        return Resources.of(amount * count for amount in self.amounts)

    @staticmethod
    def of(amounts: Iterable[int]) -> "Resources":
        """Build it from amounts in the order of `AXES`."""
        cpu_milli, memory_bytes, gpu_milli, pods = (int(amount) for amount in amounts)
        return Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=gpu_milli, pods=pods)

    @property
    def amounts(self) -> tuple[int, int, int, int]:
        """The amounts in the order of `AXES`."""
        return self.cpu_milli, self.memory_bytes, self.gpu_milli, self.pods

    def __repr__(self) -> str:
        parts = (f"{name}={amount}" for name, amount in zip(AXES, self.amounts, strict=True) if amount)
        return f"<{' '.join(parts) or 'nothing'}>"


NOTHING = Resources()

_MIG = re.compile(r"nvidia\.com/mig-([0-9]{1,4})g\.[0-9]+gb.*", re.ASCII)

MOST_SLICES = 7
"""The compute slices of one GPU. No MIG profile has more, whatever its name states."""


@lru_cache(maxsize=1024)
def mig_gpus(name: str) -> int:
    """Return how many GPUs one unit of an extended resource counts as: N for the MIG profile `Ng.*` (KAI), else 0."""
    profile = _MIG.fullmatch(name)
    return min(int(profile[1]), MOST_SLICES) if profile else 0


def mig_milli(scalars: Scalars) -> int:
    """Return how many milli-GPUs amounts of extended resources count as."""
    return GPU_MILLI * sum(mig_gpus(name) * amount for name, amount in scalars) if scalars else 0


ACCELERATORS = ("amd.com/", "aws.amazon.com/neuron", "google.com/tpu", "habana.ai/", "huawei.com/")
"""Name prefixes of extended resources for accelerators whose names do not contain "gpu"."""


def is_gpu(name: str) -> bool:
    """Return whether an extended resource is a GPU or a part of one, such as `amd.com/gpu` or a MIG profile.

    Other accelerators count as well: pods without accelerators should not fill their nodes either.
    """
    return mig_gpus(name) > 0 or "gpu" in name.lower() or name.startswith(ACCELERATORS)


def gpu_milli_of(name: str) -> int:
    """Return about how many milli-GPUs one unit of an extended resource is; 0 when it is no GPU, or nothing is known.

    `Ng.*` counts N sevenths, a resource `gpu` of any vendor one GPU, and so does a device of a DRA class for GPUs. Used
    where amounts on one node are compared. What a queue pays for a MIG profile is `mig_milli`.
    """
    slices = mig_gpus(name)
    if slices:
        return GPU_MILLI * slices // MOST_SLICES
    return GPU_MILLI if name.endswith("/gpu") or (name.startswith("dra:") and is_gpu(name)) else 0
