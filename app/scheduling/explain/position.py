"""Counts the PodGroups that have their turn before a pending PodGroup, if the cluster state does not change.

The order is the order of a plan in which no PodGroup starts. So the position is exact for a PodGroup that finds no
room, and a good estimate for the others: each start changes the order.

1. gangs that are completed before other PodGroups start
2. by turn: PodGroups that stay within the fair share of their queue
3. by turn: PodGroups that borrow
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import nsmallest
from itertools import islice

from app.model.explanation import Position
from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.sentence import Name
from app.model.snapshot import Snapshot
from app.scheduling.explain.unsatisfiable import judged_at_once
from app.scheduling.policy import DEFAULT_POLICY, Policy
from app.scheduling.preemption.ageing import Precedence
from app.scheduling.preemption.lending import borrows
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import line
from app.scheduling.queues.order import Turn, Turns, is_torn, turn

FIRST = 5
"""How many of the PodGroups ahead in the queue are named."""

MOST_COUNTED = 1_000
"""How many turns are computed at most to find a position (10 ms)."""

MOST_LINED_UP = 5_000
"""With more pending PodGroups, ordering all of them delays webhooks for too long (25 ms)."""

MOST_QUEUES = 500
"""With more queues, computing the shares that order the queues takes too long for a question."""


def position(
    snapshot: Snapshot, key: GroupKey, policy: Policy = DEFAULT_POLICY, *, now: float = 0.0
) -> Position | None:
    """Return the place of a pending PodGroup; None if it has no turn, because free room alone would not start it."""
    snapshot = judged_at_once(snapshot, None if len(snapshot.groups) <= MOST_LINED_UP else _of_queue(snapshot, key))
    group = snapshot.groups.get(key)
    if group is None or not _has_turn(snapshot, group, group.queue):
        return None
    is_small = len(snapshot.queues) <= MOST_QUEUES and len(snapshot.groups) <= MOST_LINED_UP
    order = _Order(snapshot, policy, now) if is_small else None
    place: Callable[[PodGroup], tuple[int, Turn]] = (lambda each: (0, turn(each))) if order is None else order.place
    mine = place(group)
    ahead = [
        (theirs, each)
        for each in snapshot.groups.values()
        if each.queue == group.queue and _is_considered(each) and (theirs := place(each)) < mine
    ]
    first = nsmallest(FIRST, ahead, key=lambda one: one[0])
    overall = _Count(0, found=False) if order is None else order.overall(group)
    return Position(
        ahead_in_queue=len(ahead),
        first=tuple(Name(each.key.namespace, each.name) for _, each in first),
        ahead=max(overall.count, len(ahead)),
        is_least=not overall.found,
    )


def line_up(snapshot: Snapshot, policy: Policy = DEFAULT_POLICY, *, now: float = 0.0) -> Sequence[GroupKey]:
    """Return the pending PodGroups in the order of a plan in which none starts; those without a turn come last.

    Up to `MOST_COUNTED` PodGroups have their exact place. The others follow in the order within their queues.
    """
    snapshot = judged_at_once(snapshot)
    is_small = len(snapshot.queues) <= MOST_QUEUES and len(snapshot.groups) <= MOST_LINED_UP
    first = _Order(snapshot, policy, now).line_up() if is_small else {}
    others = (group for key, group in snapshot.groups.items() if key not in first)
    return [*first, *(each.key for each in sorted(others, key=lambda each: (not _is_considered(each), turn(each))))]


@dataclass(frozen=True, slots=True)
class _Count:
    count: int
    found: bool


class _Step(IntEnum):
    """When PodGroups get their first turns in a plan."""

    COMPLETED = 0
    WITHIN_SHARE = 1
    BORROWING = 2


class _Order:
    """The order in which a plan serves the pending PodGroups."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._state, self._borrow_last = WhatIf(snapshot, policy.strategy), policy.borrow_last
        self._state.divide()
        precedence = Precedence(self._state)
        started = (group for group in snapshot.groups.values() if group.placed)
        torn = (group for group in started if policy.keeps_room_for(group, now))
        self._completed = {group.key: group for group in torn if precedence.completes(group)}

    def step(self, group: PodGroup) -> _Step:
        """Return when the group gets its first turn."""
        if group.key in self._completed:
            return _Step.COMPLETED
        return _Step.BORROWING if self._borrow_last and borrows(self._state, group) else _Step.WITHIN_SHARE

    def place(self, group: PodGroup) -> tuple[_Step, Turn]:
        """Return the group's place in its queue, the lowest first."""
        return self.step(group), turn(group)

    def overall(self, group: PodGroup) -> _Count:
        """Return how many PodGroups of all queues are served before the group."""
        step, ahead = self.step(group), len(self._completed)
        if step is _Step.COMPLETED:
            return _Count(sum(turn(each) < turn(group) for each in self._completed.values()), found=True)
        turns, is_past = Turns(self._state.snapshot, self._state.ledger, self._state.shares), False
        for _ in range(MOST_COUNTED):
            each = turns.pop()
            if each is None or not _is_considered(each) or self._state.ledger.standing(each) is not None:
                return _Count(ahead, found=True)
            is_past |= each.key == group.key
            if is_past and step is _Step.WITHIN_SHARE:
                return _Count(ahead, found=True)
            theirs = self.step(each)
            ahead += theirs is not _Step.COMPLETED and (theirs < step or (theirs == step and not is_past))
        return _Count(ahead, found=False)

    def line_up(self) -> dict[GroupKey, None]:
        """Return the first PodGroups in their order."""
        turns, met = Turns(self._state.snapshot, self._state.ledger, self._state.shares), list[PodGroup]()
        while len(met) < MOST_COUNTED and (each := turns.pop()) is not None:
            met.append(each)
        met = [each for each in met if _is_considered(each) and each.key not in self._completed]
        steps = {each.key: self.step(each) for each in met}
        completed = sorted(self._completed.values(), key=turn)
        return dict.fromkeys(each.key for each in (*completed, *sorted(met, key=lambda each: steps[each.key])))


def _of_queue(snapshot: Snapshot, key: GroupKey) -> list[GroupKey]:
    """Return the group and the first pending PodGroups of the same queue."""
    mine = snapshot.groups.get(key)
    others = (each.key for each in snapshot.groups.values() if mine is not None and each.queue == mine.queue)
    return [key, *islice(others, MOST_LINED_UP)]


def _has_turn(snapshot: Snapshot, group: PodGroup, queue: QueueName) -> bool:
    if not _is_considered(group) or queue not in snapshot.queues:
        return False
    is_parent = any(each.parent == queue for each in snapshot.queues.values())
    return not is_parent and not line(snapshot.queues, queue).problem


def _is_considered(group: PodGroup) -> bool:
    return group.refusal is None or is_torn(group)
