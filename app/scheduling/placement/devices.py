"""The shared devices of a board: which of them takes a part more, and when a device is whole again.

Whole devices are counted by the board's GPU column. A device somebody holds a part of is not in that column; one whose
holders are all leaving is whole again in future, and counted in the future column.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from app.model.pod import Placed, Pod, Sharing
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import MOST_DEVICE_MIB, PART, Mask, Snapshot, parts_of
from app.scheduling.copies import Claims, Common, Copied, Lent, Owned, Value
from app.scheduling.placement.parts import Divided, Flags, FreeParts, Initial
from app.settings import PlacementStrategy


@dataclass(frozen=True, slots=True)
class Opened:
    """How many whole devices a pod took out of the GPU columns."""

    of_free: int
    of_future: int


class SharedDevices(Copied):
    """Local to one board. `take` and `give_back` change it."""

    _spread: Value[bool]
    _memory_mib: Value[Amounts]
    _shares: Value[Mask]
    _initial: Common[Initial]
    _changed: Owned[dict[int, Sequence[Divided]]]
    """Of the nodes on which something has changed, in the order of their names; the others are as at the start."""
    _parts: Lent[FreeParts | None]
    """All of them as columns; made when somebody first asks for a part, and brought up to date when somebody asks."""
    _outdated: Owned[set[int]]
    _owns_parts: Claims[bool]

    def __init__(self, snapshot: Snapshot, strategy: PlacementStrategy) -> None:
        """Start from the shared devices of the snapshot."""
        self._spread = strategy is PlacementStrategy.SPREAD
        self._memory_mib = snapshot.nodes.device_memory_mib
        self._shares = snapshot.nodes.shares_devices
        self._initial = Initial(snapshot)
        self._changed, self._outdated = {}, set()
        self._parts, self._owns_parts = None, False

    def _at(self, column: int) -> Sequence[Divided]:
        changed = self._changed.get(column)
        return self._initial.at(column) if changed is None else changed

    def _put(self, column: int, devices: Sequence[Divided]) -> None:
        self._changed[column] = devices
        self._outdated.add(column)

    def _columns(self) -> FreeParts:
        if self._parts is None:
            self._parts = self._initial.parts
        if self._outdated and not self._owns_parts:
            self._parts, self._owns_parts = self._parts.copy(), True
        for column in self._outdated:
            self._parts.put(column, self._changed[column])
        self._outdated.clear()
        return self._parts

    def room(self, sharing: Sharing, gpus: Amounts, future_gpus: Amounts, *, later: bool) -> Mask:
        """Return the nodes with enough devices that take the part, shape [node].

        `gpus` are the whole ones at that time, `future_gpus` those when everything that leaves has left, in milli.
        """
        needs, parts = self._needs(sharing), self._columns()
        whole = np.where(self._shares & (needs <= self._memory_mib * PART), gpus // GPU_MILLI, 0)
        mask: Mask = whole >= sharing.devices
        fitting, again = self._fitting_parts(parts, needs, future_gpus)
        if later:
            # A device that is whole again in future is one of the future GPUs already.
            idle = whole[parts.columns] - np.count_nonzero(again, axis=1)
        else:
            fitting &= parts.free >= needs[parts.columns, None]
            idle = whole[parts.columns]
        mask[parts.columns] = np.count_nonzero(fitting, axis=1) + np.maximum(idle, 0) >= sharing.devices
        # A node with fewer than no GPUs left is overcommitted: which of its devices there really are, nobody knows.
        return mask & (gpus >= 0)

    def has_room(self, sharing: Sharing, column: int, gpus: tuple[int, int], *, later: bool) -> bool:
        """Say the same of one node, where `gpus` are the whole ones at that time and in future, in milli."""
        need, memory = self._need(sharing, column), self._memory_mib.item(column) * PART
        whole = gpus[0] // GPU_MILLI if self._shares[column] and need <= memory else 0
        fitting, again = self._fitting_at(column, need, gpus[1])
        if later:
            whole -= again
        else:
            fitting = [each for each in fitting if each.free >= need]
        return gpus[0] >= 0 and len(fitting) + max(whole, 0) >= sharing.devices

    def may_take(self, sharing: Sharing, gpus: Amounts) -> Mask:
        """Return the nodes that might take the part if so many GPUs were whole there, in milli, shape [node].

        Also where a device is in shared use: it is not asked who of its pods may leave.
        """
        takes = self._shares & (self._needs(sharing) <= self._memory_mib * PART)
        mask: Mask = takes & (gpus >= GPU_MILLI * sharing.devices)
        mask[self._columns().columns] = True
        return mask

    def has_fitting(self, sharing: Sharing, column: int, future_gpus: int) -> bool:
        """Say of one node what `fits` says of all."""
        return bool(self._fitting_at(column, self._need(sharing, column), future_gpus)[0])

    def _fitting_at(self, column: int, need: int, future_gpus: int) -> tuple[list[Divided], int]:
        """Return what `_fitting_parts` does of one node, the second as a number."""
        left, fitting, again = future_gpus // GPU_MILLI, list[Divided](), 0
        for each in self._at(column):
            if each.future < need:
                continue
            if self._is_whole(column, each):
                if again >= left:
                    continue
                again += 1
            fitting.append(each)
        return fitting, again

    def fits(self, sharing: Sharing, future_gpus: Amounts) -> Mask:
        """Return the nodes where a device in shared use takes the part, now or later, shape [node]."""
        mask, parts = np.zeros(self._memory_mib.shape[0], dtype=np.bool_), self._columns()
        fitting, _ = self._fitting_parts(parts, self._needs(sharing), future_gpus)
        mask[parts.columns] = fitting.any(axis=1)
        return mask

    def _fitting_parts(self, parts: FreeParts, needs: Amounts, future_gpus: Amounts) -> tuple[Flags, Flags]:
        """Return which devices take the part, now or later, and which of these are whole again, as `_fitting` does."""
        columns = parts.columns
        fitting = parts.future >= needs[columns, None]
        again = fitting & (parts.future == (self._memory_mib[columns] * PART)[:, None])
        rows = np.flatnonzero(again.any(axis=1))
        if rows.size:
            left = future_gpus[columns[rows]] // GPU_MILLI
            last = again[rows] & (again[rows].cumsum(axis=1) > left[:, None])
            fitting[rows] &= ~last
            again[rows] &= ~last
        return fitting, again

    def choose(self, pod: Pod, sharing: Sharing, column: int, gpus: tuple[int, int]) -> tuple[tuple[str, ...], bool]:
        """Return the devices that take the part, and whether one of them has to be waited for.

        Binpack: the fullest first, new ones only where those do not suffice. Spread: new ones first, then the emptiest.
        `gpus` are the whole ones now and in future, in milli.
        """
        need = self._need(sharing, column)
        shared = self._fitting(column, need, gpus[1])
        if len(shared) >= sharing.devices and not self._spread:
            chosen = shared[: sharing.devices]
            return tuple(each.name for each in chosen), any(each.free < need for each in chosen)
        names = self._new_names(pod, column, min(sharing.devices, gpus[1] // GPU_MILLI))
        idle = [
            Divided(name, need if gpus[0] >= (index + 1) * GPU_MILLI else 0, need) for index, name in enumerate(names)
        ]
        ordered = [*idle, *reversed(shared)] if self._spread else [*shared, *idle]
        chosen = ordered[: sharing.devices]
        return tuple(each.name for each in chosen), any(each.free < need for each in chosen)

    def take(self, sharing: Sharing, column: int, names: tuple[str, ...], *, later: bool) -> Opened:
        """Have a pod hold its part of each of the named devices; return what whole devices that costs."""
        need = self._need(sharing, column)
        whole = self._memory_mib.item(column) * PART
        devices = {each.name: each for each in self._at(column)}
        of_free = of_future = 0
        for name in names:
            device = devices.get(name)
            if device is None:
                of_future += 1
                of_free += not later
                device = Divided(name, 0 if later else whole, whole)
            elif device.future == whole:
                of_future += 1
            free = device.free if later else device.free - need
            devices[name] = Divided(name, free, device.future - need)
        ordered = devices.values() if not of_future else sorted(devices.values())
        self._put(column, tuple(ordered))
        return Opened(of_free, of_future)

    def postpone(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Have a pod that was to start now wait; return how many devices are idle until then.

        A device is idle when nobody is on it any more: whoever opened it, others may have joined.
        """
        need, whole = self._need(sharing, column), self._memory_mib.item(column) * PART
        idle, devices = 0, []
        for each in self._at(column):
            left = each
            if each.name in names:
                is_idle = each.free + need == whole
                idle += is_idle
                left = each._replace(free=0 if is_idle else each.free + need)
            devices.append(left)
        self._put(column, devices)
        return idle

    def free_milli(self) -> int:
        """Return what is free of all shared devices when everything that is leaving has left, in thousandths."""
        parts = self._columns()
        whole = (self._memory_mib[parts.columns] * PART)[:, None]
        free = np.where(parts.future == whole, 0, parts.future * GPU_MILLI // np.maximum(whole, 1))
        return int(free[parts.future > 0].sum())

    def free_parts(self) -> Amounts:
        """Return how many parts are free of the shared devices when everything leaving has left, shape [node]."""
        parts, free = self._columns(), np.zeros(self._memory_mib.shape[0], dtype=np.int64)
        free[parts.columns] = np.maximum(parts.future, 0).sum(axis=1)
        return free

    def give_back(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Have a pod leave its parts; return how many devices are whole again in future."""
        need = self._need(sharing, column)
        again, devices = 0, []
        for each in self._at(column):
            left = each._replace(future=each.future + need) if each.name in names else each
            again += left is not each and self._is_whole(column, left)
            devices.append(left)
        self._put(column, devices)
        return again

    def whole_without(self, leaving: Iterable[Placed], column: int) -> int:
        """Return how many devices of a node would be whole again in future if these left it."""
        sharers = [(one.devices, one.pod.sharing) for one in leaving if one.pod.sharing is not None]
        if not sharers:
            return 0
        given_back = Counter[str]()
        for names, sharing in sharers:
            given_back.update(dict.fromkeys(names, self._need(sharing, column)))
        here, whole = self._at(column), self._memory_mib.item(column) * PART
        return sum(each.future < whole <= each.future + given_back[each.name] for each in here)

    def _new_names(self, pod: Pod, column: int, number: int) -> list[str]:
        # A pod that moves may have opened a device here before, which others now use under its name.
        used = {each.name for each in self._at(column)}
        fresh = (name for index in count() if (name := f"{pod.uid}-{index}") not in used)
        return list(islice(fresh, max(number, 0)))

    def _need(self, sharing: Sharing, column: int) -> int:
        return parts_of(sharing, self._memory_mib.item(column))

    def _needs(self, sharing: Sharing) -> NDArray[np.int64]:
        """Return how many parts of a device are asked for, shape [node]; `parts_of` says the same of one node."""
        if sharing.memory_mib:
            asked = min(sharing.memory_mib + sharing.overhead_mib, MOST_DEVICE_MIB + 1) * PART
            return np.full_like(self._memory_mib, asked)
        return self._memory_mib * sharing.portion_ppm + sharing.overhead_mib * PART

    def _fitting(self, column: int, need: int, future_gpus: int) -> list[Divided]:
        """Return the devices that take the part, now or later, the fullest first; those whole again while GPUs last."""
        left, fitting = future_gpus // GPU_MILLI, []
        for each in sorted(self._at(column), key=_future):
            if each.future < need:
                continue
            if self._is_whole(column, each):
                left -= 1
                if left < 0:
                    continue
            fitting.append(each)
        return fitting

    def _is_whole(self, column: int, device: Divided) -> bool:
        return device.future == self._memory_mib.item(column) * PART


def _future(device: Divided) -> int:
    return device.future
