"""Sums what is held on every node, by name and as columns over a table of nodes."""

from collections.abc import Iterable, Sequence

import numpy as np

from app.model.names import NodeName
from app.model.resources import AXES, MAX_COLUMN, NOTHING, Amounts, Resources, Scalars
from app.model.snapshot import NodeTable


class NodeSums:
    """Sums by node, of the resources of `AXES` and of extended resources. Only `Charges` changes them.

    A sum by name is exact, whatever pods request; a column holds `MAX_COLUMN` at most.
    """

    __slots__ = ("_by_name", "_scalars", "_table", "columns", "is_changed", "scalars")

    def __init__(self) -> None:
        """Start with no sums and no nodes."""
        self._by_name: dict[NodeName, list[int]] = {}
        self._scalars: dict[str, dict[NodeName, int]] = {}
        self._table = NodeTable.of(())
        self._lay_over(self._table, ())

    def __len__(self) -> int:
        """Return the number of nodes on which anything is held."""
        return len(self._by_name)

    def lay_over(self, table: NodeTable, names: Iterable[str]) -> None:
        """Lay the columns over these nodes: of `AXES`, and of the extended resources of these names."""
        wanted = list(names)
        if table.index is self._table.index and self.scalars.keys() == set(wanted):
            self._table = table  # the same nodes in the same order
        else:
            self._lay_over(table, wanted)

    def _lay_over(self, table: NodeTable, names: Iterable[str]) -> None:
        self._table = table
        self.is_changed = True
        """Whether the columns may have changed since a reader set this to False."""
        self.columns: Amounts = np.zeros((len(AXES), len(table.nodes)), dtype=np.int64)
        self.scalars: dict[str, Amounts] = {name: np.zeros(len(table.nodes), dtype=np.int64) for name in names}
        for name in self._by_name:
            self._write(name)
        for scalar in self.scalars:
            for name in self._scalars.get(scalar, ()):
                self._write_scalar(scalar, name)

    def add(self, name: NodeName, amounts: list[int], scalars: Scalars = ()) -> None:
        """Add amounts, which may be negative, to what is held on a node."""
        sums = self._by_name.setdefault(name, [0] * len(AXES))
        for axis, amount in enumerate(amounts):
            sums[axis] += amount
        self.is_changed = True
        self._write(name)
        if not any(sums):
            del self._by_name[name]
        for scalar, amount in scalars:
            self._add_scalar(scalar, name, amount)

    def on(self, name: NodeName) -> Resources:
        """Return what is held on a node."""
        return Resources.of(self.amounts_on(name))

    def amounts_on(self, name: NodeName) -> Sequence[int]:
        """Return what is held on a node, in the order of `AXES`; the caller must not keep the value."""
        return self._by_name.get(name, NOTHING.amounts)

    def scalar_on(self, scalar: str, name: NodeName) -> int:
        """Return what is held of an extended resource on a node."""
        return self._scalars.get(scalar, {}).get(name, 0)

    def _add_scalar(self, scalar: str, name: NodeName, amount: int) -> None:
        sums = self._scalars.setdefault(scalar, {})
        sums[name] = sums.get(name, 0) + amount
        if scalar in self.scalars:
            self._write_scalar(scalar, name)
        # Users may write any resource name into pods. A name that no pod holds any more is removed, so that names do
        # not pile up.
        if not sums[name]:
            del sums[name]
        if not sums:
            del self._scalars[scalar]

    def _write(self, name: NodeName) -> None:
        column = self._table.index.get(name)
        if column is not None:
            self.columns[:, column] = [min(amount, MAX_COLUMN) for amount in self._by_name[name]]

    def _write_scalar(self, scalar: str, name: NodeName) -> None:
        column = self._table.index.get(name)
        if column is not None:
            self.scalars[scalar][column] = min(self._scalars[scalar][name], MAX_COLUMN)
