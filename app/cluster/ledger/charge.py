"""The charge of one pod and the state of its place: the entries that `Charges` sums."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from app.cluster.groups.terms import GroupTerms
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.model.names import NodeName, QueueName
from app.model.pod import Pod, ResourceClaim
from app.model.resources import NOTHING, Resources, Scalars


class Hold(Enum):
    """How a pod holds its place."""

    KEPT = "kept"
    LEAVING = "leaving"
    """The pod is being deleted: its room becomes free soon."""
    AWAITED = "awaited"
    """The pod has a reservation on room that pods which are being deleted still hold."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod holds or requests."""

    request: Resources
    node: NodeName | None
    """None while the pod is pending and has no node."""
    queue: QueueName | None
    """None for pods of other schedulers: they are subtracted from what the queues divide."""
    preemptible: bool = True
    hold: Hold = Hold.KEPT
    """How the pod holds its node; without meaning while the pod has no node."""
    scalars: Scalars = ()
    cost: Resources | None = None
    """What the queue pays (`Pod.charge`); None: the request."""
    devices: tuple[str, ...] = ()
    """The shared devices of the node of which the pod has a part. The node is charged with each of them as a whole
    device.
    """
    stays: bool = False
    """The pod belongs to its node (`Pod.stays`)."""
    claimed_milli: int = 0
    """The part of the GPUs in `paid` that ResourceClaims hold, or ask for."""

    @property
    def paid(self) -> Resources:
        """What the queue pays."""
        return self.request if self.cost is None else self.cost

    def frees(self, after: "Charge | None") -> bool:
        """Whether replacing this charge by `after` makes room anywhere, now or soon."""
        if self.node is None:
            return False
        if after is None or (after.hold is Hold.LEAVING and self.hold is not Hold.LEAVING):
            return True
        return replace(after, hold=self.hold) != self


def charge_of(
    pod: Pod, held: Reservation | None, on: GroupTerms | None, device_mib: Callable[[NodeName | None], int]
) -> Charge | None:
    """Return the charge of a pod, given its reservation and the terms of its group; None for no charge.

    A pod that is being deleted is charged as before until it is gone. A pod of another scheduler may name a queue: the
    caller checks that this queue exists. `device_mib` returns the memory of each GPU of a node, and the memory of the
    smallest GPU of the cluster for a pod that has no node (KAI).
    """
    node, queue, preemptible = pod.node, pod.queue or None, True
    if pod.managed:
        node = pod.node or (held.node if held else None)
        queue, preemptible = (on.queue, on.preemptible) if on else (pod.queue, True)
        preemptible = preemptible and not pod.started_firm
    elif node is None:
        # A pod of another scheduler is subtracted from what is divided, unless the pod names the queue that pays for
        # it.
        return None
    if node is None and (pod.gated or pod.deleting or pod.problem or pod.lacks_claim):
        # The pod cannot use a share. If it counted, it would only take the share of others (KAI counts Pending pods,
        # not gated ones). A pod that only Leeboard gates counts: it is ready when Leeboard removes the gate.
        return None
    hold = Hold.LEAVING if pod.deleting else Hold.KEPT
    if held is not None and held.state is ReservationState.AWAITING:
        hold = Hold.AWAITED
    cost = NOTHING if pod.self_placed else pod.charge(1 if pod.sharing is None else device_mib(node))
    devices = pod.devices if pod.node is not None else held.devices if held is not None else ()
    paid = None if cost is pod.request else cost
    claimed = 0 if pod.self_placed else pod.by_claim_milli + pod.claims_milli
    return Charge(pod.request, node, queue, preemptible, hold, pod.scalars, paid, devices, pod.stays, claimed)


class DeviceCharge(NamedTuple):
    """How many whole devices of a node are not free although no pod has them as whole devices."""

    kept: int = 0
    """Devices of which pods have parts, or that accept no work."""
    leaving: int = 0
    """Devices where every pod with a part is being deleted, or has ended. Less one for each device of any pods being
    deleted that accepts no work after them: it counts as kept.
    """
    awaited: int = 0
    """Devices where every pod with a reserved part waits until other pods are gone."""


NO_DEVICES = DeviceCharge()


class Load(NamedTuple):
    """The sum of what several pods request of a node, or free on it."""

    request: Resources = NOTHING
    scalars: Mapping[str, int] = MappingProxyType({})
    """Amounts of extended resources, by name."""

    def plus(self, pod: Pod, claims: Iterable[ResourceClaim] = ()) -> "Load":
        """Return the load with one pod more, and these of the claims that it shares."""
        request, scalars = self.request + pod.request, Counter(self.scalars) + Counter(dict(pod.scalars))
        for claim in claims:
            request += Resources(gpu_milli=claim.gpu_milli)
            scalars.update(dict(claim.scalars))
        return Load(request, scalars) if scalars else self._replace(request=request)


NO_LOAD = Load()
