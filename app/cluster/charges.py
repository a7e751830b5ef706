"""Sums what pods hold and wait for: on every node, in every queue, and outside all queues. One charge a pod.

A pod is charged once, whether its place is a promise or a fact, so a promise that comes true changes no sum.
"""

from dataclasses import dataclass

import numpy as np

from app.model.names import NodeName, PodUid, QueueName
from app.model.resources import AXES, Amounts, Resources
from app.model.snapshot import NodeTable, Usage


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod holds or waits for."""

    request: Resources
    node: NodeName | None
    """None while the pod only waits."""
    queue: QueueName | None
    """None for pods of other schedulers: subtracted from what the queues divide."""
    preemptible: bool = True


class _QueueSums:
    """The sums of one queue, in the order of `AXES`."""

    __slots__ = ("allocated", "non_preemptible", "requested")

    def __init__(self) -> None:
        self.allocated = [0] * len(AXES)
        self.non_preemptible = [0] * len(AXES)
        self.requested = [0] * len(AXES)

    def freeze(self) -> Usage:
        return Usage(
            allocated=Resources.of(self.allocated),
            allocated_non_preemptible=Resources.of(self.non_preemptible),
            requested=Resources.of(self.requested),
        )


class _NodeSums:
    """Sums by node, kept by name and, for the nodes of a table, as columns."""

    __slots__ = ("_by_name", "_table", "columns")

    def __init__(self) -> None:
        self._by_name: dict[NodeName, list[int]] = {}
        self.lay_over(NodeTable.of(()))

    def lay_over(self, table: NodeTable) -> None:
        self._table = table
        self.columns: Amounts = np.zeros((len(AXES), len(table.nodes)), dtype=np.int64)
        for name in self._by_name:
            self._write(name)

    def add(self, name: NodeName, amounts: list[int]) -> None:
        sums = self._by_name.setdefault(name, [0] * len(AXES))
        _accumulate(sums, amounts)
        self._write(name)
        if not any(sums):
            del self._by_name[name]

    def on(self, name: NodeName) -> Resources:
        return Resources.of(self._by_name.get(name) or [0] * len(AXES))

    def _write(self, name: NodeName) -> None:
        column = self._table.index.get(name)
        if column is not None:
            self.columns[:, column] = self._by_name[name]


class Charges:
    """All charges and their sums. Only `ClusterCache` calls `set` and `use_table`."""

    def __init__(self) -> None:
        """Start with nothing charged, over no nodes."""
        self._charges: dict[PodUid, Charge] = {}
        self._queues: dict[QueueName, _QueueSums] = {}
        self._frozen: dict[QueueName, Usage] = {}
        self._used = _NodeSums()
        self._outside = _NodeSums()
        self._table = NodeTable.of(())

    def get(self, pod: PodUid) -> Charge | None:
        """Return the pod's charge."""
        return self._charges.get(pod)

    def set(self, pod: PodUid, charge: Charge | None) -> None:
        """Charge the pod with this, or nothing, instead of what it was charged with before."""
        before = self._charges.pop(pod, None)
        if before is not None:
            self._add(before, -1)
        if charge is not None:
            self._charges[pod] = charge
            self._add(charge, 1)

    def use_table(self, table: NodeTable) -> None:
        """Lay the sums over another table of nodes; nothing is done when it is the same."""
        if table is self._table:
            return
        self._table = table
        self._used.lay_over(table)
        self._outside.lay_over(table)

    def free(self) -> Amounts:
        """Return allocatable minus charges, shape [resource, node]; negative when overcommitted."""
        free: Amounts = self._table.allocatable - self._used.columns
        return free

    def on_node(self, name: NodeName) -> Resources:
        """Return what is charged to a node."""
        return self._used.on(name)

    def outside(self) -> Resources:
        """Return what pods outside every queue hold of the nodes that take work (KAI: the others are not divided)."""
        return Resources.of(self._outside.columns[:, self._table.takes_work].sum(axis=1))

    def usage(self) -> dict[QueueName, Usage]:
        """Return the sums of every queue that has any pods."""
        for name, sums in self._queues.items():
            if name not in self._frozen:
                self._frozen[name] = sums.freeze()
        return dict(self._frozen)

    def _add(self, charge: Charge, sign: int) -> None:
        amounts = [sign * amount for amount in charge.request.amounts]
        if charge.node is not None:
            self._used.add(charge.node, amounts)
        if charge.queue is not None:
            self._add_to_queue(charge.queue, charge, amounts)
        elif charge.node is not None:
            self._outside.add(charge.node, amounts)

    def _add_to_queue(self, queue: QueueName, charge: Charge, amounts: list[int]) -> None:
        sums = self._queues.setdefault(queue, _QueueSums())
        self._frozen.pop(queue, None)
        _accumulate(sums.requested, amounts)
        if charge.node is not None:
            _accumulate(sums.allocated, amounts)
            if not charge.preemptible:
                _accumulate(sums.non_preemptible, amounts)
        if not any(sums.requested):
            # Pods name their queue as they like: what none of them names any more must not pile up.
            del self._queues[queue]


def _accumulate(sums: list[int], amounts: list[int]) -> None:
    for axis, amount in enumerate(amounts):
        sums[axis] += amount
