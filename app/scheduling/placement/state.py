"""Finds places during one plan: the best node for a pod, or for pods that start together, all or none.

`free_resources` tells what is free. A copy of a placement state is a what-if.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np

from app.model.decision import Placement
from app.model.names import GroupKey, NodeName
from app.model.pod import Constraint, Placed, Pod, Sharing
from app.model.reason import Refusal
from app.model.resources import GPU, Amounts, Resources, Scalars
from app.model.snapshot import Mask, Snapshot
from app.scheduling.copies import Common, Copied, Fresh, Owned, Value
from app.scheduling.placement import fit, score
from app.scheduling.placement.free_resources import Assignment, FreeResources
from app.scheduling.placement.ranks import ANYWHERE, LATER, Ranks, Strategy, Where, Wish, best, only

T = TypeVar("T")

Shape = tuple[Resources, Constraint, Sharing | None, Scalars]
"""What decides where a pod fits. Pods of one template share it."""


MOST_WISHES = 256
"""The most shapes remembered in one plan. The bound is needed because tenants choose the requests."""


class Timing(Enum):
    """When the pods that are being placed start."""

    NOW_OR_LATER = "now, or after all terminating pods are gone"
    LATER = "after evictions: no pod starts before all pods can"


class PlacementState(Copied):
    """The placement of one plan, never shared. Placing, keeping, giving back and `withhold` change it."""

    snapshot: Value[Snapshot]
    stock: Owned[FreeResources]
    """The free resources of the nodes. Only this object changes them."""
    ranking: Common[Ranks]
    """The costs of the nodes."""
    _wishes: Common[dict[Hashable, Wish]]
    in_vain: Common[dict[GroupKey, int]]
    """The cost of failed trials of `gang` by PodGroup, in units of `gang.MOST_TRIALS`, here and in all copies."""
    withheld: Value[Mask | None]
    """The nodes that other PodGroups may not use; None when there are none."""
    withheld_for: Value[str]
    is_closed: Value[bool]
    """Whether the withheld nodes are closed to the PodGroup that is being placed."""
    _too_many: Owned[dict[tuple[Shape, bool], int]]
    """The number of pods of one shape from which on no room was found. Valid until resources are given back."""
    explained: Fresh[dict[tuple[int, Shape, bool, bool], tuple[int, Refusal]]]
    """The results of `explain` in this plan: by the number and shape of the pods, whether pods of their group were
    served before, and whether nodes were closed to them. Each result has the number of changes of the free resources
    at that time.
    """
    renewed: Value[int]
    """How often `explain` repeated this because the free resources had changed."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Start from what is free in the snapshot."""
        self.snapshot = snapshot
        self.stock = FreeResources(snapshot, strategy.devices)
        self.ranking = Ranks(snapshot, strategy, self.stock.rows)
        self._wishes, self.in_vain = {}, {}
        self.withheld, self.withheld_for, self.is_closed = None, "", False
        self._too_many, self.explained, self.renewed = {}, {}, 0

    # Placing --------------------------------------------------------------------------------------------------------

    def place(
        self, pods: Sequence[Pod], *, where: Where = ANYWHERE, timing: Timing = Timing.NOW_OR_LATER
    ) -> tuple[Assignment, ...] | None:
        """Take the best node for every pod. Take nothing and return None when not all pods fit."""
        shape = self.common_shape(pods) if where is ANYWHERE else None
        if shape is not None and len(pods) >= self._too_many.get((shape, self.is_closed), len(pods) + 1):
            return None
        place = partial(PlacementState._place_each, pods=pods, where=where, timing=timing)
        seats = self.all_or_none(place) if len(pods) > 1 else place(self)
        if seats is None and shape is not None:
            self._too_many[shape, self.is_closed] = len(pods)
        return seats

    def all_or_none(self, place: "Callable[[PlacementState], T | None]") -> T | None:
        """Return the result of `place` on a copy. Adopt the places that it takes there, unless the result is None."""
        trial = self.copy()
        found = place(trial)
        if found is not None:
            self.take_over(trial)
        return found

    def _place_each(self, pods: Sequence[Pod], where: Where, timing: Timing) -> tuple[Assignment, ...] | None:
        """Take the best node for one pod after another. Return None, with some places taken, when a pod finds none."""
        seats: list[Assignment] = []
        for pod in pods:
            seat = self.find(pod, where=where, timing=timing)
            if seat is None:
                return None
            self.stock.take(seat)
            seats.append(seat)
        return tuple(seats)

    def seated(self, pods: Sequence[Pod]) -> "tuple[PlacementState, list[Pod]]":
        """Return a copy in which each pod that finds a place has it, and the pods that find none."""
        trial, left = self.copy(), list[Pod]()
        for pod in pods:
            seat = trial.find(pod)
            if seat is None:
                left.append(pod)
            else:
                trial.stock.take(seat)
        return trial, left

    def find(self, pod: Pod, *, where: Where = ANYWHERE, timing: Timing = Timing.NOW_OR_LATER) -> Assignment | None:
        """Return the best place for the pod without taking it. Room that is free now is preferred over later room."""
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return None
        ranks = self._ranks(pod, amounts, timing)
        if where is not ANYWHERE:
            ranks = where.narrowed(ranks)
        column = best(ranks, self.stock.column(pod.nominated))
        if column is None:
            return None
        names, waits = self.stock.choose_devices(pod, column)
        return Assignment(pod, column, names, waits or timing is Timing.LATER or bool(ranks.item(column) & LATER))

    def _ranks(self, pod: Pod, amounts: Sequence[int], timing: Timing) -> Amounts:
        """Return the rank of every node, shape [node]. Do not write to it. It is valid until a place is taken."""
        waits = timing is Timing.LATER
        shape = pod.constraint, tuple(amounts), pod.sharing, score.axis(pod), waits, self.is_closed
        wish = self._wishes.get(shape)
        if wish is None:
            wish = Wish.of(pod, amounts, self._open_to(pod), waits=waits)
            self._remember(shape, wish)
        ranks, own = self.ranking.of(wish, self.stock), self._own_mask(pod)
        return ranks if own is None else only(own, ranks)

    def _remember(self, shape: Hashable, wish: Wish) -> None:
        if len(self._wishes) >= MOST_WISHES:
            self._forget()
        self._wishes[shape] = wish

    def _forget(self) -> None:
        self._wishes = {}
        self.stock.remembered.forget()

    def choose(self, pod: Pod, allowed: Mask) -> NodeName | None:
        """Return the best of the allowed nodes without taking it."""
        column = best(only(allowed, self.costs(pod)), self.stock.column(pod.nominated))
        return None if column is None else self.snapshot.nodes.nodes[column].name

    def keep(self, pods: Iterable[Pod]) -> tuple[Assignment, ...]:
        """Take a place for each pod that finds one, even if other pods find none; whole devices only."""
        kept: list[Assignment] = []
        for pod in pods:
            seat = None if pod.sharing is not None or pod.claims else self.find(pod)
            if seat is not None:
                self.stock.take(seat)
                kept.append(seat)
        return tuple(kept)

    def may_gain(self, pods: Sequence[Pod], seats: Sequence[Assignment]) -> bool:
        """Whether any of the pods might find room on a node where these places are released. False is certain."""
        columns, numbers = np.unique([seat.column for seat in seats], return_inverse=True)
        there = self.stock.future[:, columns].copy()
        for seat, number in zip(seats, numbers.tolist(), strict=True):
            there[:, number] += self.stock.taken(seat.pod)
        asking = ((self.eligible(pod)[columns], self.stock.amounts(pod)) for pod in self.unlike(pods))
        return any(asked is not None and (mask & fit.room(asked, there)).any() for mask, asked in asking)

    def take(self, seats: Iterable[Assignment]) -> None:
        """Take places that are known to be free."""
        for seat in seats:
            self.stock.take(seat)

    def let_go(self, seats: Iterable[Assignment]) -> None:
        """Release places that were only kept."""
        for seat in seats:
            self.stock.leave(self.stock.postpone(seat))
        self._too_many.clear()

    # Which nodes come into question ---------------------------------------------------------------------------------

    def allowed(self, pod: Pod) -> Mask:
        """Return the nodes that the pod may use and that have room now, shape [node]."""
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return np.zeros(len(self.snapshot.nodes.nodes), dtype=np.bool_)
        return self.eligible(pod) & self.stock.room_now(amounts, pod.sharing)

    def may_stay(self, pod: Pod, column: int) -> bool:
        """Whether a running pod would have room on its node after all terminating pods are gone.

        A cordon, a taint or withholding of the node does not count, because these only keep new pods off. Affinity
        counts, because new pods on the node may violate the pod's terms.
        """
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return False
        if not self.stock.has_room_later(self.stock.taken(pod, column), pod.sharing, column):
            return False
        is_alone = not pod.near and pod.labels is None
        return is_alone or bool(self.stock.neighbours.mask(pod)[column])

    def room_later(self, pod: Pod) -> Mask:
        """Return the nodes with room for the pod after all terminating pods are gone, shape [node]."""
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return np.zeros(len(self.snapshot.nodes.nodes), dtype=np.bool_)
        return self.stock.room_later(amounts, pod.sharing)

    def eligible(self, pod: Pod) -> Mask:
        """Return the nodes that the pod may use, whatever is free, shape [node]."""
        mask, own = self._open_to(pod), self._own_mask(pod)
        return mask if own is None else mask & own

    def open_to_any(self, pods: Iterable[Pod]) -> Mask:
        """Return the nodes that at least one of the pods may use, whatever is free, shape [node]."""
        found: Mask = np.logical_or.reduce([self.eligible(pod) for pod in self.unlike(pods)])
        return found

    def _open_to(self, pod: Pod) -> Mask:
        mask = fit.eligible(pod.constraint, self.snapshot.nodes)
        # Written out: this runs for every pod, and hardly any cluster has such nodes.
        if pod.request.gpu_milli > pod.by_claim_milli:
            closed = self.snapshot.nodes.by_claim_only
            if closed is not None:
                mask = mask & ~closed
        return mask if self.withheld is None or not self.is_closed else mask & ~self.withheld

    @property
    def closes_nodes(self) -> bool:
        """Whether nodes are withheld from the PodGroup that is being placed."""
        return self.withheld is not None and self.is_closed

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the withheld nodes to the PodGroup for a while."""
        before, self.is_closed = self.is_closed, False
        try:
            yield
        finally:
            self.is_closed = before

    def _own_mask(self, pod: Pod) -> Mask | None:
        """Return the nodes that satisfy what is specific to this pod, shape [node]; None when nothing is specific."""
        if not self._is_special(pod):
            return None
        nodes, stock = self.snapshot.nodes, self.stock
        mask = ~nodes.mask(self.snapshot.refused.get(pod.uid, ()))
        for claim in pod.claims:
            mask &= stock.usable(pod, claim)
        if pod.near or pod.labels is not None:
            mask &= stock.neighbours.mask(pod)
        return mask

    def _is_special(self, pod: Pod) -> bool:
        """Whether a property of this pod alone restricts its nodes."""
        return bool(pod.claims or pod.near) or pod.labels is not None or pod.uid in self.snapshot.refused

    def costs(self, pod: Pod) -> Amounts:
        """Return the cost of each node for the pod, shape [node]; the lowest is best."""
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return np.zeros(len(self.snapshot.nodes.nodes), dtype=np.int64)
        return self.ranking.costs(Wish.of(pod, amounts, self._open_to(pod), waits=False), self.stock)

    def common_shape(self, pods: Sequence[Pod]) -> Shape | None:
        """Return the shape that all pods share. Return None if shapes differ or a pod has restrictions of its own."""
        if not pods:
            return None
        first, shape = pods[0], shape_of(pods[0])
        for pod in pods:
            if self._is_special(pod) or (pod is not first and shape_of(pod) != shape):
                return None
        return shape

    def unlike(self, pods: Iterable[Pod]) -> Sequence[Pod]:
        """Return one pod of each shape, and each pod with restrictions of its own. They represent all the pods."""
        found: dict[object, Pod] = {}
        for pod in pods:
            found.setdefault(pod.uid if self._is_special(pod) else shape_of(pod), pod)
        return list(found.values())

    def withhold(self, nodes: Collection[NodeName], *, is_owed: bool = False) -> None:
        """Withhold these nodes from other PodGroups, for a PodGroup that is owed room or has been pending for long."""
        whose = "whose queue is within its fair share" if is_owed else "that has waited for a long time"
        self.withheld_for = f"a PodGroup {whose}"
        before, self.withheld = self.withheld, self.snapshot.nodes.mask(nodes) if nodes else None
        self.is_closed = bool(nodes)
        if before is not None or nodes:
            self._forget()
            self._too_many.clear()
            self.explained = {}

    def soonest_empty(self, pods: Sequence[Pod]) -> tuple[NodeName, ...]:
        """Return the nodes on which the pods would find room if empty, the least used first. Return () if none."""
        nodes, left = self.snapshot.nodes, self.snapshot.nodes.allocatable.copy()
        chosen: dict[NodeName, None] = {}
        for pod in pods:
            if any(name not in self.snapshot.scalars for name, _ in pod.scalars):
                return ()
            fitting = self.eligible(pod) & fit.room(pod.request.amounts, left)
            column = score.best(-self.stock.future[GPU], fitting)
            if column is None:
                return ()
            left[:, column] -= np.array(pod.request.amounts, dtype=np.int64)
            chosen[nodes.nodes[column].name] = None
        return tuple(chosen)

    # Giving back ----------------------------------------------------------------------------------------------------

    def give_back(self, placed: Placed) -> None:
        """Remove a placed pod: what it holds is free in future."""
        self.stock.give_back(placed)
        self._too_many.clear()

    def move(self, seat: Assignment, *, to: Assignment) -> None:
        """Move a pod of the plan to another place than the one that it was to wait for; whole devices only."""
        self.stock.leave(seat)
        self.stock.take(to)
        self._too_many.clear()

    def postpone(self, seat: Assignment) -> Assignment:
        """Let a pod that was to start now wait for the others."""
        return self.stock.postpone(seat)

    def placement(self, seat: Assignment) -> Placement:
        """Return the place in the form of the plan."""
        return Placement(seat.pod.uid, self.snapshot.nodes.nodes[seat.column].name, seat.devices)


def shape_of(pod: Pod) -> Shape:
    """Return what decides where the pod fits."""
    return pod.request, pod.constraint, pod.sharing, pod.scalars


def largest_first(pod: Pod) -> tuple[int, int, int]:
    """Sort key: pods that are hard to place go first."""
    return -pod.request.gpu_milli, -pod.request.cpu_milli, -pod.request.memory_bytes
