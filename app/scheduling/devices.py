"""The shared devices of a board: which of them takes a part more, and when a device is whole again.

Whole devices are counted by the board's GPU column. A device somebody holds a part of is not in that column; one whose
holders are all leaving is whole again in future, and counted in the future column.
"""

from copy import copy
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.model.pod import PPM, Pod, Sharing
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import PART, Mask, Snapshot
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


class Devices:
    """Local to one board. `take` and `give_back` change it."""

    def __init__(self, snapshot: Snapshot, strategy: PlacementStrategy) -> None:
        """Start from the shared devices of the snapshot."""
        self._spread = strategy is PlacementStrategy.SPREAD
        self._memory_mib = snapshot.nodes.device_memory_mib
        self._shares = snapshot.nodes.shares_devices
        index = snapshot.nodes.index
        self._shared: dict[int, tuple[_Device, ...]] = {
            index[node]: tuple(_Device(each.name, each.free, each.free + each.releasing) for each in devices)
            for node, devices in snapshot.shared.items()
            if node in index
        }

    def copy(self) -> Self:
        """Return a twin that may be changed."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing with the devices that these were copied from."""
        self._shared = dict(self._shared)

    def room(self, sharing: Sharing, gpus: Amounts, future_gpus: Amounts, *, later: bool) -> Mask:
        """Return the nodes with enough devices that take the part, shape [node].

        `gpus` are the whole ones at that time, `future_gpus` those when everything that leaves has left, in milli.
        """
        needs = self._needs(sharing)
        whole = np.where(self._shares & (needs <= self._memory_mib * PART), gpus // GPU_MILLI, 0)
        mask: Mask = whole >= sharing.devices
        for column, devices in self._shared.items():
            fitting = self._fitting(column, int(needs[column]), int(future_gpus[column]))
            usable = fitting if later else [each for each in fitting if each.free >= needs[column]]
            # A device that is whole again in future is one of the future GPUs already.
            counted = sum(self._is_whole(column, each) for each in devices) if later else 0
            mask[column] = len(usable) + max(0, int(whole[column]) - counted) >= sharing.devices
        # A node with fewer than no GPUs left is overcommitted: which of its devices there really are, nobody knows.
        return mask & (gpus >= 0)

    def fits(self, sharing: Sharing, future_gpus: Amounts) -> Mask:
        """Return the nodes where a device in shared use takes the part, now or later, shape [node]."""
        mask = np.zeros(self._memory_mib.shape[0], dtype=np.bool_)
        needs = self._needs(sharing)
        for column in self._shared:
            mask[column] = bool(self._fitting(column, int(needs[column]), int(future_gpus[column])))
        return mask

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
        devices = {each.name: each for each in self._shared.get(column, ())}
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
        self._shared[column] = tuple(devices.values())
        return Opened(of_free, of_future)

    def postpone(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Have a pod that was to start now wait; return how many devices are idle until then.

        A device is idle when nobody is on it any more: whoever opened it, others may have joined.
        """
        need, whole = int(self._needs(sharing)[column]), int(self._memory_mib[column]) * PART
        idle, devices = 0, []
        for each in self._shared[column]:
            left = each
            if each.name in names:
                is_idle = each.free + need == whole
                idle += is_idle
                left = replace(each, free=0 if is_idle else each.free + need)
            devices.append(left)
        self._shared[column] = tuple(devices)
        return idle

    def free_milli(self) -> int:
        """Return what is free of all shared devices when everything that is leaving has left, in thousandths."""
        return sum(
            each.future * GPU_MILLI // (int(self._memory_mib[column]) * PART)
            for column, devices in self._shared.items()
            for each in devices
            if not self._is_whole(column, each)
        )

    def give_back(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Have a pod leave its parts; return how many devices are whole again in future."""
        need = int(self._needs(sharing)[column])
        again, devices = 0, []
        for each in self._shared.get(column, ()):
            left = replace(each, future=each.future + need) if each.name in names else each
            again += left is not each and self._is_whole(column, left)
            devices.append(left)
        self._shared[column] = tuple(devices)
        return again

    def _new_names(self, pod: Pod, column: int, number: int) -> list[str]:
        # A pod that moves may have opened a device here before, which others now use under its name.
        used = {each.name for each in self._shared.get(column, ())}
        fresh = (name for index in count() if (name := f"{pod.uid}/{index}") not in used)
        return list(islice(fresh, max(number, 0)))

    def _needs(self, sharing: Sharing) -> NDArray[np.int64]:
        """Return how many parts of a device are asked for, shape [node]."""
        if sharing.memory_mib:
            return np.full_like(self._memory_mib, sharing.memory_mib * PART)
        return self._memory_mib * sharing.portion_ppm

    def _fitting(self, column: int, need: int, future_gpus: int) -> list[_Device]:
        """Return the devices that take the part, now or later, the fullest first; those whole again while GPUs last."""
        left, fitting = future_gpus // GPU_MILLI, []
        for each in sorted(self._shared.get(column, ()), key=lambda one: (one.future, one.name)):
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
