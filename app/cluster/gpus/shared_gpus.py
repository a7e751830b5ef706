"""What there is to say of the shared GPUs of one node: who holds parts, and how far each GPU can be relied upon."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.cluster.ledger.charge import Hold
from app.model.device import Device, DeviceUuid, GpuNode
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


def _frees(now: SharedDevice, before: SharedDevice | None) -> bool:
    return before is None or now.free > before.free or now.free + now.releasing > before.free + before.releasing
