"""Places pods of one PodGroup that start together: every sub-group inside its topology domain, all pods or none.

Nested groups are placed first, then pod sets, each inside the nodes of its parent (KAI's order). `topology` tells which
domains are tried, and in which order.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np

from app.model.pod import Pod
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import Refusal
from app.model.resources import Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.ranks import ANYWHERE, Where
from app.scheduling.placement.state import PlacementState, Timing, largest_first
from app.scheduling.placement.topology import NodeSets, Subtree, fitting_counts, node_sets

Seats = tuple[Assignment, ...]
Branch = SubGroup | PodSet

MOST_TRIALS = 4096
"""The most domains that one attempt tries. A failed trial counts as four, because "may take the pods" is an upper
bound.

Pods with anti-affinity to each other fail in each domain. Pods of nested sub-groups fail in every combination.
"""

IN_VAIN = 4

FEW_TRIALS = 64
"""The least bound of each further attempt in one plan, once failed trials have used `MOST_TRIALS` for the PodGroup. A
search for victims makes hundreds of attempts, and other PodGroups are pending meanwhile.
"""


def place(
    board: PlacementState, group: PodGroup, pods: Sequence[Pod], *, timing: Timing, where: Where = ANYWHERE
) -> Seats | None:
    """Place the pods in the placement state. Place nothing and return None when not all pods fit."""
    if group.root is None or not any(group.root.constrained()):
        return _in_any_order(board, pods, where, timing)
    spent = board.in_vain.get(group.key, 0)
    attempt = _Attempt(group, timing, most=max(MOST_TRIALS - spent, min(FEW_TRIALS, MOST_TRIALS)))
    seats = attempt.place(board, group.root, pods, where)
    board.in_vain[group.key] = spent + attempt.in_vain
    return seats


def refusal(board: PlacementState, group: PodGroup, pods: Sequence[Pod]) -> Refusal | None:
    """Return why no topology domain can take the pods. Return None when the topology is not the obstacle."""
    if group.root is None:
        return None
    asking = ((branch, constraint, members(group, branch, pods)) for branch, constraint in group.root.constrained())
    found = (
        _candidates(board, group, branch, constraint, asked, ANYWHERE) for branch, constraint, asked in asking if asked
    )
    return next((each for each in found if isinstance(each, Refusal)), None)


def is_whole(group: PodGroup) -> bool:
    """Return whether every pod set holds its minimum."""
    held = group.held()
    return all(held.get(leaf.name, 0) >= leaf.min_member for leaf in group.tree.leaves())


def members(group: PodGroup, branch: Branch, pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods that belong to the branch."""
    names = {leaf.name for leaf in branch.leaves()}
    return [pod for pod in pods if group.pod_set(pod) in names]


def _in_any_order(board: PlacementState, pods: Sequence[Pod], where: Where, timing: Timing) -> Seats | None:
    """Try the pods in the order in which they start, then the pods first that are hard to place."""
    seats = board.place(pods, where=where, timing=timing)
    if seats is None and len(pods) > 1:
        ordered = sorted(pods, key=largest_first)
        if ordered != list(pods):
            return board.place(ordered, where=where, timing=timing)
    return seats


class _Attempt:
    """One attempt to place pods of a group with topology constraints."""

    def __init__(self, group: PodGroup, timing: Timing, *, most: int) -> None:
        self._group = group
        self._timing = timing
        self._left = most
        self.in_vain = 0
        """The cost of the failed trials, in units of `MOST_TRIALS`."""
        # The questions that failed. A domain of one level is offered again inside each domain of a wider level.
        self._in_vain = set[Hashable]()

    def place(
        self, board: PlacementState, branch: Branch, pods: Sequence[Pod], where: Where, before: Seats = ()
    ) -> Seats | None:
        """Place the pods of a branch inside the nodes of its parent. `before` are the places taken there earlier."""
        if not pods:
            return ()
        question = self._question(branch, where, before)
        if question in self._in_vain:
            return None
        for domain in self._domains(board, branch, pods, where):
            if self._left <= 0:
                return None
            seats = board.all_or_none(partial(self._inside, branch=branch, pods=pods, where=domain, before=before))
            if seats is not None:
                self._left -= 1
                return seats
            self._left -= IN_VAIN
            self.in_vain += IN_VAIN
        if question is not None:
            self._in_vain.add(question)
        return None

    def _question(self, branch: Branch, where: Where, before: Seats) -> Hashable:
        """Return what the answer for a branch depends on. Return None where the question is asked only once."""
        if branch is self._group.root or branch.topology is None:
            return None
        masks = tuple(b"" if each is None else _digest(each) for each in (where.within, where.steps))
        return id(branch), masks, tuple((seat.pod.uid, seat.column, seat.devices, seat.later) for seat in before)

    def _inside(
        self, board: PlacementState, branch: Branch, pods: Sequence[Pod], where: Where, before: Seats
    ) -> Seats | None:
        if isinstance(branch, PodSet):
            return _in_any_order(board, pods, where, self._timing)
        seats: list[Assignment] = []
        children: tuple[Branch, ...] = (*branch.groups, *branch.pod_sets)
        for child in children:
            found = self.place(board, child, members(self._group, child, pods), where, (*before, *seats))
            if found is None:
                return None
            seats += found
        return tuple(seats)

    def _domains(self, board: PlacementState, branch: Branch, pods: Sequence[Pod], where: Where) -> Iterator[Where]:
        if branch.topology is None:
            yield where
            return
        found = _candidates(board, self._group, branch, branch.topology, pods, where)
        if not isinstance(found, Refusal):
            steps = where.steps if found.steps is None else found.steps
            yield from (Where(within, steps) for within in found)


def _digest(column: Mask | Amounts) -> bytes:
    return blake2b(column.tobytes(), digest_size=16).digest()


def _candidates(  # noqa: PLR0913, PLR0917 - one question: the PodGroup, its pods and the nodes
    board: PlacementState,
    group: PodGroup,
    branch: Branch,
    constraint: TopologyConstraint,
    pods: Sequence[Pod],
    where: Where,
) -> NodeSets | Refusal:
    nodes = board.snapshot.nodes
    names = {leaf.name for leaf in branch.leaves()}
    within = np.ones(len(nodes.nodes), dtype=np.bool_) if where.within is None else where.within
    may_go = np.logical_or.reduce([board.eligible(pod) & board.room_later(pod) for pod in board.unlike(pods)])
    asked = np.array([board.stock.amounts(pod) or board.stock.impossible for pod in pods], dtype=np.int64)
    subtree = Subtree(
        constraint=constraint,
        asked=asked,
        counts=np.where(may_go, fitting_counts(asked, board.stock.future), 0),
        free=board.stock.future,
        within=within,
        occupied=nodes.mask(one.node for one in group.placed if group.pod_set(one.pod) in names),
    )
    return node_sets(subtree, nodes, board.snapshot.topologies)
