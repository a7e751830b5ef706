"""Orders victims by the reverse of the order in which PodGroups get their turns, chunk by chunk.

Each queue is ranked as if the victims named before were gone. `search` decides whether any pod is evicted.
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
from app.model.dra import ClaimKey
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Placed, Pod, claims_of, once_milli
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, QUOTA_AXES, Resources
from app.model.snapshot import NO_USERS, Mask, Snapshot
from app.scheduling.placement.rows import are_alike
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.order import Contender, Elastic, last_chunk, start_order, turn
from app.scheduling.queues.quota import QueueLedger
from app.scheduling.queues.shared_claims import with_milli

LastTurn = tuple[int, int, float, int, str, str]
"""A PodGroup's place among the running PodGroups of its queue: the last place is evicted first."""


class Safety(Enum):
    """How far a running PodGroup is safe from PodGroups that need its room."""

    NONE = "all of it may have to leave"
    MINIMUM = "only pods beyond its minimum may have to leave"
    ALL = "none of it may have to leave"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VictimBatch:
    """Pods of one PodGroup that are evicted together."""

    group: PodGroup
    """The group before the eviction."""
    placed: tuple[Placed, ...]
    charge: Quantities
    """What the queue no longer pays after the eviction. It still pays for claims that other pods of it use."""
    turn: LastTurn
    """The group's place in its queue before the eviction: the last place is evicted first."""
    is_alike: bool
    """Whether all its pods have one shape. If not, one pod may move to the place that another pod leaves."""


def last_turn(group: PodGroup) -> LastTurn:
    """Return the group's place in its queue; of groups that differ only in name, the fewest pods are evicted first."""
    priority, elastic, created_at, name, namespace = turn(group)
    leaving = 1 if elastic is Elastic.ABOVE and not group.evicted_whole else len(group.placed)
    return priority, elastic, created_at, -leaving, name, namespace


class VictimCandidates:
    """The running PodGroups that may ever be evicted, by queue; built once for each plan.

    Most queues are never read. So the order of a queue's victims is computed when a search first needs it.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Sort running PodGroups by queue."""
        self._snapshot = snapshot
        self.total = snapshot.total
        """The resources that the queues divide."""
        queues: dict[QueueName, list[tuple[int, PodGroup]]] = {}
        for number, group in enumerate(snapshot.running.values()):
            if group.preemptible and group.placed:
                queues.setdefault(group.queue, []).append((number, group))
        self.queues: Mapping[QueueName, Sequence[tuple[int, PodGroup]]] = queues
        """The groups by queue, each with its number among all running groups; read-only for other modules."""
        self.useful: Mask | None = None
        """Shape [group]: which groups are included; None for all groups."""
        # Parts made by `of` share these caches.
        self._ordered: dict[QueueName, tuple[NDArray[np.int64], Sequence[PodGroup]]] = {}
        self._chunks: dict[GroupKey, tuple[PodGroup, VictimBatch | None]] = {}

    def of(self, queues: Container[QueueName] | None, useful: Mask | None = None) -> Self:
        """Return the candidates of some queues (all queues if None) that are `useful`, shape [group]."""
        part = copy(self)
        if queues is not None:
            part.queues = {name: groups for name, groups in self.queues.items() if name in queues}
        part.useful = useful
        return part

    def chunks(self, queue: QueueName) -> "Sequence[VictimBatch]":
        """Return the first chunk of every group of a queue in eviction order; each is built when it is first read."""
        numbers, groups = self.order(queue)
        if self.useful is not None:
            groups = [groups[index] for index in np.flatnonzero(self.useful[numbers]).tolist()]
        return _FirstChunks(self, groups)

    def order(self, queue: QueueName) -> tuple[NDArray[np.int64], Sequence[PodGroup]]:
        """Return the groups of a queue with their numbers in eviction order; remembered."""
        found = self._ordered.get(queue)
        if found is None:
            ordered = sorted(self.queues[queue], key=lambda each: last_turn(each[1]), reverse=True)
            numbers = np.array([number for number, _ in ordered], dtype=np.int64)
            found = self._ordered[queue] = numbers, [group for _, group in ordered]
        return found

    def first_chunk(self, group: PodGroup) -> VictimBatch:
        """Return the pods that a candidate group loses first."""
        found = self.chunk(group)
        if found is None:
            raise ValueError(f"{group!r} is no candidate")
        return found

    def chunk(self, group: PodGroup) -> VictimBatch | None:
        """Return the pods that the group loses first; None if it is not preemptible or has no pods left. Remembered."""
        known, found = self._chunks.get(group.key, (None, None))
        if known is not group:
            found = self._made(group)
            self._chunks[group.key] = group, found
        return found

    def chunks_on(self, group: PodGroup, node: NodeName) -> list[VictimBatch]:
        """Return the chunks of a group that may move away from a node: spare pods singly, then the rest together."""
        if group.root is not None or group.evicted_whole or len(group.placed) <= group.min_member:
            first = self.chunk(group)
            return [] if first is None else [first]
        here = sorted((one for one in group.placed if one.node == node), key=lambda one: start_order(one.pod))
        found, left = list[VictimBatch](), group
        while here and len(left.placed) > group.min_member:
            found.append(self._batch(left, (here.pop(),)))
            left = _left(found[-1])
        return [*found, self._batch(left, left.placed)] if here else found

    def _made(self, group: PodGroup) -> VictimBatch | None:
        placed = last_chunk(group) if group.preemptible else ()
        return self._batch(group, placed) if placed else None

    def _batch(self, group: PodGroup, placed: tuple[Placed, ...]) -> VictimBatch:
        return VictimBatch(
            group=group,
            placed=placed,
            charge=quantities(_charge(self._snapshot, group, placed)),
            turn=last_turn(group),
            is_alike=are_alike(placed),
        )


class _FirstChunks(Sequence[VictimBatch]):
    """The first chunks of groups, built when they are first read."""

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
    """Return what a placed pod's queue pays for the pod at its place."""
    if placed.pod.sharing is None:
        return placed.pod.charge(1)
    column = snapshot.nodes.index.get(placed.node)
    return placed.pod.charge(1 if column is None else int(snapshot.nodes.device_memory_mib[column]))


def _charge(snapshot: Snapshot, group: PodGroup, placed: Sequence[Placed]) -> Resources:
    """Return what the group's queue no longer pays when these pods leave; other PodGroups do not change."""
    own = sum((charge_at(snapshot, one) for one in placed), NOTHING)
    claims = claims_of(one.pod for one in placed)
    if not claims:
        return own
    before, users = snapshot.running.get(group.key, group), Counter[ClaimKey]()
    users.update(claim.key for one in group.placed for claim in one.pod.claims)
    users.subtract(claim.key for one in before.placed for claim in one.pod.claims)
    users.subtract(claim.key for claim in claims)
    for key in dict.fromkeys(users):
        users[key] += snapshot.claim_users.get((group.queue, key), NO_USERS).placed
    return with_milli(own, once_milli([claim for claim in claims if users[claim.key] <= 0]))


class _Place:
    """A queue of the tree in which victims are looked for."""

    __slots__ = ("allocated", "children", "contender", "next", "parent", "position", "pushed", "stamp", "waiting")

    def __init__(
        self, contender: Contender, allocated: Iterable[int], waiting: Sequence[VictimBatch], parent: "_Place | None"
    ) -> None:
        self.contender = contender
        self.waiting = waiting
        self.parent = parent
        # Only `Victims` writes these. `children` and `pushed` are sorted; the next victim is last.
        self.allocated = list(allocated)
        self.children: list[_Entry] = []
        self.stamp = 0
        self.position = 0
        self.pushed: list[VictimBatch] = []
        self.next: VictimBatch | None = None

    def line_up(self, siblings: "list[_Entry]") -> None:
        """Insert the queue among its siblings by what it holds without the victims so far, if it has another victim."""
        self.stamp += 1
        worst = _worst(self.children)
        self.next = self._own_next() if worst is None else worst.next
        if self.next is None:
            return
        *by_use, created_at, name = self.contender.rank(self.allocated, (0, 0, 0))
        # Of queues with equal holdings, the queue whose next victim has the lower priority is first. Before them are
        # the pods of deleted or invalid queues, which deserve nothing.
        is_void = bool(self.contender.queue.problem)
        insort(siblings, ((is_void, *by_use, self.next.turn[0], created_at, name), self.stamp, self))

    def _own_next(self) -> VictimBatch | None:
        listed = self.waiting[self.position] if self.position < len(self.waiting) else None
        pushed = self.pushed[-1] if self.pushed else None
        if listed is None or pushed is None:
            return listed or pushed
        return listed if listed.turn > pushed.turn else pushed


_Entry = tuple[tuple[Any, ...], int, _Place]
"""A queue's rank, which includes its name, and a stamp. The entry is valid only if the stamp is the queue's current
stamp.
"""


def _worst(entries: list[_Entry]) -> _Place | None:
    """Return the queue that loses the next victim."""
    while entries and entries[-1][1] != entries[-1][2].stamp:
        entries.pop()
    return entries[-1][2] if entries else None


class Victims:
    """The running PodGroups in eviction order, as far as they are not safe."""

    def __init__(
        self,
        roster: VictimCandidates,
        changed: Mapping[GroupKey, PodGroup],
        safety: Callable[[PodGroup], Safety],
        *,
        ledger: QueueLedger,
        shares: Mapping[QueueName, Share],
    ) -> None:
        """Begin without victims; `changed` are the groups that differ from those in `roster`."""
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
        """Return the victims of each paying queue in eviction order. Several deleted queues share one payer."""
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
        """Name the next victim; None if no victims are left."""
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
            # Built before, as the parent of another queue.
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
    """Return whether these pods of the victim may be evicted together, given how far the victim is safe."""
    pods = tuple(leaving)
    if safety is Safety.NONE or not pods:
        return True
    if safety is Safety.ALL:
        return False
    held, gone = victim.held(), Counter(victim.pod_set(pod) for pod in pods)
    return all(held.get(leaf.name, 0) - gone[leaf.name] >= leaf.min_member for leaf in victim.tree.leaves())
