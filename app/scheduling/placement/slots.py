"""Counts how many pods of each size fit at most: an upper bound for moves, whose negative answer is certain.

A node with 5 free GPUs has 5 slots for pods of 1 GPU, 2 for pods of 2 and 1 for pods of 3 to 5. A pod of 4 GPUs takes 4
slots of the first kind, 2 of the second, 1 of those for 3 and for 4. Pods that find places together never take more
slots of a kind than there are. Parts of GPUs, CPU, memory and node selectors are not judged.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from app.model.pod import Placed, Pod
from app.model.resources import GPU, GPU_MILLI, Amounts
from app.scheduling.placement.free_resources import FreeResources

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
"""The sizes of slots, in whole GPUs."""


class Slots:
    """The slots after all terminating pods are gone. They are valid until the free resources change."""

    def __init__(self, stock: FreeResources) -> None:
        """Count the slots."""
        self._stock = stock
        self._free: Amounts = np.maximum(stock.future[GPU], 0) // GPU_MILLI
        self._there = [int((self._free // size).sum()) for size in SIZES]

    def may_hold(self, pods: Iterable[Pod], gone: Iterable[Placed]) -> bool:
        """Return whether the pods may fit together when the `gone` pods are removed. False is certain."""
        return min(self.left(pods, gone)) >= 0

    def left(self, pods: Iterable[Pod], gone: Iterable[Placed]) -> Sequence[int]:
        """Return how many slots of each size remain at most when the `gone` pods are removed and the pods placed."""
        asked = [gpus for pod in pods if (gpus := pod.request.gpu_milli // GPU_MILLI) > 0]
        rooms = [(self._free.item(column), after) for column, after in self._after(gone).items()]
        return [
            there + sum(after // size - before // size for before, after in rooms) - sum(gpus // size for gpus in asked)
            for size, there in zip(SIZES, self._there, strict=True)
        ]

    def _after(self, gone: Iterable[Placed]) -> Mapping[int, int]:
        """Return how many whole GPUs are free on the nodes of the removed pods, by column."""
        leaving = defaultdict[int, list[Placed]](list)
        for one in gone:
            column = self._stock.column(one.node)
            if column is not None:
                leaving[column].append(one)
        return {column: self._free_without(those, column) for column, those in leaving.items()}

    def _free_without(self, leaving: list[Placed], column: int) -> int:
        held = sum(one.pod.request.gpu_milli for one in leaving)
        free = max(self._stock.future.item(GPU, column) + held, 0) // GPU_MILLI
        return free + self._stock.devices.whole_without(leaving, column)
