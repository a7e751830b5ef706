"""The state of the shared GPUs of one node: the holders of parts, and how reliable each GPU is."""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.cluster.ledger.charge import Hold
from app.model.device import Device, DeviceUuid, GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.snapshot import PART, SharedDevice


class GpuState(StrEnum):
    """How reliable a shared GPU is."""

    OPENING = "opening"
    """No pod runs on it yet; its device is not known."""
    READY = "ready"
    UNCONFIRMED = "unconfirmed"
    """Pods run on it, and its agent does not report any more."""
    CONTESTED = "contested"
    """Pods run on it, and no reservation pod holds the device that they were given, or one holds another device."""
    CLOSING = "closing"
    """Its reservation pod is being removed."""


NO_DEVICE = DeviceUuid("")

OPEN = (GpuState.OPENING, GpuState.READY)
"""States in which a shared GPU can accept more pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one pod holds, or has reserved, of each of some shared GPUs of a node."""

    pod: PodUid
    node: NodeName
    names: tuple[str, ...]
    uuids: tuple[str, ...] = ()
    """The devices that the pod was given for them, in the same order; empty until the pod is bound."""
    parts: int
    """Of each GPU, overhead included (see `PART`)."""
    memory_mib: int
    """Of each GPU, the request of the pod."""
    hold: Hold = Hold.KEPT
    is_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeHolder:
    """A pod that is bound and may have whole GPUs of its node."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    gpus: int
    """How many its node is charged with; 0 where claims are charged instead."""
    hold: Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU of which pods hold parts, or for which a reservation pod exists."""

    name: str
    """The name in the accounts; unique on its node."""
    uuid: DeviceUuid = NO_DEVICE
    """Its device; empty while that is not known."""
    whole_mib: int
    promised_mib: int = 0
    """The sum of the requests of its holders."""
    holders: tuple[PodUid, ...] = ()
    state: GpuState
    reason: str = ""
    """Why it accepts no more pods; empty when it accepts them."""
    may_pass: bool = False
    """The only reason is its used memory, which may fall by itself: a pod that has just ended is still measured
    briefly.
    """
    reservations: tuple[Pod, ...] = ()
    """Its reservation pods that are not being deleted: normally one."""
    is_bound: bool = False
    """A pod is bound to it, so that its device cannot change."""
    hold: Hold = Hold.KEPT
    """How the whole device is held in the charges of the node."""
    free: int
    """Parts that no pod holds (see `PART`)."""
    releasing: int = 0
    """Parts held by pods that are being deleted."""

    @property
    def is_settled(self) -> bool:
        """Whether it needs no action until something changes."""
        if self.state is not GpuState.READY or not self.holders or len(self.reservations) != 1:
            return False
        return self.reservations[0].device_uuids == (self.uuid,)

    @property
    def is_open(self) -> bool:
        """Whether it accepts more pods."""
        return self.state in OPEN and not self.reason

    @property
    def listed(self) -> SharedDevice:
        """Return it as the planner sees it: a GPU that is not open has a negative free amount, whatever pods free.

        It is listed nevertheless, so that no new shared GPU gets its name.
        """
        if not self.is_open:
            return SharedDevice(self.name, -self.whole_mib * PART)
        return SharedDevice(self.name, self.free, self.releasing)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """All that is known of one node's GPUs beside the charges of whole GPUs."""

    shared: tuple[SharedGpu, ...] = ()
    blocked: int = 0
    """Whole GPUs that accept no work although no pod has them."""
    reasons: tuple[str, ...] = ()
    """Why, one sentence each."""
    idle: int = 0
    """Bit i is set when device i of the agent's list is idle and accepts work."""
    held: Mapping[Hold, int] = field(default_factory=dict)
    """How many whole GPUs are held for parts, by hold."""
    unusable: Mapping[PodUid, int] = field(default_factory=dict)
    """By pod, how many of its GPUs accept no work when the pod is gone."""
    unusable_leaving: int = 0
    """How many GPUs accept no work when the pods that are being deleted are gone."""

    @property
    def listed(self) -> tuple[SharedDevice, ...]:
        """Return what the planner sees of them."""
        return tuple(each.listed for each in self.shared)

    @property
    def leaving(self) -> int:
        """How many whole GPUs held for parts, less those that accept no work, become free with pods being deleted."""
        return self.held.get(Hold.LEAVING, 0) - self.unusable_leaving

    def is_like(self, before: "NodeGpus") -> bool:
        """Whether nothing differs except the texts of the reasons, which state how much memory is used now."""
        one, other = (
            (
                each.blocked,
                each.idle,
                each.held,
                each.unusable,
                each.unusable_leaving,
                [replace(gpu, reason=str(bool(gpu.reason))) for gpu in each.shared],
            )
            for each in (self, before)
        )
        return one == other

    def frees_more_than(self, before: "NodeGpus") -> bool:
        """Whether a pod may find room here that found none before; False is always right, True may be wrong."""
        if self.blocked < before.blocked or sum(self.held.values()) < sum(before.held.values()):
            return True
        if self.leaving > before.leaving or sum(self.unusable.values()) < sum(before.unusable.values()):
            return True
        there = {each.name: each.listed for each in before.shared if each.is_open}
        return any(_frees(each.listed, there.get(each.name)) for each in self.shared if each.is_open)


NO_GPUS = NodeGpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is known of a node, from all sources."""

    agent: GpuNode | None
    """Its last report; None when there is no reliable one."""
    last: GpuNode | None = None
    """The last report in which its devices could be read, where there is no reliable report now."""
    memory_mib: int
    """Accounted memory of each GPU; 1 when it is unknown."""
    offered: int
    """Whole GPUs that the node's device plugin offers."""
    parts: Collection[Part]
    reservations: Collection[Pod]
    """The reservation pods for this node, also those that are being deleted."""
    whole: Collection[WholeHolder] = ()
    closing: Container[str] = ()
    """Shared GPUs whose reservation pod Leeboard is removing."""
    doubted: Container[str] = ()
    """Shared GPUs that were not ready in time."""
    tolerance_mib: int = 0
    divides: bool = True
    """Whether the node's labels let its GPUs be shared: time-sliced or partitioned GPUs cannot be shared."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices as they were last read."""
        known = self.agent or self.last
        return known.devices if known else ()


def _frees(now: SharedDevice, before: SharedDevice | None) -> bool:
    return before is None or now.free > before.free or now.free + now.releasing > before.free + before.releasing
