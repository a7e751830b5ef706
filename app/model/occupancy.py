"""The pods on a node's GPUs: what is reserved for them on each GPU, and what they use."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.model.device import Device, DeviceUuid, GpuNode
from app.model.dra import ClaimKey, DeviceId
from app.model.names import NodeName, PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod that has a device or a fraction of it."""

    namespace: str
    name: str
    uid: PodUid
    """Empty when the agent could not find it out."""
    portion_ppm: int
    """The share of the device, in millionths."""
    promised_mib: int
    used_mib: int | None = None
    """None when it is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedUse:
    """A shared device, by its accounting name, and the pods that hold a fraction of it."""

    name: str
    state: str
    reason: str = ""
    """Why no further pod is placed on it; empty when there is no obstacle."""
    promised_mib: int = 0
    """Reserved for all occupants together."""
    occupants: tuple[Occupant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """A device as its agent reports it, and the pods on it."""

    device: Device
    is_free: bool = False
    """Whether a pod could get the whole device now."""
    whole: tuple[Occupant, ...] = ()
    """Pods with the whole device; normally one."""
    shared: tuple[SharedUse, ...] = ()
    """More than one only when two records claim the same device."""

    @property
    def promised_mib(self) -> int:
        """The memory that is reserved for all pods together."""
        return sum(one.promised_mib for one in self.whole) + sum(one.promised_mib for one in self.shared)


class AgentState(StrEnum):
    """What is heard of the agent of a node with GPUs."""

    REPORTS = "reports"
    SILENT = "silent"
    """It has reported, but not recently."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGpus:
    """The free GPUs of the nodes that take pods."""

    nodes: Mapping[int, int]
    """By the number of whole free GPUs: how many nodes have exactly this number."""
    unusable_ratio: float | None = None
    """Which part of all free GPUs typical pods cannot use, 0 .. 1; None while no typical mix is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The memory of a shared device."""

    node: NodeName
    device: DeviceUuid
    total_mib: int
    promised_mib: int
    used_mib: int | None
    """None when it is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Whole devices reserved for pods that are not bound yet, for one state of the reservation."""

    state: str
    devices: int
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHolder:
    """A ResourceClaim that holds a device, and the pods that use the claim."""

    claim: ClaimKey
    pods: tuple[str, ...] = ()
    """The first pods with a node, by name: all are in the namespace of the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A GPU, or a partition of one, that ResourceClaims can get."""

    id: DeviceId
    model: str
    """The product, or the profile of a partition; empty when the driver publishes neither."""
    is_partition: bool = False
    is_tainted: bool = False
    is_free: bool = False
    """Whether a claim could get all of it now."""
    claims: tuple[ClaimHolder, ...] = ()
    """More than one only of a device that claims may share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The GPUs of one node."""

    report: GpuNode
    """Empty when no agent reports the node."""
    silent_s: float | None = None
    """Seconds since the last report of the node's agent; None when it never reported."""
    is_trusted: bool = True
    """False when the last report is too old."""
    reasons: tuple[str, ...] = ()
    """Why devices without a pod take no new pods, one sentence each."""
    devices: tuple[DeviceUse, ...] = ()
    """In the driver's order."""
    opening: tuple[SharedUse, ...] = ()
    """Shared devices whose GPU is not known yet, or is missing in the agent's report."""
    reserved: tuple[Reserved, ...] = ()
    """Reservations by state. Their devices are not known: the device plugin, or kube-scheduler, chooses them."""
    claim_devices: tuple[ClaimDevice, ...] = ()
    """What ResourceClaims can get, by driver, pool and name. An agent may report the same GPUs as `devices`."""

    def __repr__(self) -> str:
        return f"<NodeUse {self.report.name}: {len(self.devices)} devices>"
