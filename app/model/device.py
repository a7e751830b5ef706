"""The GPUs of a node as its agent reports them: identity, memory, health, links, and the pods that hold them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from app.model.layout import Layout
from app.model.names import NodeName, PodUid

DeviceUuid = NewType("DeviceUuid", str)
"""NVML's UUID of the device. It stays the same when the index changes at a reboot."""


class Health(StrEnum):
    """The health of a device. Only a `HEALTHY` device takes new pods."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that has the device, according to the kubelet."""

    namespace: str
    name: str
    uid: str = ""
    """Empty when the agent could not find it out."""
    memory_mib: int | None = None
    """The memory that the pod's processes use on the device; None when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU."""

    uuid: DeviceUuid
    index: int = 0
    product: str = ""
    memory_mib: int = 0
    used_mib: int | None = None
    """Used by all processes together; None when unknown."""
    foreign_mib: int = 0
    """The part of `used_mib` that belongs to processes outside the node's pods."""
    health: Health = Health.HEALTHY
    health_reason: str = ""
    is_mig: bool = False
    """MIG is enabled, or will be. No pod gets the whole device."""
    mig_profiles: tuple[str, ...] = ()
    """The profiles of its MIG instances."""
    numa_node: int | None = None
    holders: tuple[Holder, ...] = ()
    processes: tuple[tuple[PodUid, int | None], ...] = ()
    """Pods with processes on the device, also without holding it, and the MiB that they use; None when unknown."""

    def __repr__(self) -> str:
        return f"<Device {self.uuid}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """The devices of one node. Two reports that differ only in their time are equal."""

    name: NodeName
    uid: str = ""
    """The uid of the GpuNode object, which owns the node's reservation pods."""
    devices: tuple[Device, ...] = ()
    """In the driver's order."""
    kubelet_answers: bool = False
    """Whether `holders` is reliable."""
    kubelet_reason: str = ""
    """Why `holders` is not reliable."""
    boot_id: str = ""
    driver_version: str = ""
    failures: tuple[str, ...] = ()
    """What the driver did not report, one sentence for each failed call."""
    message: str = ""
    """Why no devices could be read; empty when they could."""
    layout: Layout | None = None
    """The links between `devices`, in the same order; None when unknown."""
    problem: str = ""
    """One sentence for the agent's operator when the object cannot be read."""

    def __repr__(self) -> str:
        return f"<GpuNode {self.name}: {len(self.devices)} devices>"


def is_overused(device: Device, promised_mib: int, tolerance_mib: int) -> bool:
    """Return whether used memory exceeds the reserved memory by more than the tolerance."""
    return device.used_mib is not None and device.used_mib > promised_mib + tolerance_mib
