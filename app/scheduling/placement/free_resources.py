"""Free resources of the nodes during one plan: amounts, parts of devices, claims, and the pods on each node.

Each node has two amounts: `free` now, and `future` after all terminating pods are gone. A pod that starts now takes
from both. A pod that waits for room takes from `future` only. An eviction adds to `future` only. `state` chooses
between the nodes with room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from app.model.dra import ClaimKey
from app.model.names import NodeName
from app.model.pod import Placed, Pod, ResourceClaim, Sharing
from app.model.resources import AXES, GPU, GPU_MILLI, UNLIMITED, Amounts
from app.model.snapshot import Mask, Snapshot
from app.scheduling.copies import Copied, Owned, Value
from app.scheduling.placement import fit
from app.scheduling.placement.affinity import Neighbours
from app.scheduling.placement.devices import SharedDevices
from app.scheduling.placement.mask_cache import Remembered
from app.settings import PlacementStrategy

MAX_CONSUMERS = 256
"""Pods that may share one DRA claim (Kubernetes' `ResourceClaimReservedForMaxSize`)."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The place of a pod in a plan."""

    pod: Pod
    column: int
    devices: tuple[str, ...]
    later: bool
    """The pod has to wait for terminating pods."""


class FreeResources(Copied):
    """Local to one placement state. `take`, `give_back`, `leave` and `postpone` change it; the rest only reads."""

    _snapshot: Value[Snapshot]
    rows: Value[Mapping[str, int]]
    """The row of each extended resource."""
    free: Owned[Amounts]
    """Shape [resource, node]: free now; first the axes, then the extended resources."""
    future: Owned[Amounts]
    """Shape [resource, node]: free after all terminating pods are gone."""
    devices: Owned[SharedDevices]
    """The devices in shared use; only this object changes them."""
    remembered: Owned[Remembered]
    """Remembers frequent questions about the nodes. It is notified of every change of a node."""
    neighbours: Owned[Neighbours]
    """The pods on each node, for affinity; only this object changes it."""
    _claimed: Owned[dict[ClaimKey, tuple[NodeName, int]]]
    changes: Value[int]
    """The number of changes of nodes. An answer is valid as long as this number is the same."""
    is_leaving: Value[bool]
    """Whether `future` may differ from `free` on any node. If not, `future` need not be read."""

    def __init__(self, snapshot: Snapshot, devices: PlacementStrategy) -> None:
        """Start with what is free in the snapshot. `devices` tells how devices in shared use are filled."""
        self._snapshot = snapshot
        self.rows = {name: len(AXES) + index for index, name in enumerate(sorted(snapshot.scalars))}
        self.free = _stacked(snapshot.free, [snapshot.scalars[name] for name in self.rows])
        self.future = self.free.copy()
        if snapshot.releasing is not None:
            self.future[: len(AXES)] += snapshot.releasing
        for name, amounts in snapshot.releasing_scalars.items():
            self.future[self.rows[name]] += amounts
        self.devices = SharedDevices(snapshot, devices)
        self.remembered = Remembered(len(snapshot.nodes.nodes))
        self.neighbours = Neighbours(snapshot)
        self._claimed = dict(snapshot.claimed)
        self.changes = 0
        self.is_leaving = bool(snapshot.releasing is not None or snapshot.releasing_scalars)

    # What there is room for -----------------------------------------------------------------------------------------

    def amounts(self, pod: Pod) -> Sequence[int] | None:
        """Return what the pod takes of each row. Return None when the pod requests a resource that no node has."""
        amounts = pod.request.amounts
        if not self.rows and not pod.scalars and not pod.claims:
            return amounts
        return self._with(pod, [claim for claim in pod.claims if self.is_new(claim)])

    def amounts_alone(self, pod: Pod) -> Sequence[int] | None:
        """Return the same as if no other pod used the claims of the pod."""
        return self._with(pod, pod.claims) if pod.claims else self.amounts(pod)

    def is_new(self, claim: ResourceClaim) -> bool:
        """Return whether no pod uses a claim yet, and it is not allocated."""
        return claim.key not in self._claimed

    def users(self, claim: ResourceClaim) -> int:
        """Return how many pods use a claim, at least 1."""
        _, consumers = self._claimed.get(claim.key, (None, 1))
        return max(consumers, 1)

    def _with(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Sequence[int] | None:
        row = [*pod.request.amounts, *(0 for _ in self.rows)]
        row[GPU] += sum(claim.gpu_milli for claim in claims)
        for name, count in chain(pod.scalars, *(claim.scalars for claim in claims)):
            if name not in self.rows:
                return None
            row[self.rows[name]] += count
        return row

    @property
    def impossible(self) -> Sequence[int]:
        """The amounts of a pod that requests a resource that no node has."""
        return [UNLIMITED] * self.free.shape[0]

    def taken(self, pod: Pod, column: int | None = None) -> Sequence[int]:
        """Return what the pod takes of each row. Some node must have every requested resource.

        With the column of its own node: without its GPUs that take no pods after it. It leaves them taken.
        """
        amounts = self.amounts(pod)
        if amounts is None:
            raise ValueError(f"{pod} requests a resource that no node has")
        return self._of_node(pod, amounts, column) if self._snapshot.unusable_devices else amounts

    def _of_node(self, pod: Pod, amounts: Sequence[int], column: int | None) -> Sequence[int]:
        node, unusable = self._snapshot.unusable_devices.get(pod.uid, (None, 0))
        if not unusable or column is None or column != self.column(node):
            return amounts
        return [amount - GPU_MILLI * unusable if row == GPU else amount for row, amount in enumerate(amounts)]

    def room_now(self, amounts: Sequence[int], sharing: Sharing | None) -> Mask:
        """Return the nodes with room for these amounts and parts now, shape [node]."""
        mask = self._room(amounts, sharing, self.free)
        if self.is_leaving:
            # Room that is free now may be reserved for a pod that waits for more. Other pods must not take that room.
            mask &= self._room(amounts, sharing, self.future)
        return mask

    def room_later(self, amounts: Sequence[int], sharing: Sharing | None) -> Mask:
        """Return the nodes with room for these amounts and parts after all terminating pods are gone, shape [node]."""
        return self._room(amounts, sharing, self.future)

    def _room(self, amounts: Sequence[int], sharing: Sharing | None, columns: Amounts) -> Mask:
        mask = fit.room(amounts, columns)
        if sharing is not None:
            mask &= self.devices.room(sharing, columns[GPU], self.future[GPU], later=columns is self.future)
        return mask

    def has_room_now(self, amounts: Sequence[int], sharing: Sharing | None, column: int) -> bool:
        """Return the same as `room_now` for one node. The node must have room later."""
        return self._has_room(amounts, sharing, column, self.free)

    def has_room_later(self, amounts: Sequence[int], sharing: Sharing | None, column: int) -> bool:
        """Return the same as `room_later` for one node."""
        return self._has_room(amounts, sharing, column, self.future)

    def _has_room(self, amounts: Sequence[int], sharing: Sharing | None, column: int, columns: Amounts) -> bool:
        if not fit.suffices(amounts, columns[:, column].tolist()):
            return False
        if sharing is None:
            return True
        gpus = columns.item(GPU, column), self.future.item(GPU, column)
        return self.devices.has_room(sharing, column, gpus, later=columns is self.future)

    def fits_shared(self, sharing: Sharing) -> Mask:
        """Return the nodes where a device in shared use can take the part, now or later, shape [node]."""
        return self.devices.fits(sharing, self.future[GPU])

    def has_shared(self, sharing: Sharing, column: int) -> bool:
        """Return the same as `fits_shared` for one node."""
        return self.devices.has_fitting(sharing, column, self.future.item(GPU, column))

    def choose_devices(self, pod: Pod, column: int) -> tuple[tuple[str, ...], bool]:
        """Return the devices of which the pod would get its part on a node, and whether it has to wait for one."""
        if pod.sharing is None:
            return (), False
        gpus = self.free.item(GPU, column), self.future.item(GPU, column)
        return self.devices.choose(pod, pod.sharing, column, gpus)

    def usable(self, pod: Pod, claim: ResourceClaim) -> Mask:
        """Return the nodes on which the pod may use the claim, shape [node]."""
        nodes = self._snapshot.nodes
        if claim.shared and claim.queue != pod.queue:
            return np.zeros(len(nodes.nodes), dtype=np.bool_)
        if claim.key not in self._claimed:
            return np.ones(len(nodes.nodes), dtype=np.bool_)
        node, consumers = self._claimed[claim.key]
        return nodes.mask([node] if consumers < MAX_CONSUMERS else [])

    def free_of(self, name: str) -> Amounts:
        """Return the amount of an extended resource that is free now, shape [node]; 0 where no node has it."""
        row = self.rows.get(name)
        return np.zeros(self.free.shape[1], dtype=np.int64) if row is None else self.free[row]

    def has_devices(self, sharing: Sharing) -> Mask:
        """Return the nodes whose devices have these parts free now, shape [node]."""
        return self.devices.room(sharing, self.free[GPU], self.future[GPU], later=False)

    def holds_in_all(self, pods: Sequence[Pod]) -> bool:
        """Return whether all nodes together will have as much as the pods request, ignoring fragmentation."""
        asked, claimed = [0] * self.future.shape[0], set[ClaimKey]()
        for pod in pods:
            # Pods that share a claim take its devices once.
            new = tuple(claim for claim in pod.claims if claim.key not in claimed)
            amounts = self.amounts(replace(pod, claims=new) if pod.claims else pod)
            if amounts is None:
                return False
            claimed.update(claim.key for claim in new)
            asked = [one + more for one, more in zip(asked, amounts, strict=True)]
            if pod.sharing is not None:
                # Counted on the largest GPU, of which the request is the smallest part: the sum may be too low, never
                # too high.
                asked[GPU] += pod.sharing.gpu_milli(int(self._snapshot.nodes.device_memory_mib.max(initial=1)))
        there = np.maximum(self.future, 0).sum(axis=1)
        there[GPU] += self.devices.free_milli()
        return all(amount <= there[row] for row, amount in enumerate(asked) if amount)

    # Changing -------------------------------------------------------------------------------------------------------

    def take(self, seat: Assignment) -> None:
        """Assign the pod to the place."""
        pod, column = seat.pod, seat.column
        amounts = np.array(self.taken(pod, column), dtype=np.int64)
        self.future[:, column] -= amounts
        if not seat.later:
            self.free[:, column] -= amounts
        if pod.sharing is not None:
            opened = self.devices.take(pod.sharing, column, seat.devices, later=seat.later)
            self.future[GPU, column] -= opened.of_future * GPU_MILLI
            self.free[GPU, column] -= opened.of_free * GPU_MILLI
        for claim in pod.claims:
            node, consumers = self._claimed.get(claim.key, (self._snapshot.nodes.nodes[column].name, 0))
            self._claimed[claim.key] = node, consumers + 1
        self.neighbours.add(pod, column)
        self.changes += 1
        self.remembered.touch(column)

    def give_back(self, placed: Placed) -> None:
        """Remove a placed pod: what it holds is free in future."""
        column = self.column(placed.node)
        if column is None:
            return
        pod = placed.pod
        for claim in pod.claims:
            self._leave_claim(claim)
        amounts = self.amounts(pod)
        if amounts is not None:
            self.future[:, column] += np.array(self._of_node(pod, amounts, column), dtype=np.int64)
        if pod.sharing is not None:
            self.future[GPU, column] += GPU_MILLI * self.devices.give_back(pod.sharing, column, placed.devices)
        self.neighbours.remove(pod, column)
        self.changes += 1
        self.remembered.touch(column)
        self.is_leaving = True

    def _leave_claim(self, claim: ResourceClaim) -> None:
        node, consumers = self._claimed.get(claim.key, (None, 0))
        if node is not None and consumers > 1:
            self._claimed[claim.key] = node, consumers - 1
        else:
            self._claimed.pop(claim.key, None)

    def leave(self, seat: Assignment) -> None:
        """Remove a pod of the plan from the place for which it was to wait; whole devices only."""
        for claim in seat.pod.claims:
            self._leave_claim(claim)
        self.future[:, seat.column] += np.array(self.taken(seat.pod, seat.column), dtype=np.int64)
        self.neighbours.remove(seat.pod, seat.column)
        self.changes += 1
        self.remembered.touch(seat.column)

    def postpone(self, seat: Assignment) -> Assignment:
        """Let a pod that was to start now wait for the others: what it took is free until then."""
        if seat.later:
            return seat
        pod, column = seat.pod, seat.column
        self.free[:, column] += np.array(self.taken(pod, column), dtype=np.int64)
        if pod.sharing is not None:
            self.free[GPU, column] += GPU_MILLI * self.devices.postpone(pod.sharing, column, seat.devices)
        self.changes += 1
        self.remembered.touch(column)
        self.is_leaving = True
        return replace(seat, later=True)

    def column(self, node: NodeName | None) -> int | None:
        """Return the column of a node; None when the node is not known."""
        return None if node is None else self._snapshot.nodes.index.get(node)


def _stacked(free: Amounts, more: Sequence[Amounts]) -> Amounts:
    if not more:
        return free.copy()
    return np.vstack([free, np.array(more, dtype=np.int64)])
