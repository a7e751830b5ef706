"""The free parts of devices in shared use, by node and in columns. `devices` decides which pod takes which part."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.model.names import NodeName
from app.model.pod import PPM
from app.model.snapshot import PART, Mask, SharedDevice, Snapshot
from app.scheduling.copies import Copied, Owned, Value

assert PART == PPM  # a millionth of a device of M MiB is M parts  # noqa: S101 # what `SharedDevices` relies on


class Divided(NamedTuple):
    """A device in shared use. It is a tuple for speed, because one plan makes thousands."""

    name: str
    free: int
    """Parts free now."""
    future: int
    """Parts free after all terminating pods are gone."""


Columns = slice | NDArray[np.int64]
"""Some nodes, by their columns."""

ALL = slice(None)

Flags = NDArray[np.bool_]
"""Shape [row, slot], as in `FreeParts`."""


class FreeParts(Copied):
    """The free parts of all shared devices: a row for each node with such devices, a slot for each device."""

    _rows: Owned[dict[int, int]]
    columns: Value[NDArray[np.int64]]
    """Shape [row]: the node's column."""
    free: Owned[NDArray[np.int64]]
    """Shape [row, slot], in parts. -1, which is less than any request, where there is no device."""
    future: Owned[NDArray[np.int64]]
    """The same after all terminating pods are gone."""

    def __init__(self, devices: Mapping[int, Sequence[Divided]]) -> None:
        self._rows = {column: row for row, column in enumerate(devices)}
        self.columns = np.array(list(devices), dtype=np.int64)
        slots = max((len(each) for each in devices.values()), default=0)
        self.free = np.full((len(devices), slots), -1, dtype=np.int64)
        self.future = self.free.copy()
        for column, each in devices.items():
            self.put(column, each)

    def put(self, column: int, devices: Sequence[Divided]) -> None:
        """Replace the devices of one node, in the order of their names."""
        row = self._rows.setdefault(column, len(self._rows))
        more = max(0, row + 1 - len(self.columns)), max(0, len(devices) - self.free.shape[1])
        if any(more):
            self.columns = np.pad(self.columns, (0, more[0]), constant_values=column)
            self.free, self.future = (
                np.pad(each, ((0, more[0]), (0, more[1])), constant_values=-1) for each in (self.free, self.future)
            )
        self.free[row], self.future[row] = -1, -1
        self.free[row, : len(devices)] = [each.free for each in devices]
        self.future[row, : len(devices)] = [each.future for each in devices]

    def of(self, columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of these nodes have a row, by their places in `columns`, and their parts in future."""
        if isinstance(columns, slice):
            return self.columns, self.future
        rows = np.array([self._rows.get(column, -1) for column in columns.tolist()], dtype=np.int64)
        places = (rows >= 0).nonzero()[0]
        return places, self.future[rows[places]]

    def differs(self, other: "FreeParts", nodes: int) -> Mask:
        """Return which of so many nodes have other parts in future, shape [node]."""
        if self.columns is other.columns and self.future.shape == other.future.shape:
            mask = np.zeros(nodes, dtype=np.bool_)
            mask[self.columns] = (self.future != other.future).any(axis=1)
            return mask
        slots = max(self.future.shape[1], other.future.shape[1])
        both = np.full((2, nodes, slots), -1, dtype=np.int64)
        for by_node, parts in zip(both, (self, other), strict=True):
            by_node[parts.columns, : parts.future.shape[1]] = parts.future
        different: Mask = (both[0] != both[1]).any(axis=1)
        return different


class Initial:
    """The shared devices of the snapshot, read on demand. All copies share it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[int, Sequence[Divided]] = {}

    def at(self, column: int) -> Sequence[Divided]:
        """Return the devices of one node, in the order of their names."""
        found = self._known.get(column)
        if found is None:
            found = self._known[column] = self._read(column)
        return found

    def _read(self, column: int) -> Sequence[Divided]:
        devices = self._snapshot.shared.get(self._snapshot.nodes.nodes[column].name, ())
        # A pod with a wrong GPU memory or a too large request must not stop the plan for all other pods.
        whole = int(self._snapshot.nodes.device_memory_mib[column]) * PART
        left = ((each, max(each.free, -whole)) for each in sorted(devices, key=lambda each: each.name))
        return [Divided(each.name, min(free, whole), min(free + each.releasing, whole)) for each, free in left]

    @cached_property
    def parts(self) -> FreeParts:
        """All shared devices as columns. Do not change them: later snapshots start from them."""
        shared, memo = self._snapshot.shared, self._snapshot.nodes.memo
        known: tuple[Mapping[NodeName, Sequence[SharedDevice]], FreeParts] | None = memo.get("shared parts")
        before, parts = known or ({}, None)
        if parts is not None and before is shared:
            return parts
        names = [name for name, devices in shared.items() if devices != before.get(name, ())]
        names += [name for name, devices in before.items() if devices and name not in shared]
        columns = self._snapshot.nodes.columns(names)
        # A row without devices would count as a node with shared GPUs.
        if parts is None or 2 * len(columns) > len(shared) or not all(map(self.at, columns)):
            columns = self._snapshot.nodes.columns(name for name, devices in shared.items() if devices)
            parts = FreeParts({column: self.at(column) for column in columns})
        elif columns:
            parts = parts.copy()
            for column in columns:
                parts.put(column, self.at(column))
        memo.remember("shared parts", (shared, parts))
        return parts
