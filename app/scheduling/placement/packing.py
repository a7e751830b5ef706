"""The cost of each node for pods of one shape: the worth that the node would lose. `expected_use` tells the worth.

Of nodes that lose the same, the fullest is best. All amounts are those after all terminating pods are gone.

Each rule is written twice, for all nodes as vectors and for one node: a plan changes one node for each pod, and to
judge that node takes 4 us alone, and 80 us as a vector. A property test holds the two together.
"""

# ruff: noqa: FURB136 - each change of a node in a plan calls the functions for one node: min and max are calls

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.model.pod import Sharing
from app.model.resources import CPU, GPU, GPU_MILLI, MEMORY, UNLIMITED, Amounts, gpu_milli_of
from app.model.snapshot import PART, Mask, NodeTable
from app.scheduling.placement.expected_use import MOST_GPUS, UNIT, ExpectedUse
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.kept_costs import KeptCosts
from app.scheduling.placement.parts import ALL, Columns

_TIE = 1 << 12
"""The weight of the worth against the free amounts, which count less than this together."""

_SHARE = 1 << 10
"""The free CPU of a node counts in this part of its CPU; its free GPUs alike."""

_FULL = 3
"""So many thousandths of the GPUs that stay free count as lost. So the fullest of almost equal nodes is best."""

_OFFSET, _MOST = 1 << 39, (1 << 40) - 1
"""The cost of a placement that loses nothing, and the highest cost. Some placements gain: GPUs that would have lacked
CPU are used after all.
"""

_MOST_MILLI = 2 * MOST_GPUS * GPU_MILLI
"""A node with more GPUs in all forms together is judged like one with this amount."""

MOST_ALONE = 20
"""The most nodes that are faster to judge one by one than together."""

_Left = tuple[int, int, int, int]
"""Of one node: its whole GPUs, 0 .. `MOST_GPUS`; the expected use of its shared GPUs; all GPUs in all forms, in
milli-GPUs; its worth.
"""


class PackingCosts:
    """The costs under one typical mix. It only reads, and keeps costs for the next snapshots."""

    def __init__(self, use: ExpectedUse, nodes: NodeTable, rows: Mapping[str, int], *, opens_first: bool) -> None:
        """Use the nodes of a snapshot. `rows` are those of the extended resources in `FreeResources`.

        `opens_first`: pods get parts of idle GPUs before parts of shared GPUs (strategy `spread` for devices).
        """
        self._use = use
        self._cpu = np.maximum(nodes.allocatable[CPU], 1)
        self._gpu = np.maximum(nodes.allocatable[GPU], 1)
        self._parts = nodes.device_memory_mib * PART
        self._rows = [(row, unit) for name, row in rows.items() if (unit := gpu_milli_of(name))]
        self._opens_first = opens_first
        self._kept = KeptCosts([CPU, MEMORY, GPU, *(row for row, _ in self._rows)])

    @staticmethod
    def of(use: ExpectedUse, nodes: NodeTable, rows: Mapping[str, int], *, opens_first: bool) -> "PackingCosts":
        """Return the costs for these arguments, those of the last snapshot with their kept costs where possible."""
        cause = use, opens_first, rows
        known: tuple[object, PackingCosts] | None = nodes.memo.get("packing")
        if known is None or known[0] != cause:
            known = cause, PackingCosts(use, nodes, rows, opens_first=opens_first)
            nodes.memo.remember("packing", known)
        return known[1]

    def costs(self, amounts: Sequence[int], sharing: Sharing | None, stock: FreeResources) -> Amounts:
        """Return the cost of each node, shape [node], 0 .. 2^40. It has no meaning where there is no room."""
        asked = amounts, sharing, stock
        if stock.changes:
            return self._everywhere(*asked)
        question = tuple(amounts), sharing
        return self._kept.answer(
            question, stock, lambda: self._everywhere(*asked), lambda columns: self._among(columns, *asked)
        )

    def usable_milli(self, among: Mask, stock: FreeResources) -> tuple[int, int]:
        """Return the free milli-GPUs of these nodes, shape [node], and how many of them typical pods would fill."""
        _, _, milli, worth = self._left(ALL, stock)
        return int(milli.sum(where=among)), int(np.clip(worth // UNIT, 0, milli).sum(where=among))

    def _everywhere(self, amounts: Sequence[int], sharing: Sharing | None, stock: FreeResources) -> Amounts:
        left = stock.remembered.answer(
            "left GPUs", lambda: self._left(ALL, stock), lambda column: self._left_at(column, stock)
        )
        return self._together(ALL, amounts, sharing, stock, left)

    def _among(
        self, columns: NDArray[np.int64], amounts: Sequence[int], sharing: Sharing | None, stock: FreeResources
    ) -> Amounts | Sequence[int]:
        if len(columns) > MOST_ALONE:
            return self._together(columns, amounts, sharing, stock, self._left(columns, stock))
        return [self.cost_at(amounts, sharing, stock, column) for column in columns.tolist()]

    def _together(
        self, columns: Columns, amounts: Sequence[int], sharing: Sharing | None, stock: FreeResources, left: Amounts
    ) -> Amounts:
        use, future = self._use, stock.future
        whole, parts, milli, worth = left
        taken = np.full_like(whole, self._taken(amounts))
        opened = np.full_like(whole, amounts[GPU] // GPU_MILLI)
        if sharing is not None:
            opened, gained, taken = self._shared(columns, sharing, stock, whole)
            parts = parts + gained
        milli = np.maximum(milli - taken, 0)
        cpu, memory = (np.maximum(future[row, columns] - amounts[row], 0) for row in (CPU, MEMORY))
        after = use.whole[np.maximum(whole - opened, 0)] + parts - use.shortages(milli, cpu, memory)
        free = np.minimum(cpu * _SHARE // self._cpu[columns], _SHARE)
        free += np.minimum(milli * _SHARE // self._gpu[columns], _SHARE)
        lost = worth - after + milli * (UNIT * _FULL) // GPU_MILLI
        costs: Amounts = np.clip(_OFFSET + lost * _TIE + free, 0, _MOST)
        return costs

    def _taken(self, amounts: Sequence[int]) -> int:
        """Return how many milli-GPUs the amounts are, without shared GPUs."""
        return min(amounts[GPU] + sum(amounts[row] * unit for row, unit in self._rows), _MOST_MILLI)

    def _left(self, columns: Columns, stock: FreeResources) -> Amounts:
        """Return what is left of each node, shape [4, node], as `_Left` lists it."""
        use, future, (places, shared) = self._use, stock.future[:, columns], stock.devices.columns().of(columns)
        milli = np.maximum(future[GPU], 0)
        whole, parts = np.minimum(milli // GPU_MILLI, MOST_GPUS), np.zeros_like(milli)
        full = self._parts[columns][places, None]
        # A device that is whole again in future is counted with the whole GPUs.
        each = np.where(shared < full, np.maximum(shared, 0), 0) * GPU_MILLI // full
        parts[places] = use.part[each].sum(axis=1)
        milli[places] += each.sum(axis=1)
        for row, unit in self._rows:
            milli += np.clip(future[row], 0, _MOST_MILLI) * unit
        milli = np.minimum(milli, _MOST_MILLI)
        worth = (
            use.whole[whole] + parts - use.shortages(milli, np.maximum(future[CPU], 0), np.maximum(future[MEMORY], 0))
        )
        return np.stack([whole, parts, milli, worth])

    def _shared(
        self, columns: Columns, sharing: Sharing, stock: FreeResources, whole: Amounts
    ) -> tuple[Amounts, Amounts, Amounts]:
        """Return what the parts of GPUs would change on each node, shape [node] each.

        These are the number of whole GPUs that become shared, the gain in expected use, and the milli-GPUs taken.
        """
        part, (places, shared) = self._use.part, stock.devices.columns().of(columns)
        memory, needs = self._parts[columns], stock.devices.needs(sharing)[columns]
        full, need = memory[places, None], needs[places, None]
        fits = (shared >= need) & (shared < full)
        if self._opens_first:
            fits &= whole[places, None] < sharing.devices
        # The fullest devices that fit, as `SharedDevices.choose` takes them.
        chosen = np.sort(np.where(fits, shared, UNLIMITED), axis=1)[:, : sharing.devices]
        used = chosen < UNLIMITED
        before = np.where(used, chosen, 0) * GPU_MILLI // full
        after = np.where(used, chosen - need, 0) * GPU_MILLI // full
        opened = np.full_like(whole, sharing.devices)
        opened[places] -= used.sum(axis=1)
        rest = np.maximum(memory - needs, 0) * GPU_MILLI // memory
        gained, taken = opened * (part[rest] - self._use.opening), opened * (GPU_MILLI - rest)
        gained[places] += (part[after] - part[before]).sum(axis=1)
        taken[places] += (before - after).sum(axis=1)
        return opened, gained, taken

    def cost_at(self, amounts: Sequence[int], sharing: Sharing | None, stock: FreeResources, column: int) -> int:
        """Return the same as `costs` for one node."""
        use = self._use
        whole, parts, milli, worth = self._left_at(column, stock)
        taken = self._taken(amounts)
        opened = amounts[GPU] // GPU_MILLI
        if sharing is not None:
            opened, gained, taken = self._shared_at(sharing, whole, stock, column)
            parts += gained
        milli = milli - taken if milli > taken else 0
        cpu, memory = stock.future[: MEMORY + 1, column].tolist()
        cpu = cpu - amounts[CPU] if cpu > amounts[CPU] else 0
        memory = memory - amounts[MEMORY] if memory > amounts[MEMORY] else 0
        after = use.whole_list[max(whole - opened, 0)] + parts - use.shortage(milli, cpu, memory)
        capacity: tuple[int, int] = self._cpu.item(column), self._gpu.item(column)
        free = min(cpu * _SHARE // capacity[0], _SHARE) + min(milli * _SHARE // capacity[1], _SHARE)
        lost = worth - after + milli * (UNIT * _FULL) // GPU_MILLI
        return min(max(_OFFSET + lost * _TIE + free, 0), _MOST)

    def _left_at(self, column: int, stock: FreeResources) -> _Left:
        use, full = self._use, self._parts.item(column)
        cpu, memory, milli, *_ = stock.future[:, column].tolist()
        milli = milli if milli > 0 else 0
        whole, parts = min(milli // GPU_MILLI, MOST_GPUS), 0
        for device in stock.devices.at(column):
            if 0 < device.future < full:
                left = device.future * GPU_MILLI // full
                parts += use.part_list[left]
                milli += left
        for row, unit in self._rows:
            milli += min(max(stock.future.item(row, column), 0), _MOST_MILLI) * unit
        milli = milli if milli < _MOST_MILLI else _MOST_MILLI
        short = use.shortage(milli, cpu if cpu > 0 else 0, memory if memory > 0 else 0)
        return whole, parts, milli, use.whole_list[whole] + parts - short

    def _shared_at(self, sharing: Sharing, whole: int, stock: FreeResources, column: int) -> tuple[int, int, int]:
        part, full, need = self._use.part_list, self._parts.item(column), stock.devices.need(sharing, column)
        fitting: list[int] = []
        if not self._opens_first or whole < sharing.devices:
            fitting = sorted(each.future for each in stock.devices.at(column) if need <= each.future < full)
        chosen = fitting[: sharing.devices]
        opened = sharing.devices - len(chosen)
        rest = max(full - need, 0) * GPU_MILLI // full
        gained, taken = opened * (part[rest] - self._use.opening), opened * (GPU_MILLI - rest)
        for free in chosen:
            before, after = free * GPU_MILLI // full, (free - need) * GPU_MILLI // full
            gained += part[after] - part[before]
            taken += before - after
        return opened, gained, taken
