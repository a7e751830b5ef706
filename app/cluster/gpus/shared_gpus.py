"""Works out how the shared GPUs of one node stand: from who holds parts of them, what reserves them, and the agent.

The sources may disagree: a GPU is only `READY` when a reservation pod is alive, the agent says which device that pod
holds, and everybody bound to a part of it was given that very device. Until then nobody new comes on it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.cluster.ledger.charges import Hold
from app.model.device import Device, DeviceUuid, GpuNode, Health, is_overused
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.snapshot import PART, SharedDevice


class GpuState(StrEnum):
    """How far a shared GPU can be relied upon."""

    OPENING = "opening"
    """Nobody runs on it yet; which device it is, is not known."""
    READY = "ready"
    UNCONFIRMED = "unconfirmed"
    """Pods run on it, and its agent has fallen silent."""
    CONTESTED = "contested"
    """Pods run on it, and nothing reserves the device they were given, or not this one."""
    CLOSING = "closing"
    """What reserves it is being removed."""


NO_DEVICE = DeviceUuid("")

OPEN = (GpuState.OPENING, GpuState.READY)
"""Those on which others may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one pod holds of each of some shared GPUs of a node, or is promised."""

    pod: PodUid
    node: NodeName
    names: tuple[str, ...]
    uuids: tuple[str, ...] = ()
    """What the pod was told of them, in the same order; empty until it is bound."""
    parts: int
    """Of each, overhead included (see `PART`)."""
    memory_mib: int
    """Of each, what the pod asked for."""
    hold: Hold = Hold.KEPT
    is_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU of which pods hold parts, or for which a reservation pod exists."""

    name: str
    """Under which it is accounted; unique on its node."""
    uuid: DeviceUuid = NO_DEVICE
    """Which device it is, empty while that is not known."""
    whole_mib: int
    promised_mib: int = 0
    """What its holders asked for, together."""
    holders: tuple[PodUid, ...] = ()
    state: GpuState
    reason: str = ""
    """What keeps others off it, empty when nothing does."""
    may_pass: bool = False
    """That is only how much of it is used, which may be less by itself: who has just left is measured for a moment."""
    reservations: tuple[Pod, ...] = ()
    """The reservation pods that are there and stay: one, as a rule."""
    is_bound: bool = False
    """Some pod is bound to it, so that it cannot become another device."""
    hold: Hold = Hold.KEPT
    """How the whole device is held in the books of the node."""
    free: int
    """Parts nobody holds (see `PART`)."""
    releasing: int = 0
    """Parts held by pods that are leaving."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done about it until something changes."""
        if self.state is not GpuState.READY or not self.holders or len(self.reservations) != 1:
            return False
        return self.reservations[0].device_uuids == (self.uuid,)

    @property
    def is_open(self) -> bool:
        """Whether somebody new may come on it."""
        return self.state in OPEN and not self.reason

    @property
    def listed(self) -> SharedDevice:
        """Return it as the planner sees it: one that is not open has less than nothing free, whoever leaves.

        It is listed all the same, so that no new one gets its name.
        """
        if not self.is_open:
            return SharedDevice(self.name, -self.whole_mib * PART)
        return SharedDevice(self.name, self.free, self.releasing)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """All that is known of one node's GPUs beside what whole ones are charged."""

    shared: tuple[SharedGpu, ...] = ()
    blocked: int = 0
    """Whole GPUs that take no new work although nobody has them."""
    reasons: tuple[str, ...] = ()
    """Why, one sentence each."""
    idle: int = 0
    """Bit i is set when device i of the agent's list is idle and takes work."""
    held: Mapping[Hold, int] = field(default_factory=dict)
    """How many whole GPUs are held for parts, by how."""

    @property
    def listed(self) -> tuple[SharedDevice, ...]:
        """Return what the planner sees of them."""
        return tuple(each.listed for each in self.shared)

    def is_like(self, before: "NodeGpus") -> bool:
        """Whether nothing differs but the words of the reasons, which tell how much is used at the moment."""
        one, other = (
            (each.blocked, each.idle, each.held, [replace(gpu, reason=str(bool(gpu.reason))) for gpu in each.shared])
            for each in (self, before)
        )
        return one == other

    def frees_more_than(self, before: "NodeGpus") -> bool:
        """Whether somebody may find room here who found none before; never wrong when it says no."""
        if self.blocked < before.blocked or sum(self.held.values()) < sum(before.held.values()):
            return True
        if self.held.get(Hold.LEAVING, 0) > before.held.get(Hold.LEAVING, 0):
            return True
        there = {each.name: each.listed for each in before.shared if each.is_open}
        return any(_frees(each.listed, there.get(each.name)) for each in self.shared if each.is_open)


NO_GPUS = NodeGpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is known of a node, from everybody who knows something."""

    agent: GpuNode | None
    """Its last report, None when there is none that can be relied upon now."""
    last: GpuNode | None = None
    """The last report in which its devices could be read, where there is none that can be relied upon now."""
    memory_mib: int
    """Of each GPU, as it is accounted; 1 when nothing tells."""
    offered: int
    """Whole GPUs that the node's device plugin offers."""
    parts: Collection[Part]
    reservations: Collection[Pod]
    """The reservation pods for this node, also those that are leaving."""
    closing: Collection[str] = ()
    """Shared GPUs whose reservation we are removing."""
    doubted: Collection[str] = ()
    """Those that have not come to be in time."""
    tolerance_mib: int = 0
    divides: bool = True
    """Whether the node's labels let its GPUs be shared: where each is handed out several times, or cut, they do not."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices as they were last read."""
        known = self.agent or self.last
        return known.devices if known else ()


def node_gpus(of: Sources) -> NodeGpus:
    """Return how the GPUs of a node stand."""
    claims = _claims(of)
    if not claims and of.agent is None and of.last is None:
        return NO_GPUS
    devices = {device.uuid: device for device in of.agent.devices} if of.agent else {}
    shared = tuple(_shared(claims[name], of, devices) for name in sorted(claims))
    taken = {uuid for each in shared for uuid in (each.uuid, *claims[each.name].told) if uuid}
    contested = [each for each in shared if each.state is GpuState.CONTESTED]
    reasons = [f"shared GPU {each.name}: {each.reason}" for each in contested]
    idle = _idle(of.agent, taken)
    blocked, sentences = _bad(idle or _perhaps_idle(of, taken), of)
    return NodeGpus(
        shared=shared,
        # While it is not known which device such pods really have, whoever gets a whole one might get theirs.
        blocked=of.offered if contested else blocked,
        reasons=(*reasons, *sentences),
        idle=_mask(of.agent, [one for one in idle if not _obstacle(one, of.tolerance_mib)]),
        held=Counter(each.hold for each in shared),
    )


def _frees(now: SharedDevice, before: SharedDevice | None) -> bool:
    return before is None or now.free > before.free or now.free + now.releasing > before.free + before.releasing


# One shared GPU -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Claim:
    """Who has to do with one shared GPU. Changed by `_claims` alone."""

    name: str
    parts: list[Part] = field(default_factory=list)
    told: set[DeviceUuid] = field(default_factory=set)
    """Which device the pods that are bound to it were told it is; more than one answer is a contradiction."""
    standing: list[Pod] = field(default_factory=list)
    has_reservation: bool = False


def _claims(of: Sources) -> dict[str, _Claim]:
    """Return who has to do with which shared GPU, by its name, in one pass: this runs at every event of the node."""
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
        reason = "by now its node hands out each GPU several times, or cuts them by MIG"
    if state is GpuState.OPENING and not reason and claim.name in of.doubted:
        # Who comes next would wait as long, while there may be room elsewhere.
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
    """Return how the whole device is held: for as long as somebody stays on it, else until its reservation is gone."""
    holds = {part.hold for part in parts}
    if Hold.KEPT in holds:
        return Hold.KEPT
    if Hold.AWAITED in holds:
        # Whoever waits for it to be made ready has it, unless it is still somebody else's who is leaving.
        return Hold.KEPT if has_reservation else Hold.AWAITED
    return Hold.LEAVING


def _state(claim: _Claim, of: Sources, uuid: DeviceUuid) -> tuple[GpuState, str]:
    if not claim.told and (claim.name in of.closing or (not claim.standing and not claim.parts)):
        return GpuState.CLOSING, ""
    if of.agent is None or not of.agent.kubelet_answers:
        # Whoever joined one that opens there would wait in vain, while there may be room elsewhere.
        state = GpuState.UNCONFIRMED if claim.told else GpuState.OPENING
        return state, "the agent of its node does not say which pod has it"
    if not claim.told:
        return (GpuState.READY if uuid else GpuState.OPENING), ""
    dispute = _dispute(claim.told, claim.standing, uuid)
    return (GpuState.CONTESTED, dispute) if dispute else (GpuState.READY, "")


def _dispute(told: Collection[DeviceUuid], standing: Sequence[Pod], uuid: DeviceUuid) -> str:
    """Return what does not agree about a GPU on which pods run; empty when everything does."""
    if not standing:
        return "its reservation pod is gone"
    if not uuid:
        return "its reservation pod has no device"
    if told != {uuid}:
        return f"its reservation pod has {uuid}, and its pods were given {', '.join(sorted(told))}"
    return ""


def _confirmed(claim: _Claim, agent: GpuNode | None) -> DeviceUuid:
    """Return the device that a reservation pod holds, as the agent says, the one its pods were told if any does."""
    if agent is None or not agent.kubelet_answers or not claim.standing:
        return NO_DEVICE
    held = [
        device.uuid
        for device in agent.devices
        if device.holders and any(is_held_by(device, pod) for pod in claim.standing)
    ]
    return next((uuid for uuid in held if uuid in claim.told), _first(held))


def is_held_by(device: Device, pod: Pod) -> bool:
    """Whether the agent says that the pod has the device; the kubelet does not tell uids, so one may be missing."""
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
        return f"{device.used_mib} MiB of it are used, {promised_mib} MiB were promised"
    return ""


# Whole GPUs ---------------------------------------------------------------------------------------------------------


def _idle(agent: GpuNode | None, taken: Collection[DeviceUuid]) -> list[Device]:
    """Return the whole devices that nobody has, as far as the agent knows."""
    if agent is None or not agent.kubelet_answers:
        return []
    return [one for one in agent.devices if not one.holders and one.uuid not in taken and not one.is_mig]


def _perhaps_idle(of: Sources, taken: Collection[DeviceUuid]) -> list[Device]:
    """Return the whole devices that nobody may have by now, where the agent does not say who has them."""
    if of.agent is not None and of.agent.kubelet_answers:
        return []
    return [one for one in of.devices if one.uuid not in taken and not one.is_mig]


def _bad(idle: Iterable[Device], of: Sources) -> tuple[int, list[str]]:
    """Return how many idle devices take no work, beyond those that the device plugin has taken back itself, and why."""
    found = [sentence for one in idle if (sentence := _obstacle(one, of.tolerance_mib))]
    whole = sum(not one.is_mig for one in of.devices)
    return max(0, len(found) - max(0, whole - of.offered)), found


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
