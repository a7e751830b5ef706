"""What planning and placing answer: values, never effects."""

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
    """A pod and the node it shall run on."""

    pod: PodUid
    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices it shall have a part of, by their names on the node; a new name opens an idle device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Pods of one PodGroup that start together: all of these placements are kept, or none."""

    group: GroupKey
    placements: tuple[Placement, ...]
    awaits_release: bool = False
    """Some of the room is still held by pods that are leaving: the places are held for these pods until it is free."""
    action: Action = Action.ALLOCATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A pod that has to leave its node, and for whom."""

    pod: PodUid
    group: GroupKey
    node: NodeName
    action: Action
    beneficiary: GroupKey | None = None
    """None for a stale gang, which makes room for nobody in particular."""
    moves_to: NodeName | None = None
    """Where the plan has room for the pod that its owner will make in its place; None when it has none."""
    devices: tuple[str, ...] = ()
    """The shared devices at `moves_to`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A queue's part of the cluster at one moment."""

    deserved: Resources = NOTHING
    fair_share: Resources = NOTHING
    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one pass decided."""

    snapshot_version: int
    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    """To be carried out together with the starts that await them, or not at all."""
    refusals: Mapping[GroupKey, Refusal] = field(default_factory=dict)
    shares: Mapping[QueueName, Share] = field(default_factory=dict)
    withheld: tuple[NodeName, ...] = ()
    """Nodes that are kept for a PodGroup that has waited for long, or is owed room."""
    aged: GroupKey | None = None
    """The one that has waited for long: for it is also kept what its queue has left of its fair share."""
    kept_for: frozenset[GroupKey] = frozenset()
    """Gangs that are bound in part, for whose rest the plan kept what room there is: nobody who came later got it."""
    unfinished: bool = False
    """A budget of the victim search was reached: what was found is kept, the next plan goes on."""
    whatifs: int = field(default=0, compare=False)
    """How many what-ifs the victim searches tried: the work that budgets count."""
    memory: PlanMemory = field(default=NO_MEMORY, compare=False, repr=False)
    """To be given to the next plan."""
