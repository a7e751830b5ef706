"""Who would have to leave first: the reverse of the order in which PodGroups get their turns, chunk by chunk.

Each queue is judged as if what was named before had left already. Whether anybody has to leave is left to `search`.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from app.model.decision import Share
from app.model.names import GroupKey, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, QUOTA_AXES, Resources
from app.model.snapshot import Snapshot
from app.scheduling.order import Contender, Turn, last_chunk, turn
from app.scheduling.quota import Ledger, Quantities, quantities


class Safety(Enum):
    """How far a running PodGroup is safe from those who want its room."""

    NONE = "all of it may have to leave"
    MINIMUM = "only pods beyond its minimum may have to leave"
    ALL = "nobody of it may have to leave"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """Pods of one PodGroup that leave together."""

    group: PodGroup
    """As it is before they leave."""
    placed: tuple[Placed, ...]
    charge: Quantities
    """What their queue no longer pays when they have left."""
    turn: Turn
    """The group's place in its queue before they leave: the last goes first."""


class Roster:
    """The running PodGroups that may ever have to leave, by queue, the first to leave first; made once a plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Sort what runs; the chunks are the first of each group."""
        self._snapshot = snapshot
        self.total = snapshot.total
        """What the queues divide."""
        queues: dict[QueueName, list[Chunk]] = {}
        for group in snapshot.running.values():
            chunk = self.chunk(group)
            if chunk is not None:
                queues.setdefault(group.queue, []).append(chunk)
        for chunks in queues.values():
            chunks.sort(key=lambda chunk: chunk.turn, reverse=True)
        self.queues: Mapping[QueueName, list[Chunk]] = queues
        """The first chunk of every group, by queue; read-only for everyone else."""

    def of(self, concerned: Callable[[QueueName], bool]) -> Self:
        """Return the part of the roster that is of some queues."""
        part = copy(self)
        part.queues = {name: chunks for name, chunks in self.queues.items() if concerned(name)}
        return part

    def chunk(self, group: PodGroup) -> Chunk | None:
        """Return who of the group leaves first; None when it is not preemptible or nobody is left."""
        placed = last_chunk(group) if group.preemptible else ()
        if not placed:
            return None
        charge = sum((charge_at(self._snapshot, one) for one in placed), NOTHING)
        return Chunk(group=group, placed=placed, charge=quantities(charge), turn=turn(group))


def charge_at(snapshot: Snapshot, placed: Placed) -> Resources:
    """Return what a placed pod's queue pays for it there."""
    if placed.pod.sharing is None:
        return placed.pod.charge(1)
    column = snapshot.nodes.index.get(placed.node)
    return placed.pod.charge(1 if column is None else int(snapshot.nodes.device_memory_mib[column]))


class _Place:
    """A queue of the tree in which victims are looked for."""

    __slots__ = ("allocated", "children", "contender", "next", "parent", "position", "pushed", "rank", "waiting")

    def __init__(
        self, contender: Contender, allocated: Iterable[int], waiting: list[Chunk], parent: "_Place | None"
    ) -> None:
        self.contender = contender
        self.waiting = waiting
        self.parent = parent
        # Written by `Victims` alone; `pushed` is sorted, the next to leave last.
        self.allocated = list(allocated)
        self.children: list[_Place] = []
        self.position = 0
        self.pushed: list[Chunk] = []
        self.next: Chunk | None = None
        self.rank: tuple[Any, ...] | None = None

    def judge(self) -> None:
        """Rank the queue by what it holds without the victims so far; None when it has no other."""
        worst = self.worst_child()
        self.next = self._own_next() if worst is None else worst.next
        if self.next is None:
            self.rank = None
            return
        *by_use, created_at, name = self.contender.rank(self.allocated, (0, 0, 0))
        # Of queues that are alike in all they hold, the one whose next victim has the lower priority loses it first.
        self.rank = (*by_use, self.next.turn[0], created_at, name)

    def _own_next(self) -> Chunk | None:
        listed = self.waiting[self.position] if self.position < len(self.waiting) else None
        pushed = self.pushed[-1] if self.pushed else None
        if listed is None or pushed is None:
            return listed or pushed
        return listed if listed.turn > pushed.turn else pushed

    def worst_child(self) -> "_Place | None":
        """Return the child that is next to lose somebody."""
        return _worst(self.children)


def _worst(places: Iterable[_Place]) -> _Place | None:
    worst, highest = None, None
    for place in places:
        if place.rank is not None and (highest is None or place.rank > highest):
            worst, highest = place, place.rank
    return worst


class Victims:
    """The running PodGroups in the order in which they would have to leave, as far as they are not safe."""

    def __init__(
        self,
        roster: Roster,
        changed: Mapping[GroupKey, PodGroup],
        safety: Callable[[PodGroup], Safety],
        *,
        ledger: Ledger,
        shares: Mapping[QueueName, Share],
    ) -> None:
        """Begin with nobody gone; `changed` are the groups that are no longer as they are in the roster."""
        self._roster = roster
        self._changed = changed
        self._safety = safety
        self._ledger = ledger
        self._shares = shares
        self._places: dict[QueueName, _Place] = {}
        self._top: list[_Place] = []
        for name, chunks in roster.queues.items():
            # Of a queue that is gone or unsound nobody knows what it may keep: its pods are left alone.
            if name in ledger.accounts:
                self._skip_safe(self._place(name, chunks))
        for group in changed.values():
            if group.queue in roster.queues and group.queue in self._places:
                self._push(self._places[group.queue], group)
        for place in reversed(self._places.values()):
            place.judge()

    def pop(self) -> Chunk | None:
        """Name the next to leave; None when there is nobody left."""
        place = _worst(self._top)
        if place is None or place.next is None:
            return None
        while (child := place.worst_child()) is not None:
            place = child
        chunk = place.next
        if chunk is None:
            return None
        if place.pushed and place.pushed[-1] is chunk:
            place.pushed.pop()
        else:
            place.position += 1
            self._skip_safe(place)
        if len(chunk.placed) < len(chunk.group.placed):
            self._push(place, _left(chunk))
        self._take(place, chunk)
        return chunk

    def _skip_safe(self, place: _Place) -> None:
        waiting = place.waiting
        while place.position < len(waiting):
            chunk = waiting[place.position]
            if chunk.group.key not in self._changed and self._is_open(chunk):
                return
            place.position += 1

    def _is_open(self, chunk: Chunk) -> bool:
        safety = self._safety(chunk.group)
        return safety is Safety.NONE or may_leave(chunk.group, (one.pod for one in chunk.placed), safety)

    def _push(self, place: _Place, group: PodGroup) -> None:
        chunk = self._roster.chunk(group)
        if chunk is not None and self._is_open(chunk):
            insort(place.pushed, chunk, key=lambda each: each.turn)

    def _take(self, place: _Place, chunk: Chunk) -> None:
        at: _Place | None = place
        while at is not None:
            for axis in QUOTA_AXES:
                at.allocated[axis] -= chunk.charge[axis]
            at.judge()
            at = at.parent

    def _place(self, name: QueueName, waiting: list[Chunk]) -> _Place:
        found = self._places.get(name)
        if found is not None:
            return found
        account = self._ledger.accounts[name]
        parent = self._place(account.queue.parent, []) if account.queue.parent else None
        share = self._shares.get(name, Share())
        contender = Contender.of(account.queue, fair_share=share.fair_share, total=self._roster.total)
        place = _Place(contender, account.allocated, waiting, parent)
        (parent.children if parent else self._top).append(place)
        self._places[name] = place
        return place


def _left(chunk: Chunk) -> PodGroup:
    gone = {one.pod.uid for one in chunk.placed}
    return replace(chunk.group, placed=tuple(one for one in chunk.group.placed if one.pod.uid not in gone))


def may_leave(victim: PodGroup, leaving: Iterable[Pod], safety: Safety) -> bool:
    """Return whether these pods of the victim may leave together, given how far it is safe."""
    gone = Counter(victim.pod_set(pod) for pod in leaving)
    if safety is Safety.NONE or not gone:
        return True
    held = victim.held()
    kept = all(held.get(leaf.name, 0) - gone[leaf.name] >= leaf.min_member for leaf in victim.tree.leaves())
    return safety is Safety.MINIMUM and kept
