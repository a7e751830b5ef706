"""What is free while one plan is made: placing takes from it, evicting gives back, a copy is a what-if.

Two amounts a node: `free` now, and `future`, when everything that is leaving has left. A pod that starts now takes from
both, a pod that waits for room takes from `future` alone, and an eviction gives to `future` alone.
"""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

import numpy as np

from app.model.decision import Placement
from app.model.names import NodeName
from app.model.pod import Claim, Constraint, Near, Placed, Pod, Sharing
from app.model.reason import Refusal
from app.model.resources import AXES, GPU, GPU_MILLI, UNLIMITED, Amounts, Resources, Scalars
from app.model.snapshot import Mask, Snapshot
from app.scheduling import fit, score
from app.scheduling.affinity import Neighbours
from app.scheduling.devices import Devices
from app.settings import PlacementStrategy

Shape = tuple[Resources, Constraint, Sharing | None, Scalars]
"""What decides where a pod fits; pods of one template share it."""

MAX_CONSUMERS = 256
"""Pods that may share one DRA claim (Kubernetes' `ResourceClaimReservedForMaxSize`)."""


class Timing(Enum):
    """When the pods that are being placed shall start."""

    NOW_OR_LATER = "now, or when what is leaving has left"
    LATER = "after evictions: nobody starts before all can"


@dataclass(frozen=True, slots=True)
class Strategy:
    """Whether nodes, and devices in shared use, are filled one after the other or all evenly."""

    nodes: PlacementStrategy = PlacementStrategy.BINPACK
    devices: PlacementStrategy = PlacementStrategy.BINPACK


@dataclass(frozen=True, slots=True)
class Seat:
    """A pod's place on the board."""

    pod: Pod
    column: int
    devices: tuple[str, ...]
    later: bool
    """It has to wait for what is leaving."""


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """Which nodes come into question for pods of a gang, and which of them go first."""

    within: Mask | None = None
    """None: all nodes."""
    steps: Amounts | None = None
    """Shape [node]: nodes of more steps go first, whatever else speaks for others; None: all are alike."""


ANYWHERE = Where()


class Board:
    """Local to one plan and never shared. `take` and `give_back` change it; everything else asks."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Start from what is free in the snapshot."""
        self.snapshot = snapshot
        self._strategy = strategy
        self._rows = {name: len(AXES) + index for index, name in enumerate(sorted(snapshot.scalars))}
        self.free: Amounts = _stacked(snapshot.free, [snapshot.scalars[name] for name in self._rows])
        """Shape [resource, node]: free now; the axes first, then the extended resources."""
        self.future: Amounts = self.free.copy()
        """Shape [resource, node]: free when everything that is leaving has left."""
        if snapshot.releasing is not None:
            self.future[: len(AXES)] += snapshot.releasing
        for name, amounts in snapshot.releasing_scalars.items():
            self.future[self._rows[name]] += amounts
        self._devices = Devices(snapshot, strategy.devices)
        self._claimed = dict(snapshot.claimed)
        self._withheld: Mask | None = None
        self._neighbours = Neighbours(snapshot)
        # Whether `future` may be more than `free` anywhere: if not, nobody needs to look at it.
        self._waiting_pays = bool(snapshot.releasing is not None or snapshot.releasing_scalars)
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
        self.free, self.future = self.free.copy(), self.future.copy()
        self._devices, self._neighbours = self._devices.copy(), self._neighbours.copy()
        self._claimed, self._too_many = dict(self._claimed), dict(self._too_many)
        self.explained = {}

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
            self.take(seat)
            seats.append(seat)
        return tuple(seats)

    def count_fitting(self, pods: Sequence[Pod]) -> int:
        """Return how many of the pods would find a node together, taking nothing."""
        trial, fitting = self.copy(), 0
        for pod in pods:
            seat = trial.find(pod)
            if seat is not None:
                trial.take(seat)
                fitting += 1
        return fitting

    def find(self, pod: Pod, *, where: Where = ANYWHERE, timing: Timing = Timing.NOW_OR_LATER) -> Seat | None:
        """Return the best seat for the pod, taking nothing; what is free now goes before what is to be waited for."""
        eligible = self.eligible(pod)
        if where.within is not None:
            eligible = eligible & where.within
        amounts = self.amounts(pod)
        if amounts is None:
            return None
        if where.steps is not None:
            eligible = self._first_by_steps(pod, amounts, eligible, where.steps)
        if pod.sharing is not None:
            return self._find_shared(pod, pod.sharing, eligible, timing)
        if timing is Timing.NOW_OR_LATER:
            seat = self._seat(pod, eligible & self._room_now(pod, amounts), later=False)
            if seat is not None or not self._waiting_pays:
                return seat
        return self._seat(pod, eligible & fit.room(amounts, self.future), later=True)

    def _find_shared(self, pod: Pod, sharing: Sharing, eligible: Mask, timing: Timing) -> Seat | None:
        amounts = self._taken(pod)
        now, later = eligible & self._room_now(pod, amounts), eligible & self._room(pod, amounts, self.future)
        allowed = now | later if timing is Timing.NOW_OR_LATER else later
        if self._strategy.devices is PlacementStrategy.BINPACK:
            # Waiting for a part of a device that is shared already goes before opening one (KAI's gpusharingorder).
            shared = allowed & self._devices.fits(sharing, self.future[GPU])
            allowed = shared if shared.any() else allowed
        if timing is Timing.NOW_OR_LATER and (allowed & now).any():
            allowed = allowed & now
        column = self._choose(pod, allowed)
        if column is None:
            return None
        gpus = int(self.free[GPU, column]), int(self.future[GPU, column])
        names, waits = self._devices.choose(pod, sharing, column, gpus)
        return Seat(pod, column, names, waits or timing is Timing.LATER or not now[column])

    def _first_by_steps(self, pod: Pod, amounts: Sequence[int], eligible: Mask, steps: Amounts) -> Mask:
        fitting = eligible & self._room(pod, amounts, self.future)
        return eligible & (steps == steps[fitting].max()) if fitting.any() else eligible

    def _seat(self, pod: Pod, allowed: Mask, *, later: bool) -> Seat | None:
        column = self._choose(pod, allowed)
        return None if column is None else Seat(pod, column, (), later)

    def _choose(self, pod: Pod, allowed: Mask) -> int | None:
        nominated = self._column(pod.nominated)
        if nominated is not None and allowed[nominated]:
            # kube-scheduler already holds that node for the pod; after a restart this rebuilds our promise.
            return nominated
        return score.best(self.costs(pod), allowed)

    def choose(self, pod: Pod, allowed: Mask) -> NodeName | None:
        """Return the best of the allowed nodes, taking nothing."""
        column = self._choose(pod, allowed)
        return None if column is None else self.snapshot.nodes.nodes[column].name

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
            if not fitting.any():
                return ()
            column = score.best(-self.future[GPU], fitting)
            if column is not None:
                left[:, column] -= np.array(pod.request.amounts, dtype=np.int64)
                chosen[nodes.nodes[column].name] = None
        return tuple(chosen)

    # What fits ------------------------------------------------------------------------------------------------------

    def allowed(self, pod: Pod) -> Mask:
        """Return the nodes the pod may go to and has room on now, shape [node]."""
        amounts = self.amounts(pod)
        if amounts is None:
            return np.zeros(len(self.snapshot.nodes.nodes), dtype=np.bool_)
        return self.eligible(pod) & self._room_now(pod, amounts)

    def later_allowed(self, pod: Pod, column: int) -> bool:
        """Whether the pod would have room on one node when everything that is leaving has left."""
        amounts = self.amounts(pod)
        if amounts is None or not self.eligible(pod)[column]:
            return False
        return bool(self._room(pod, amounts, self.future)[column])

    def eligible(self, pod: Pod) -> Mask:
        """Return the nodes the pod may go to whatever is free, shape [node]."""
        nodes = self.snapshot.nodes
        mask = fit.eligible(pod.constraint, nodes)
        if self._withheld is not None:
            mask = mask & ~self._withheld
        if pod.uid in self.snapshot.refused:
            mask = mask & ~nodes.mask(self.snapshot.refused[pod.uid])
        for claim in pod.claims:
            mask = mask & self._usable(pod, claim)
        if pod.near or pod.labels is not None:
            mask = mask & self._neighbours.mask(pod)
        return mask

    def _usable(self, pod: Pod, claim: Claim) -> Mask:
        nodes = self.snapshot.nodes
        if claim.shared and claim.queue != pod.queue:
            return np.zeros(len(nodes.nodes), dtype=np.bool_)
        if claim.key not in self._claimed:
            return np.ones(len(nodes.nodes), dtype=np.bool_)
        node, consumers = self._claimed[claim.key]
        return nodes.mask([node] if consumers < MAX_CONSUMERS else [])

    def _room_now(self, pod: Pod, amounts: Sequence[int]) -> Mask:
        mask = self._room(pod, amounts, self.free)
        if self._waiting_pays:
            # What is free until somebody takes it who waits for more is not to be given away for good.
            mask &= self._room(pod, amounts, self.future)
        return mask

    def _room(self, pod: Pod, amounts: Sequence[int], columns: Amounts) -> Mask:
        mask = fit.room(amounts, columns)
        if pod.sharing is not None:
            mask &= self._devices.room(pod.sharing, columns[GPU], self.future[GPU], later=columns is self.future)
        return mask

    def free_of(self, name: str) -> Amounts:
        """Return how much of an extended resource is free now, shape [node]; 0 where no node has it."""
        row = self._rows.get(name)
        return np.zeros(self.free.shape[1], dtype=np.int64) if row is None else self.free[row]

    def has_devices(self, sharing: Sharing) -> Mask:
        """Return the nodes with devices of which these parts are free now, shape [node]."""
        return self._devices.room(sharing, self.free[GPU], self.future[GPU], later=False)

    def amounts(self, pod: Pod) -> Sequence[int] | None:
        """Return what the pod takes of each row of the board; None when it asks for what no node has."""
        amounts = pod.request.amounts
        if not self._rows and not pod.scalars and not pod.claims:
            return amounts
        row = [*amounts, *(0 for _ in self._rows)]
        for name, count in (*pod.scalars, *self._devices_asked(pod)):
            if name not in self._rows:
                return None
            row[self._rows[name]] += count
        return row

    @property
    def impossible(self) -> Sequence[int]:
        """The amounts of a pod that asks for a resource that no node has."""
        return [UNLIMITED] * self.free.shape[0]

    def _taken(self, pod: Pod) -> Sequence[int]:
        amounts = self.amounts(pod)
        if amounts is None:
            raise ValueError(f"{pod} asks for a resource that no node has")
        return amounts

    def _devices_asked(self, pod: Pod) -> Scalars:
        new = (claim for claim in pod.claims if claim.key not in self._claimed)
        return tuple((f"dra:{claim.device_class}", claim.count) for claim in new)

    def costs(self, pod: Pod) -> Amounts:
        """Return what each node would cost the pod, shape [node]; the least is best."""
        return score.cost(score.axis(pod), self.future, self.snapshot.nodes, self._strategy.nodes)

    def common_shape(self, pods: Sequence[Pod]) -> Shape | None:
        """Return the shape that all pods share, None where they differ or something of their own narrows them."""
        shape = shape_of(pods[0])
        for pod in pods:
            if pod.uid in self.snapshot.refused or pod.near or pod.labels is not None or pod.claims:
                return None
            if shape_of(pod) != shape:
                return None
        return shape

    def _column(self, node: NodeName | None) -> int | None:
        return None if node is None else self.snapshot.nodes.index.get(node)

    # Changing -------------------------------------------------------------------------------------------------------

    def take(self, seat: Seat) -> None:
        """Have the pod sit there."""
        pod, column = seat.pod, seat.column
        amounts = np.array(self._taken(pod), dtype=np.int64)
        self.future[:, column] -= amounts
        if not seat.later:
            self.free[:, column] -= amounts
        if pod.sharing is not None:
            opened = self._devices.take(pod.sharing, column, seat.devices, later=seat.later)
            self.future[GPU, column] -= opened.of_future * GPU_MILLI
            self.free[GPU, column] -= opened.of_free * GPU_MILLI
        for claim in pod.claims:
            node, consumers = self._claimed.get(claim.key, (self.snapshot.nodes.nodes[column].name, 0))
            self._claimed[claim.key] = node, consumers + 1
        self._neighbours.add(pod, column)

    def give_back(self, placed: Placed) -> None:
        """Have a placed pod leave: what it holds is free in future."""
        column = self._column(placed.node)
        if column is None:
            return
        pod = placed.pod
        for claim in pod.claims:
            self._leave(claim)
        amounts = self.amounts(pod)
        if amounts is not None:
            self.future[:, column] += np.array(amounts, dtype=np.int64)
        if pod.sharing is not None:
            self.future[GPU, column] += GPU_MILLI * self._devices.give_back(pod.sharing, column, placed.devices)
        self._neighbours.remove(pod, column)
        self._waiting_pays = True
        self._too_many.clear()

    def leave(self, seat: Seat) -> None:
        """Have a pod of the plan leave the seat that it was to wait for; whole devices only."""
        self.future[:, seat.column] += np.array(self._taken(seat.pod), dtype=np.int64)
        self._neighbours.remove(seat.pod, seat.column)
        self._too_many.clear()

    def postpone(self, seat: Seat) -> Seat:
        """Have a pod that was to sit down now wait for the others: what it took is free until then."""
        if seat.later:
            return seat
        pod, column = seat.pod, seat.column
        self.free[:, column] += np.array(self._taken(pod), dtype=np.int64)
        if pod.sharing is not None:
            self.free[GPU, column] += GPU_MILLI * self._devices.postpone(pod.sharing, column, seat.devices)
        self._waiting_pays = True
        return replace(seat, later=True)

    def holds_in_all(self, pods: Sequence[Pod]) -> bool:
        """Whether all nodes together will have as much as the pods ask for, however thinly spread."""
        asked = [0] * self.future.shape[0]
        for pod in pods:
            amounts = self.amounts(pod)
            if amounts is None:
                return False
            asked = [one + more for one, more in zip(asked, amounts, strict=True)]
            if pod.sharing is not None:
                asked[GPU] += pod.sharing.gpu_milli(self.snapshot.nodes.smallest_device_mib)
        there = np.maximum(self.future, 0).sum(axis=1)
        there[GPU] += self._devices.free_milli()
        return all(amount <= there[row] for row, amount in enumerate(asked) if amount)

    def _leave(self, claim: Claim) -> None:
        node, consumers = self._claimed.get(claim.key, (None, 0))
        if node is not None and consumers > 1:
            self._claimed[claim.key] = node, consumers - 1
        else:
            self._claimed.pop(claim.key, None)

    def placement(self, seat: Seat) -> Placement:
        """Return the seat as the plan states it."""
        return Placement(seat.pod.uid, self.snapshot.nodes.nodes[seat.column].name, seat.devices)


def shape_of(pod: Pod) -> Shape:
    """Return what decides where the pod fits."""
    return pod.request, pod.constraint, pod.sharing, pod.scalars


def largest_first(pod: Pod) -> tuple[int, int, int]:
    """Sort key: pods that are hard to place go first."""
    return -pod.request.gpu_milli, -pod.request.cpu_milli, -pod.request.memory_bytes


def _stacked(free: Amounts, more: Sequence[Amounts]) -> Amounts:
    if not more:
        return free.copy()
    return np.vstack([free, np.array(more, dtype=np.int64)])


__all__ = ["Board", "Near", "Seat", "Shape", "Timing", "largest_first", "shape_of"]
