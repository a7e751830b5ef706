"""Gives the order of the pending PodGroups, one by one, by queue order. The order is updated as the ledger is charged.

`quota` and placement decide whether a PodGroup may start at its turn. The planner decides which PodGroups go before
their turn. The order is KAI v0.13's (`queue_order`, the `priority` and `elastic` plugins).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from heapq import heappop, heappush

from app.model.decision import Share
from app.model.names import QueueName
from app.model.pod import Placed, Pod, ResourceClaim
from app.model.podgroup import PodGroup, PodSet
from app.model.queue import Queue
from app.model.reason import Reason
from app.model.resources import CPU, GPU, MEMORY, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import NodeTable, Snapshot
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.quota import QueueLedger, most_charge

EXACT_BITS = 128
"""Shares are compared as integers of this many binary places: exact for amounts below 2**64."""

PENALTIES: Quantities = (1000, 1000, 1)
"""What KAI multiplies use by where a queue's share is zero: 1000 for a millicore, a byte, a whole GPU."""

NOTHING_MORE: Quantities = (0, 0, 0)

Rank = tuple[bool, bool, int, bool, int, int, Quantities, float, str]
"""A queue's place among its siblings; the lowest goes first."""

Turn = tuple[int, int, float, str, str]
"""A PodGroup's place in its leaf queue; the lowest goes first."""


class Elastic(IntEnum):
    """The state of a PodGroup relative to its minimum, in the order of the turns."""

    BELOW = 0
    AT = 1
    ABOVE = 2

    @staticmethod
    def of(*, owed: int, spare: int) -> "Elastic":
        """Judge by the pods missing to the minimum and the pods held beyond it. Missing pods outweigh extra ones."""
        if owed > 0:
            return Elastic.BELOW
        return Elastic.ABOVE if spare > 0 else Elastic.AT


def turn(group: PodGroup) -> Turn:
    """Return the PodGroup's place in its leaf queue: by priority, elastic state, age, name."""
    owed, spare = 0, 0
    if group.root is None:
        beyond = group.active + sum(group.succeeded.values()) - group.min_member
        owed, spare = -beyond, beyond
    else:
        held = group.held()
        for leaf in group.root.leaves():
            beyond = held.get(leaf.name, 0) - leaf.min_member
            owed, spare = owed + max(0, -beyond), spare + max(0, beyond)
    return -group.priority, Elastic.of(owed=owed, spare=spare), group.created_at, group.key.name, group.key.namespace


PASSING = frozenset({Reason.BACKING_OFF, Reason.REFUSED_BY_SCHEDULER, Reason.NOT_CONSIDERED})
"""Temporary causes for which a gang is not considered, although it could start."""


def is_torn(group: PodGroup) -> bool:
    """Whether a gang is partially bound and its missing pods are pending, or are retried soon.

    The missing pods need the room that is free. After a crash, or after a node of a member was refused, other PodGroups
    must not get that room.
    """
    is_bound = bool(group.placed) and group.owed > 0 and any(one.pod.node is not None for one in group.placed)
    return is_bound and (group.refusal is None or group.refusal.reason in PASSING)


def next_chunk(group: PodGroup) -> tuple[Pod, ...]:
    """Return the pods that start next, all or none: all pods missing to the minima, then one pod at a time."""
    if group.root is None:
        # Most groups have one pod, for which nothing has to be counted.
        return group.pending if len(group.pending) == 1 else group.pending[: max(group.owed, 1)]
    held = group.held()
    owing = [leaf for leaf in group.root.leaves() if leaf.min_member > held.get(leaf.name, 0)]
    if owing:
        waiting = _by_pod_set(group)
        return tuple(
            pod
            for leaf in sorted(owing, key=lambda leaf: _fullness(leaf, held))
            for pod in waiting.get(leaf.name, [])[: leaf.min_member - held.get(leaf.name, 0)]
        )
    first = _first_by_pod_set(group)
    growing = [leaf for leaf in group.root.leaves() if leaf.name in first]
    emptiest = min(growing, key=lambda leaf: _fullness(leaf, held), default=None)
    return () if emptiest is None else (first[emptiest.name],)


def last_chunk(group: PodGroup) -> tuple[Placed, ...]:
    """Return the pods to evict first: one while a pod set is above its minimum, then all remaining pods."""
    if len(group.placed) < 2:  # noqa: PLR2004 - no choice, as in most groups
        return group.placed
    if group.evicted_whole:
        return tuple(sorted(group.placed, key=_placed_order))
    held = group.held()
    above = [leaf for leaf in group.tree.leaves() if held.get(leaf.name, 0) > leaf.min_member]
    for leaf in sorted(above, key=lambda leaf: _fullness(leaf, held), reverse=True):
        members = [one for one in group.placed if group.pod_set(one.pod) == leaf.name]
        if members:
            return (max(members, key=_placed_order),)
    return tuple(sorted(group.placed, key=_placed_order))


def _placed_order(placed: Placed) -> tuple[int, float, str]:
    return start_order(placed.pod)


def start_order(pod: Pod) -> tuple[int, float, str]:
    """Sort key of the pods of one pod set: KAI's task order."""
    return -pod.task_priority, pod.created_at, pod.name


def _fullness(leaf: PodSet, held: Mapping[str, int]) -> tuple[Fraction, str]:
    """Sort key of pod sets: the pod set with the smallest part of its minimum goes first (KAI's subgrouporder)."""
    return Fraction(held.get(leaf.name, 0), max(leaf.min_member, 1)), leaf.name


def _by_pod_set(group: PodGroup) -> dict[str, list[Pod]]:
    waiting: dict[str, list[Pod]] = {}
    for pod in group.pending:
        waiting.setdefault(group.pod_set(pod), []).append(pod)
    return waiting


def _first_by_pod_set(group: PodGroup) -> dict[str, Pod]:
    """Return the first pod to start of each pod set. It stops early, because thousands of pods may be pending."""
    wanted, first = {leaf.name for leaf in group.tree.leaves()}, dict[str, Pod]()
    for pod in group.pending:
        name = group.pod_set(pod)
        if name in wanted:
            wanted.discard(name)
            first[name] = pod
            if not wanted:
                break
    return first


def _next_request(group: PodGroup, ledger: QueueLedger, nodes: NodeTable) -> Quantities:
    cpu_milli = memory_bytes = gpu_milli = 0
    claims: list[ResourceClaim] = []
    for pod in next_chunk(group):
        if pod.claims:
            claims += pod.claims
        charge = most_charge(pod, nodes)
        cpu_milli += charge.cpu_milli
        memory_bytes += charge.memory_bytes
        gpu_milli += charge.gpu_milli
    if claims:
        gpu_milli += ledger.claims.unpaid_milli(group.queue, claims)
    return cpu_milli, memory_bytes, gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """The constant part of a queue's rank during one plan."""

    queue: Queue
    deserved: Quantities
    fair_share: Quantities
    allocatable: Quantities
    divisor: Quantities
    """The divisor of use: the allocatable share, or the whole cluster where that share is unlimited."""

    @staticmethod
    def of(queue: Queue, *, fair_share: Resources, total: Resources) -> "Contender":
        """Combine the settings of the queue with its fair share and the cluster's total."""
        deserved = [queue.entitlement(axis).deserved for axis in QUOTA_AXES]
        fair, whole = quantities(fair_share), quantities(total)
        allocatable = [_allocatable(queue, axis, fair[axis]) for axis in QUOTA_AXES]
        divisor = [whole[axis] if allocatable[axis] == UNLIMITED else allocatable[axis] for axis in QUOTA_AXES]
        return Contender(
            queue=queue,
            deserved=(deserved[CPU], deserved[MEMORY], deserved[GPU]),
            fair_share=fair,
            allocatable=(allocatable[CPU], allocatable[MEMORY], allocatable[GPU]),
            divisor=(divisor[CPU], divisor[MEMORY], divisor[GPU]),
        )

    def rank(self, allocated: Sequence[int], request: Quantities) -> Rank:
        """Rank the queue by what it holds and what its next PodGroup requests."""
        # 1. within its fair share  2. the next PodGroup fits the deserved share  3. priority  4. uses no resource of
        # which its share is zero  5. lower dominant share with the next PodGroup  6. and without it  7. smaller
        # allocatable share  8. age, name
        cpu, memory, gpu = allocated
        later_cpu, later_memory, later_gpu = cpu + request[CPU], memory + request[MEMORY], gpu + request[GPU]
        fair, deserved, (most_cpu, most_memory, most_gpu) = self.fair_share, self.deserved, self.allocatable
        dominant = self._dominant(later_cpu, later_memory, later_gpu)
        over = fair[CPU] < cpu and fair[MEMORY] < memory and fair[GPU] < gpu
        fits = later_cpu <= deserved[CPU] and later_memory <= deserved[MEMORY] and later_gpu <= deserved[GPU]
        has_no_share = (
            (later_cpu > 0 and not most_cpu)
            or (later_memory > 0 and not most_memory)
            or (later_gpu > 0 and not most_gpu)
        )
        return (
            over,
            not fits,
            -self.queue.priority,
            has_no_share,
            dominant,
            dominant if request == NOTHING_MORE else self._dominant(cpu, memory, gpu),
            # KAI compares "less in no resource and more in none", which does not order all pairs and is not transitive.
            # This order agrees wherever KAI's order is defined, and with all of it when only GPUs are governed.
            (most_gpu, most_cpu, most_memory),
            self.queue.created_at,
            self.queue.name,
        )

    def _dominant(self, cpu: int, memory: int, gpu: int) -> int:
        # Written out for speed: the victim search ranks two queues for every victim.
        by_cpu, by_memory, by_gpu = self.divisor
        return max(
            (cpu << EXACT_BITS) // by_cpu if by_cpu else (cpu * PENALTIES[CPU]) << EXACT_BITS,
            (memory << EXACT_BITS) // by_memory if by_memory else (memory * PENALTIES[MEMORY]) << EXACT_BITS,
            (gpu << EXACT_BITS) // by_gpu if by_gpu else (gpu * PENALTIES[GPU]) << EXACT_BITS,
        )


def _allocatable(queue: Queue, axis: int, fair_share: int) -> int:
    entitlement = queue.entitlement(axis)
    if entitlement.deserved == UNLIMITED:
        return entitlement.limit
    return min(entitlement.limit, max(entitlement.deserved, fair_share))


class _Place:
    """A queue in the tree of turns. A leaf queue sorts its PodGroups, any other queue its children."""

    __slots__ = ("children", "contender", "groups", "name", "parent", "rank", "ranked", "request", "stamp")

    def __init__(self, contender: Contender, parent: "_Place | None") -> None:
        self.name = contender.queue.name
        self.contender = contender
        self.parent = parent
        # Only `_Place` and `Turns` write it. Both lists are heaps.
        self.groups: list[tuple[Turn, int, PodGroup]] = []
        self.children: list[_Entry] = []
        self.stamp = 0
        self.request: Quantities | None = None
        # The last rank and its inputs. In long queues the next inputs are mostly equal.
        self.rank: Rank | None = None
        self.ranked: tuple[Sequence[int], Quantities] | None = None

    def line_up(self, siblings: "list[_Entry]", ledger: QueueLedger, nodes: NodeTable) -> None:
        """Update the queue's place among its siblings. Earlier entries become stale."""
        self.stamp += 1
        self.request = self._next_request(ledger, nodes)
        if self.request is not None:
            heappush(siblings, (self._rank(ledger.accounts[self.name].allocated, self.request), self.stamp, self))

    def _rank(self, allocated: Sequence[int], request: Quantities) -> Rank:
        asked = tuple(allocated), request
        if self.rank is None or asked != self.ranked:
            self.rank, self.ranked = self.contender.rank(allocated, request), asked
        return self.rank

    def _next_request(self, ledger: QueueLedger, nodes: NodeTable) -> Quantities | None:
        if self.groups:
            return _next_request(self.groups[0][2], ledger, nodes)
        child = _first(self.children)
        return child.request if child else None


_Entry = tuple[Rank, int, _Place]


def _first(entries: list[_Entry]) -> _Place | None:
    while entries and entries[0][1] != entries[0][2].stamp:
        heappop(entries)
    return entries[0][2] if entries else None


class Turns:
    """Pending PodGroups in the order of their turns, with the current charges of the ledger.

    Groups that cannot be considered at all are last, so that the planner can give the reason.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ledger: QueueLedger,
        shares: Mapping[QueueName, Share],
        groups: Iterable[PodGroup] | None = None,
    ) -> None:
        waiting = snapshot.groups.values() if groups is None else groups
        self._ledger = ledger
        self._nodes = snapshot.nodes
        self._top: list[_Entry] = []
        self._places: dict[QueueName, _Place] = {}
        # A heap that only `pop` and `push` write. The number orders PodGroups with equal turns.
        self._hopeless: list[tuple[Turn, int, PodGroup]] = []
        self._pushed = 0
        self._changed: list[QueueName] = []
        self._charges_seen = len(ledger.charged)
        self._shares = shares
        self._total = snapshot.total
        for group in waiting:
            self._put(group)
        for place in reversed(self._places.values()):
            self._line_up(place)

    def _place(self, name: QueueName) -> _Place:
        """Return the queue's place. It is made, after its parent's, for the first of the queue's PodGroups."""
        place = self._places.get(name)
        if place is None:
            queue = self._ledger.accounts[name].queue
            parent = self._place(queue.parent) if queue.parent else None
            share = self._shares.get(name, Share())
            contender = Contender.of(queue, fair_share=share.fair_share, total=self._total)
            place = self._places[name] = _Place(contender, parent)
        return place

    def pop(self) -> PodGroup | None:
        """Remove and return the PodGroup whose turn it is. Return None when no PodGroup is pending."""
        self._catch_up()
        place = _first(self._top)
        if place is None:
            return heappop(self._hopeless)[2] if self._hopeless else None
        while (child := _first(place.children)) is not None:
            place = child
        self._changed.append(place.name)
        return heappop(place.groups)[2]

    def push(self, group: PodGroup) -> None:
        """Give a PodGroup another turn in its present state: an elastic group that has more pods to start."""
        self._put(group)
        self._changed.append(group.queue)

    def _put(self, group: PodGroup) -> None:
        self._pushed += 1
        heappush(self._heap_of(group), (turn(group), self._pushed, group))

    def _heap_of(self, group: PodGroup) -> list[tuple[Turn, int, PodGroup]]:
        is_considered = group.refusal is None or is_torn(group)
        if not is_considered or self._ledger.standing(group) is not None:
            return self._hopeless
        return self._place(group.queue).groups

    def _catch_up(self) -> None:
        # Only the lines of queues that were popped, pushed or charged since the last call can have another rank.
        charged = self._ledger.charged
        changed = dict.fromkeys(self._changed + charged[self._charges_seen :])
        self._changed.clear()
        self._charges_seen = len(charged)
        for name in changed:
            place = self._nearest(name)
            while place is not None:
                self._line_up(place)
                place = place.parent

    def _nearest(self, name: QueueName) -> _Place | None:
        """Return the place of the queue or of its first ancestor with one: queues without a place are charged too."""
        account = self._ledger.accounts.get(name)
        while account is not None and account.queue.name not in self._places:
            account = self._ledger.accounts.get(account.queue.parent) if account.queue.parent else None
        return None if account is None else self._places[account.queue.name]

    def _line_up(self, place: _Place) -> None:
        siblings = place.parent.children if place.parent else self._top
        place.line_up(siblings, self._ledger, self._nodes)
