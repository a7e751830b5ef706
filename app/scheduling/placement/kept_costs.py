"""Keeps the costs of the nodes from one snapshot to the next: only the nodes that have changed are judged again."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.model.resources import Amounts
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.parts import FreeParts

MOST_KEPT = 64
"""Costs are kept for at most this many kinds of pods, those requested last. On a published trace these are 94 % of the
pods. Each takes as much memory as one column.
"""


class _Known(NamedTuple):
    """The nodes at the last question, and all costs that are kept. It never changes, because threads share it."""

    future: Amounts
    """Shape [resource, node]: what the costs follow from, beside `parts`."""
    parts: FreeParts
    number: int
    """How often some nodes have changed."""
    changed: Amounts
    """Shape [node]: the `number` of the last change of each node."""
    costs: Mapping[Hashable, tuple[Amounts, int]]
    """By question, each with the `number` that it includes."""

    def at(self, future: Amounts, parts: FreeParts) -> "_Known":
        """Return the same with the nodes as they are now."""
        changed = (future != self.future).any(axis=0)
        if parts is not self.parts:
            changed |= parts.differs(self.parts, len(changed))
        if not changed.any():
            return self
        number = self.number + 1
        changes = np.where(changed, np.int64(number), self.changed)
        return _Known(future, parts, number, changes, self.costs)

    def keeping(self, question: Hashable, costs: Amounts) -> "_Known":
        """Return the same with these costs. The costs must not be changed."""
        kept = dict(self.costs)
        kept.pop(question, None)
        if len(kept) >= MOST_KEPT:
            del kept[next(iter(kept))]
        kept[question] = costs, self.number
        return _Known(self.future, self.parts, self.number, self.changed, kept)


class KeptCosts:
    """The costs for the kinds of pods asked about last, by snapshot after snapshot with one table of nodes."""

    def __init__(self, rows: Sequence[int]) -> None:
        """Start empty. The costs follow from these rows of `FreeResources.future`, and from the shared devices."""
        self._rows = list(rows)
        self._known: _Known | None = None

    def answer(
        self,
        question: Hashable,
        stock: FreeResources,
        everywhere: Callable[[], Amounts],
        among: Callable[[NDArray[np.int64]], Amounts | Sequence[int]],
    ) -> Amounts:
        """Return the costs of all nodes, shape [node]. The caller may write to them. `among` tells those of some nodes.

        The free resources are still those of the snapshot: what a plan takes is not kept, and changes in place.
        """
        future, parts, known = stock.future[self._rows], stock.devices.columns(), self._known
        if known is None:
            known = _Known(future, parts, 0, np.zeros(future.shape[1], dtype=np.int64), {})
        known = known.at(future, parts)
        costs, seen = known.costs.get(question, (None, 0))
        columns = (known.changed > seen).nonzero()[0]
        if costs is None or 2 * len(columns) > len(known.changed):
            costs = everywhere()
        elif len(columns):
            costs = costs.copy()
            costs[columns] = among(columns)
        self._known = known.keeping(question, costs)
        return costs.copy()
