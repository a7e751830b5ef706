"""Computes how long a PodGroup waits for its queue's share before running pods lose their work for it.

In a full cluster pods end every few seconds, and often in time. So a PodGroup waits until the GPU-seconds that it has
been owed are as many as the victims have worked for, or for `patience_s`. So evictions never lose more work than the
PodGroup has waited for. A PodGroup of a queue that holds less than it deserves does not wait.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from app.model.names import GroupKey
from app.model.pod import Placed
from app.model.podgroup import PodGroup
from app.model.resources import CPU, GPU, MEMORY
from app.scheduling.preemption.victims import VictimBatch, charge_at
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.reclaimable import within

FIRST_S = 5.0
"""After this time a PodGroup with too expensive victims is searched again, then each time after twice as long."""


@dataclass(slots=True)
class Patience:
    """Answers for one plan, made at `now` (seconds since the epoch). `may_lose` records when to search again."""

    patience_s: float
    now: float
    since: Mapping[GroupKey, float] = field(default_factory=dict)
    """Since when each PodGroup is pending for which pods may be evicted, in seconds since the epoch."""
    asks_again_at: float = field(default=inf, init=False)
    """When the next PodGroup may find victims that are too expensive now."""
    too_dear: set[GroupKey] = field(default_factory=set, init=False)
    """PodGroups for which pods would be evicted if the lost work were not more than they have waited for."""

    def may_lose(self, state: WhatIf, group: PodGroup, pods: Quantities, chunks: Iterable[VictimBatch]) -> bool:
        """Return whether the group has waited long enough for these chunks to be evicted or moved."""
        waited_s = self.now - self.since.get(group.key, self.now)
        if self.patience_s <= waited_s or _is_deserved(state, group, pods):
            return True
        axis = next((axis for axis in (GPU, CPU, MEMORY) if pods[axis]), GPU)
        lost = sum(self._worked(state, chunk.group, chunk.placed, axis) for chunk in chunks)
        if lost <= pods[axis] * waited_s:
            return True
        again_s = min(max(2 * waited_s, FIRST_S), self.patience_s)
        self.asks_again_at = min(self.asks_again_at, self.now - waited_s + again_s)
        return False

    def agrees(self, group: PodGroup, is_fair: Callable[[], bool], *, may_lose: bool) -> bool:
        """Return whether pods are evicted for the group; `may_lose` is the earlier answer for these victims.

        A group that only has to wait for longer is recorded in `too_dear`.
        """
        if may_lose:
            return is_fair()
        if group.key not in self.too_dear and is_fair():
            self.too_dear.add(group.key)
        return False

    def _worked(self, state: WhatIf, group: PodGroup, placed: Sequence[Placed], axis: int) -> float:
        """Return the work that is lost when these pods are evicted: an amount times seconds."""
        if group.started_at is None:
            return 0.0
        return (self.now - group.started_at) * sum(quantities(charge_at(state.snapshot, one))[axis] for one in placed)


def _is_deserved(state: WhatIf, group: PodGroup, pods: Quantities) -> bool:
    account = state.ledger.accounts.get(group.queue)
    return account is not None and within(account.deserved, account.allocated, pods)
