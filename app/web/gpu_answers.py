"""The read API's JSON of GPUs: the devices, the pods on them, their memory, and the links between them."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field

from app.model import links
from app.model.device import Device, Health
from app.model.layout import Layout
from app.model.occupancy import ClaimDevice, ClaimHolder, DeviceUse, NodeUse, Occupant, SharedUse
from app.model.sentence import EVERYTHING, Reader
from app.web.answers import CONTINUE, Answer, Object, elsewhere


class OccupantAnswer(Answer):
    """A pod on a device."""

    namespace: str
    """Empty when the reader may not see the namespace; `name` then says how much of a GPU the pod has."""
    name: str
    uid: str | None
    """None when the agent could not find it out, or when the reader may not see it."""
    portion_ppm: int
    """The share of the device, in millionths."""
    promised_mib: int
    used_mib: int | None
    """None when it is not measured."""

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
    """A shared device, according to Leeboard's accounting."""

    name: str
    state: str
    reason: str | None
    """Why no further pod is placed on it."""
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
    """Memory of a device; null when it is not measured."""

    total_mib: int
    used_mib: int | None
    foreign_mib: int
    """The part of `used` that belongs to processes outside pods."""
    promised_mib: int


class MigAnswer(Answer):
    """Whether MIG is enabled on the device, and its profiles."""

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
    """Whether a pod could get the whole device now."""
    memory: MemoryAnswer
    mig: MigAnswer
    numa_node: int | None
    pods: tuple[OccupantAnswer, ...]
    """Pods with the whole device; normally one."""
    shared: tuple[SharedAnswer, ...]
    """More than one only when two records claim the same device."""

    @classmethod
    def of(cls, use: DeviceUse, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this device and its pods."""
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
    """The links between the devices, in the order of `devices`; each matrix has the shape [device, device]."""

    scores: tuple[tuple[int, ...], ...]
    """The scores by which devices are chosen: 100 for each NVLink, plus the PCIe level."""
    nvlinks: tuple[tuple[int, ...], ...]
    paths: tuple[tuple[str, ...], ...]
    """As `nvidia-smi topo -m` writes them; "?" when unknown."""
    cliques: tuple[tuple[int, ...], ...]
    """Sets of devices in which NVLink connects every pair."""

    @classmethod
    def of(cls, layout: Layout | None) -> Self | None:
        """Show this layout; None when the layout is unknown."""
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
    """Whole devices reserved for pods that are not bound yet, for one state of the reservation."""

    state: str
    devices: int
    pods: int


class ClaimHolderAnswer(Answer):
    """A ResourceClaim that holds a device."""

    namespace: str
    """Empty, like the names, when the reader may not see the namespace."""
    name: str
    pods: tuple[str, ...]
    """The first pods with a node that use the claim, in its namespace."""

    @classmethod
    def of(cls, holder: ClaimHolder, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this claim."""
        if not reader.sees(holder.claim.namespace):
            return cls(namespace="", name="", pods=())
        return cls(namespace=holder.claim.namespace, name=holder.claim.name, pods=holder.pods)


class ClaimDeviceAnswer(Answer):
    """A GPU, or a partition of one, that ResourceClaims can get."""

    driver: str
    pool: str
    name: str
    model: str | None
    """The product, or the profile of a partition; null when the driver publishes neither."""
    partition: bool
    tainted: bool
    free: bool
    """Whether a claim could get all of it now."""
    claims: tuple[ClaimHolderAnswer, ...]
    """More than one only of a device that claims may share."""

    @classmethod
    def of(cls, device: ClaimDevice, reader: Reader = EVERYTHING) -> Self:
        """Show a reader this device."""
        return cls(
            driver=device.id.driver,
            pool=device.id.pool,
            name=device.id.name,
            model=device.model or None,
            partition=device.is_partition,
            tainted=device.is_tainted,
            free=device.is_free,
            claims=tuple(ClaimHolderAnswer.of(each, reader) for each in device.claims),
        )


class GpuNodeAnswer(Answer):
    """The GPUs of one node."""

    name: str
    driver_version: str | None
    heard_seconds_ago: int | None
    """Seconds since the last report of the node's agent."""
    trusted: bool
    """False when the last report is too old."""
    kubelet_answers: bool
    """Whether the kubelet tells which pods have the devices."""
    kubelet_reason: str | None
    message: str | None
    """Why the devices could not be read."""
    failures: tuple[str, ...]
    """What the driver did not report."""
    reasons: tuple[str, ...]
    """Why devices without a pod take no new pods."""
    devices: tuple[DeviceAnswer, ...]
    opening: tuple[SharedAnswer, ...]
    """Shared devices whose GPU is not known yet."""
    reserved: tuple[ReservedAnswer, ...] = ()
    """Reservations by state. The device plugin, or kube-scheduler, decides which devices they get."""
    claim_devices: tuple[ClaimDeviceAnswer, ...] = ()
    """What ResourceClaims can get, by driver, pool and name. An agent may report the same GPUs as `devices`."""

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
            claim_devices=tuple(ClaimDeviceAnswer.of(each, reader) for each in use.claim_devices),
            **more,
        )


class GpuNodeList(Object):
    """Every node whose GPUs an agent, or a driver of DRA, reports, in the order of the input."""

    kind: Literal["GpuNodeStateList"] = "GpuNodeStateList"
    items: tuple[GpuNodeAnswer, ...]
    incomplete: str | None = None
    """Why the list may be incomplete; absent when the list is complete."""
    next_page: str | None = Field(default=None, serialization_alias="continue", description=CONTINUE)


class GpuNodeDetail(GpuNodeAnswer, Object):
    """The GPUs of one node, and the links between them."""

    kind: Literal["GpuNodeState"] = "GpuNodeState"
    links: LinksAnswer | None
    """None when the agent reports no links."""

    @classmethod
    def detailed(cls, use: NodeUse, reader: Reader = EVERYTHING) -> Self:
        """Show a reader all details of this node."""
        return cls.of(use, reader, links=LinksAnswer.of(use.report.layout))


def namespaces_of(use: NodeUse) -> Iterator[str]:
    """Yield the namespaces of all pods on a node's GPUs."""
    shared = [*use.opening, *(each for device in use.devices for each in device.shared)]
    for occupants in (*(device.whole for device in use.devices), *(each.occupants for each in shared)):
        yield from (one.namespace for one in occupants)
    yield from (holder.claim.namespace for device in use.claim_devices for holder in device.claims)


def _memory(device: Device, promised_mib: int) -> MemoryAnswer:
    return MemoryAnswer(
        total_mib=device.memory_mib,
        used_mib=device.used_mib,
        foreign_mib=device.foreign_mib,
        promised_mib=promised_mib,
    )
