"""Indexes the labels of nodes: which keys any node has, and each node's value of one key as a column.

Tenants choose the keys in their requests. A key that no node has costs nothing, for any number of requests.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.model.pod import NODE_NAME_FIELD
from app.model.quantity import int64
from app.model.snapshot import Growing, Mask, NodeTable

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class LabelColumn:
    """One label over all nodes: `codes[node]` is the number of its value, -1 where the label is absent."""

    values: Mapping[str, int]
    codes: Codes

    def among(self, texts: Iterable[str]) -> Mask:
        """Return the nodes with one of these values, shape [node]."""
        return self.where([self.values[text] for text in texts if text in self.values])

    def where(self, values: list[int] | NDArray[np.int64]) -> Mask:
        """Return the nodes whose values have one of these numbers, shape [node]."""
        held = np.zeros(len(self.values) + 1, dtype=np.bool_)
        held[values] = True
        held[-1] = False  # the last entry is for nodes without the label (code -1)
        mask: Mask = held[self.codes]
        return mask


class LabelIndex(Growing):
    """The labels of one table of nodes. The index only caches: an answer never changes."""

    def __init__(self, nodes: NodeTable) -> None:
        """Read which keys exist. A column is made at the first question about its key."""
        self._nodes = nodes.nodes
        self._labels = [node.labels for node in nodes.nodes]
        self._keys = frozenset[str]().union(*self._labels)
        self._columns: dict[str, LabelColumn] = {}
        self._integers: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._absent = LabelColumn({}, np.full(len(nodes.nodes), -1, dtype=np.int32))

    def apart(self) -> Self:
        """Return one with the same columns."""
        other = copy(self)
        other.learn(self)
        return other

    def learn(self, other: Self) -> None:
        """Take over the columns of another one."""
        self._columns = other._columns | self._columns
        self._integers = other._integers | self._integers

    def column(self, key: str) -> LabelColumn:
        """Return the column of a label, or of the names of the nodes."""
        if key not in self._keys and key != NODE_NAME_FIELD:
            return self._absent
        if key not in self._columns:
            self._columns[key] = self._built(key)
        return self._columns[key]

    def integers(self, key: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the values of a label that are integers, and their numbers in its column."""
        if key not in self._keys:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        if key not in self._integers:
            read = list(map(int64, self.column(key).values))
            # The numbers follow the order of the values.
            numbers = [number for number, value in enumerate(read) if value is not None]
            values = [value for value in read if value is not None]
            self._integers[key] = np.array(values, dtype=np.int64), np.array(numbers, dtype=np.int64)
        return self._integers[key]

    def unknown(self, columns: AbstractSet[tuple[str, bool]]) -> int:
        """Return how many of the columns have not been made, for labels that nodes have; True stands for integers."""
        asked = ((key, of) for key, of in columns if key in self._keys or (key == NODE_NAME_FIELD and not of))
        return sum(key not in (self._integers if of else self._columns) for key, of in asked)

    def _built(self, key: str) -> LabelColumn:
        if key == NODE_NAME_FIELD:
            texts: list[str | None] = [node.name for node in self._nodes]
        else:
            texts = [labels.get(key) for labels in self._labels]
        # Uses functions that run in C where possible: one question may read 16 columns of 15,000 nodes.
        distinct = [text for text in dict.fromkeys(texts) if text is not None]
        values = dict(zip(distinct, range(len(distinct)), strict=True))
        numbers: dict[str | None, int] = {None: -1}
        numbers.update(values)
        return LabelColumn(values, np.fromiter(map(numbers.__getitem__, texts), dtype=np.int32, count=len(texts)))


def labels_of(nodes: NodeTable) -> LabelIndex:
    """Return the index of a table. Tables whose nodes have the same labels share one index."""
    index: LabelIndex | None = nodes.label_memo.get("index")
    if index is None:
        index = nodes.label_memo.setdefault("index", LabelIndex(nodes))
    return index
