"""Keeps the costs of the nodes from one snapshot to the next: only the nodes that have changed are judged again."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from app.model.resources import Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.mask_cache import few_of
from app.scheduling.placement.parts import FreeParts

MOST_KEPT = 16
"""The most kinds of pods whose costs are kept, those asked about last.

Each takes as much memory as four columns, and as the columns of the shared devices at most.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The costs for one kind of pods, and what they follow from."""

    future: Amounts
    """Shape [resource, node]: the rows of `FreeResources.future` that count."""
    parts: FreeParts
    costs: Amounts


class KeptCosts:
    """The costs for the kinds of pods asked about last. The threads of the planner share it: see `Memo`."""

    def __init__(self, rows: Sequence[int]) -> None:
        """Start empty. The costs follow from these rows of `FreeResources.future`, and from the shared devices."""
        self._rows = list(rows)
        self._kept: Mapping[Hashable, _Kept] = {}

    def answer(
        self, question: Hashable, stock: FreeResources, everywhere: Callable[[], Amounts], at: Callable[[int], int]
    ) -> Amounts:
        """Return the costs of all nodes, shape [node]. The caller may write to them. `at` tells those of one node."""
        future, parts = stock.future[self._rows], stock.devices.columns()
        kept = self._kept.get(question)
        changed = None if kept is None else _changed(kept, future, parts)
        if kept is None or changed is None or len(columns := changed.nonzero()[0]) > few_of(len(changed)):
            costs = everywhere()
        else:
            costs = kept.costs.copy()
            for column in columns.tolist():
                costs[column] = at(column)
        if not stock.changes:
            # Another state is that of a plan, in which the devices change in place.
            self._keep(question, _Kept(future, parts, costs.copy()))
        return costs

    def _keep(self, question: Hashable, kept: _Kept) -> None:
        # In one step, since another thread may read.
        others = [each for each in self._kept.items() if each[0] != question]
        self._kept = dict([*others[-MOST_KEPT + 1 :], (question, kept)])


def _changed(kept: _Kept, future: Amounts, parts: FreeParts) -> Mask | None:
    """Return the nodes with other amounts or shared devices than before, shape [node]. Return None if unknown."""
    changed: Mask = (future != kept.future).any(axis=0)
    if parts is not kept.parts:
        columns = parts.changed_since(kept.parts)
        if columns is None:
            return None
        changed[columns] = True
    return changed
