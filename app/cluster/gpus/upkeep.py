"""Decides what a shared GPU needs so that its sources agree again: a reservation pod, one less, or evicted pods.

The cases, in their order, after the design's table of failures:
1. no pod has a part of it or will have one: its reservation pod is removed, at once when its last pod is just gone
2. a part is reserved for a pod and there is no reservation pod: a reservation pod is created
3. pods run on a device that another pod has now, or that is gone: these pods are evicted
4. pods run on a device that no reservation pod holds: further reservation pods are created until one gets the device;
   the devices that the others get are kept meanwhile, so that the device plugin does not give them out again
5. there are several reservation pods, and one of them has the right device: the others are removed
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
    """Create a reservation pod."""

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
    """Evict a pod whose device is no longer its own."""

    pod: PodUid
    message: str
    """Why, in a sentence for its owner that goes on after the name of the pod."""


Need = Reserve | Free | Dismiss


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What else is known where a shared GPU is judged."""

    node: NodeName
    agent: GpuNode | None
    """Its last report; None when there is no reliable one."""
    parts: Collection[Part]
    """What pods hold of the node's shared GPUs."""
    is_wanted: bool
    """Whether the room for its waiting pods is free, so that it may be opened."""
    is_over: bool
    """Whether it may be removed now, when no pod has a part of it."""


def needs(gpu: SharedGpu, at: Circumstances) -> Iterator[Need]:
    """Yield the actions that one shared GPU needs; nothing while an action is under way."""
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
    """Yield the reservation pods other than the one with the device."""
    devices = [] if at.agent is None else [one for one in at.agent.devices if one.uuid == gpu.uuid]
    right = next((pod for pod in gpu.reservations for device in devices if is_held_by(device, pod)), None)
    if right is not None:
        yield from (Free(at.node, pod) for pod in gpu.reservations if pod.uid != right.uid)


def _settled(gpu: SharedGpu, at: Circumstances) -> Iterator[Need]:
    """Yield the actions for a GPU on which pods run and about which the sources disagree."""
    devices = {} if at.agent is None else {device.uuid: device for device in at.agent.devices}
    told: dict[DeviceUuid, list[PodUid]] = {}
    for part in at.parts:
        if part.is_bound and gpu.name in part.names:
            told.setdefault(_told(part, gpu.name), []).append(part.pod)
    lost = {uuid: why for uuid in told if (why := _why_lost(uuid, devices.get(uuid), gpu, at))}
    if not lost and len(told) > 1 and gpu.uuid:
        # Pods of one shared GPU were given different devices: only the device of its reservation pod is accounted.
        lost = {uuid: f"shares GPU {gpu.uuid}, and was given {uuid}" for uuid in told if uuid != gpu.uuid}
    for uuid, why in lost.items():
        yield from (Dismiss(uid, why) for uid in told[uuid])
    if not lost and _may_yet_come(gpu, devices):
        yield Reserve(at.node, gpu.name)


def _told(part: Part, name: str) -> DeviceUuid:
    position = part.names.index(name)
    return DeviceUuid(part.uuids[position] if position < len(part.uuids) else "")


def _why_lost(uuid: DeviceUuid, device: Device | None, gpu: SharedGpu, at: Circumstances) -> str:
    """Return why pods cannot stay on their device; empty when they can."""
    if device is None or device.is_mig:
        return f"was given GPU {uuid or 'of no name'}, which node {at.node} no longer has"
    taken = next((one for one in device.holders if not _reserves(one, gpu, at)), None)
    if taken is not None:
        by = Name(taken.namespace, taken.name, "in another namespace")
        return say("was given GPU {uuid}, which pod {by} has now", uuid=uuid, by=by)
    is_kept = any(is_held_by(device, pod) for pod in gpu.reservations)
    # The device plugin gives out no device that it finds unhealthy.
    return f"was given GPU {uuid}, which is unhealthy" if device.health is Health.UNHEALTHY and not is_kept else ""


def _reserves(holder: Holder, gpu: SharedGpu, at: Circumstances) -> bool:
    """Whether the holder is a reservation pod of this GPU; a deleted pod may still be reported for a moment."""
    known = ((pod.namespace, pod.name) for pod in gpu.reservations)
    return (holder.namespace, holder.name) in known or holder.name.startswith(reservation_name(at.node, gpu.name))


def _may_yet_come(gpu: SharedGpu, devices: dict[DeviceUuid, Device]) -> bool:
    """Whether a further reservation pod might get the right device: a healthy one is idle, no such pod is pending."""
    held = [pod for pod in gpu.reservations if any(is_held_by(device, pod) for device in devices.values())]
    idle = any(not one.holders and one.health is Health.HEALTHY and not one.is_mig for one in devices.values())
    return len(held) == len(gpu.reservations) and idle
