"""Counts during one plan which queues use which shared claims: each queue pays once, however many of its pods use one.

A claim is paid from the first pod of the queue that has a place until the last one is gone. The non-preemptible part
follows the non-preemptible pods in the same way.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.model.dra import ClaimKey
from app.model.names import QueueName
from app.model.pod import ResourceClaim, once_milli
from app.model.podgroup import PodGroup
from app.model.resources import Resources
from app.model.snapshot import NO_USERS, ClaimUsers, Snapshot
from app.scheduling.copies import Copied, Owned


class SharedClaims(Copied):
    """The users of the claims. Only `QueueLedger` calls the methods that change them."""

    _users: Owned[dict[tuple[QueueName, ClaimKey], ClaimUsers]]

    def __init__(self, snapshot: Snapshot) -> None:
        self._users = dict(snapshot.claim_users)

    def unpaid_milli(self, queue: QueueName, claims: Sequence[ResourceClaim]) -> int:
        """Return what the queue would pay for those claims that it does not pay for yet."""
        return once_milli(claim for claim in claims if not self._of(queue, claim.key).placed)

    def unpaid_firm_milli(self, queue: QueueName, claims: Sequence[ResourceClaim]) -> int:
        """Return the same for non-preemptible pods: what their start adds to the non-preemptible part."""
        return once_milli(claim for claim in claims if not self._of(queue, claim.key).firm)

    def add(self, group: PodGroup, claims: Sequence[ResourceClaim]) -> tuple[int, int]:
        """Count pods of a group that get places; return what the queue pays more, and the non-preemptible part."""
        return self._change(group, claims, 1)

    def remove(self, group: PodGroup, claims: Sequence[ResourceClaim]) -> tuple[int, int]:
        """Count pods of a group that lose their places; return what the queue pays more: nothing, or less than that."""
        return self._change(group, claims, -1)

    def _change(self, group: PodGroup, claims: Sequence[ResourceClaim], by: int) -> tuple[int, int]:
        paid = firm = 0
        for claim in claims:
            before = self._of(group.queue, claim.key)
            now = before._replace(
                placed=max(before.placed + by, 0), firm=max(before.firm + (0 if group.preemptible else by), 0)
            )
            self._users[group.queue, claim.key] = now
            paid += claim.cost_milli * ((now.placed > 0) - (before.placed > 0))
            firm += claim.cost_milli * ((now.firm > 0) - (before.firm > 0))
        return paid, firm

    def _of(self, queue: QueueName, key: ClaimKey) -> ClaimUsers:
        return self._users.get((queue, key), NO_USERS)


def with_milli(request: Resources, gpu_milli: int) -> Resources:
    """Return a request with so many more milli-GPUs."""
    return replace(request, gpu_milli=request.gpu_milli + gpu_milli) if gpu_milli else request
