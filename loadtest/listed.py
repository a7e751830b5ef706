"""A cluster in virtual time whose jobs start from one list: no queues, no evictions, best-fit placement."""

import heapq
from collections.abc import Callable, Iterable

from app.model.names import NodeName
from app.model.node import Node
from app.model.resources import GPU, GPU_MILLI
from loadtest.virtual_time import Job, VirtualCluster

Shape = tuple[int, int]
"""Pods, and GPUs of each: jobs of one shape fit where any of them fits."""


class ListedCluster(VirtualCluster):
    """The head of the list starts as soon as all its pods fit."""

    def __init__(self, nodes: Iterable[Node], rank: Callable[[Job], float], *, backfills: bool) -> None:
        """Begin without jobs; the lowest rank is the head, and of the same rank the job that came first.

        `backfills`: jobs behind the head start when they fit and the head does not. Nothing is kept for the head.
        """
        super().__init__(nodes)
        self._rank, self._backfills = rank, backfills
        self._came = 0
        self._waiting: dict[Shape, list[tuple[float, int, Job]]] = {}

    def add(self, job: Job) -> None:
        """Put a job into the list."""
        self._came += 1
        super().add(job)
        heapq.heappush(self._waiting.setdefault((job.pods, job.gpus), []), (self._rank(job), self._came, job))

    def changed(self) -> None:
        """Start what fits."""
        lists = {shape: waiting for shape, waiting in self._waiting.items() if waiting}
        while lists:
            shape = min(lists, key=lambda each: lists[each][0][:2])
            nodes = self._best_fit(*shape)
            if nodes:
                _, _, job = heapq.heappop(lists[shape])
                self.take(job, nodes)
                self.begin(job)
            elif not self._backfills:
                return
            if not nodes or not lists[shape]:
                del lists[shape]

    def _best_fit(self, pods: int, gpus: int) -> tuple[NodeName, ...]:
        """Return the nodes with the fewest free GPUs that suffice; empty when not all pods have room."""
        free, wanted, found = self.free[GPU].tolist(), gpus * GPU_MILLI, list[NodeName]()
        for _ in range(pods):
            fitting = [column for column, each in enumerate(free) if each >= wanted]
            if not fitting:
                return ()
            best = min(fitting, key=free.__getitem__)
            free[best] -= wanted
            found.append(self.table.nodes[best].name)
        return tuple(found)
