"""Finds places while one plan is made: the best node for a pod, for pods that start together all or none.

What there is room for is told by `stock`; a copy of a board is a what-if.
"""

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Self

import numpy as np

from app.model.decision import Placement
from app.model.names import NodeName
from app.model.pod import Constraint, Placed, Pod, Sharing
from app.model.reason import Refusal
from app.model.resources import GPU, Amounts, Resources, Scalars
from app.model.snapshot import Mask, Snapshot
from app.scheduling import fit, score
from app.scheduling.stock import Seat, Stock
from app.settings import PlacementStrategy

Shape = tuple[Resources, Constraint, Sharing | None, Scalars]
"""What decides where a pod fits; pods of one template share it."""


class Timing(Enum):
    """When the pods that are being placed shall start."""

    NOW_OR_LATER = "now, or when what is leaving has left"
    LATER = "after evictions: nobody starts before all can"


@dataclass(frozen=True, slots=True)
class Strategy:
    """Whether nodes, and devices in shared use, are filled one after the other or all evenly."""

    nodes: PlacementStrategy = PlacementStrategy.BINPACK
    devices: PlacementStrategy = PlacementStrategy.BINPACK


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """Which nodes come into question for pods of a gang, and which of them go first."""

    within: Mask | None = None
    """None: all nodes."""
    steps: Amounts | None = None
    """Shape [node]: nodes of more steps go first, whatever else speaks for others; None: all are alike."""


ANYWHERE = Where()


class Board:
    """Local to one plan and never shared. Placing, keeping, giving back and `withhold` change it."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Start from what is free in the snapshot."""
        self.snapshot = snapshot
        self.stock = Stock(snapshot, strategy.devices)
        """What the nodes have left; changed through this board alone."""
        self._strategy = strategy
        self._withheld: Mask | None = None
        # From how many pods of one shape on no room was found; true until something is given back.
        self._too_many: dict[Shape, int] = {}
        self.explained: dict[tuple[int, Shape], Refusal] = {}
        """What `explain` has found out in this plan, by the number and shape of the pods."""

    def copy(self) -> Self:
        """Return a board that may be changed without changing this one."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing with the board that this one was copied from."""
        self.stock, self._too_many, self.explained = self.stock.copy(), dict(self._too_many), {}

    def adopt(self, other: Self) -> None:
        """Become what a copy of this board has become."""
        self.__dict__.update(other.__dict__)

    # Placing --------------------------------------------------------------------------------------------------------

    def place(
        self, pods: Sequence[Pod], *, where: Where = ANYWHERE, timing: Timing = Timing.NOW_OR_LATER
    ) -> tuple[Seat, ...] | None:
        """Take the best node for every pod, or nothing at all and None."""
        shape = self.common_shape(pods) if where is ANYWHERE else None
        if shape is not None and len(pods) >= self._too_many.get(shape, len(pods) + 1):
            return None
        trial = self.copy() if len(pods) > 1 else self
        seats = trial.place_each(pods, where, timing)
        if seats is None:
            if shape is not None:
                self._too_many[shape] = len(pods)
            return None
        if trial is not self:
            self.adopt(trial)
        return seats

    def place_each(self, pods: Sequence[Pod], where: Where, timing: Timing) -> tuple[Seat, ...] | None:
        """Take the best node for one pod after the other; None, and some seats taken, when one finds none."""
        seats: list[Seat] = []
        for pod in pods:
            seat = self.find(pod, where=where, timing=timing)
            if seat is None:
                return None
            self.stock.take(seat)
            seats.append(seat)
        return tuple(seats)

    def count_fitting(self, pods: Sequence[Pod]) -> int:
        """Return how many of the pods would find a node together, taking nothing."""
        trial, fitting = self.copy(), 0
        for pod in pods:
            seat = trial.find(pod)
            if seat is not None:
                trial.stock.take(seat)
                fitting += 1
        return fitting

    def find(self, pod: Pod, *, where: Where = ANYWHERE, timing: Timing = Timing.NOW_OR_LATER) -> Seat | None:
        """Return the best seat for the pod, taking nothing; what is free now goes before what is to be waited for."""
        eligible, amounts = self.eligible(pod), self.stock.amounts(pod)
        if amounts is None:
            return None
        if where.within is not None:
            eligible = eligible & where.within
        if where.steps is not None:
            eligible = self._first_by_steps(pod, amounts, eligible, where.steps)
        if pod.sharing is not None:
            return self._find_shared(pod, pod.sharing, eligible, timing)
        if timing is Timing.NOW_OR_LATER:
            seat = self._seat(pod, eligible & self.stock.room_now(pod, amounts), later=False)
            if seat is not None or not self.stock.is_leaving:
                return seat
        return self._seat(pod, eligible & self.stock.room_later(pod, amounts), later=True)

    def _find_shared(self, pod: Pod, sharing: Sharing, eligible: Mask, timing: Timing) -> Seat | None:
        stock, amounts = self.stock, self.stock.taken(pod)
        later = eligible & stock.room_later(pod, amounts)
        now = np.zeros_like(later) if timing is Timing.LATER else eligible & stock.room_now(pod, amounts)
        allowed = now | later
        if self._strategy.devices is PlacementStrategy.BINPACK:
            # Waiting for a part of a device that is shared already goes before opening one (KAI's gpusharingorder).
            shared = allowed & stock.devices.fits(sharing, stock.future[GPU])
            allowed = shared if shared.any() else allowed
        if (allowed & now).any():
            allowed = allowed & now
        column = self._choose(pod, allowed)
        if column is None:
            return None
        gpus = int(stock.free[GPU, column]), int(stock.future[GPU, column])
        names, waits = stock.devices.choose(pod, sharing, column, gpus)
        return Seat(pod, column, names, waits or not now[column])

    def _first_by_steps(self, pod: Pod, amounts: Sequence[int], eligible: Mask, steps: Amounts) -> Mask:
        fitting = eligible & self.stock.room_later(pod, amounts)
        return eligible & (steps == steps[fitting].max()) if fitting.any() else eligible

    def _seat(self, pod: Pod, allowed: Mask, *, later: bool) -> Seat | None:
        column = self._choose(pod, allowed)
        return None if column is None else Seat(pod, column, (), later)

    def _choose(self, pod: Pod, allowed: Mask) -> int | None:
        nominated = self.stock.column(pod.nominated)
        if nominated is not None and allowed[nominated]:
            # kube-scheduler already holds that node for the pod; after a restart this rebuilds our promise.
            return nominated
        return score.best(self.costs(pod), allowed)

    def choose(self, pod: Pod, allowed: Mask) -> NodeName | None:
        """Return the best of the allowed nodes, taking nothing."""
        column = self._choose(pod, allowed)
        return None if column is None else self.snapshot.nodes.nodes[column].name

    def keep(self, pods: Iterable[Pod]) -> tuple[Seat, ...]:
        """Take a seat for each pod that finds one, whatever becomes of the others; whole devices only."""
        kept: list[Seat] = []
        for pod in pods:
            seat = None if pod.sharing is not None or pod.claims else self.find(pod)
            if seat is not None:
                self.stock.take(seat)
                kept.append(seat)
        return tuple(kept)

    def let_go(self, seats: Iterable[Seat]) -> None:
        """Give seats back that were only kept."""
        for seat in seats:
            self.stock.leave(self.stock.postpone(seat))
        self._too_many.clear()

    # Which nodes come into question ---------------------------------------------------------------------------------

    def allowed(self, pod: Pod) -> Mask:
        """Return the nodes the pod may go to and has room on now, shape [node]."""
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return np.zeros(len(self.snapshot.nodes.nodes), dtype=np.bool_)
        return self.eligible(pod) & self.stock.room_now(pod, amounts)

    def later_allowed(self, pod: Pod, column: int) -> bool:
        """Whether the pod would have room on one node when everything that is leaving has left."""
        return bool(self.eligible(pod)[column] and self.room_later(pod)[column])

    def room_later(self, pod: Pod) -> Mask:
        """Return the nodes with room for the pod when everything that is leaving has left, shape [node]."""
        amounts = self.stock.amounts(pod)
        if amounts is None:
            return np.zeros(len(self.snapshot.nodes.nodes), dtype=np.bool_)
        return self.stock.room_later(pod, amounts)

    def eligible(self, pod: Pod) -> Mask:
        """Return the nodes the pod may go to whatever is free, shape [node]."""
        nodes = self.snapshot.nodes
        mask = fit.eligible(pod.constraint, nodes)
        if self._withheld is not None:
            mask = mask & ~self._withheld
        if pod.uid in self.snapshot.refused:
            mask = mask & ~nodes.mask(self.snapshot.refused[pod.uid])
        for claim in pod.claims:
            mask = mask & self.stock.usable(pod, claim)
        if pod.near or pod.labels is not None:
            mask = mask & self.stock.neighbours.mask(pod)
        return mask

    def costs(self, pod: Pod) -> Amounts:
        """Return what each node would cost the pod, shape [node]; the least is best."""
        return score.cost(score.axis(pod), self.stock.future, self.snapshot.nodes, self._strategy.nodes)

    def common_shape(self, pods: Sequence[Pod]) -> Shape | None:
        """Return the shape that all pods share, None where they differ or something of their own narrows them."""
        shape = shape_of(pods[0])
        for pod in pods:
            if pod.uid in self.snapshot.refused or pod.near or pod.labels is not None or pod.claims:
                return None
            if shape_of(pod) != shape:
                return None
        return shape

    def withhold(self, nodes: Collection[NodeName]) -> None:
        """Let nobody else onto these nodes."""
        if nodes:
            self._withheld = self.snapshot.nodes.mask(nodes)

    def soonest_empty(self, pods: Sequence[Pod]) -> tuple[NodeName, ...]:
        """Return the nodes on which the pods would find room if those were empty, the least used first; () if none."""
        nodes, left = self.snapshot.nodes, self.snapshot.nodes.allocatable.copy()
        chosen: dict[NodeName, None] = {}
        for pod in pods:
            fitting = self.eligible(pod) & fit.room(pod.request.amounts, left)
            column = score.best(-self.stock.future[GPU], fitting)
            if column is None:
                return ()
            left[:, column] -= np.array(pod.request.amounts, dtype=np.int64)
            chosen[nodes.nodes[column].name] = None
        return tuple(chosen)

    # Giving back ----------------------------------------------------------------------------------------------------

    def give_back(self, placed: Placed) -> None:
        """Have a placed pod leave: what it holds is free in future."""
        self.stock.give_back(placed)
        self._too_many.clear()

    def move(self, seat: Seat, *, to: Seat) -> None:
        """Have a pod of the plan take another seat than the one that it was to wait for; whole devices only."""
        self.stock.leave(seat)
        self.stock.take(to)
        self._too_many.clear()

    def postpone(self, seat: Seat) -> Seat:
        """Have a pod that was to sit down now wait for the others."""
        return self.stock.postpone(seat)

    def placement(self, seat: Seat) -> Placement:
        """Return the seat as the plan states it."""
        return Placement(seat.pod.uid, self.snapshot.nodes.nodes[seat.column].name, seat.devices)


def shape_of(pod: Pod) -> Shape:
    """Return what decides where the pod fits."""
    return pod.request, pod.constraint, pod.sharing, pod.scalars


def largest_first(pod: Pod) -> tuple[int, int, int]:
    """Sort key: pods that are hard to place go first."""
    return -pod.request.gpu_milli, -pod.request.cpu_milli, -pod.request.memory_bytes
