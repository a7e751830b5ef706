"""The readings of one poll: records of NVML's and the kubelet's answers, before any JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.model.device import DeviceUuid, Health
from app.model.names import PodUid

Owners = Mapping[int, PodUid | None]
"""The pod of each process that was found; None when it is in no pod. Processes that have ended are left out."""


@dataclass(frozen=True, slots=True, order=True)
class DriverFailure:
    """A call that the driver refused."""

    call: str
    error: str
    device: str = ""
    """Empty when it is about all devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one device."""

    total_mib: int
    used_mib: int | None
    """None when the driver's value is impossible."""
    reserved_mib: int | None = None
    """Reserved by the driver; None when it is part of `used_mib` (drivers before R510)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG instance of a device."""

    uuid: str
    profile: str
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """Whether MIG is enabled on a device, or will be after a reset."""

    enabled: bool
    pending: bool
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link between two devices. It is the same in both directions."""

    uuid: DeviceUuid
    nvlinks: int = 0
    p2p: str | None = None
    """`NVLink`, `PCIe` or `None`; None when the driver does not report it."""
    ancestor: str | None = None
    """The nearest common ancestor on the PCIe tree."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink domain that a device belongs to."""

    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process with memory on a device, by its pid on the host."""

    pid: int
    memory_mib: int | None = None
    """None when the driver does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One GPU. A field is None when the driver did not report it or the hardware lacks it."""

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
    """One sentence when no devices can be read."""
    is_outdated: bool = False
    """Whether the driver was replaced by another version. Only a new container has its library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The devices that a pod has from a device plugin, by the plugin's ids."""

    namespace: str
    name: str
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletReading:
    """What the kubelet reports about allocated devices."""

    answers: bool
    reason: str = ""
    """Why it does not answer, or what is unusual in its answer."""
    holdings: tuple[Holding, ...] = ()
