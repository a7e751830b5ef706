"""Judges the shared GPUs of one node from three sources: holders of parts, reservation pods, and the agent.

The sources may disagree. A GPU is `READY` only when a reservation pod is running, the agent reports the device of that
pod, and every pod bound to a part of the GPU was given that same device. Until then, the GPU accepts no more pods.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from app.cluster.gpus.shared_gpus import (
    NO_DEVICE,
    NO_GPUS,
    OPEN,
    GpuState,
    NodeGpus,
    Part,
    SharedGpu,
    Sources,
    WholeHolder,
)
from app.cluster.ledger.charge import Hold
from app.model.device import Device, DeviceUuid, GpuNode, Health, is_overused
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.snapshot import PART


def node_gpus(of: Sources) -> NodeGpus:
    """Return the state of the GPUs of a node."""
    claims = _claims(of)
    if not claims and of.agent is None and of.last is None:
        return NO_GPUS
    devices = {device.uuid: device for device in of.agent.devices} if of.agent else {}
    shared = tuple(_shared(claims[name], of, devices) for name in sorted(claims))
    taken = {each.uuid for each in shared if each.uuid}.union(*(claims[each.name].told for each in shared))
    contested = [each for each in shared if each.state is GpuState.CONTESTED]
    reasons = [f"shared GPU {each.name}: {each.reason}" for each in contested]
    idle = _idle(of.agent, taken)
    gone, held = _unusable(of, taken, claims)
    blocked, sentences = _bad([*(idle or _perhaps_idle(of, taken)), *gone], of)
    held = held[max(0, _withdrawn(of) - len(sentences)) :]
    return NodeGpus(
        shared=shared,
        # While it is unknown which device such pods really have, a pod that gets a whole GPU might get the same device.
        blocked=of.offered if contested else blocked,
        reasons=(*reasons, *sentences),
        idle=_mask(of.agent, [one for one in idle if not _obstacle(one, of.tolerance_mib)]),
        held=Counter(each.hold for each in shared),
        unusable=_by_pod(held),
        unusable_leaving=_leaving(held, shared),
    )


# One shared GPU -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Claim:
    """Everything that refers to one shared GPU. Only `_claims` changes it."""

    name: str
    parts: list[Part] = field(default_factory=list)
    told: set[DeviceUuid] = field(default_factory=set)
    """The devices that its bound pods were given for this GPU; more than one is a contradiction."""
    standing: list[Pod] = field(default_factory=list)
    has_reservation: bool = False


def _claims(of: Sources) -> dict[str, _Claim]:
    """Return everything that refers to each shared GPU, by name, in one pass: this runs at every event of the node."""
    found: dict[str, _Claim] = {}
    for part in of.parts:
        for position, name in enumerate(part.names):
            claim = found.get(name) or found.setdefault(name, _Claim(name))
            claim.parts.append(part)
            if part.is_bound and position < len(part.uuids):
                claim.told.add(DeviceUuid(part.uuids[position]))
    for pod in of.reservations:
        claim = found.get(pod.reserves) or found.setdefault(pod.reserves, _Claim(pod.reserves))
        claim.has_reservation = True
        if not pod.deleting:
            claim.standing.append(pod)
    return found


def _shared(claim: _Claim, of: Sources, devices: Mapping[DeviceUuid, Device]) -> SharedGpu:
    parts = claim.parts
    uuid = _confirmed(claim, of.agent)
    state, reason = _state(claim, of, uuid)
    promised_mib, device = sum(part.memory_mib for part in parts), devices.get(uuid)
    if state in OPEN and not of.divides:
        reason = "its node now gives out each GPU several times, or partitions its GPUs by MIG"
    if state is GpuState.OPENING and not reason and claim.name in of.doubted:
        # Further pods would wait as long, while other GPUs may have room.
        reason = "its node has given it no device in time"
    is_free_to_share = state is GpuState.READY and not reason
    if is_free_to_share:
        reason = _obstacle_to_more(device, promised_mib, of.tolerance_mib)
    return SharedGpu(
        name=claim.name,
        uuid=uuid or min(claim.told, default=NO_DEVICE),
        whole_mib=of.memory_mib,
        promised_mib=promised_mib,
        holders=tuple(part.pod for part in parts),
        state=state,
        reason=reason,
        may_pass=is_free_to_share and bool(reason) and device is not None and device.health is Health.HEALTHY,
        reservations=tuple(sorted(claim.standing, key=lambda pod: (pod.created_at, pod.name))),
        is_bound=any(part.is_bound for part in parts),
        hold=_hold(parts, has_reservation=claim.has_reservation),
        free=of.memory_mib * PART - sum(part.parts for part in parts),
        releasing=sum(part.parts for part in parts if part.hold is Hold.LEAVING),
    )


def _hold(parts: Sequence[Part], *, has_reservation: bool) -> Hold:
    """Return how the whole device is held: as long as a pod keeps a part, else until its reservation pod is gone."""
    holds = {part.hold for part in parts}
    if Hold.KEPT in holds:
        return Hold.KEPT
    if Hold.AWAITED in holds:
        # A pod that waits for the GPU to be ready holds the device, unless a pod that is being deleted still holds it.
        return Hold.KEPT if has_reservation else Hold.AWAITED
    return Hold.LEAVING


def _state(claim: _Claim, of: Sources, uuid: DeviceUuid) -> tuple[GpuState, str]:
    if not claim.told and (claim.name in of.closing or (not claim.standing and not claim.parts)):
        return GpuState.CLOSING, ""
    if of.agent is None or not of.agent.kubelet_answers:
        # A pod that joined a GPU that opens there would wait in vain, while other GPUs may have room.
        state = GpuState.UNCONFIRMED if claim.told else GpuState.OPENING
        return state, "the agent of its node does not report which pod has it"
    if not claim.told:
        return (GpuState.READY if uuid else GpuState.OPENING), ""
    dispute = _dispute(claim.told, claim.standing, uuid)
    return (GpuState.CONTESTED, dispute) if dispute else (GpuState.READY, "")


def _dispute(told: AbstractSet[DeviceUuid], standing: Sequence[Pod], uuid: DeviceUuid) -> str:
    """Return what does not agree about a GPU on which pods run; empty when everything agrees."""
    if not standing:
        return "its reservation pod is gone"
    if not uuid:
        return "its reservation pod has no device"
    if told != {uuid}:
        return f"its reservation pod has {uuid}, and its pods were given {', '.join(sorted(told))}"
    return ""


def _confirmed(claim: _Claim, agent: GpuNode | None) -> DeviceUuid:
    """Return the device of a reservation pod by the agent's report; preferably the device that its pods were given."""
    if agent is None or not agent.kubelet_answers or not claim.standing:
        return NO_DEVICE
    held = [
        device.uuid
        for device in agent.devices
        if device.holders and any(is_held_by(device, pod) for pod in claim.standing)
    ]
    return next((uuid for uuid in held if uuid in claim.told), _first(held))


def is_held_by(device: Device, pod: Pod | WholeHolder) -> bool:
    """Whether the agent reports that the pod has the device; the kubelet reports no uids, so one may be missing."""
    return pod.node is not None and any(
        one.name == pod.name and one.namespace == pod.namespace and one.uid in ("", pod.uid) for one in device.holders
    )


def _first(uuids: Iterable[DeviceUuid]) -> DeviceUuid:
    return next(iter(uuids), NO_DEVICE)


def _obstacle_to_more(device: Device | None, promised_mib: int, tolerance_mib: int) -> str:
    if device is None:
        return ""
    if device.health is not Health.HEALTHY:
        return _unhealthy(device)
    if is_overused(device, promised_mib, tolerance_mib):
        return f"{device.used_mib} MiB of it are used, {promised_mib} MiB are reserved"
    return ""


# Whole GPUs ---------------------------------------------------------------------------------------------------------


def _idle(agent: GpuNode | None, taken: Container[DeviceUuid]) -> list[Device]:
    """Return the whole devices that no pod has, as far as the agent can tell."""
    if agent is None or not agent.kubelet_answers:
        return []
    return [one for one in agent.devices if not one.holders and one.uuid not in taken and not one.is_mig]


def _perhaps_idle(of: Sources, taken: Container[DeviceUuid]) -> list[Device]:
    """Return the whole devices that may be free now, where the agent does not report which pods have them."""
    if of.agent is not None and of.agent.kubelet_answers:
        return []
    return [one for one in of.devices if one.uuid not in taken and not one.is_mig]


def _bad(idle: Iterable[Device], of: Sources) -> tuple[int, list[str]]:
    """Return how many idle devices accept no work, beyond those that the device plugin has withdrawn, and why."""
    found = [sentence for one in idle if (sentence := _obstacle(one, of.tolerance_mib))]
    return max(0, len(found) - _withdrawn(of)), found


def _withdrawn(of: Sources) -> int:
    """Return how many devices the device plugin does not offer."""
    return max(0, sum(not one.is_mig for one in of.devices) - of.offered)


# GPUs that accept no work after the pods that have them ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    """A device that pods have, and that accepts no work after them."""

    by: Sequence[WholeHolder] = ()
    """Empty for a shared GPU."""
    shared: Collection[str] = ()
    """The names of the shared GPUs whose reservation pods have the device."""


def has_unusable(report: GpuNode | None, tolerance_mib: int) -> bool:
    """Whether a report shows a device that accepts no work: then it matters which pods have whole devices."""
    return report is not None and any(_obstacle(device, tolerance_mib) for device in report.devices)


def _unusable(
    of: Sources, taken: Container[DeviceUuid], claims: Mapping[str, _Claim]
) -> tuple[list[Device], list[_Held]]:
    """Return the devices that accept no work and were reported as held: by pods that are gone, and by others.

    A report is older than the watch of pods: without this, a device would count as free from the end of its pod to the
    next report, and as room for those whom the pod is evicted for.
    """
    gone, held = list[Device](), list[_Held]()
    for device in of.agent.devices if of.agent and of.agent.kubelet_answers else ():
        if device.is_mig or not device.holders or not _obstacle(device, of.tolerance_mib):
            continue
        pods = [one for one in of.whole if is_held_by(device, one)]
        shared = [pod.reserves for pod in of.reservations if is_held_by(device, pod) and pod.reserves in claims]
        if pods or shared:
            held.append(_Held(pods, shared))
        elif device.uuid not in taken:
            gone.append(device)
    return gone, held


def _by_pod(held: Iterable[_Held]) -> Mapping[PodUid, int]:
    """Return how many unusable devices each pod has, but no more than its node is charged with."""
    gpus = {one.uid: one.gpus for each in held for one in each.by}
    found = Counter(one.uid for each in held for one in each.by)
    return {uid: min(number, gpus[uid]) for uid, number in found.items() if gpus[uid]}


def _leaving(held: Collection[_Held], shared: Iterable[SharedGpu]) -> int:
    """Return how many unusable devices are held by pods that are being deleted, and by no others."""
    holds = {each.name: each.hold for each in shared}
    whole = [each for each in held if each.by and all(one.hold is Hold.LEAVING for one in each.by)]
    parts = sum(all(holds[name] is Hold.LEAVING for name in each.shared) for each in held if not each.by)
    return sum(_by_pod(whole).values()) + parts


def _obstacle(device: Device, tolerance_mib: int) -> str:
    if device.health is not Health.HEALTHY:
        return f"{device.uuid} {_unhealthy(device)}"
    if device.foreign_mib > tolerance_mib:
        return f"{device.uuid} is used by processes that are in no pod, {device.foreign_mib} MiB of it"
    return ""


def _unhealthy(device: Device) -> str:
    word = "is unhealthy" if device.health is Health.UNHEALTHY else "is of unknown health"
    return f"{word}: {device.health_reason}" if device.health_reason else word


def _mask(agent: GpuNode | None, idle: Collection[Device]) -> int:
    uuids = {one.uuid for one in idle}
    return sum(1 << bit for bit, one in enumerate(agent.devices if agent else ()) if one.uuid in uuids)
