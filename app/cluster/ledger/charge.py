"""Tells what one pod is charged with, and how it holds its place: the entries that `Charges` sums."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from app.cluster.groups.terms import GroupTerms
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.model.names import NodeName, QueueName
from app.model.pod import Pod
from app.model.resources import NOTHING, Resources, Scalars


class Hold(Enum):
    """How a pod holds its place."""

    KEPT = "kept"
    LEAVING = "leaving"
    """It is being deleted: its room is free soon."""
    AWAITED = "awaited"
    """It waits for others to leave the room that it is promised."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod holds or waits for."""

    request: Resources
    node: NodeName | None
    """None while the pod only waits."""
    queue: QueueName | None
    """None for pods of other schedulers: subtracted from what the queues divide."""
    preemptible: bool = True
    hold: Hold = Hold.KEPT
    """How it holds its node; says nothing while it has none."""
    scalars: Scalars = ()
    cost: Resources | None = None
    """What the queue pays (`Pod.charge`); None: the request."""
    devices: tuple[str, ...] = ()
    """The shared devices of the node that it has a part of: they are charged as a whole, whoever has parts of them."""
    stays: bool = False
    """It belongs to its node (`Pod.stays`)."""

    @property
    def paid(self) -> Resources:
        """What the queue pays."""
        return self.request if self.cost is None else self.cost

    def frees(self, after: "Charge | None") -> bool:
        """Whether there is more room anywhere, now or soon, when `after` takes the place of this charge."""
        if self.node is None:
            return False
        if after is None or (after.hold is Hold.LEAVING and self.hold is not Hold.LEAVING):
            return True
        return replace(after, hold=self.hold) != self


def charge_of(
    pod: Pod, held: Reservation | None, on: GroupTerms | None, device_mib: Callable[[NodeName | None], int]
) -> Charge | None:
    """Return what a pod is charged with, given what is held for it and the terms of its group; None for nothing.

    Until it is gone, a pod that is being deleted is charged as before. That the queue exists which a pod of another
    scheduler names is for the caller to know. `device_mib` tells the memory of a node's GPUs,
    and of the smallest there are for who has no node (KAI).
    """
    node, queue, preemptible = pod.node, pod.queue or None, True
    if pod.managed:
        node = pod.node or (held.node if held else None)
        queue, preemptible = (on.queue, on.preemptible) if on else (pod.queue, True)
        preemptible = preemptible and not pod.started_firm
    elif node is None:
        # Another scheduler's pod is subtracted from what is divided, unless it names the queue that pays for it.
        return None
    if node is None and (pod.gated or pod.deleting or pod.problem or pod.lacks_claim):
        # It can make no use of a share: counted, it would only take others' (KAI counts what is Pending, not gated).
        # A pod that only we hold back counts: it is ready when we are.
        return None
    hold = Hold.LEAVING if pod.deleting else Hold.KEPT
    if held is not None and held.state is ReservationState.AWAITING:
        hold = Hold.AWAITED
    cost = NOTHING if pod.self_placed else pod.charge(1 if pod.sharing is None else device_mib(node))
    devices = pod.devices if pod.node is not None else held.devices if held is not None else ()
    paid = None if cost is pod.request else cost
    return Charge(pod.request, node, queue, preemptible, hold, pod.scalars, paid, devices, pod.stays)


class DeviceCharge(NamedTuple):
    """How many whole devices of a node are not free although no pod has them as such."""

    kept: int = 0
    """Pods have parts of them; or they take no work."""
    leaving: int = 0
    """All who have parts of them are leaving, or have left."""
    awaited: int = 0
    """Those who are promised parts of them have to wait for somebody to leave first."""


NO_DEVICES = DeviceCharge()


class Load(NamedTuple):
    """What pods ask of a node together, or give back when they leave it."""

    request: Resources = NOTHING
    scalars: Mapping[str, int] = MappingProxyType({})
    """Of extended resources, by name."""

    def plus(self, pod: Pod) -> "Load":
        """Return the load with one pod more."""
        if not pod.scalars:
            return self._replace(request=self.request + pod.request)
        return Load(self.request + pod.request, Counter(self.scalars) + Counter(dict(pod.scalars)))


NO_LOAD = Load()
