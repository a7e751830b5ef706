"""Who would have to leave first: the reverse of the order in which PodGroups get their turns, chunk by chunk.

Each queue is judged as if what was named before had left already. Whether anybody has to leave is left to `search`.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from app.model.decision import Share
from app.model.names import GroupKey, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import QUOTA_AXES, Resources
from app.model.snapshot import Mask, Snapshot
from app.scheduling.placement.rows import are_alike
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.order import Contender, Elastic, last_chunk, turn
from app.scheduling.queues.quota import QueueLedger

LastTurn = tuple[int, int, float, int, str, str]
"""A PodGroup's place among those of its queue that run: the last leaves first."""


class Safety(Enum):
    """How far a running PodGroup is safe from those who want its room."""

    NONE = "all of it may have to leave"
    MINIMUM = "only pods beyond its minimum may have to leave"
    ALL = "nobody of it may have to leave"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VictimBatch:
    """Pods of one PodGroup that leave together."""

    group: PodGroup
    """As it is before they leave."""
    placed: tuple[Placed, ...]
    charge: Quantities
    """What their queue no longer pays when they have left."""
    turn: LastTurn
    """The group's place in its queue before they leave: the last goes first."""
    is_alike: bool
    """All its pods have one shape. If not, one of them may move to the place that another one leaves."""


def last_turn(group: PodGroup) -> LastTurn:
    """Return the group's place in its queue; of groups that only their names tell apart, fewer pods leave first."""
    priority, elastic, created_at, name, namespace = turn(group)
    leaving = 1 if elastic is Elastic.ABOVE else len(group.placed)
    return priority, elastic, created_at, -leaving, name, namespace


class VictimCandidates:
    """The running PodGroups that may ever have to leave, by queue; made once a plan.

    Most queues are never asked: who of a queue leaves first is found out when somebody looks for victims in it.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Sort what runs by queue."""
        self._snapshot = snapshot
        self.total = snapshot.total
        """What the queues divide."""
        queues: dict[QueueName, list[tuple[int, PodGroup]]] = {}
        for number, group in enumerate(snapshot.running.values()):
            if group.preemptible and group.placed:
                queues.setdefault(group.queue, []).append((number, group))
        self.queues: Mapping[QueueName, Sequence[tuple[int, PodGroup]]] = queues
        """The groups by queue, each with its number among all that run; read-only for everyone else."""
        self.useful: Mask | None = None
        """Shape [group]: the others are left out; None when nobody is."""
        # Parts of the roster share these: they only remember.
        self._ordered: dict[QueueName, tuple[NDArray[np.int64], Sequence[PodGroup]]] = {}
        self._chunks: dict[GroupKey, tuple[PodGroup, VictimBatch | None]] = {}

    def of(self, queues: Container[QueueName] | None, useful: Mask | None = None) -> Self:
        """Return the part of the roster that is of some queues, all if None, and `useful`, shape [group]."""
        part = copy(self)
        if queues is not None:
            part.queues = {name: groups for name, groups in self.queues.items() if name in queues}
        part.useful = useful
        return part

    def chunks(self, queue: QueueName) -> "Sequence[VictimBatch]":
        """Return the first chunk of every group of a queue, the first to leave first; each is made when looked at."""
        numbers, groups = self.order(queue)
        if self.useful is not None:
            groups = [groups[index] for index in np.flatnonzero(self.useful[numbers]).tolist()]
        return _FirstChunks(self, groups)

    def order(self, queue: QueueName) -> tuple[NDArray[np.int64], Sequence[PodGroup]]:
        """Return the groups of a queue with their numbers, the first to leave first; remembered."""
        found = self._ordered.get(queue)
        if found is None:
            ordered = sorted(self.queues[queue], key=lambda each: last_turn(each[1]), reverse=True)
            numbers = np.array([number for number, _ in ordered], dtype=np.int64)
            found = self._ordered[queue] = numbers, [group for _, group in ordered]
        return found

    def first_chunk(self, group: PodGroup) -> VictimBatch:
        """Return who of a group of the roster leaves first."""
        found = self.chunk(group)
        if found is None:
            raise ValueError(f"{group!r} is not in the roster")
        return found

    def chunk(self, group: PodGroup) -> VictimBatch | None:
        """Return who of the group leaves first; None when it is not preemptible or nobody is left. Remembered."""
        known, found = self._chunks.get(group.key, (None, None))
        if known is not group:
            found = self._made(group)
            self._chunks[group.key] = group, found
        return found

    def _made(self, group: PodGroup) -> VictimBatch | None:
        placed = last_chunk(group) if group.preemptible else ()
        if not placed:
            return None
        charges = (quantities(charge_at(self._snapshot, one)) for one in placed)
        cpu, memory, gpu = (sum(amounts) for amounts in zip(*charges, strict=True))
        return VictimBatch(
            group=group,
            placed=placed,
            charge=(cpu, memory, gpu),
            turn=last_turn(group),
            is_alike=are_alike(placed),
        )


class _FirstChunks(Sequence[VictimBatch]):
    """The first chunks of groups, made when somebody looks at them."""

    def __init__(self, roster: VictimCandidates, groups: Sequence[PodGroup]) -> None:
        self._roster = roster
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> VictimBatch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[VictimBatch]: ...

    def __getitem__(self, index: int | slice) -> VictimBatch | Sequence[VictimBatch]:
        if isinstance(index, slice):
            return _FirstChunks(self._roster, self._groups[index])
        return self._roster.first_chunk(self._groups[index])


def charge_at(snapshot: Snapshot, placed: Placed) -> Resources:
    """Return what a placed pod's queue pays for it there."""
    if placed.pod.sharing is None:
        return placed.pod.charge(1)
    column = snapshot.nodes.index.get(placed.node)
    return placed.pod.charge(1 if column is None else int(snapshot.nodes.device_memory_mib[column]))


class _Place:
    """A queue of the tree in which victims are looked for."""

    __slots__ = ("allocated", "children", "contender", "next", "parent", "position", "pushed", "stamp", "waiting")

    def __init__(
        self, contender: Contender, allocated: Iterable[int], waiting: Sequence[VictimBatch], parent: "_Place | None"
    ) -> None:
        self.contender = contender
        self.waiting = waiting
        self.parent = parent
        # Written by `Victims` alone; `children` and `pushed` are sorted, the next to leave last.
        self.allocated = list(allocated)
        self.children: list[_Entry] = []
        self.stamp = 0
        self.position = 0
        self.pushed: list[VictimBatch] = []
        self.next: VictimBatch | None = None

    def line_up(self, siblings: "list[_Entry]") -> None:
        """Take the place among the siblings by what the queue holds without the victims so far, if it has another."""
        self.stamp += 1
        worst = _worst(self.children)
        self.next = self._own_next() if worst is None else worst.next
        if self.next is None:
            return
        *by_use, created_at, name = self.contender.rank(self.allocated, (0, 0, 0))
        # Of queues that are alike in all they hold, the one whose next victim has the lower priority loses it first.
        # Before them all leave the pods of queues that are gone or unsound, which deserve nothing.
        is_void = bool(self.contender.queue.problem)
        insort(siblings, ((is_void, *by_use, self.next.turn[0], created_at, name), self.stamp, self))

    def _own_next(self) -> VictimBatch | None:
        listed = self.waiting[self.position] if self.position < len(self.waiting) else None
        pushed = self.pushed[-1] if self.pushed else None
        if listed is None or pushed is None:
            return listed or pushed
        return listed if listed.turn > pushed.turn else pushed


_Entry = tuple[tuple[Any, ...], int, _Place]
"""A queue's rank, which names it, and whether it still stands: only the stamp that the queue has now does."""


def _worst(entries: list[_Entry]) -> _Place | None:
    """Return the queue that is next to lose somebody."""
    while entries and entries[-1][1] != entries[-1][2].stamp:
        entries.pop()
    return entries[-1][2] if entries else None


class Victims:
    """The running PodGroups in the order in which they would have to leave, as far as they are not safe."""

    def __init__(
        self,
        roster: VictimCandidates,
        changed: Mapping[GroupKey, PodGroup],
        safety: Callable[[PodGroup], Safety],
        *,
        ledger: QueueLedger,
        shares: Mapping[QueueName, Share],
    ) -> None:
        """Begin with nobody gone; `changed` are the groups that are no longer as they are in the roster."""
        self._roster = roster
        self._changed = changed
        self._safety = safety
        self._ledger = ledger
        self._shares = shares
        self._places: dict[QueueName, _Place] = {}
        self._top: list[_Entry] = []
        for name, chunks in self._by_payer().items():
            self._skip_safe(self._place(name, chunks))
        for group in changed.values():
            payer = ledger.payer(group.queue)
            if group.queue in roster.queues and payer in self._places:
                self._push(self._places[payer], group)
        for place in reversed(self._places.values()):
            self._line_up(place)

    def _by_payer(self) -> Mapping[QueueName, Sequence[VictimBatch]]:
        """Return who may leave by the queue that pays, the first first: several queues that are gone have one payer."""
        found: dict[QueueName, Sequence[VictimBatch]] = {}
        for name in self._roster.queues:
            payer, chunks = self._ledger.payer(name), self._roster.chunks(name)
            if payer in found:
                chunks = sorted((*found[payer], *chunks), key=lambda chunk: chunk.turn, reverse=True)
            if payer is not None:
                found[payer] = chunks
        return found

    def _line_up(self, place: _Place) -> None:
        place.line_up(place.parent.children if place.parent else self._top)

    def pop(self) -> VictimBatch | None:
        """Name the next to leave; None when there is nobody left."""
        place = _worst(self._top)
        if place is None or place.next is None:
            return None
        while (child := _worst(place.children)) is not None:
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

    def _is_open(self, chunk: VictimBatch) -> bool:
        safety = self._safety(chunk.group)
        return safety is Safety.NONE or may_leave(chunk.group, (one.pod for one in chunk.placed), safety)

    def _push(self, place: _Place, group: PodGroup) -> None:
        chunk = self._roster.chunk(group)
        if chunk is not None and self._is_open(chunk):
            insort(place.pushed, chunk, key=lambda each: each.turn)

    def _take(self, place: _Place, chunk: VictimBatch) -> None:
        at: _Place | None = place
        while at is not None:
            for axis in QUOTA_AXES:
                at.allocated[axis] -= chunk.charge[axis]
            self._line_up(at)
            at = at.parent

    def _place(self, name: QueueName, waiting: Sequence[VictimBatch]) -> _Place:
        found = self._places.get(name)
        if found is not None:
            # Made before for the sake of a queue below it.
            found.waiting = found.waiting or waiting
            return found
        account = self._ledger.accounts[name]
        parent = self._place(account.queue.parent, ()) if account.queue.parent else None
        share = self._shares.get(name, Share())
        contender = Contender.of(account.queue, fair_share=share.fair_share, total=self._roster.total)
        place = _Place(contender, account.allocated, waiting, parent)
        self._places[name] = place
        return place


def _left(chunk: VictimBatch) -> PodGroup:
    gone = {one.pod.uid for one in chunk.placed}
    return replace(chunk.group, placed=tuple(one for one in chunk.group.placed if one.pod.uid not in gone))


def may_leave(victim: PodGroup, leaving: Iterable[Pod], safety: Safety) -> bool:
    """Return whether these pods of the victim may leave together, given how far it is safe."""
    pods = tuple(leaving)
    if safety is Safety.NONE or not pods:
        return True
    if safety is Safety.ALL:
        return False
    held, gone = victim.held(), Counter(victim.pod_set(pod) for pod in pods)
    return all(held.get(leaf.name, 0) - gone[leaf.name] >= leaf.min_member for leaf in victim.tree.leaves())
