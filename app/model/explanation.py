"""What there is to tell of one pod or PodGroup: how it stands, why, and what was decided about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.queue import Queue
from app.model.resources import NOTHING, Resources
from app.model.sentence import Name


class Subject(StrEnum):
    """What of a name is meant."""

    POD = "pod"
    POD_GROUP = "podgroup"
    WORKLOAD = "workload"
    """An object that owns pods, such as a Job."""


class PodState(StrEnum):
    """Where a pod stands; the last two are those of pods that are no more."""

    HELD = "Held"
    AWAITING = "Awaiting"
    PROMISED = "Promised"
    BINDING = "Binding"
    BOUND = "Bound"
    RELEASING = "Releasing"
    EVICTED = "Evicted"
    GONE = "Gone"


class GroupState(StrEnum):
    """Where a PodGroup stands."""

    WAITING = "Waiting"
    STARTING = "Starting"
    PARTLY_RUNNING = "PartlyRunning"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    ENDING = "Ending"
    FINISHED = "Finished"
    GONE = "Gone"
    NO_PODS = "NoPods"
    """Of a workload: it is there, and nobody has made a pod for it."""


class Outcome(StrEnum):
    """What a decision came to."""

    STARTED = "Started"
    """Places were found: promised, or held until others have left."""
    REFUSED = "Refused"
    FAILED = "Failed"
    """It had places, and could not be brought there."""
    TAKEN_BACK = "TakenBack"
    """A promise was given to somebody else."""
    EVICTED = "Evicted"


@dataclass(frozen=True, slots=True)
class DecidedPod:
    """A pod that a decision was about, and the node."""

    uid: PodUid
    name: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One thing that was decided about a PodGroup, or about pods of it."""

    outcome: Outcome
    group: GroupKey
    generation: int
    """The version of the snapshot that it was decided on; it grows, and begins anew with a restart."""
    sentence: str
    pods: tuple[DecidedPod, ...] = ()
    """Of a refusal only the pod that is a group of its own."""
    cause: str = ""
    """The action of a start or an eviction, the reason of a refusal."""
    beneficiary: Name | None = None
    """The workload for which it was done; None when it was done for none in particular."""
    at: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer: one word for programs, one sentence for people, and its numbers.

    Sentence and details may name objects of tenants: `sentence.told` makes what a reader may see.
    """

    reason: str
    """A `Reason` while something waits, else its state."""
    sentence: str
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that owns pods, and what has become of it."""

    kind: str
    suspended: str = ""
    """One sentence when it is; else empty."""
    groups: tuple[GroupKey, ...] = ()
    """Those of its pods, and those whose objects it owns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How many PodGroups have their turn earlier, as things are now."""

    ahead_in_queue: int
    first: tuple[Name, ...]
    """The first of these."""
    ahead: int
    """In all queues together."""
    is_least: bool = False
    """There may be more in all queues: with so many that wait, they were not all counted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a PodGroup."""

    name: str
    state: PodState
    node: NodeName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A pod that is still in the room that somebody waits for."""

    namespace: str
    name: str
    node: NodeName
    since: float | None = None
    """Since when it is told to leave, in seconds since the epoch; None when somebody else told it, or nobody yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStand:
    """A queue as it stands, its descendants included."""

    queue: Queue
    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING
    fair_share: Resources | None = None
    """None when it takes part in nothing, or its part was not computed."""
    waiting: int = 0
    """PodGroups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is told of a pod or a PodGroup; the fields without a value do not apply to it."""

    subject: Subject
    namespace: str
    name: str
    state: str
    why: Why
    uid: str = ""
    pod_group: str = ""
    """Of a pod that is a group of its own the name of the pod."""
    queue: QueueName | None = None
    stand: QueueStand | None = None
    """Of the queue; None when there is no such queue."""
    priority: int | None = None
    preemptible: bool | None = None
    min_member: int | None = None
    node: NodeName | None = None
    since: float | None = None
    """Since when it runs, in seconds since the epoch; None when it does not, or nobody knows."""
    position: Position | None = None
    """None when it has no turn: it does not wait, or cannot start whatever is free."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of a PodGroup: pods by state."""
    members: tuple[Member, ...] = ()
    """Of a PodGroup: the first of its pods."""
    waits_for: tuple[Leaver, ...] = ()
    autoscaler: str = ""
    """What a cluster autoscaler was asked for it, and has said; empty when nobody was to be asked."""
    workload_groups: int = 0
    """How many PodGroups the workload has that was asked about, this one among them; 0 when it was not a workload."""
    decisions: tuple[Decision, ...] = ()
    """The newest first."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is nothing to tell; one sentence says what to do."""

    sentence: str
