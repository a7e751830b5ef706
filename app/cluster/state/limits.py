"""Checks whether queues stay within their limits when pods with reserved room start."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from app.cluster.ledger.charges import Charges
from app.cluster.queues.tree import Queues
from app.cluster.state.claim_charges import ClaimCharges
from app.model.names import PodUid, QueueName
from app.model.resources import NOTHING, QUOTA_AXES, UNLIMITED, Resources


class QueueLimits:
    """What queues with a limit hold at one moment, with queues below; other pods that wait for room do not count."""

    def __init__(self, charges: Charges, queues: Queues, claim_charges: ClaimCharges) -> None:
        """Sum nothing before a queue with a limit is checked: the sums of 1,000 queues take time."""
        self._charges = charges
        self._queues = queues
        self._claim_charges = claim_charges
        self._sums: Mapping[QueueName, tuple[Resources, Resources]] | None = None
        self._started: dict[QueueName, Resources] = {}
        self._started_claims: dict[PodUid, None] = {}
        """Claims that started pods share: each queue pays for them once."""

    def admit(self, uids: Collection[PodUid]) -> bool:
        """Whether these pods may start now: pods that are being deleted still count."""
        return self._admit(uids, later=False)

    def admit_later(self, uids: Collection[PodUid]) -> bool:
        """Whether these pods may start when all pods that are being deleted are gone."""
        return self._admit(uids, later=True)

    def start(self, uids: Collection[PodUid]) -> None:
        """Count these pods from now on, because they start."""
        for queue, paid in self._paid(uids).items():
            for above in self._queues.line(queue):
                self._started[above] = self._started.get(above, NOTHING) + paid
        self._started_claims.update(dict.fromkeys(name for name, _ in self._claim_charges.awaited_payments(uids)))

    def _admit(self, uids: Collection[PodUid], *, later: bool) -> bool:
        asked = ((limits, paid) for queue, paid in self._paid(uids).items() for limits in self._limits_above(queue))
        return all(self._is_within(name, limit, paid, later=later) for (name, limit), paid in asked)

    def _limits_above(self, queue: QueueName) -> Iterable[tuple[QueueName, Sequence[int]]]:
        return self._queues.limits_above(queue).items()

    def _paid(self, uids: Collection[PodUid]) -> Mapping[QueueName, Resources]:
        paid: dict[QueueName, Resources] = {}
        claims = (each for each in self._claim_charges.awaited_payments(uids) if each[0] not in self._started_claims)
        for charge in (*map(self._charges.get, uids), *(charge for _, charge in claims)):
            if charge is not None and charge.queue is not None:
                paid[charge.queue] = paid.get(charge.queue, NOTHING) + charge.paid
        return paid

    def _is_within(self, name: QueueName, limit: Sequence[int], paid: Resources, *, later: bool) -> bool:
        held, leaving = self._held(name)
        there = held + self._started.get(name, NOTHING)
        return not any(
            asked and there.amounts[axis] - (leaving.amounts[axis] if later else 0) + asked > limit[axis] != UNLIMITED
            for axis, asked in ((axis, paid.amounts[axis]) for axis in QUOTA_AXES)
        )

    def _held(self, name: QueueName) -> tuple[Resources, Resources]:
        if self._sums is None:
            self._sums = self._summed()
        return self._sums.get(name, (NOTHING, NOTHING))

    def _summed(self) -> Mapping[QueueName, tuple[Resources, Resources]]:
        sums: dict[QueueName, tuple[Resources, Resources]] = {}
        for queue, held, leaving in self._charges.held_now():
            for above in self._queues.line(queue):
                before = sums.get(above, (NOTHING, NOTHING))
                sums[above] = before[0] + held, before[1] + leaving
        return sums
