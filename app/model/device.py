"""The GPUs of a node as the agent there reports them: identity, memory, health, connections, and who holds them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from app.model.layout import Layout
from app.model.names import NodeName, PodUid

DeviceUuid = NewType("DeviceUuid", str)
"""What NVML calls the device's UUID: it stays when the index changes over a reboot."""


class Health(StrEnum):
    """Whether a device takes new work: only `HEALTHY` does."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that has the device, as the kubelet says."""

    namespace: str
    name: str
    uid: str = ""
    """Empty where the agent could not find it out."""
    memory_mib: int | None = None
    """What its processes use of the device, None when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU."""

    uuid: DeviceUuid
    index: int = 0
    product: str = ""
    memory_mib: int = 0
    used_mib: int | None = None
    """By whomever; None when that is not known."""
    foreign_mib: int = 0
    """Of `used_mib`, what belongs to processes of no pod of the node."""
    health: Health = Health.HEALTHY
    health_reason: str = ""
    is_mig: bool = False
    """Cut by MIG, or about to be: no pod gets the device itself."""
    mig_profiles: tuple[str, ...] = ()
    """Of the instances into which it is cut."""
    numa_node: int | None = None
    holders: tuple[Holder, ...] = ()
    processes: tuple[tuple[PodUid, int | None], ...] = ()
    """The pods that have processes on it, whoever holds it, and how many MiB they use; None when that is not known."""

    def __repr__(self) -> str:
        return f"<Device {self.uuid}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """The devices of one node; equal as long as nothing but the time of the report has changed."""

    name: NodeName
    uid: str = ""
    """Of the GpuNode object, which owns the reservation pods of its node."""
    devices: tuple[Device, ...] = ()
    """In the order of the driver."""
    kubelet_answers: bool = False
    """Whether `holders` can be relied upon."""
    kubelet_reason: str = ""
    """Why they cannot."""
    boot_id: str = ""
    driver_version: str = ""
    failures: tuple[str, ...] = ()
    """What the driver did not tell, one sentence a call."""
    message: str = ""
    """Why the devices as a whole could not be read, empty when they could."""
    layout: Layout | None = None
    """How `devices`, in their order, reach each other; None when nothing is known of it."""
    problem: str = ""
    """One sentence for whoever looks after the agent when the object cannot be read."""

    def __repr__(self) -> str:
        return f"<GpuNode {self.name}: {len(self.devices)} devices>"


def is_overused(device: Device, promised_mib: int, tolerance_mib: int) -> bool:
    """Whether more of a device's memory is used than was promised of it, by more than is put up with."""
    return device.used_mib is not None and device.used_mib > promised_mib + tolerance_mib
