"""The published placement policies to compare with: Random, BestFit and FGD, in numpy.

A policy keeps the cost of each node for each distinct request. It computes again only the nodes that have changed since
the last arrival of this request.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.model.resources import GPU_MILLI
from loadtest.openb import MOST_PODS, OpenbNode, OpenbPlace, OpenbPod

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_ROOM = 1 << 40
"""More than any GPU has."""
TYPICAL_SHARE = 0.95
"""The most frequent requests that together are this share of a trace are its typical mix."""


class CostPolicy:
    """Places each pod on the node with the lowest cost, the first one of equal nodes; `cost` is the policy."""

    moves = ()

    def __init__(self, nodes: Sequence[OpenbNode], trace: Sequence[OpenbPod], seed: int) -> None:
        """Start with empty nodes. The trace is there for policies that learn from it, the seed for random ones."""
        del trace, seed
        devices = max(node.gpus for node in nodes)
        self.cpu: Ints = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.pods: Ints = np.full(len(nodes), MOST_PODS, dtype=np.int64)
        self.gpus: Ints = np.array(
            [[GPU_MILLI * (device < node.gpus) for device in range(devices)] for node in nodes], dtype=np.int64
        )
        """Shape [node, device]: the free milli-GPUs. A device that does not exist has none."""
        self.models = np.array([node.model for node in nodes])
        self._kept: dict[OpenbPod, KeptCosts] = {}
        self._changed: list[int] = []

    def cost(self, pod: OpenbPod, columns: Ints) -> Floats:
        """Return the cost of the pod on these nodes, all of which have room for it."""
        raise NotImplementedError

    def choose(self, costs: Floats) -> int:
        """Return the node; the cost of a node without room is infinite."""
        return int(costs.argmin())

    def place(self, pod: OpenbPod) -> OpenbPlace | None:
        """Place the pod for good. Return None if it fits nowhere."""
        costs = self._costs(pod)
        column = self.choose(costs)
        if costs[column] == np.inf:
            return None
        devices = self.devices(pod, self.gpus[[column]])[0]
        self.cpu[column] -= pod.cpu_milli
        self.memory[column] -= pod.memory_mib
        self.pods[column] -= 1
        self.gpus[column, devices] -= pod.gpu_milli
        self._changed.append(column)
        return OpenbPlace(column, tuple(devices.tolist()))

    def after(self, pod: OpenbPod, columns: Ints) -> tuple[Ints, Ints]:
        """Return what is free on these nodes with the pod: milli-CPUs, and the milli-GPUs of each device."""
        gpus = self.gpus[columns]
        if pod.gpus:
            devices = self.devices(pod, gpus)
            np.put_along_axis(gpus, devices, np.take_along_axis(gpus, devices, 1) - pod.gpu_milli, 1)
        return self.cpu[columns] - pod.cpu_milli, gpus

    def devices(self, pod: OpenbPod, gpus: Ints) -> Ints:
        """Return the devices that the pod gets on each node, shape [node, GPU of the pod]: the fullest with room."""
        free = np.where(gpus >= pod.gpu_milli, gpus, NO_ROOM)
        return free.argsort(axis=1, kind="stable")[:, : pod.gpus] if pod.gpus != 1 else free.argmin(axis=1)[:, None]

    def _costs(self, pod: OpenbPod) -> Floats:
        kept = self._kept.get(pod)
        if kept is None:
            kept = self._kept[pod] = KeptCosts.of(pod, self.models)
            columns = np.arange(len(self.cpu))
        else:
            columns = np.unique(np.array(self._changed[kept.seen :], dtype=np.int64))
        kept.seen = len(self._changed)
        if columns.size:
            fitting = columns[kept.accepted[columns] & self._room(pod, columns)]
            kept.costs[columns] = np.inf
            kept.costs[fitting] = self.cost(pod, fitting)
        return kept.costs

    def _room(self, pod: OpenbPod, columns: Ints) -> NDArray[np.bool_]:
        room = (self.cpu[columns] >= pod.cpu_milli) & (self.memory[columns] >= pod.memory_mib)
        room &= self.pods[columns] >= 1
        if pod.gpus:
            room &= (self.gpus[columns] >= pod.gpu_milli).sum(axis=1) >= pod.gpus
        return room


@dataclass(slots=True)
class KeptCosts:
    """The costs of all nodes for one request."""

    costs: Floats
    accepted: NDArray[np.bool_]
    """The nodes with an accepted GPU model."""
    seen: int = field(default=0)
    """How many changes of nodes the costs include."""

    @staticmethod
    def of(pod: OpenbPod, models: NDArray[np.str_]) -> "KeptCosts":
        """Start without any cost."""
        return KeptCosts(np.full(len(models), np.inf), accepts(pod, models))


def accepts(pod: OpenbPod, models: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Return which of these GPU models the pod accepts."""
    return np.isin(models, pod.models) if pod.models else np.ones(len(models), dtype=np.bool_)


class RandomFit(CostPolicy):
    """Any node with room, and there any devices with room."""

    def __init__(self, nodes: Sequence[OpenbNode], trace: Sequence[OpenbPod], seed: int) -> None:
        """Draw from the seed."""
        super().__init__(nodes, trace, seed)
        self._random = np.random.default_rng(seed)

    def cost(self, pod: OpenbPod, columns: Ints) -> Floats:
        """Return the same for all nodes."""
        del pod
        return np.zeros(len(columns))

    def choose(self, costs: Floats) -> int:
        """Draw a node with room."""
        fitting = np.flatnonzero(costs < np.inf)
        return int(self._random.choice(fitting)) if fitting.size else 0

    def devices(self, pod: OpenbPod, gpus: Ints) -> Ints:
        """Draw devices with room."""
        drawn = np.where(gpus >= pod.gpu_milli, self._random.random(gpus.shape), 1)
        return drawn.argsort(axis=1)[:, : pod.gpus]


class BestFit(CostPolicy):
    """The node that has the least left: CPU and GPU, each relative to the largest node."""

    def __init__(self, nodes: Sequence[OpenbNode], trace: Sequence[OpenbPod], seed: int) -> None:
        """Take the measures of the largest node."""
        super().__init__(nodes, trace, seed)
        self._largest = max(1, int(self.cpu.max())), int(self.gpus.sum(axis=1).max())

    def cost(self, pod: OpenbPod, columns: Ints) -> Floats:
        """Return what is left with the pod, in the published integer steps."""
        cpu, gpus = self.after(pod, columns)
        left = (cpu / self._largest[0] + gpus.sum(axis=1) / self._largest[1]) / 2
        steps: Floats = -np.floor(100 * (1 - left))
        return steps


class Fgd(CostPolicy):
    """Fragmentation gradient descent: the node on which the fewest further milli-GPUs become unusable.

    A milli-GPU counts as unusable by the share of the typical pods that cannot use it. The paper tries each device of a
    node for a part of a GPU; the fullest device that fits was always the best one, so only this device is tried.
    """

    def __init__(self, nodes: Sequence[OpenbNode], trace: Sequence[OpenbPod], seed: int) -> None:
        """Learn the typical pods from the whole trace."""
        super().__init__(nodes, trace, seed)
        typical = typical_mix(trace)
        self._cpu = np.array([pod.cpu_milli for pod in typical])
        self._milli = np.array([pod.gpu_milli for pod in typical])
        self._gpus = np.array([pod.gpus for pod in typical])
        self._share = np.array([*typical.values()]) / typical.total()
        kinds, self._model = np.unique(self.models, return_inverse=True)
        self._accepted = np.array([accepts(pod, kinds) for pod in typical]).T

    def cost(self, pod: OpenbPod, columns: Ints) -> Floats:
        """Return how much more is unusable with the pod, in the published integer steps."""
        accepted = self._accepted[self._model[columns]]
        cpu, gpus = self.after(pod, columns)
        more = self._unusable(cpu, gpus, accepted)
        more -= self._unusable(self.cpu[columns], self.gpus[columns], accepted)
        steps: Floats = -np.floor(100 / (1 + np.exp(more / 1000)))
        return steps

    def _unusable(self, cpu: Ints, gpus: Ints, accepted: NDArray[np.bool_]) -> Floats:
        """Return the unusable milli-GPUs of nodes. `accepted` has the shape [node, typical pod]."""
        free = gpus[:, :, None]
        is_large = free >= self._milli
        fits = (is_large & (free > 0)).sum(axis=1) >= self._gpus
        fits &= (cpu[:, None] >= self._cpu) & accepted & (self._gpus > 0)
        too_small = np.where(is_large, 0, free).sum(axis=1)
        unusable: Floats = np.where(fits, too_small, gpus.sum(axis=1)[:, None]) @ self._share
        return unusable


def typical_mix(trace: Sequence[OpenbPod]) -> Counter[OpenbPod]:
    """Return the most frequent requests of a trace, regardless of memory, each with its number of pods."""
    numbers = Counter(pod._replace(memory_mib=0) for pod in trace)
    typical = Counter[OpenbPod]()
    for pod, number in numbers.most_common():
        if typical.total() >= TYPICAL_SHARE * len(trace):
            break
        typical[pod] = number
    return typical
