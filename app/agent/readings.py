"""What one look at the machine has found: the records that NVML and the kubelet are read into, before any JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.model.device import DeviceUuid, Health
from app.model.names import PodUid

Owners = Mapping[int, PodUid | None]
"""Of each process that was found, the pod; None when it is in no pod. Who has ended meanwhile is left out."""


@dataclass(frozen=True, slots=True, order=True)
class DriverFailure:
    """A call that the driver refused."""

    call: str
    error: str
    device: str = ""
    """Empty where it is about all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one device."""

    total_mib: int
    used_mib: int | None
    """None when what the driver says cannot be."""
    reserved_mib: int | None = None
    """What the driver keeps for itself; None: it is part of `used_mib` (drivers before R510)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One part of a divided device."""

    uuid: str
    profile: str
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """Whether a device is divided, or will be when it is reset."""

    enabled: bool
    pending: bool
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How one device reaches another; the two agree."""

    uuid: DeviceUuid
    nvlinks: int = 0
    p2p: str | None = None
    """`NVLink`, `PCIe` or `None`; None when the driver does not tell."""
    ancestor: str | None = None
    """The nearest that both have in common on the PCIe tree."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink domain that a device is part of."""

    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process with memory on a device, by the pid that the host knows."""

    pid: int
    memory_mib: int | None = None
    """None when the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One GPU. What is None the driver did not tell, or the hardware does not have."""

    uuid: DeviceUuid
    index: int
    minor: int | None = None
    product: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    memory: Memory | None = None
    health: Health = Health.HEALTHY
    health_reason: str = ""
    mig: Mig | None = None
    links: tuple[Link, ...] = ()
    fabric: Fabric | None = None
    processes: tuple[Process, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReading:
    """Every GPU of the node, and what could not be read."""

    devices: tuple[DeviceReading, ...] = ()
    driver_version: str = ""
    failures: tuple[DriverFailure, ...] = ()
    message: str = ""
    """One sentence where the devices as a whole cannot be read."""
    is_outdated: bool = False
    """Whether the driver was exchanged for another version, whose library only a new container will have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Devices that a pod has from a device plugin, by the ids of the plugin."""

    namespace: str
    name: str
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletReading:
    """What the kubelet says of the devices it gives out."""

    answers: bool
    reason: str = ""
    """Why it does not answer, or what is odd about its answer."""
    holdings: tuple[Holding, ...] = ()
