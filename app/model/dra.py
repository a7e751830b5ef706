"""Dynamic resource allocation (DRA): devices, the classes that select them, and the claims that ask for them.

The records state what the objects of `resource.k8s.io` state. kube-scheduler allocates; Leeboard only counts.
"""

from dataclasses import dataclass
from typing import NamedTuple

from app.model.names import NO_QUEUE, NodeName, PodUid, QueueName


class ClaimKey(NamedTuple):
    """Namespace and name of a ResourceClaim."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class DeviceId(NamedTuple):
    """What identifies a device in a cluster."""

    driver: str
    pool: str
    name: str


Version = tuple[int, int, int]
"""A semantic version without a pre-release."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A Kubernetes quantity of whole units, such as bytes."""

    amount: int


AttributeValue = bool | int | str | Version | Quantity | None
"""None is a value of a type that Leeboard does not know."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...] = ()
    """CEL expressions, all of which a device must fulfil."""
    extended_resource: str = ""
    """The extended resource for which devices of this class are allocated on nodes without a device plugin for it."""
    created_at: float = 0.0
    """Seconds since the epoch. Of two classes with one extended resource, the newer one counts."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One request of a claim, or one of its alternatives."""

    name: str = ""
    device_class: str = ""
    selectors: tuple[str, ...] = ()
    count: int = 1
    is_all: bool = False
    """All matching devices of a node are asked for; `count` does not matter."""
    is_admin: bool = False
    """Access for monitoring: it takes no device from others."""
    capacity: tuple[tuple[str, int], ...] = ()
    """The capacity of each device that is asked for, by name: of devices that claims may share."""
    alternatives: tuple["DeviceRequest", ...] = ()
    """In their order, the best first; then the fields above do not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """A device that a claim holds."""

    device: DeviceId
    is_admin: bool = False
    consumed: tuple[tuple[str, int], ...] = ()
    """The capacity that it takes of a device that claims may share, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """A ResourceClaim."""

    key: ClaimKey
    queue: QueueName = NO_QUEUE
    """From its label. Only pods of this queue may share GPUs by a claim that a person created (KAI)."""
    requests: tuple[DeviceRequest, ...] = ()
    matched: tuple[str, ...] = ()
    """Attributes in which all devices of the claim must be alike."""
    allocated: tuple[AllocatedDevice, ...] | None = None
    """None while nothing is allocated."""
    node: NodeName | None = None
    """The node of the allocated devices; None when they are not bound to one node."""
    owner: PodUid | None = None
    """The pod for which the claim was created from a template, or for an extended resource."""
    is_allocation_unread: bool = False
    """It may hold devices that could not be read."""
    for_extended_resource: bool = False
    """kube-scheduler created it for an extended resource: the containers of its pod are charged, not the claim."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDevice:
    """A device of a ResourceSlice."""

    name: str
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    """By qualified name, such as `gpu.example.com/productName`."""
    capacity: tuple[tuple[str, int], ...] = ()
    """By qualified name."""
    consumes: tuple[tuple[str, str, int], ...] = ()
    """Counter set, counter and amount: a device with shared counters is a partition of a larger one, or all of it."""
    is_shareable: bool = False
    """Several claims may hold it, each with a part of its capacity."""
    is_tainted: bool = False
    """It has a taint that keeps new pods away."""
    node: NodeName | None = None
    """The node, where the slice states none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSlice:
    """A part of a pool of devices."""

    name: str
    driver: str = ""
    pool: str = ""
    generation: int = 0
    slices: int = 1
    """How many slices the pool has in this generation. A pool with another number of slices is incomplete."""
    node: NodeName | None = None
    """None when its devices are not bound to one node, or state their nodes themselves."""
    counters: tuple[tuple[str, str, int], ...] = ()
    """Counter set, counter and amount."""
    devices: tuple[SliceDevice, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaintRule:
    """A DeviceTaintRule that keeps new pods away from the devices that it selects; an empty field selects all."""

    name: str
    driver: str = ""
    pool: str = ""
    device: str = ""
    is_effective: bool = True
    """Its effect keeps pods away, and it selects by nothing that Leeboard does not know."""
    problem: str = ""
