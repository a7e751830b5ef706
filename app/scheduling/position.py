"""How many PodGroups have their turn before one that waits, if everything stayed as it is.

It is the order of `order.Turns` without anybody being started, so that it is right for whoever is refused, and a good
guess for the others: each start changes whose turn it is.
"""

from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from app.model.explanation import Position
from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.sentence import Name
from app.model.snapshot import Snapshot
from app.scheduling.accounts import line
from app.scheduling.fairshare import fair_shares
from app.scheduling.order import Turn, Turns, is_torn, turn
from app.scheduling.quota import Ledger
from app.scheduling.unsatisfiable import judged_at_once

FIRST = 5
"""Of those ahead in the queue: how many are named."""

MOST_COUNTED = 1_000
"""Turns that are given in order to find one (10 ms)."""

MOST_LINED_UP = 5_000
"""With more PodGroups that wait, lining them all up holds up webhooks for too long (15 ms)."""

MOST_QUEUES = 500
"""With more, the shares by which queues are ordered take too long for a question."""


def position(snapshot: Snapshot, key: GroupKey) -> Position | None:
    """Return the place of a waiting PodGroup; None when it has no turn, since nothing that is free would start it."""
    snapshot = judged_at_once(snapshot, None if len(snapshot.groups) <= MOST_LINED_UP else _of_queue(snapshot, key))
    group = snapshot.groups.get(key)
    if group is None or not _has_turn(snapshot, group, group.queue):
        return None
    mine = _place(group)
    ahead = [
        (place, each)
        for each in snapshot.groups.values()
        if each.queue == group.queue and _is_considered(each) and (place := _place(each)) < mine
    ]
    first = nsmallest(FIRST, ahead, key=lambda one: one[0])
    overall = _overall(snapshot, key)
    return Position(
        ahead_in_queue=len(ahead),
        first=tuple(Name(each.key.namespace, each.name) for _, each in first),
        ahead=max(overall.count, len(ahead)),
        is_least=not overall.found,
    )


@dataclass(frozen=True, slots=True)
class _Count:
    count: int
    found: bool


def _overall(snapshot: Snapshot, key: GroupKey) -> _Count:
    if len(snapshot.queues) > MOST_QUEUES or len(snapshot.groups) > MOST_LINED_UP:
        return _Count(0, found=False)
    turns = Turns(snapshot, Ledger(snapshot), fair_shares(snapshot))
    for number in range(MOST_COUNTED):
        group = turns.pop()
        if group is None or group.key == key:
            return _Count(number, found=group is not None)
    return _Count(MOST_COUNTED, found=False)


def _of_queue(snapshot: Snapshot, key: GroupKey) -> list[GroupKey]:
    """Return the first of the PodGroups that wait in the same queue, and this one."""
    mine = snapshot.groups.get(key)
    others = (each.key for each in snapshot.groups.values() if mine is not None and each.queue == mine.queue)
    return [key, *islice(others, MOST_LINED_UP)]


def _place(group: PodGroup) -> tuple[bool, Turn]:
    return not (group.started and group.owed > 0), turn(group)


def _has_turn(snapshot: Snapshot, group: PodGroup, queue: QueueName) -> bool:
    if not _is_considered(group) or queue not in snapshot.queues:
        return False
    is_parent = any(each.parent == queue for each in snapshot.queues.values())
    return not is_parent and not line(snapshot.queues, queue).problem


def _is_considered(group: PodGroup) -> bool:
    return group.refusal is None or is_torn(group)
