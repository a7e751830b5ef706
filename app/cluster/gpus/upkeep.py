"""Says what a shared GPU needs so that the sources agree about it again: a reservation pod, one less, or its pods gone.

The cases, in their order, after the table of failures that the design names:
    1. nobody has a part of it, nor will: what reserves it is removed, at once when its last pod has just left
    2. a pod is promised a part and nothing reserves it: a reservation pod is made
    3. pods run on a device that something else has by now, or that is gone: they cannot stay
    4. pods run on a device that nothing reserves: another reservation pod is made, until one of them gets that device;
       what the others got is kept meanwhile, so that the device plugin does not give it out again
    5. more reservation pods than one, and one of them has the right device: the others are removed
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from app.cluster.gpus.judgement import is_held_by
from app.cluster.gpus.reservation_pods import reservation_name
from app.cluster.gpus.shared_gpus import GpuState, Part, SharedGpu
from app.model.device import Device, DeviceUuid, GpuNode, Health, Holder
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.sentence import Name, say


@dataclass(frozen=True, slots=True)
class Reserve:
    """Make a reservation pod."""

    node: NodeName
    name: str
    """Of the shared GPU."""


@dataclass(frozen=True, slots=True)
class Free:
    """Remove a reservation pod."""

    node: NodeName
    pod: Pod


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Have a pod leave whose device is not its own any more."""

    pod: PodUid
    message: str
    """Why, in a sentence for its owner that goes on after the name of the pod."""


Need = Reserve | Free | Dismiss


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What else is known where a shared GPU is judged."""

    node: NodeName
    agent: GpuNode | None
    """Its last report, None when there is none that can be relied upon now."""
    parts: Collection[Part]
    """What pods hold of the node's shared GPUs."""
    is_wanted: bool
    """Whether the room for those who wait for it is there, so that it may be opened."""
    is_over: bool
    """Whether it may be removed now, when nobody has a part of it."""


def needs(gpu: SharedGpu, at: Circumstances) -> Iterator[Need]:
    """Yield what is to be done about one shared GPU; nothing while something is under way."""
    if not gpu.holders:
        if at.is_over:
            yield from (Free(at.node, pod) for pod in gpu.reservations)
    elif not gpu.is_bound:
        if gpu.reservations:
            yield from _needless(gpu, at)
        elif at.is_wanted:
            yield Reserve(at.node, gpu.name)
    elif gpu.state is GpuState.UNCONFIRMED:
        if not gpu.reservations:
            yield Reserve(at.node, gpu.name)
    elif gpu.state is GpuState.CONTESTED:
        yield from _settled(gpu, at)
    else:
        yield from _needless(gpu, at)


def _needless(gpu: SharedGpu, at: Circumstances) -> Iterator[Need]:
    """Yield the reservation pods beyond the one that has the device."""
    devices = [] if at.agent is None else [one for one in at.agent.devices if one.uuid == gpu.uuid]
    right = next((pod for pod in gpu.reservations for device in devices if is_held_by(device, pod)), None)
    if right is not None:
        yield from (Free(at.node, pod) for pod in gpu.reservations if pod.uid != right.uid)


def _settled(gpu: SharedGpu, at: Circumstances) -> Iterator[Need]:
    """Yield what a GPU needs on which pods run and about which the sources disagree."""
    devices = {} if at.agent is None else {device.uuid: device for device in at.agent.devices}
    told: dict[DeviceUuid, list[PodUid]] = {}
    for part in at.parts:
        if part.is_bound and gpu.name in part.names:
            told.setdefault(_told(part, gpu.name), []).append(part.pod)
    lost = {uuid: why for uuid in told if (why := _why_lost(uuid, devices.get(uuid), gpu, at))}
    if not lost and len(told) > 1 and gpu.uuid:
        # Pods of one shared GPU were given different devices: only that of its reservation is accounted.
        lost = {uuid: f"shares GPU {gpu.uuid}, and was given {uuid}" for uuid in told if uuid != gpu.uuid}
    for uuid, why in lost.items():
        yield from (Dismiss(uid, why) for uid in told[uuid])
    if not lost and _may_yet_come(gpu, devices):
        yield Reserve(at.node, gpu.name)


def _told(part: Part, name: str) -> DeviceUuid:
    position = part.names.index(name)
    return DeviceUuid(part.uuids[position] if position < len(part.uuids) else "")


def _why_lost(uuid: DeviceUuid, device: Device | None, gpu: SharedGpu, at: Circumstances) -> str:
    """Return why pods cannot stay on their device, empty when they can."""
    if device is None or device.is_mig:
        return f"was given GPU {uuid or 'of no name'}, which node {at.node} has no more"
    taken = next((one for one in device.holders if not _reserves(one, gpu, at)), None)
    if taken is not None:
        by = Name(taken.namespace, taken.name, "in another namespace")
        return say("was given GPU {uuid}, which pod {by} has by now", uuid=uuid, by=by)
    is_kept = any(is_held_by(device, pod) for pod in gpu.reservations)
    # The device plugin gives out no device that it finds unhealthy.
    return f"was given GPU {uuid}, which is unhealthy" if device.health is Health.UNHEALTHY and not is_kept else ""


def _reserves(holder: Holder, gpu: SharedGpu, at: Circumstances) -> bool:
    """Whether the holder is a reservation pod of this GPU; one that is gone may still be told of for a moment."""
    known = ((pod.namespace, pod.name) for pod in gpu.reservations)
    return (holder.namespace, holder.name) in known or holder.name.startswith(reservation_name(at.node, gpu.name))


def _may_yet_come(gpu: SharedGpu, devices: dict[DeviceUuid, Device]) -> bool:
    """Whether another reservation pod might get the right device: one is idle that works, and none is on its way."""
    held = [pod for pod in gpu.reservations if any(is_held_by(device, pod) for device in devices.values())]
    idle = any(not one.holders and one.health is Health.HEALTHY and not one.is_mig for one in devices.values())
    return len(held) == len(gpu.reservations) and idle
