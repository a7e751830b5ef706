"""Computes how long a PodGroup waits before running pods lose their work for it.

In a full cluster pods end every few seconds, and often in time. So a PodGroup waits until the GPU-seconds that it has
been owed are as many as the victims have worked for, or for `longest_s`. So evictions never lose more work than the
PodGroup has waited for. A PodGroup of a queue that holds less than it deserves does not wait to reclaim.

Nobody is owed that pods move. So every PodGroup waits for consolidation, and `longest_s` is about a day for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import frexp, inf, ldexp

from app.model.names import GroupKey
from app.model.podgroup import PodGroup
from app.model.resources import CPU, GPU, MEMORY
from app.scheduling.preemption.victims import VictimBatch
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import Quantities
from app.scheduling.queues.reclaimable import within

MOVES = 288
"""So many times the patience for reclaim is the longest wait for pods to move: a day for five minutes."""

_CPU_BITS = 24

FIRST_S = 5.0
"""After this time a PodGroup with too expensive victims is searched again, then each time after twice as long."""


@dataclass(slots=True)
class Patience:
    """Answers for one plan, made at `now` (seconds since the epoch). `may_lose` records when to search again."""

    longest_s: float
    """After this time the lost work no longer counts, in seconds. 0 means no wait."""
    now: float
    spares_deserved: bool = True
    """Whether a PodGroup does not wait for what its queue deserves."""
    since: Mapping[GroupKey, float] = field(default_factory=dict)
    """Since when each PodGroup is pending for which pods may be evicted, in seconds since the epoch."""
    asks_again_at: float = field(default=inf, init=False)
    """When the next PodGroup may find victims that are too expensive now."""
    too_dear: set[GroupKey] = field(default_factory=set, init=False)
    """PodGroups for which pods would be evicted if the lost work were not more than they have waited for."""

    def may_lose(self, state: WhatIf, group: PodGroup, pods: Quantities, chunks: Iterable[VictimBatch]) -> bool:
        """Return whether the group has waited long enough for these chunks to be evicted or moved."""
        if self._is_over(group) or (self.spares_deserved and is_deserved(state, group, pods)):
            return True
        waited_s = self._waited_s(group)
        axis = self.axis(pods)
        lost = sum(self._worked(chunk, axis) for chunk in chunks)
        if lost <= pods[axis] * waited_s:
            return True
        self._ask_again(group)
        return False

    def most_lost(self, group: PodGroup, pods: Quantities) -> float:
        """Return an upper bound of the work in milli-GPU-seconds that may be lost for a group, if it requests GPUs.

        It is a power of two, so that PodGroups of one plan share few bounds. It grows when the group is searched again.
        """
        if self._is_over(group) or not pods[GPU]:
            return inf
        _, exponent = frexp(pods[GPU] * self._waited_s(group))
        return ldexp(1.0, exponent)

    def axis(self, pods: Quantities) -> int:
        """Return the resource by which lost work is compared with these pods' waiting."""
        return next((axis for axis in (GPU, CPU, MEMORY) if pods[axis]), GPU)

    def price(self, chunk: VictimBatch, axis: int) -> int:
        """Return a number that orders moves: by the work that they lose, then by the amount and the CPU.

        It is 0 without patience: then lost work does not count, and the eviction order decides.
        """
        if not self.longest_s:
            return 0
        worked = int(self._worked(chunk, axis))
        return ((worked + chunk.charge[axis]) << _CPU_BITS) + min(chunk.charge[CPU], (1 << _CPU_BITS) - 1)

    def find_too_dear(self, group: PodGroup) -> None:
        """Record that victims may exist that are too expensive now."""
        self.too_dear.add(group.key)
        self._ask_again(group)

    def _ask_again(self, group: PodGroup) -> None:
        """Make the group's search due again after twice the time that it has waited."""
        waited_s = self._waited_s(group)
        again_s = min(max(2 * waited_s, FIRST_S), self.longest_s)
        self.asks_again_at = min(self.asks_again_at, self.now - waited_s + again_s)

    def agrees(self, group: PodGroup, is_fair: Callable[[], bool], *, may_lose: bool) -> bool:
        """Return whether pods are evicted for the group; `may_lose` is the earlier answer for these victims.

        A group that only has to wait for longer is recorded in `too_dear`.
        """
        if may_lose:
            return is_fair()
        if group.key not in self.too_dear and is_fair():
            self.too_dear.add(group.key)
        return False

    def _waited_s(self, group: PodGroup) -> float:
        return self.now - self.since.get(group.key, self.now)

    def _is_over(self, group: PodGroup) -> bool:
        return self.longest_s <= self._waited_s(group)

    def _worked(self, chunk: VictimBatch, axis: int) -> float:
        """Return the work that is lost when a batch is evicted: an amount times seconds."""
        return chunk.group.unsaved_s(self.now) * chunk.charge[axis]


def is_deserved(state: WhatIf, group: PodGroup, pods: Quantities) -> bool:
    """Return whether the queue of the group deserves these pods."""
    account = state.ledger.accounts.get(group.queue)
    return account is not None and within(account.deserved, account.allocated, pods)
