"""The shared devices of a board: which of them takes a part more, and when a device is whole again.

Whole devices are counted by the board's GPU column. A device somebody holds a part of is not in that column; one whose
holders are all leaving is whole again in future, and counted in the future column.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.model.pod import PPM, Pod, Sharing
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import MOST_DEVICE_MIB, PART, Mask, Snapshot
from app.settings import PlacementStrategy

assert PART == PPM  # a millionth of a device of M MiB is M parts  # noqa: S101 # what `_parts` relies on


@dataclass(frozen=True, slots=True)
class _Device:
    """A device in shared use."""

    name: str
    free: int
    """Parts free now."""
    future: int
    """Parts free when everything that is leaving has left."""


@dataclass(frozen=True, slots=True)
class Opened:
    """How many whole devices a pod took out of the GPU columns."""

    of_free: int
    of_future: int


Flags = NDArray[np.bool_]
"""Shape [row, slot], as in `_Parts`."""


class _Parts:
    """What is free of all shared devices, in columns: a row for each node that has any, a slot for each, by name."""

    def __init__(self, devices: Mapping[int, Sequence[_Device]]) -> None:
        self._rows = {column: row for row, column in enumerate(devices)}
        self.columns = np.array(list(devices), dtype=np.int64)
        """Shape [row]: the node's column."""
        slots = max((len(each) for each in devices.values()), default=0)
        # Shape [row, slot], in parts; -1, which is enough for nobody, where there is no device.
        self.free = np.full((len(devices), slots), -1, dtype=np.int64)
        self.future = self.free.copy()
        for column, each in devices.items():
            self.put(column, each)

    def copy(self) -> Self:
        """Return a twin that may be changed."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing with the parts that these were copied from."""
        self._rows, self.free, self.future = dict(self._rows), self.free.copy(), self.future.copy()

    def put(self, column: int, devices: Sequence[_Device]) -> None:
        """Note the devices of one node anew."""
        row = self._rows.setdefault(column, len(self._rows))
        more = max(0, row + 1 - len(self.columns)), max(0, len(devices) - self.free.shape[1])
        if any(more):
            self.columns = np.pad(self.columns, (0, more[0]), constant_values=column)
            self.free, self.future = (
                np.pad(each, ((0, more[0]), (0, more[1])), constant_values=-1) for each in (self.free, self.future)
            )
        ordered = sorted(devices, key=lambda each: each.name)
        self.free[row], self.future[row] = -1, -1
        self.free[row, : len(ordered)] = [each.free for each in ordered]
        self.future[row, : len(ordered)] = [each.future for each in ordered]


class _Initial:
    """The shared devices of the snapshot, read as far as somebody asks; shared by all copies."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def at(self, column: int) -> Sequence[_Device]:
        """Return those of one node."""
        devices = self._snapshot.shared.get(self._snapshot.nodes.nodes[column].name, ())
        # Who overstates a node's memory or asks for more than there is must not stop the plan for everybody.
        whole = int(self._snapshot.nodes.device_memory_mib[column]) * PART
        left = ((each, max(each.free, -whole)) for each in devices)
        return [_Device(each.name, min(free, whole), min(free + each.releasing, whole)) for each, free in left]

    @cached_property
    def parts(self) -> _Parts:
        """All of them as columns."""
        columns = self._snapshot.nodes.columns(name for name, devices in self._snapshot.shared.items() if devices)
        return _Parts({column: self.at(column) for column in columns})


class Devices:
    """Local to one board. `take` and `give_back` change it."""

    def __init__(self, snapshot: Snapshot, strategy: PlacementStrategy) -> None:
        """Start from the shared devices of the snapshot."""
        self._spread = strategy is PlacementStrategy.SPREAD
        self._memory_mib = snapshot.nodes.device_memory_mib
        self._shares = snapshot.nodes.shares_devices
        self._initial = _Initial(snapshot)
        # Of the nodes on which something has changed; the others are as at the start.
        self._changed: dict[int, Sequence[_Device]] = {}
        # All of them as columns; made when somebody first asks for a part.
        self._parts: _Parts | None = None

    def copy(self) -> Self:
        """Return a twin that may be changed."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing with the devices that these were copied from."""
        self._changed = dict(self._changed)
        self._parts = None if self._parts is None else self._parts.copy()

    def _at(self, column: int) -> Sequence[_Device]:
        changed = self._changed.get(column)
        return self._initial.at(column) if changed is None else changed

    def _put(self, column: int, devices: Sequence[_Device]) -> None:
        self._changed[column] = devices
        if self._parts is not None:
            self._parts.put(column, devices)

    def _columns(self) -> "_Parts":
        if self._parts is None:
            self._parts = self._initial.parts.copy()
            for column, devices in self._changed.items():
                self._parts.put(column, devices)
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

    def fits(self, sharing: Sharing, future_gpus: Amounts) -> Mask:
        """Return the nodes where a device in shared use takes the part, now or later, shape [node]."""
        mask, parts = np.zeros(self._memory_mib.shape[0], dtype=np.bool_), self._columns()
        fitting, _ = self._fitting_parts(parts, self._needs(sharing), future_gpus)
        mask[parts.columns] = fitting.any(axis=1)
        return mask

    def _fitting_parts(self, parts: "_Parts", needs: Amounts, future_gpus: Amounts) -> tuple[Flags, Flags]:
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
        need = int(self._needs(sharing)[column])
        shared = self._fitting(column, need, gpus[1])
        names = self._new_names(pod, column, min(sharing.devices, gpus[1] // GPU_MILLI))
        idle = [
            _Device(name, need if gpus[0] >= (index + 1) * GPU_MILLI else 0, need) for index, name in enumerate(names)
        ]
        ordered = [*idle, *reversed(shared)] if self._spread else [*shared, *idle]
        chosen = ordered[: sharing.devices]
        return tuple(each.name for each in chosen), any(each.free < need for each in chosen)

    def take(self, sharing: Sharing, column: int, names: tuple[str, ...], *, later: bool) -> Opened:
        """Have a pod hold its part of each of the named devices; return what whole devices that costs."""
        need = int(self._needs(sharing)[column])
        whole = int(self._memory_mib[column]) * PART
        devices = {each.name: each for each in self._at(column)}
        of_free = of_future = 0
        for name in names:
            device = devices.get(name)
            if device is None:
                of_future += 1
                of_free += not later
                device = _Device(name, 0 if later else whole, whole)
            elif device.future == whole:
                of_future += 1
            free = device.free if later else device.free - need
            devices[name] = replace(device, free=free, future=device.future - need)
        self._put(column, tuple(devices.values()))
        return Opened(of_free, of_future)

    def postpone(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Have a pod that was to start now wait; return how many devices are idle until then.

        A device is idle when nobody is on it any more: whoever opened it, others may have joined.
        """
        need, whole = int(self._needs(sharing)[column]), int(self._memory_mib[column]) * PART
        idle, devices = 0, []
        for each in self._at(column):
            left = each
            if each.name in names:
                is_idle = each.free + need == whole
                idle += is_idle
                left = replace(each, free=0 if is_idle else each.free + need)
            devices.append(left)
        self._put(column, devices)
        return idle

    def free_milli(self) -> int:
        """Return what is free of all shared devices when everything that is leaving has left, in thousandths."""
        parts = self._columns()
        whole = (self._memory_mib[parts.columns] * PART)[:, None]
        free = np.where(parts.future == whole, 0, parts.future * GPU_MILLI // np.maximum(whole, 1))
        return int(free[parts.future > 0].sum())

    def give_back(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Have a pod leave its parts; return how many devices are whole again in future."""
        need = int(self._needs(sharing)[column])
        again, devices = 0, []
        for each in self._at(column):
            left = replace(each, future=each.future + need) if each.name in names else each
            again += left is not each and self._is_whole(column, left)
            devices.append(left)
        self._put(column, devices)
        return again

    def _new_names(self, pod: Pod, column: int, number: int) -> list[str]:
        # A pod that moves may have opened a device here before, which others now use under its name.
        used = {each.name for each in self._at(column)}
        fresh = (name for index in count() if (name := f"{pod.uid}/{index}") not in used)
        return list(islice(fresh, max(number, 0)))

    def _needs(self, sharing: Sharing) -> NDArray[np.int64]:
        """Return how many parts of a device are asked for, shape [node]."""
        if sharing.memory_mib:
            return np.full_like(self._memory_mib, min(sharing.memory_mib, MOST_DEVICE_MIB + 1) * PART)
        return self._memory_mib * sharing.portion_ppm

    def _fitting(self, column: int, need: int, future_gpus: int) -> list[_Device]:
        """Return the devices that take the part, now or later, the fullest first; those whole again while GPUs last."""
        left, fitting = future_gpus // GPU_MILLI, []
        for each in sorted(self._at(column), key=lambda one: (one.future, one.name)):
            if each.future < need:
                continue
            if self._is_whole(column, each):
                left -= 1
                if left < 0:
                    continue
            fitting.append(each)
        return fitting

    def _is_whole(self, column: int, device: _Device) -> bool:
        return device.future == int(self._memory_mib[column]) * PART
