"""Sums what pods hold and request: on every node, in every queue, and outside all queues. One charge a pod.

A pod is charged once, both while its place is reserved and when it is bound. So binding a reserved pod changes no sum.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import add

import numpy as np

from app.cluster.ledger.charge import NO_DEVICES, NO_LOAD, Charge, DeviceCharge, Hold, Load
from app.cluster.ledger.node_sums import NodeSums
from app.model.names import NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.resources import (
    AXES,
    GPU,
    GPU_MILLI,
    MAX_AMOUNT,
    MAX_COLUMN,
    NOTHING,
    Amounts,
    Resources,
    mig_gpus,
)
from app.model.snapshot import NodeTable, Usage

ZEROS: Sequence[int] = NOTHING.amounts


class _QueueSums:
    """The sums of one queue, in the order of `AXES`."""

    __slots__ = ("allocated", "awaited", "claimed_milli", "leaving", "non_preemptible", "requested")

    def __init__(self) -> None:
        self.allocated = [0] * len(AXES)
        self.awaited: Sequence[int] = ZEROS
        """The part of `allocated` whose pods wait for the room of pods that are being deleted."""
        self.leaving: Sequence[int] = ZEROS
        """The part of `allocated` whose pods are being deleted."""
        self.non_preemptible = [0] * len(AXES)
        self.requested = [0] * len(AXES)
        self.claimed_milli = 0

    def freeze(self) -> Usage:
        return Usage(
            allocated=Resources.of(self.allocated),
            allocated_non_preemptible=Resources.of(self.non_preemptible),
            requested=Resources.of(self.requested),
            claimed_milli=self.claimed_milli,
        )


NO_RESIDENTS: Amounts = np.zeros((len(AXES), 0), dtype=np.int64)


class Charges:
    """All charges and their sums. Only other parts of the cache call the methods that change them."""

    def __init__(self) -> None:
        """Start with no charges and no nodes."""
        self._charges: dict[PodUid, Charge] = {}
        self._queues: dict[QueueName, _QueueSums] = {}
        self._frozen: dict[QueueName, Usage] = {}
        self._thawed: dict[QueueName, None] = {}
        """Queues that have changed since they were frozen: a few of thousands."""
        self._used = NodeSums()
        self._leaving: dict[NodeName, dict[PodUid, None]] = {}
        """Pods that are being deleted, by their node."""
        self._part_of_used = {Hold.LEAVING: NodeSums(), Hold.AWAITED: NodeSums()}
        """Also part of `_used`."""
        self._outside = NodeSums()
        self._staying, self._residents = NodeSums(), NO_RESIDENTS
        self._devices: dict[NodeName, DeviceCharge] = {}
        self._table = NodeTable.of(())
        self._scalars: Mapping[str, Amounts] = {}
        self._capacity: Amounts = self._table.allocatable
        """What each node has for queues to divide, shape [resource, node]."""
        self._divided = NOTHING  # Without closed nodes; valid unless `_outside.is_changed`.

    def get(self, pod: PodUid) -> Charge | None:
        """Return the pod's charge."""
        return self._charges.get(pod)

    def set(self, pod: PodUid, charge: Charge | None) -> None:
        """Replace the charge of a pod; None removes the charge."""
        before = self._charges.pop(pod, None)
        if before is not None:
            self._add(before, -1)
            self._note_leaving(pod, before, -1)
        if charge is not None:
            self._charges[pod] = charge
            self._add(charge, 1)
            self._note_leaving(pod, charge, 1)

    def leaving(self, node: NodeName) -> Collection[PodUid]:
        """Return the charged pods on the node that are being deleted; the caller must not keep the value."""
        return self._leaving.get(node, ())

    def _note_leaving(self, pod: PodUid, charge: Charge, sign: int) -> None:
        # Payments for claims, which request nothing of their nodes, follow the charges of pods.
        if charge.node is None or charge.hold is not Hold.LEAVING or NOTHING in (charge.paid, charge.request):
            return
        pods = self._leaving.setdefault(charge.node, {})
        if sign > 0:
            pods[pod] = None
        else:
            pods.pop(pod, None)
        if not pods:
            del self._leaving[charge.node]

    def set_devices(self, name: NodeName, now: "DeviceCharge") -> None:
        """Replace the whole devices that a node is charged with: pods have parts of them, or they accept no work."""
        before = self._devices.pop(name, NO_DEVICES)
        if now != NO_DEVICES:
            self._devices[name] = now
        used, of_hold = sum(now) - sum(before), {Hold.LEAVING: now.leaving - before.leaving}
        of_hold[Hold.AWAITED] = now.awaited - before.awaited
        parts = ((self._part_of_used[hold], more) for hold, more in of_hold.items())
        for sums, devices in ((self._used, used), *parts):
            if devices:
                sums.add(name, list(Resources(gpu_milli=GPU_MILLI * devices).amounts))

    def use_table(self, table: NodeTable, scalars: Mapping[str, Amounts]) -> None:
        """Lay the sums over another table of nodes with these scalars; the same table changes nothing."""
        if table is self._table:
            return
        self._table, self._scalars = table, scalars
        self._capacity = _with_mig(table.allocatable, scalars)
        for sums in (self._used, *self._part_of_used.values()):
            sums.lay_over(table, self._scalars)
        self._outside.lay_over(table, ())
        self._outside.is_changed = True
        self._staying.lay_over(table, ())

    def free(self) -> Amounts:
        """Return allocatable minus charges, shape [resource, node]; negative when overcommitted."""
        free: Amounts = self._table.allocatable - self._used.columns
        return free

    def residents(self) -> Amounts:
        """Return what pods hold that belong to their nodes, shape [resource, node]; one object until it changes."""
        if self._staying.is_changed and not np.array_equal(self._residents, self._staying.columns):
            self._residents = self._staying.columns.copy()
        self._staying.is_changed = False
        return self._residents

    def releasing(self) -> Amounts | None:
        """Return what pods hold that are being deleted, shape [resource, node]; None when there are no such pods."""
        leaving = self._part_of_used[Hold.LEAVING]
        return _releasing(leaving.columns, self._used.columns) if len(leaving) else None

    def free_scalars(self) -> dict[str, Amounts]:
        """Return the free amount of every extended resource that any node has, shape [node] each."""
        used = self._used.scalars
        return {name: amounts - used[name] for name, amounts in self._scalars.items()}

    def releasing_scalars(self) -> dict[str, Amounts]:
        """Return the extended resources that pods being deleted hold, shape [node] each; without sums of zero."""
        leaving = self._part_of_used[Hold.LEAVING]
        if not len(leaving):
            return {}
        used = self._used.scalars
        return {name: _releasing(amounts, used[name]) for name, amounts in leaving.scalars.items() if amounts.any()}

    def free_on(self, node: Node) -> Resources:
        """Return what is free on a node."""
        return node.allocatable - self._used.on(node.name)

    def fits(self, node: Node, load: Load) -> bool:
        """Whether this much is free on a node."""
        return self._fits_with(node, load, NO_LOAD)

    def fits_later(self, node: Node, load: Load, freed: Load) -> bool:
        """Whether this much is free on a node once its pods being deleted are gone, and `freed` is free too."""
        leaving = self._part_of_used[Hold.LEAVING]
        scalars = {name: leaving.scalar_on(name, node.name) + freed.scalars.get(name, 0) for name in load.scalars}
        return self._fits_with(node, load, Load(leaving.on(node.name) + freed.request, scalars))

    def _fits_with(self, node: Node, load: Load, more: Load) -> bool:
        """Whether this much is free on a node that has `more` room than is free now."""
        have = Counter(dict(node.scalars))
        return _covers(self.free_on(node) + more.request, load.request) and all(
            have[name] - self._used.scalar_on(name, node.name) + more.scalars.get(name, 0) >= asked
            for name, asked in load.scalars.items()
        )

    def fits_beside(self, charge: Charge, node: Node, *, without: Collection[Hold]) -> bool:
        """Whether the charge, which its node counts already, fits there; others held in `without` do not count."""
        others = [(self._part_of_used[hold], hold is charge.hold) for hold in without]
        there, used = node.allocatable.amounts, self._used.amounts_on(node.name)
        spared_here = [(sums.amounts_on(node.name), mine) for sums, mine in others]
        for axis, asked in enumerate(charge.request.amounts):
            spared = sum(amounts[axis] - (asked if mine else 0) for amounts, mine in spared_here)
            if asked and there[axis] - used[axis] + spared < 0:
                return False
        have = dict(node.scalars)
        for name, asked in charge.scalars:
            spared = sum(sums.scalar_on(name, node.name) - (asked if mine else 0) for sums, mine in others)
            if have.get(name, 0) - self._used.scalar_on(name, node.name) + spared < 0:
                return False
        return True

    def divided(self, closed: Collection[NodeName] = ()) -> Resources:
        """Return what queues divide: the capacity of nodes that accept work, minus what pods outside all queues hold.

        A MIG profile counts as its GPUs, as it does in the charge of a pod. The capacity of other nodes is not divided
        (KAI), so what is held there is not subtracted either. On one node, the subtraction is limited to the node's
        capacity: a pod can set its `nodeName` itself and request any amount until the kubelet refuses it. On `closed`
        nodes pods hold more than Leeboard can read. There, only what is not free is divided: such pods hold at most
        what is free.
        """
        if self._outside.is_changed:
            divided = np.maximum(self._capacity - self._outside.columns, 0)
            # Not columns[:, takes_work]: gathering the columns takes ten times as long as adding them up.
            self._divided = Resources.of(divided.sum(axis=1, where=self._table.takes_work))
            self._outside.is_changed = False
        columns = self._table.columns(closed)
        if not columns:
            return self._divided
        held = (self._capacity - self._outside.columns)[:, columns] - self._free_to_divide(columns)
        return self._divided + Resources.of(np.maximum(held, 0).sum(axis=1))

    def _free_to_divide(self, columns: list[int]) -> Amounts:
        """Return what is free on some nodes, shape [resource, column]; MIG profiles count as their GPUs."""
        scalars = {name: np.maximum(amounts[columns], 0) for name, amounts in self.free_scalars().items()}
        return _with_mig(np.maximum(self.free()[:, columns], 0), scalars)

    def usage(self) -> dict[QueueName, Usage]:
        """Return the sums of every queue that has any pods."""
        for name in self._thawed:
            if name in self._queues:
                self._frozen[name] = self._queues[name].freeze()
        self._thawed.clear()
        return dict(self._frozen)

    def held_now(self) -> Iterator[tuple[QueueName, Resources, Resources]]:
        """Yield for each queue what its pods hold, without pods that wait for room, and the part of it being freed."""
        for name, sums in self._queues.items():
            held = Resources.of(all_ - awaited for all_, awaited in zip(sums.allocated, sums.awaited, strict=True))
            yield name, held, Resources.of(sums.leaving)

    def _add(self, charge: Charge, sign: int) -> None:
        amounts = [sign * amount for amount in charge.request.amounts]
        cost = amounts if charge.cost is None else [sign * amount for amount in charge.cost.amounts]
        if charge.node is not None:
            self._add_to_node(charge.node, charge, amounts, sign)
        if charge.queue is not None:
            self._add_to_queue(charge.queue, charge, cost, sign)
        elif charge.node is not None:
            self._outside.add(charge.node, cost)

    def _add_to_node(self, node: NodeName, charge: Charge, amounts: list[int], sign: int) -> None:
        scalars = tuple((name, sign * amount) for name, amount in charge.scalars) if charge.scalars else ()
        self._used.add(node, amounts, scalars)
        if charge.stays:
            self._staying.add(node, amounts)
        if charge.hold is not Hold.KEPT:
            self._part_of_used[charge.hold].add(node, amounts, scalars)

    def _add_to_queue(self, queue: QueueName, charge: Charge, amounts: list[int], sign: int) -> None:
        sums = self._queues.setdefault(queue, _QueueSums())
        self._frozen.pop(queue, None)
        self._thawed[queue] = None
        _accumulate(sums.requested, amounts)
        if charge.node is not None:
            _accumulate(sums.allocated, amounts)
            sums.claimed_milli += sign * charge.claimed_milli
            if not charge.preemptible:
                _accumulate(sums.non_preemptible, amounts)
            if charge.hold is Hold.AWAITED:
                sums.awaited = _sum(sums.awaited, amounts)
            elif charge.hold is Hold.LEAVING:
                sums.leaving = _sum(sums.leaving, amounts)
        if not any(sums.requested):
            # Users may write any queue name into pods: a name that no pod uses any more is removed.
            del self._queues[queue]


def _with_mig(there: Amounts, scalars: Mapping[str, Amounts]) -> Amounts:
    """Return what queues can divide, shape [resource, node]; MIG profiles count as their GPUs."""
    found: Amounts = there.copy()
    for name, amounts in scalars.items():
        found[GPU] = np.minimum(found[GPU] + GPU_MILLI * mig_gpus(name) * amounts, MAX_AMOUNT)
    return found


def _releasing(leaving: Amounts, used: Amounts) -> Amounts:
    """Return what pods free that are being deleted; nothing where more is used than a column can hold."""
    return np.where(used < MAX_COLUMN, leaving, 0)


def _covers(free: Resources, request: Resources) -> bool:
    return all(have >= asked for have, asked in zip(free.amounts, request.amounts, strict=True) if asked)


def _accumulate(sums: list[int], amounts: list[int]) -> None:
    for axis, amount in enumerate(amounts):
        sums[axis] += amount


def _sum(sums: Sequence[int], amounts: Sequence[int]) -> Sequence[int]:
    """Return the new value of `sums`; without any amount, as in most queues, it is one value that all of them share."""
    total = tuple(map(add, sums, amounts))
    return total if any(total) else ZEROS
