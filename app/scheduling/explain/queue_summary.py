"""Summarises queues: allocated, requested and fair share of each, and how many PodGroups are pending in it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
"""Up to so many queues, fair shares are computed to answer a question about one queue (a few ms)."""


def stands(snapshot: Snapshot) -> Sequence[QueueStand]:
    """Return the summary of every queue, invalid queues included, ordered by name.

    The last entry is the sum of pods whose queues do not exist, if there are such pods.
    """
    shares, waiting, claimed = fair_shares(judged_at_once(snapshot)), _waiting(snapshot), _claimed(snapshot)
    found = [_stand(snapshot, snapshot.queues[name], shares, waiting) for name in sorted(snapshot.queues)]
    found += [_stand(snapshot, ORPHANED, shares, NONE_WAIT)] if ORPHANED.name in shares else []
    return [replace(each, claimed_milli=claimed[each.queue.name]) for each in found] if claimed else found


def stand_of(snapshot: Snapshot, name: QueueName) -> QueueStand | None:
    """Return the summary of one queue; without its fair share if there are more than `MOST_DIVIDED` queues."""
    queue = snapshot.queues.get(name)
    if queue is None:
        return None
    if len(snapshot.queues) <= MOST_DIVIDED:
        return _stand(snapshot, queue, fair_shares(judged_at_once(snapshot)), _waiting(snapshot))
    # Only what pods in this queue and below it hold: one walk of the tree, without computing shares.
    below = [each for each in snapshot.usage if name in {each, *_charged(snapshot, each)}]
    usages = [snapshot.usage[each] for each in below]
    return QueueStand(
        queue=queue,
        allocated=_sum(each.allocated for each in usages),
        allocated_non_preemptible=_sum(each.allocated_non_preemptible for each in usages),
        requested=_sum(each.requested for each in usages),
        waiting=_waiting(snapshot).groups[name],
        waiting_pods=_waiting(snapshot).pods[name],
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What is pending in each queue and below it."""

    groups: Counter[QueueName]
    pods: Counter[QueueName]


NONE_WAIT = _Waiting(Counter(), Counter())


def _stand(snapshot: Snapshot, queue: Queue, shares: Mapping[QueueName, Share], waiting: _Waiting) -> QueueStand:
    share = shares.get(queue.name)
    # An invalid queue gets no share, but its running pods keep running.
    used = share or snapshot.usage.get(queue.name, Usage())
    return QueueStand(
        queue=queue,
        allocated=_sum([used.allocated]),
        allocated_non_preemptible=_sum([used.allocated_non_preemptible]),
        requested=_sum([used.requested]),
        fair_share=share.fair_share if share else None,
        waiting=waiting.groups[queue.name],
        waiting_pods=waiting.pods[queue.name],
    )


def _claimed(snapshot: Snapshot) -> Counter[QueueName]:
    """Return how many milli-GPUs claims hold for the pods of each queue and of those below it."""
    found = Counter[QueueName]()
    for name, usage in snapshot.usage.items():
        if usage.claimed_milli:
            for above in line(snapshot.queues, name).names if name in snapshot.queues else (ORPHANED.name,):
                found[above] += usage.claimed_milli
    return found


def _charged(snapshot: Snapshot, name: QueueName) -> Sequence[QueueName]:
    return line(snapshot.queues, name).charged if name in snapshot.queues else ()


def _sum(amounts: Iterable[Resources]) -> Resources:
    """Return the sum of the resources that queues divide: all except the number of pods."""
    return replace(sum(amounts, NOTHING), pods=0)


def _waiting(snapshot: Snapshot) -> _Waiting:
    groups, pods = Counter[QueueName](), Counter[QueueName]()
    for group in snapshot.groups.values():
        groups[group.queue] += 1
        pods[group.queue] += len(group.pending)
    found = _Waiting(Counter(), Counter())
    for name, count in groups.items():
        for above in line(snapshot.queues, name).names if name in snapshot.queues else ():
            found.groups[above] += count
            found.pods[above] += pods[name]
    return found
