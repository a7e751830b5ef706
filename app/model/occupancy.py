"""Who is on the GPUs of a node: what they were promised of each, and what they use of it."""

from dataclasses import dataclass

from app.model.device import Device, DeviceUuid, GpuNode
from app.model.names import NodeName, PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A pod that has a device, or a part of it."""

    namespace: str
    name: str
    uid: PodUid
    """Empty where the agent could not find it out."""
    portion_ppm: int
    """Of the device, in millionths."""
    promised_mib: int
    used_mib: int | None = None
    """None when nobody measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedUse:
    """A device in shared use, by its name in our books, and those who hold a part of it."""

    name: str
    state: str
    reason: str = ""
    """What keeps others off it, empty when nothing does."""
    promised_mib: int = 0
    """To all of its occupants together."""
    occupants: tuple[Occupant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """A device as its agent reports it, and who is on it."""

    device: Device
    is_free: bool = False
    """A pod could have it to itself now."""
    whole: tuple[Occupant, ...] = ()
    """Pods that have it to themselves: one, as a rule."""
    shared: tuple[SharedUse, ...] = ()
    """More than one only where two of our books claim the same device."""

    @property
    def promised_mib(self) -> int:
        """How much of its memory is promised to anybody."""
        return sum(one.promised_mib for one in self.whole) + sum(one.promised_mib for one in self.shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The memory of a device in shared use, in numbers only."""

    node: NodeName
    device: DeviceUuid
    total_mib: int
    promised_mib: int
    used_mib: int | None
    """None when nobody measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Whole devices of a node that are held for pods which are not bound yet, in one state of their reservation."""

    state: str
    devices: int
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The GPUs of one node."""

    report: GpuNode
    silent_s: float | None = None
    """Since when its agent has not been heard, None when it never was."""
    is_trusted: bool = True
    """False when it has been silent for too long."""
    reasons: tuple[str, ...] = ()
    """Why devices take no new work although nobody has them, one sentence each."""
    devices: tuple[DeviceUse, ...] = ()
    """In the order of the driver."""
    opening: tuple[SharedUse, ...] = ()
    """Devices in shared use of which it is not known which they are, or which the agent does not report."""
    reserved: tuple[Reserved, ...] = ()
    """By state. Which devices these will be is not known: the device plugin picks them."""

    def __repr__(self) -> str:
        return f"<NodeUse {self.report.name}: {len(self.devices)} devices>"
