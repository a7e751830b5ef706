"""The rows of queues and of waiting PodGroups in the live view, from a Snapshot: this takes a thread."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from app.model.explanation import QueueStand
from app.model.live import Row, packed
from app.model.names import GroupKey
from app.model.podgroup import PodGroup
from app.model.queue import ORPHANED
from app.model.reason import Reason, Refusal
from app.model.resources import UNLIMITED
from app.model.seam import rfc3339
from app.model.snapshot import Snapshot
from app.scheduling.explain.position import line_up
from app.scheduling.explain.queue_summary import stands
from app.scheduling.policy import Policy

MOST_WAITING = 1000
"""The most waiting PodGroups that are shown, the first in line."""
MOST_QUEUES = 5000
UNDECIDED = "Leeboard has not decided about it yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The queues, and the PodGroups that wait."""

    queues: Sequence[Row]
    waiting: Sequence[tuple[GroupKey, Row]]
    """In line. The key of a row is empty: the caller knows it."""
    left_out: int
    """How many PodGroups wait behind those that are shown."""


def line_of(snapshot: Snapshot, refusals: Mapping[GroupKey, Refusal], policy: Policy, now: float) -> Line:
    """Return the queues and the waiting PodGroups of a snapshot."""
    keys = line_up(snapshot, policy, now=now)
    shown = islice((snapshot.groups[key] for key in keys if key in snapshot.groups), MOST_WAITING)
    waiting = [(group.key, _waiting(group, refusals.get(group.key), at)) for at, group in enumerate(shown, start=1)]
    queues = [_queue(stand) for stand in stands(snapshot)[:MOST_QUEUES]]
    return Line(queues=[*queues, *_unowned(snapshot, queues)], waiting=waiting, left_out=len(keys) - len(waiting))


def _waiting(group: PodGroup, refusal: Refusal | None, position: int) -> Row:
    since = min((pod.created_at for pod in group.pending), default=group.created_at)
    return [
        "",
        position,
        group.queue,
        group.key.namespace,
        group.name,
        len(group.pending),
        group.min_member,
        sum(pod.charge(0).gpu_milli for pod in group.pending),
        str(refusal.reason if refusal else Reason.DECIDING),
        packed(refusal.sentence) if refusal else UNDECIDED,
        rfc3339(since) if since else None,
    ]


def _queue(stand: QueueStand) -> Row:
    queue, share = stand.queue, stand.fair_share
    return [
        "" if queue.name == ORPHANED.name else queue.name,
        queue.parent or "",
        queue.display_name,
        queue.priority,
        _limited(queue.gpu_milli.deserved),
        None if share is None else _limited(share.gpu_milli),
        stand.allocated.gpu_milli,
        stand.requested.gpu_milli,
        _limited(queue.gpu_milli.limit),
        stand.waiting,
        stand.waiting_pods,
    ]


def _unowned(snapshot: Snapshot, queues: Sequence[Row]) -> Iterator[Row]:
    """Yield the row of pods whose queue does not exist, if they only wait."""
    groups = [group for group in snapshot.groups.values() if group.queue not in snapshot.queues]
    if not groups:
        return
    row = next((row for row in queues if row[0] == ""), None)
    waiting = [len(groups), sum(len(group.pending) for group in groups)]
    if row is not None:
        row[-2:] = waiting
        return
    requested = sum(pod.charge(0).gpu_milli for group in groups for pod in group.pending)
    yield ["", "", "", ORPHANED.priority, 0, None, 0, requested, 0, *waiting]


def _limited(amount: int) -> int | None:
    return None if amount >= UNLIMITED else amount
