"""The results of planning and placing. They are values without effects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.model.memory import NO_MEMORY, PlanMemory
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.reason import Refusal
from app.model.resources import NOTHING, Resources


class Action(StrEnum):
    """The five ways in which a plan changes a cluster, the least disruptive first (KAI's actions and their order)."""

    ALLOCATE = "allocate"
    CONSOLIDATE = "consolidate"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    EVICT_STALE = "stalegangeviction"


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod and the node on which it will run."""

    pod: PodUid
    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices of which the pod gets a fraction, by their names on the node. A new name opens an idle device.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Pods of one PodGroup that start together. Either all placements are kept, or none."""

    group: GroupKey
    placements: tuple[Placement, ...]
    awaits_release: bool = False
    """Some resources are still held by terminating pods. The places stay reserved for these pods until they are free.
    """
    action: Action = Action.ALLOCATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A pod that must leave its node, and the PodGroup that benefits."""

    pod: PodUid
    group: GroupKey
    node: NodeName
    action: Action
    beneficiary: GroupKey | None = None
    """None for a stale gang, whose eviction has no beneficiary."""
    moves_to: NodeName | None = None
    """The node where the plan has room for the pod's replacement; None when the plan has none."""
    devices: tuple[str, ...] = ()
    """The shared devices on `moves_to`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A queue's share of the cluster at one moment."""

    deserved: Resources = NOTHING
    fair_share: Resources = NOTHING
    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All decisions of one pass."""

    snapshot_version: int
    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    """Evictions are carried out together with the starts that await them, or not at all."""
    refusals: Mapping[GroupKey, Refusal] = field(default_factory=dict)
    shares: Mapping[QueueName, Share] = field(default_factory=dict)
    withheld: tuple[NodeName, ...] = ()
    """Nodes that are kept free for a PodGroup that has waited for long, or that is owed room."""
    aged: GroupKey | None = None
    """The PodGroup that has waited for long. The rest of its queue's fair share is kept for it, too."""
    kept_for: frozenset[GroupKey] = frozenset()
    """Partially bound gangs for whose missing pods the plan kept the free room. Later PodGroups did not get this room.
    """
    unfinished: bool = False
    """The victim search reached a budget. Its results are kept, and the next plan continues it."""
    judges_all: bool = field(default=False, compare=False)
    """The plan found out for all pending PodGroups, not only the candidates, whether they can run at all."""
    whatifs: int = field(default=0, compare=False)
    """The number of what-ifs in the victim searches. This is the work that budgets count."""
    memory: PlanMemory = field(default=NO_MEMORY, compare=False, repr=False)
    """Input of the next plan."""
