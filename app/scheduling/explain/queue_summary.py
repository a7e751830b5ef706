"""How queues stand: what each holds, asks for and may have, and how many PodGroups wait in it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from app.model.decision import Share
from app.model.explanation import QueueStand
from app.model.names import QueueName
from app.model.queue import ORPHANED, Queue
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot, Usage
from app.scheduling.explain.unsatisfiable import judged_at_once
from app.scheduling.queues.accounts import line
from app.scheduling.queues.fairshare import fair_shares

MOST_DIVIDED = 500
"""Queues up to which their fair shares are computed for a question about one of them (a few ms)."""


def stands(snapshot: Snapshot) -> Sequence[QueueStand]:
    """Return how every queue stands, invalid ones included, in the order of their names.

    Last comes what pods hold whose queues do not exist, if there are any.
    """
    shares, waiting = fair_shares(judged_at_once(snapshot)), _waiting(snapshot)
    found = [_stand(snapshot, snapshot.queues[name], shares, waiting[name]) for name in sorted(snapshot.queues)]
    return [*found, _stand(snapshot, ORPHANED, shares, 0)] if ORPHANED.name in shares else found


def stand_of(snapshot: Snapshot, name: QueueName) -> QueueStand | None:
    """Return how one queue stands, without its fair share where there are too many queues to divide for that."""
    queue = snapshot.queues.get(name)
    if queue is None:
        return None
    if len(snapshot.queues) <= MOST_DIVIDED:
        return _stand(snapshot, queue, fair_shares(judged_at_once(snapshot)), _waiting(snapshot)[name])
    # Nothing but what the pods in it and below it hold: the tree is walked once, and nothing is divided.
    below = [each for each in snapshot.usage if name in {each, *_charged(snapshot, each)}]
    usages = [snapshot.usage[each] for each in below]
    return QueueStand(
        queue=queue,
        allocated=_sum(each.allocated for each in usages),
        allocated_non_preemptible=_sum(each.allocated_non_preemptible for each in usages),
        requested=_sum(each.requested for each in usages),
        waiting=_waiting(snapshot)[name],
    )


def _stand(snapshot: Snapshot, queue: Queue, shares: Mapping[QueueName, Share], waiting: int) -> QueueStand:
    share = shares.get(queue.name)
    # An invalid queue takes part in nothing, but pods that run in it go on.
    used = share or snapshot.usage.get(queue.name, Usage())
    return QueueStand(
        queue=queue,
        allocated=_sum([used.allocated]),
        allocated_non_preemptible=_sum([used.allocated_non_preemptible]),
        requested=_sum([used.requested]),
        fair_share=share.fair_share if share else None,
        waiting=waiting,
    )


def _charged(snapshot: Snapshot, name: QueueName) -> Sequence[QueueName]:
    return line(snapshot.queues, name).charged if name in snapshot.queues else ()


def _sum(amounts: Iterable[Resources]) -> Resources:
    """Add up what queues divide, which is all but the number of pods."""
    return replace(sum(amounts, NOTHING), pods=0)


def _waiting(snapshot: Snapshot) -> Counter[QueueName]:
    """Count the PodGroups that wait in each queue and below it."""
    counts = Counter[QueueName]()
    for name, count in Counter(group.queue for group in snapshot.groups.values()).items():
        for above in line(snapshot.queues, name).names if name in snapshot.queues else ():
            counts[above] += count
    return counts
