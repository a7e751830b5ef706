"""The shared devices of a placement state: which devices can take another part, and when a device is whole again.

Whole devices are counted in the GPU column of the placement state. A device of which a pod holds a part is not in that
column. When all holders of a device are terminating, the device is whole again in future and is counted in the future
column.
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
    """The shared devices of one placement state. `take` and `give_back` change them."""

    _spread: Value[bool]
    _memory_mib: Value[Amounts]
    _shares: Value[Mask]
    _initial: Common[Initial]
    _changed: Owned[dict[int, Sequence[Divided]]]
    """The nodes whose devices changed, each in the order of device names. All other nodes are as in the snapshot."""
    _parts: Lent[FreeParts | None]
    """All shared devices as columns. They are made at the first question and updated at each question."""
    _outdated: Owned[set[int]]
    _owns_parts: Claims[bool]

    def __init__(self, snapshot: Snapshot, strategy: PlacementStrategy) -> None:
        """Start with the shared devices of the snapshot."""
        self._spread = strategy is PlacementStrategy.SPREAD
        self._memory_mib = snapshot.nodes.device_memory_mib
        self._shares = snapshot.nodes.shares_devices
        self._initial = Initial(snapshot)
        self._changed, self._outdated = {}, set()
        self._parts, self._owns_parts = None, False

    def at(self, column: int) -> Sequence[Divided]:
        """Return the shared devices of one node, in the order of their names."""
        changed = self._changed.get(column)
        return self._initial.at(column) if changed is None else changed

    def _put(self, column: int, devices: Sequence[Divided]) -> None:
        self._changed[column] = devices
        self._outdated.add(column)

    def columns(self) -> FreeParts:
        """Return the shared devices of all nodes. Do not write to it. It is valid until a device changes."""
        if self._parts is None:
            self._parts = self._initial.parts
        if self._outdated and not self._owns_parts:
            self._parts, self._owns_parts = self._parts.copy(), True
        for column in self._outdated:
            self._parts.put(column, self._changed[column])
        self._outdated.clear()
        return self._parts

    def room(self, sharing: Sharing, gpus: Amounts, future_gpus: Amounts, *, later: bool) -> Mask:
        """Return the nodes with enough devices that can take the part, shape [node].

        `gpus` are the whole GPUs at that time. `future_gpus` are the whole GPUs after all terminating pods are gone.
        Both are in milli-GPUs.
        """
        needs, parts = self.needs(sharing), self.columns()
        whole = np.where(self._shares & (needs <= self._memory_mib * PART), gpus // GPU_MILLI, 0)
        mask: Mask = whole >= sharing.devices
        fitting, again = self._fitting_parts(parts, needs, future_gpus)
        if later:
            # `future_gpus` already counts a device that is whole again in future.
            idle = whole[parts.columns] - np.count_nonzero(again, axis=1)
        else:
            fitting &= parts.free >= needs[parts.columns, None]
            idle = whole[parts.columns]
        mask[parts.columns] = np.count_nonzero(fitting, axis=1) + np.maximum(idle, 0) >= sharing.devices
        # A node with a negative number of free GPUs is overcommitted. Which of its devices really exist is unknown.
        return mask & (gpus >= 0)

    def has_room(self, sharing: Sharing, column: int, gpus: tuple[int, int], *, later: bool) -> bool:
        """Return the same for one node. `gpus` are its whole GPUs now and in future, in milli-GPUs."""
        need, memory = self.need(sharing, column), self._memory_mib.item(column) * PART
        whole = gpus[0] // GPU_MILLI if self._shares[column] and need <= memory else 0
        fitting, again = self._fitting_at(column, need, gpus[1])
        if later:
            whole -= again
        else:
            fitting = [each for each in fitting if each.free >= need]
        return gpus[0] >= 0 and len(fitting) + max(whole, 0) >= sharing.devices

    def may_take(self, sharing: Sharing, gpus: Amounts) -> Mask:
        """Return the nodes that might take the part if this number of GPUs (milli) were whole there, shape [node].

        A node with any device in shared use counts too. This does not check which of the device's pods can be evicted.
        """
        takes = self._shares & (self.needs(sharing) <= self._memory_mib * PART)
        mask: Mask = takes & (gpus >= GPU_MILLI * sharing.devices)
        mask[self.columns().columns] = True
        return mask

    def has_fitting(self, sharing: Sharing, column: int, future_gpus: int) -> bool:
        """Return the same as `fits` for one node."""
        return bool(self._fitting_at(column, self.need(sharing, column), future_gpus)[0])

    def _fitting_at(self, column: int, need: int, future_gpus: int) -> tuple[list[Divided], int]:
        """Return the same as `_fitting_parts` for one node, the second value as a number."""
        left, fitting, again = future_gpus // GPU_MILLI, list[Divided](), 0
        for each in self.at(column):
            if each.future < need:
                continue
            if self._is_whole(column, each):
                if again >= left:
                    continue
                again += 1
            fitting.append(each)
        return fitting, again

    def fits(self, sharing: Sharing, future_gpus: Amounts) -> Mask:
        """Return the nodes where a device in shared use can take the part, now or later, shape [node]."""
        mask, parts = np.zeros(self._memory_mib.shape[0], dtype=np.bool_), self.columns()
        fitting, _ = self._fitting_parts(parts, self.needs(sharing), future_gpus)
        mask[parts.columns] = fitting.any(axis=1)
        return mask

    def _fitting_parts(self, parts: FreeParts, needs: Amounts, future_gpus: Amounts) -> tuple[Flags, Flags]:
        """Return which devices can take the part, now or later, and which of these become whole again."""
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
        """Return the devices that take the part, and whether the pod has to wait for one of them.

        Binpack: the fullest devices first; new devices only where shared ones do not suffice. Spread: new devices
        first, then the emptiest ones. `gpus` are the whole GPUs now and in future, in milli-GPUs.
        """
        need = self.need(sharing, column)
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
        """Assign a part of each named device to a pod. Return how many whole devices this takes."""
        need = self.need(sharing, column)
        whole = self._memory_mib.item(column) * PART
        devices = {each.name: each for each in self.at(column)}
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
        """Move the start of a pod from now to later. Return how many devices are idle until then.

        A device is idle when no pod uses it any more. Other pods may have joined the device after the first one.
        """
        need, whole = self.need(sharing, column), self._memory_mib.item(column) * PART
        idle, devices = 0, []
        for each in self.at(column):
            left = each
            if each.name in names:
                is_idle = each.free + need == whole
                idle += is_idle
                left = each._replace(free=0 if is_idle else each.free + need)
            devices.append(left)
        self._put(column, devices)
        return idle

    def free_milli(self) -> int:
        """Return the free amount of all shared devices after all terminating pods are gone, in milli-GPUs."""
        parts = self.columns()
        whole = (self._memory_mib[parts.columns] * PART)[:, None]
        free = np.where(parts.future == whole, 0, parts.future * GPU_MILLI // np.maximum(whole, 1))
        return int(free[parts.future > 0].sum())

    def free_parts(self) -> Amounts:
        """Return how many parts are free on the shared devices after all terminating pods are gone, shape [node]."""
        parts, free = self.columns(), np.zeros(self._memory_mib.shape[0], dtype=np.int64)
        free[parts.columns] = np.maximum(parts.future, 0).sum(axis=1)
        return free

    def give_back(self, sharing: Sharing, column: int, names: tuple[str, ...]) -> int:
        """Release the parts of a pod. Return how many devices become whole again in future."""
        need = self.need(sharing, column)
        again, devices = 0, []
        for each in self.at(column):
            left = each._replace(future=each.future + need) if each.name in names else each
            again += left is not each and self._is_whole(column, left)
            devices.append(left)
        self._put(column, devices)
        return again

    def whole_without(self, leaving: Iterable[Placed], column: int) -> int:
        """Return how many devices of a node would become whole again in future without these pods."""
        sharers = [(one.devices, one.pod.sharing) for one in leaving if one.pod.sharing is not None]
        if not sharers:
            return 0
        given_back = Counter[str]()
        for names, sharing in sharers:
            given_back.update(dict.fromkeys(names, self.need(sharing, column)))
        here, whole = self.at(column), self._memory_mib.item(column) * PART
        return sum(each.future < whole <= each.future + given_back[each.name] for each in here)

    def _new_names(self, pod: Pod, column: int, number: int) -> list[str]:
        # A pod that is moved may have opened a device here earlier. Other pods now use that device under its name.
        used = {each.name for each in self.at(column)}
        fresh = (name for index in count() if (name := f"{pod.uid}-{index}") not in used)
        return list(islice(fresh, max(number, 0)))

    def need(self, sharing: Sharing, column: int) -> int:
        """Return how many parts of a device of this node are requested."""
        return parts_of(sharing, self._memory_mib.item(column))

    def needs(self, sharing: Sharing) -> NDArray[np.int64]:
        """Return how many parts of a device of each node are requested, shape [node]."""
        if sharing.memory_mib:
            asked = min(sharing.memory_mib + sharing.overhead_mib, MOST_DEVICE_MIB + 1) * PART
            return np.full_like(self._memory_mib, asked)
        return self._memory_mib * sharing.portion_ppm + sharing.overhead_mib * PART

    def _fitting(self, column: int, need: int, future_gpus: int) -> list[Divided]:
        """Return the devices that can take the part, the fullest first; whole-again devices while GPUs last."""
        left, fitting = future_gpus // GPU_MILLI, []
        for each in sorted(self.at(column), key=_future):
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
