"""The explanation of one pod or PodGroup: its state, the reason, and the decisions about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.queue import Queue
from app.model.resources import NOTHING, Resources
from app.model.sentence import Name


class Subject(StrEnum):
    """The kind of object that a name refers to."""

    POD = "pod"
    POD_GROUP = "podgroup"
    WORKLOAD = "workload"
    """An object that owns pods, such as a Job."""


class PodState(StrEnum):
    """The state of a pod. Pods in the last two states no longer exist."""

    HELD = "Held"
    AWAITING = "Awaiting"
    PROMISED = "Promised"
    BINDING = "Binding"
    BOUND = "Bound"
    RELEASING = "Releasing"
    EVICTED = "Evicted"
    GONE = "Gone"


class GroupState(StrEnum):
    """The state of a PodGroup."""

    WAITING = "Waiting"
    STARTING = "Starting"
    PARTLY_RUNNING = "PartlyRunning"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    ENDING = "Ending"
    FINISHED = "Finished"
    GONE = "Gone"
    NO_PODS = "NoPods"
    """Only of a workload: it exists, but no pod was created for it."""


class Outcome(StrEnum):
    """The result of a decision."""

    STARTED = "Started"
    """Places were found. They are reserved, perhaps until other pods have left."""
    REFUSED = "Refused"
    FAILED = "Failed"
    """The pod had a place, but could not be bound to it."""
    TAKEN_BACK = "TakenBack"
    """A reservation was given to another pod."""
    EVICTED = "Evicted"


@dataclass(frozen=True, slots=True)
class DecidedPod:
    """A pod in a decision, and its node."""

    uid: PodUid
    name: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision about a PodGroup, or about some of its pods."""

    outcome: Outcome
    group: GroupKey
    generation: int
    """The version of the decision's snapshot. It grows, and restarts with the service."""
    sentence: str
    pods: tuple[DecidedPod, ...] = ()
    """A refusal names only a pod without a PodGroup."""
    cause: str = ""
    """The action of a start or an eviction; the reason of a refusal."""
    beneficiary: Name | None = None
    """The workload that benefits; None when there is no particular one."""
    at: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer: one word for programs, one sentence for people, and its numbers.

    Sentence and details may name objects of tenants. `sentence.told` removes what a reader may not see.
    """

    reason: str
    """A `Reason` while something waits, otherwise its state."""
    sentence: str
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that owns pods, and its state."""

    kind: str
    suspended: str = ""
    """One sentence when the workload is suspended; otherwise empty."""
    groups: tuple[GroupKey, ...] = ()
    """The PodGroups of its pods, and the PodGroup objects that it owns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How many PodGroups have an earlier turn now."""

    ahead_in_queue: int
    first: tuple[Name, ...]
    """The first of them."""
    ahead: int
    """In all queues together."""
    is_least: bool = False
    """`ahead` is a lower bound: too many PodGroups wait to count them all."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a PodGroup."""

    name: str
    state: PodState
    node: NodeName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A pod that still uses resources that another pod waits for."""

    namespace: str
    name: str
    node: NodeName
    since: float | None = None
    """When Leeboard evicted the pod, in seconds since the epoch.

    None when someone else deleted the pod, or when it is not evicted yet.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStand:
    """The state of a queue, including its descendants."""

    queue: Queue
    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING
    fair_share: Resources | None = None
    """None when the queue takes no part in the division, or when the share was not computed."""
    waiting: int = 0
    """The number of waiting PodGroups."""
    waiting_pods: int = 0
    """The number of their pods without a place."""
    claimed_milli: int = 0
    """The part of the GPUs in `allocated` that ResourceClaims hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNeed:
    """What a ResourceClaim of a pod asks for."""

    name: str
    """In the namespace of the pod."""
    classes: tuple[str, ...] = ()
    """The DeviceClasses of its requests."""
    gpu_milli: int = 0
    """What its queue pays for it."""
    node: NodeName | None = None
    """The node of its devices once it is allocated."""
    is_shared: bool = False
    """Other pods may use it, too."""
    problem: str = ""
    """Why it cannot be used; empty when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is shown of a pod or a PodGroup. Fields without a value do not apply."""

    subject: Subject
    namespace: str
    name: str
    state: str
    why: Why
    uid: str = ""
    pod_group: str = ""
    """For a pod without a PodGroup, the name of the pod."""
    queue: QueueName | None = None
    stand: QueueStand | None = None
    """The state of the queue; None when the queue does not exist."""
    priority: int | None = None
    preemptible: bool | None = None
    min_member: int | None = None
    node: NodeName | None = None
    since: float | None = None
    """When it started to run, in seconds since the epoch; None when it does not run or when this is unknown."""
    position: Position | None = None
    """None when it has no turn: it does not wait, or it could not start even on free resources."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of a PodGroup: the number of pods in each state."""
    members: tuple[Member, ...] = ()
    """Of a PodGroup: its first pods."""
    waits_for: tuple[Leaver, ...] = ()
    claims: tuple[ClaimNeed, ...] = ()
    """The ResourceClaims of the pod, or the first ones of the PodGroup."""
    autoscaler: str = ""
    """What a cluster autoscaler was asked to add, and its answer; empty when no autoscaler is asked."""
    workload_groups: int = 0
    """The number of PodGroups of the workload in question, including this one; 0 when the question named no workload.
    """
    decisions: tuple[Decision, ...] = ()
    """Newest first."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is nothing to explain. One sentence says what to do."""

    sentence: str
