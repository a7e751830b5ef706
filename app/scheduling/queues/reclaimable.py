"""Judges whether a queue may reclaim what other queues hold: on exact sums, level by level of the queue tree.

`victims` and `search` decide which pods would be evicted and whether this helps. Rules: KAI v0.13 (proportion plugin,
`reclaimable`), 6 to 8 of its semantics:

1. reclaim may begin: the leaf queue stays within its fair share, and without preemptibility also within its deserved
   share
2. each batch of victims is fair to take, judged where the two queue lines differ, with earlier batches removed
3. afterwards no queue on the reclaimer's line is fuller than a sibling from which something was taken
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.model.decision import Share
from app.model.names import QueueName
from app.model.podgroup import PodGroup
from app.model.resources import CPU, GPU, MEMORY, QUOTA_AXES, UNLIMITED
from app.scheduling.queues.accounts import Account, Quantities, quantities
from app.scheduling.queues.quota import QueueLedger

SATURATION_MILLI = 1000
"""The factor by which a reclaimer's saturation is raised, in thousandths (KAI's `reclaimerUtilizationMultiplier` of 1).
"""

NO_SHARE = Share()
"""The share of an invalid queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntitlement:
    """What one queue is entitled to, and what it holds. Every field is in the order of `QUOTA_AXES`."""

    deserved: Sequence[int]
    allocatable: Quantities
    """What the queue may keep: the larger of deserved and fair share, up to its limit."""
    allocated: Sequence[int]

    @staticmethod
    def of(account: Account, fair_share: Quantities) -> "QueueEntitlement":
        """Read an account. Do not charge the account while this object is used."""
        deserved, limit = account.deserved, account.limit
        cpu, memory, gpu = (min(max(deserved[axis], fair_share[axis]), limit[axis]) for axis in QUOTA_AXES)
        return QueueEntitlement(deserved=deserved, allocatable=(cpu, memory, gpu), allocated=account.allocated)


def within(ceiling: Sequence[int], held: Sequence[int], request: Quantities = (0, 0, 0)) -> bool:
    """Return whether `held` and `request` together stay within the ceiling in every resource, requested or not."""
    # Written out for speed: the victim search calls it for every batch of every what-if.
    return (
        held[CPU] + request[CPU] <= ceiling[CPU]
        and held[MEMORY] + request[MEMORY] <= ceiling[MEMORY]
        and held[GPU] + request[GPU] <= ceiling[GPU]
    )


def fits_strategy(
    reclaimer: QueueEntitlement, victim: QueueEntitlement, remaining: Sequence[int], request: Quantities, /
) -> bool:
    """Return whether one more batch may be taken from a queue that still holds `remaining`."""
    return maintains_fair_share(victim, remaining) or guarantees_deserved(reclaimer, victim, remaining, request)


def maintains_fair_share(victim: QueueEntitlement, remaining: Sequence[int]) -> bool:
    """Return whether the victim's queue holds more of some resource than it may keep."""
    return not within(victim.allocatable, remaining)


def guarantees_deserved(
    reclaimer: QueueEntitlement, victim: QueueEntitlement, remaining: Sequence[int], request: Quantities, /
) -> bool:
    """Return whether the reclaimer requests only what it deserves, from a queue that is above its deserved share."""
    return within(reclaimer.deserved, reclaimer.allocated, request) and not within(victim.deserved, remaining)


class _Taken:
    """What the queues still hold while batch after batch is taken; local to one judgement."""

    def __init__(self) -> None:
        self.remaining: dict[QueueName, list[int]] = {}
        """The amounts of the queues from which something was taken, ancestors included."""
        self.involved: dict[QueueName, set[int]] = {}
        """The axes of what was taken from each queue."""

    def touch(self, line: Sequence[Account], axes: set[int]) -> None:
        """Start the counting for a line of queues."""
        for account in line:
            self.remaining.setdefault(account.name, list(account.allocated))
            self.involved.setdefault(account.name, set()).update(axes)

    def take(self, line: Sequence[Account], chunk: Quantities) -> None:
        """Subtract a batch from a queue and all its ancestors."""
        for account in line:
            remaining = self.remaining[account.name]
            for axis in QUOTA_AXES:
                remaining[axis] -= chunk[axis]

    def held(self, account: Account) -> Sequence[int]:
        """Return what the queue still holds."""
        return self.remaining.get(account.name, account.allocated)


class Judgement:
    """Judges reclaim for one PodGroup that needs `request`. Do not charge the ledger while it is used."""

    def __init__(
        self,
        ledger: QueueLedger,
        shares: Mapping[QueueName, Share],
        group: PodGroup,
        request: Quantities,
        *,
        saturation_milli: int = SATURATION_MILLI,
    ) -> None:
        self._ledger = ledger
        self._shares = shares
        self._request = request
        self._preemptible = group.preemptible
        self._saturation_milli = saturation_milli
        self._line = ledger.ancestors(group.queue)
        self._axes = {axis for axis in QUOTA_AXES if request[axis] > 0}

    def may_begin(self) -> bool:
        """Return whether the group's own queue is entitled to the request, whatever the victims are."""
        if not self._line or self._line[0].queue.problem:
            return False
        leaf = self._line[0]
        fits = within(self._fair_share(leaf), leaf.allocated, self._request)
        return fits and (self._preemptible or self._is_within_quota(leaf))

    def takeable(self, names: Iterable[QueueName]) -> Iterator[QueueName]:
        """Yield the leaf queues from which anything may be taken at all."""
        fair: dict[QueueName, bool] = {}
        for name in names:
            parting = self._parting(self._ledger.ancestors(name))
            if parting is None:
                continue
            # Queues whose lines differ from the own line at the root mostly share one ancestor there.
            theirs = parting[1].name
            if theirs not in fair:
                mine, other = (QueueEntitlement.of(account, self._fair_share(account)) for account in parting)
                fair[theirs] = fits_strategy(mine, other, other.allocated, self._request)
            if fair[theirs] and self._may_stay_behind(name):
                yield name

    def _may_stay_behind(self, victim: QueueName) -> bool:
        """Return whether the own line is less saturated than the victim's line before anything is taken."""
        taken = _Taken()
        taken.touch(self._ledger.ancestors(victim), set())
        return all(self._stays_behind(account, taken) for account in self._line)

    def reclaimable(self, victims: Mapping[QueueName, Sequence[Quantities]]) -> bool:
        """Return whether these batches may be taken, by the leaf queues that hold them, in the order of eviction.

        A pod that gets another place in the same plan is no victim: leave it out.
        """
        taken = _Taken()
        if not all(self._take_from(name, chunks, taken) for name, chunks in victims.items() if chunks):
            return False
        return all(self._stays_behind(account, taken) for account in self._line)

    def _take_from(self, name: QueueName, chunks: Sequence[Quantities], taken: _Taken) -> bool:
        """Take the batches of one queue while that is fair. Return whether all of them were taken."""
        line = self._ledger.ancestors(name)
        parting = self._parting(line)
        if parting is None:
            return False
        mine, theirs = (QueueEntitlement.of(account, self._fair_share(account)) for account in parting)
        taken.touch(line, {axis for axis in QUOTA_AXES if any(chunk[axis] > 0 for chunk in chunks)})
        remaining = taken.remaining[parting[1].name]
        for chunk in chunks:
            if not fits_strategy(mine, theirs, remaining, self._request):
                return False
            taken.take(line, chunk)
        return True

    def _parting(self, line: Sequence[Account]) -> tuple[Account, Account] | None:
        """Return the topmost queues in which the two lines differ. Return None when one line is part of the other."""
        for mine, theirs in zip(reversed(self._line), reversed(line), strict=False):
            if mine is not theirs:
                return mine, theirs
        return None

    def _stays_behind(self, account: Account, taken: _Taken) -> bool:
        """Return whether one queue on the line, with the request, stays less saturated than touched siblings."""
        held = [amount + asked for amount, asked in zip(taken.held(account), self._request, strict=True)]
        for name, remaining in taken.remaining.items():
            sibling = self._ledger.accounts[name]
            if sibling is account or sibling.queue.parent != account.queue.parent:
                continue
            for axis in taken.involved[name] | self._axes:
                mine, theirs = self._fair_share(account)[axis], self._fair_share(sibling)[axis]
                if self._is_fuller((held[axis], mine), (remaining[axis], theirs)):
                    return False
        return self._preemptible or self._is_within_quota(account)

    def _is_fuller(self, mine: tuple[int, int], theirs: tuple[int, int]) -> bool:
        """Compare two pairs of use and fair share by their quotients, exactly. Up to a quotient of 1 none is full."""
        (use, share), (their_use, their_share) = mine, theirs
        if use <= share or UNLIMITED in (share, their_share) or their_share <= 0:
            return False
        # A share of 0 that is used is infinitely full. The products give the same result: 0 is never more.
        return use * self._saturation_milli * their_share >= their_use * 1000 * share

    def _is_within_quota(self, account: Account) -> bool:
        return within(account.deserved, account.non_preemptible, self._request)

    def _fair_share(self, account: Account) -> Quantities:
        return quantities(self._shares.get(account.name, NO_SHARE).fair_share)
