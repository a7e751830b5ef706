"""The read API's JSON of GPUs: which there are, who is on them, how full they are and how they reach each other."""

from collections.abc import Iterator
from typing import Literal, Self

from app.model.device import Device, Health
from app.model.layout import Layout
from app.model.occupancy import DeviceUse, NodeUse, Occupant, SharedUse
from app.model.sentence import EVERYTHING, Reader
from app.web import links
from app.web.answers import Answer, Object, elsewhere


class OccupantAnswer(Answer):
    """A pod on a device."""

    namespace: str
    """Empty where the reader may not know it; `name` tells then how much of a GPU it has."""
    name: str
    uid: str | None
    """None where the agent could not find it out, or the reader may not know it."""
    portion_ppm: int
    """Of the device, in millionths."""
    promised_mib: int
    used_mib: int | None
    """None when nobody measures it."""

    @classmethod
    def of(cls, occupant: Occupant, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this pod."""
        seen = reader.sees(occupant.namespace)
        return cls(
            namespace=occupant.namespace if seen else "",
            name=occupant.name if seen else elsewhere(occupant.portion_ppm // 1000),
            uid=occupant.uid or None if seen else None,
            portion_ppm=occupant.portion_ppm,
            promised_mib=occupant.promised_mib,
            used_mib=occupant.used_mib,
        )


class SharedAnswer(Answer):
    """A device in shared use, as our books have it."""

    name: str
    state: str
    reason: str | None
    """What keeps others off it."""
    promised_mib: int
    pods: tuple[OccupantAnswer, ...]

    @classmethod
    def of(cls, shared: SharedUse, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this device."""
        return cls(
            name=shared.name,
            state=shared.state,
            reason=shared.reason or None,
            promised_mib=shared.promised_mib,
            pods=tuple(OccupantAnswer.of(each, reader) for each in shared.occupants),
        )


class MemoryAnswer(Answer):
    """Memory of a device; null where nobody measures it."""

    total_mib: int
    used_mib: int | None
    foreign_mib: int
    """Of `used`, what belongs to processes of no pod."""
    promised_mib: int


class MigAnswer(Answer):
    """Whether the device is cut by MIG, and into what."""

    enabled: bool
    profiles: tuple[str, ...]


class DeviceAnswer(Answer):
    """One GPU."""

    uuid: str
    index: int
    product: str
    health: Health
    health_reason: str | None
    free: bool
    """Whether a pod could have it to itself now."""
    memory: MemoryAnswer
    mig: MigAnswer
    numa_node: int | None
    pods: tuple[OccupantAnswer, ...]
    """Those that have it to themselves: one, as a rule."""
    shared: tuple[SharedAnswer, ...]
    """More than one only where two of our books claim the same device."""

    @classmethod
    def of(cls, use: DeviceUse, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this device and who is on it."""
        device = use.device
        return cls(
            uuid=device.uuid,
            index=device.index,
            product=device.product,
            health=device.health,
            health_reason=device.health_reason or None,
            free=use.is_free,
            memory=_memory(device, use.promised_mib),
            mig=MigAnswer(enabled=device.is_mig, profiles=device.mig_profiles),
            numa_node=device.numa_node,
            pods=tuple(OccupantAnswer.of(each, reader) for each in use.whole),
            shared=tuple(SharedAnswer.of(each, reader) for each in use.shared),
        )


class LinksAnswer(Answer):
    """How the devices reach each other, in the order of `devices`; shape [device, device] each."""

    scores: tuple[tuple[int, ...], ...]
    """What devices are chosen by: 100 for each NVLink, and the PCIe level."""
    nvlinks: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[str, ...], ...]
    """As `nvidia-smi topo -m` writes them; ? where nobody knows."""
    cliques: tuple[tuple[int, ...], ...]
    """Sets in which every two are connected by NVLink."""

    @classmethod
    def of(cls, layout: Layout | None) -> Self | None:
        """Show this layout; None when nothing is known."""
        if layout is None:
            return None
        every = range(layout.size)
        return cls(
            scores=layout.scores,
            nvlinks=tuple(tuple(links.nvlinks(layout, one, other) for other in every) for one in every),
            paths=tuple(tuple(links.path(layout, one, other) for other in every) for one in every),
            cliques=links.cliques(layout),
        )


class ReservedAnswer(Answer):
    """Whole devices that are held for pods which are not bound yet, in one state of their reservation."""

    state: str
    devices: int
    pods: int


class GpuNodeAnswer(Answer):
    """The GPUs of one node."""

    name: str
    driver_version: str | None
    heard_seconds_ago: int | None
    """When its agent last told anything."""
    trusted: bool
    """False when that is too long ago to rely upon."""
    kubelet_answers: bool
    """Whether it is known who has the devices."""
    kubelet_reason: str | None
    message: str | None
    """Why the devices could not be read."""
    failures: tuple[str, ...]
    """What the driver did not tell."""
    reasons: tuple[str, ...]
    """Why devices take no new work although nobody has them."""
    devices: tuple[DeviceAnswer, ...]
    opening: tuple[SharedAnswer, ...]
    """Devices in shared use of which it is not known yet which they are."""
    reserved: tuple[ReservedAnswer, ...] = ()
    """By state: which devices these will be, the device plugin decides."""

    @classmethod
    def of(cls, use: NodeUse, reader: Reader = EVERYTHING, **more: object) -> Self:
        """Show a reader this node."""
        report = use.report
        return cls(
            name=report.name,
            driver_version=report.driver_version or None,
            heard_seconds_ago=None if use.silent_s is None else int(use.silent_s),
            trusted=use.is_trusted,
            kubelet_answers=report.kubelet_answers,
            kubelet_reason=report.kubelet_reason or None,
            message=report.message or report.problem or None,
            failures=report.failures,
            reasons=use.reasons,
            devices=tuple(DeviceAnswer.of(each, reader) for each in use.devices),
            opening=tuple(SharedAnswer.of(each, reader) for each in use.opening),
            reserved=tuple(ReservedAnswer(state=one.state, devices=one.devices, pods=one.pods) for one in use.reserved),
            **more,
        )


class GpuNodeList(Object):
    """Every node of which an agent tells, in the order in which they were given."""

    kind: Literal["GpuNodeStateList"] = "GpuNodeStateList"
    items: tuple[GpuNodeAnswer, ...]
    incomplete: str | None = None
    """Why the reader might be shown more; absent when this is all."""


class GpuNodeDetail(GpuNodeAnswer, Object):
    """The GPUs of one node, and how they reach each other."""

    kind: Literal["GpuNodeState"] = "GpuNodeState"
    links: LinksAnswer | None
    """None when the agent tells nothing of it."""

    @classmethod
    def detailed(cls, use: NodeUse, reader: Reader = EVERYTHING) -> Self:
        """Show a reader all of this node."""
        return cls.of(use, reader, links=LinksAnswer.of(use.report.layout))


def namespaces_of(use: NodeUse) -> Iterator[str]:
    """Return the namespaces of everybody on a node's GPUs."""
    shared = [*use.opening, *(each for device in use.devices for each in device.shared)]
    for occupants in (*(device.whole for device in use.devices), *(each.occupants for each in shared)):
        yield from (one.namespace for one in occupants)


def _memory(device: Device, promised_mib: int) -> MemoryAnswer:
    return MemoryAnswer(
        total_mib=device.memory_mib,
        used_mib=device.used_mib,
        foreign_mib=device.foreign_mib,
        promised_mib=promised_mib,
    )
