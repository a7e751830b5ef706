"""What one plan tells the next about its victim searches: values only, frozen when the plan ends."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf

from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.resources import Amounts
from app.model.snapshot import Mask, NodeTable
from app.model.topology import Topology

Likeness = tuple[Hashable, ...]
"""What PodGroups share whose searches end alike; the first is their queue."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Values that are looked up again and again: hashed once, however many they are."""

    values: Hashable
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.values))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conditions:
    """The state that decides whether a victim search can succeed."""

    nodes: NodeTable
    topologies: Mapping[str, Topology]
    future: Amounts
    """Shape [resource, node]: free when everything that is leaving has left."""
    most: Amounts
    """Shape [resource, node]: free when every preemptible pod has left, too; an upper bound."""
    parts: Amounts
    """Shape [node]: parts that are free of the GPUs in shared use."""
    queues: Mapping[QueueName, Hashable]
    """What each queue may hold and holds."""
    rules: Mapping[QueueName, Queue]
    """The queues themselves: their min-runtimes protect pods of others."""
    running: Mapping[GroupKey, PodGroup]
    claimed: bool = False
    """Some PodGroup waits for what its queue is owed: nothing is moved for PodGroups that are owed nothing."""
    kept_for: GroupKey | None = None
    """For whom nodes, and what is left of its queue's share, are kept from others."""
    withheld: Mask | None = None
    """Shape [node]: these nodes; None when there are none."""
    owed: Hashable = None
    """Who is owed room and what decides what it may take back, and the queues from which the plan takes pods."""
    changes_at: float = inf
    """Seconds since the epoch: when the next min-runtime of a running PodGroup ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What is known of the searches of one action."""

    in_vain: Mapping[Likeness, int] = field(default_factory=dict)
    """From how many pods on a search finds nothing, as long as the conditions are no better."""
    too_dear: frozenset[Likeness] = frozenset()
    """Of those in vain: for whom pods would have to leave who lose more work than was waited for."""
    owed: frozenset[Likeness] = frozenset()
    """Of those in vain: who might have found victims but for the PodGroup that is owed room."""
    shallow: Mapping[Likeness, int] = field(default_factory=dict)
    """From how many pods on a search was cut off, as long as the conditions are no better: it has to go deeper."""
    asked: Mapping[Likeness, int] = field(default_factory=dict)
    """From how many pods on a search was made in this cycle: these are searched again when all others have been."""
    deepened: frozenset[tuple[Likeness, int]] = frozenset()
    """For how many pods a search that was cut off was repeated in this cycle."""
    plans_left: int = 0
    """Of this cycle; 0 when none has begun."""
    caps: Mapping[tuple[Likeness, int], int] = field(default_factory=dict)
    """How many what-ifs the next deep search for so many pods may try, for those that were cut off."""

    def is_in_vain(self, likeness: Likeness, pods: int) -> bool:
        """Whether it is known that a search for so many pods finds nothing."""
        return pods >= self.in_vain.get(likeness, pods + 1)


NOT_SEARCHED = Searched()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIdle:
    """What it costs that nodes are kept for PodGroups that have waited for long."""

    group: GroupKey | None = None
    """For whom nodes are kept."""
    part: float = 0.0
    """What stands idle there while others wait, as a part of the cluster."""
    debt_s: float = 0.0
    """For how many seconds the whole cluster has stood idle in sum, less what has been paid back since."""
    at: float = 0.0
    """Seconds since the epoch: when this was so."""
    most: float = 0.0
    """The most that has been free there since nodes are kept for this group, as a part of the cluster."""
    until: float = 0.0
    """Seconds since the epoch: when nodes are no longer kept for this group, if no more is free there by then."""
    in_vain: frozenset[GroupKey] = frozenset()
    """Those for which nodes were kept until then in vain, since the debt was paid back last."""
    pause_until: float = 0.0
    """Seconds since the epoch: until when nodes are kept for nobody who is not among these, unless the debt is paid."""


NOTHING_KEPT = KeptIdle()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanMemory:
    """What the next plan has to know; bounded by the number of PodGroups that wait."""

    searched: Mapping[str, Searched] = field(default_factory=dict)
    """By action."""
    conditions: Conditions | None = None
    """When the plan ended; None when nothing was searched."""
    waiting_since: Mapping[GroupKey, tuple[float, bool]] = field(default_factory=dict)
    """Seconds since the epoch: since when PodGroups wait that others may leave for, and whether they borrow."""
    asks_again_at: float = inf
    """Seconds since the epoch: when one of these may find victims that were too dear before."""
    kept_idle: KeptIdle = NOTHING_KEPT
    since: float = 0.0
    """Seconds since the epoch: when the oldest search in vain that is remembered was made, at the earliest."""


NO_MEMORY = PlanMemory()
