"""Which nodes a search looks at first: those where the first victims in line are enough, found without naming them.

Approximate: only GPUs count here, and those who have left since are still in line. `victims` names the pods that leave.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.model.decision import Share
from app.model.names import QueueName
from app.model.resources import GPU, Amounts
from app.model.snapshot import Mask
from app.scheduling.preemption.evictable import Evictable
from app.scheduling.preemption.victims import VictimCandidates
from app.scheduling.queues.accounts import Account, quantities
from app.scheduling.queues.quota import QueueLedger

Places = NDArray[np.int64]
Levels = NDArray[np.float64]
Line = tuple[Places, Levels]
"""PodGroups in the order in which they leave, and how full their queue is then."""


class Foremost:
    """The order in which the pods of one moment would leave, as columns."""

    def __init__(
        self, evictable: Evictable, roster: VictimCandidates, ledger: QueueLedger, shares: Mapping[QueueName, Share]
    ) -> None:
        """Put everybody in line."""
        rows = evictable.rows
        self.changes = evictable.changes
        self._node = rows.node
        self._gpus = rows.gpus()
        held = np.bincount(rows.group, weights=self._gpus * rows.alive, minlength=len(evictable.ids)).astype(np.float64)
        self._place = _in_line(roster, ledger, shares, held)[rows.group]
        self._order = np.lexsort((self._place, rows.node))

    def nodes(self, leaving: Mask, candidates: Mask, needed: Amounts, most: int) -> Mask:
        """Return at most so many of the candidates, shape [node]: those where `needed` GPUs are free first.

        `leaving` are the pods that may leave, shape [pod]; `needed` has shape [node], in milli.
        """
        pods = self._order[leaving[self._order]]
        nodes, gpus = self._node[pods], self._gpus[pods]
        freed = np.cumsum(gpus)
        begins = np.flatnonzero(np.diff(nodes, prepend=-1))
        before = np.repeat((freed - gpus)[begins], np.diff(begins, append=len(pods)))
        # Thirds of a GPU add up to a little less than one.
        enough = candidates[nodes] & (freed - before >= needed[nodes] - 0.5)
        chosen, first = np.unique(nodes[enough], return_index=True)
        places = self._place[pods[enough][first]]
        found = np.zeros(len(candidates), dtype=np.bool_)
        found[chosen[np.argsort(places, kind="stable")[:most]]] = True
        return found


def _in_line(roster: VictimCandidates, ledger: QueueLedger, shares: Mapping[QueueName, Share], held: Levels) -> Places:
    """Return the place in line of every running PodGroup, shape [group]; those that never leave are last."""
    lines, tree = defaultdict[QueueName, list[Line]](list), dict[QueueName, tuple[Account, ...]]()
    for name in roster.queues:
        payer = ledger.payer(name)
        if payer is not None:
            numbers, _ = roster.order(name)
            lines[payer].append((numbers, np.zeros(len(numbers))))
            line = tuple(ledger.ancestors(payer))
            tree |= {account.name: line[index:] for index, account in enumerate(line)}
    top = list[Line]()
    for line in sorted(tree.values(), key=len, reverse=True):
        merged = _merged(lines[line[0].name], line[0], shares.get(line[0].name, Share()), held)
        (lines[line[1].name] if len(line) > 1 else top).append(merged)
    order = _by_level(top)
    places = np.full(len(held), len(held), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places


def _merged(lines: Sequence[Line], account: Account, share: Share, held: Levels) -> Line:
    order = _by_level(lines)
    gpus, whole = held[order], max(account.deserved[GPU], quantities(share.fair_share)[GPU], 1)
    return order, (account.allocated[GPU] - (np.cumsum(gpus) - gpus)) / whole


def _by_level(lines: Sequence[Line]) -> Places:
    if not lines:
        return np.zeros(0, dtype=np.int64)
    order = np.concatenate([order for order, _ in lines])
    levels = np.concatenate([levels for _, levels in lines])
    found: Places = order[np.argsort(-levels, kind="stable")]
    return found
