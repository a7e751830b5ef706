"""Calculates how much of the cluster each queue may have now: deserved first, the rest by priority and weight.

This module only divides. `quota` enforces the limits, and `order` gives the order of PodGroups. The rules are KAI
v0.13's (`resource_division`), in exact integers. KAI uses doubles: where a part is a whole GPU up to its rounding
error, KAI's floor may be one GPU lower than ours.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from app.model.decision import Share
from app.model.dra import ClaimKey
from app.model.names import QueueName
from app.model.past import MICRO, Past
from app.model.queue import ORPHANED, WEIGHT_SCALE, Queue
from app.model.resources import CPU, GPU, MEMORY, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import NO_USERS, Snapshot
from app.scheduling.queues.accounts import Account, Quantities, quantities
from app.scheduling.queues.quota import QueueLedger

UNITS = {CPU: 1, MEMORY: 1, GPU: 1000}
"""The result of a round is cut to whole units: GPUs are divided as whole GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """The request of one queue for one resource, among its siblings."""

    name: str
    requested: int
    """What the queue and its descendants hold and request."""
    priority: int = 0
    created_at: float = 0.0
    deserved: int = 0
    limit: int = UNLIMITED
    over_quota_weight_micro: int = WEIGHT_SCALE
    usage_micro: int = 0
    """Past usage as a part of the cluster's capacity."""

    @property
    def requestable(self) -> int:
        """What the queue can use."""
        return min(self.requested, self.limit)


def divide(amount: int, claims: Sequence[ShareRequest], *, unit: int, k_micro: int = 0) -> list[int]:
    """Divide `amount` of one resource among siblings. The result is in the order of `claims`.

    The sum exceeds `amount` only where the deserved shares over-subscribe it.
    """
    amount = max(0, amount)
    shares = [_guaranteed(amount, claim) for claim in claims]
    return divide_surplus(max(0, amount - sum(shares)), claims, shares=shares, unit=unit, k_micro=k_micro)


def divide_surplus(
    surplus: int, claims: Sequence[ShareRequest], *, shares: Sequence[int], unit: int, k_micro: int = 0
) -> list[int]:
    """Add to `shares` what remains beyond the deserved shares: in rounds by weight, then the leftovers unit by unit."""
    division = _Division(claims=claims, shares=list(shares), unit=unit, k_micro=k_micro, left=surplus)
    levels = [division.level(priority) for priority in sorted({claim.priority for claim in claims}, reverse=True)]
    for level in levels:
        while division.left and division.round(level):
            pass
    for level in levels:
        division.give_leftovers(level)
    return division.shares


def _guaranteed(amount: int, claim: ShareRequest) -> int:
    deserved = amount if claim.deserved == UNLIMITED else claim.deserved
    return min(deserved, claim.requestable)


@dataclass(slots=True, kw_only=True)
class _Division:
    """One surplus during its division."""

    claims: Sequence[ShareRequest]
    unit: int
    k_micro: int
    # Only the methods below write it.
    shares: list[int]
    left: int
    fractions: dict[int, Fraction] = field(default_factory=dict)
    """By claim: what the cut to whole units took from it in the last round."""

    def level(self, priority: int) -> list[int]:
        return [index for index, claim in enumerate(self.claims) if claim.priority == priority]

    def round(self, level: Iterable[int]) -> bool:
        """Give each unsatisfied claim its part of the rest. Return whether another round has something to give."""
        wanting = [index for index in level if self._need(index) > 0]
        weights = self._weights(wanting)
        whole, pool = sum(weights), self.left
        if whole == 0:
            return False
        content = [self._give(index, pool * weight, whole) for index, weight in zip(wanting, weights, strict=True)]
        return any(content)

    def _need(self, index: int) -> int:
        return self.claims[index].requestable - self.shares[index]

    def _weights(self, wanting: Sequence[int]) -> list[int]:
        # w = max(0, n + k(n - usage)) with n = weight / sum of weights, scaled by that sum and by MICRO twice.
        claims = [self.claims[index] for index in wanting]
        total = sum(claim.over_quota_weight_micro for claim in claims)
        if total == 0 or self.k_micro == 0:
            return [claim.over_quota_weight_micro for claim in claims]
        grown = (MICRO + self.k_micro) * MICRO
        return [
            max(0, claim.over_quota_weight_micro * grown - self.k_micro * claim.usage_micro * total) for claim in claims
        ]

    def _give(self, index: int, part: int, whole: int) -> bool:
        """Give the claim `part / whole`, at most what it needs. Return whether the claim took less than its part."""
        need = self._need(index)
        if need * whole <= part:
            self.fractions.pop(index, None)
            self._add(index, need)
            return need * whole < part
        units, rest = divmod(part, whole * self.unit)
        self._add(index, units * self.unit)
        if rest:
            self.fractions[index] = Fraction(rest, whole)
        return False

    def _add(self, index: int, amount: int) -> None:
        self.shares[index] += amount
        self.left -= amount

    def give_leftovers(self, level: Iterable[int]) -> None:
        """Give one unit each to the claims that lost most by the cut; on a tie to the older queue."""
        cut = [index for index in level if index in self.fractions]
        for index in sorted(cut, key=self._leftover_order):
            self._add(index, min(self.unit, self.left))

    def _leftover_order(self, index: int) -> tuple[Fraction, float, str]:
        claim = self.claims[index]
        return -self.fractions[index], claim.created_at, claim.name


def fair_shares(snapshot: Snapshot) -> dict[QueueName, Share]:
    """Divide the snapshot's total down the queue tree. Children divide their parent's fair share.

    Queues are left out when they are invalid, or when an ancestor is missing, invalid or in a cycle. `ORPHANED` shows
    what is held by pods whose queues do not exist.
    """
    ledger = QueueLedger(snapshot)
    accounts, useful = ledger.accounts, _useful(ledger, snapshot)
    children: dict[QueueName | None, list[Account]] = {}
    for account in accounts.values():
        children.setdefault(account.queue.parent, []).append(account)
    fair: dict[QueueName, Quantities] = {}
    families: list[tuple[QueueName | None, Quantities]] = [(None, quantities(snapshot.total))]
    for parent, amounts in families:
        shares = _among(amounts, children.get(parent, ()), useful, snapshot.past)
        fair |= shares
        families += [(name, share) for name, share in shares.items() if name in children]
    told = (name for name, account in accounts.items() if not account.queue.problem or account.queue is ORPHANED)
    return {name: _share(accounts[name], fair[name]) for name in told}


def _useful(ledger: QueueLedger, snapshot: Snapshot) -> dict[QueueName, Sequence[int]]:
    """Return what each queue holds and requests, without requests that can never be satisfied."""
    useful: dict[QueueName, Sequence[int]] = {name: each.requested for name, each in ledger.accounts.items()}
    lost = ((each.queue, each.request) for each in snapshot.unsatisfiable.values())
    for queue, amounts in (*lost, *_useless_claims(snapshot), *snapshot.overstated.items()):
        payer = ledger.accounts.get(queue)
        # Requests in an invalid queue were never counted.
        for account in () if payer is None or payer.queue.problem else ledger.ancestors(queue):
            before, request = useful[account.name], quantities(amounts)
            useful[account.name] = [amount - each for amount, each in zip(before, request, strict=True)]
    return useful


def _useless_claims(snapshot: Snapshot) -> Iterator[tuple[QueueName, Resources]]:
    """Yield what queues request for shared claims all of whose pods can never run."""
    if not snapshot.claim_users:
        return
    users, cost_milli = Counter[tuple[QueueName, ClaimKey]](), dict[ClaimKey, int]()
    for lost in snapshot.unsatisfiable.values():
        for claim in lost.claims:
            users[lost.queue, claim.key] += 1
            cost_milli[claim.key] = claim.cost_milli
    for (queue, key), count in users.items():
        if count >= snapshot.claim_users.get((queue, key), NO_USERS).known:
            yield queue, Resources(gpu_milli=cost_milli[key])


def _among(
    amounts: Quantities, family: Sequence[Account], useful: Mapping[QueueName, Sequence[int]], past: Past
) -> dict[QueueName, Quantities]:
    cpu, memory, gpu = (
        divide(
            amounts[axis],
            [_claim(account, axis, useful[account.name][axis], past) for account in family],
            unit=UNITS[axis],
            k_micro=past.k_micro,
        )
        for axis in QUOTA_AXES
    )
    return {account.name: share for account, share in zip(family, zip(cpu, memory, gpu, strict=True), strict=True)}


def _claim(account: Account, axis: int, requested: int, past: Past) -> ShareRequest:
    queue: Queue = account.queue
    return ShareRequest(
        name=account.name,
        requested=requested,
        priority=queue.priority,
        created_at=queue.created_at,
        deserved=account.deserved[axis],
        limit=account.limit[axis],
        over_quota_weight_micro=queue.entitlement(axis).over_quota_weight_micro,
        usage_micro=past.usage_micro.get(account.name, (0, 0, 0))[axis],
    )


def _share(account: Account, fair: Quantities) -> Share:
    return Share(
        deserved=_resources(account.deserved),
        fair_share=_resources(fair),
        allocated=_resources(account.allocated),
        allocated_non_preemptible=_resources(account.non_preemptible),
        requested=_resources(account.requested),
    )


def _resources(amounts: Sequence[int]) -> Resources:
    return Resources(cpu_milli=amounts[CPU], memory_bytes=amounts[MEMORY], gpu_milli=amounts[GPU])
