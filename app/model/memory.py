"""What one plan passes to the next about its victim searches. These are values, frozen when the plan ends."""

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
"""The key of PodGroups whose searches have the same result. Its first element is the queue."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Dictionary keys that are used often. Their hash is computed once, however many values they hold."""

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
    """Shape [resource, node]: free after all terminating pods have left."""
    most: Amounts
    """Shape [resource, node]: free after all preemptible pods have left, too. This is an upper bound."""
    parts: Amounts
    """Shape [node]: free parts of the shared GPUs."""
    queues: Mapping[QueueName, Hashable]
    """What each queue may hold, and what it holds."""
    rules: Mapping[QueueName, Queue]
    """The Queue objects. Their min-runtimes protect pods of other queues."""
    running: Mapping[GroupKey, PodGroup]
    claimed: bool = False
    """A PodGroup waits for what its queue is owed. No pod is moved for a PodGroup that is owed nothing."""
    kept_for: GroupKey | None = None
    """The PodGroup for which nodes and the rest of its queue's share are kept free."""
    withheld: Mask | None = None
    """Shape [node]: the nodes that are kept free; None when there are none."""
    owed: Hashable = None
    """The PodGroup that is owed room, what decides which pods it may reclaim, and the queues from which the plan takes
    pods.
    """
    changes_at: float = inf
    """When the next min-runtime of a running PodGroup ends, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What is known of the searches of one action."""

    in_vain: Mapping[Likeness, int] = field(default_factory=dict)
    """A search for at least this many pods finds nothing, as long as the conditions do not improve."""
    too_dear: frozenset[Likeness] = frozenset()
    """The part of `in_vain` for which victims exist, but would lose more work than was waited for."""
    owed: frozenset[Likeness] = frozenset()
    """The part of `in_vain` for which victims may exist, but their room is owed to another PodGroup."""
    shallow: Mapping[Likeness, int] = field(default_factory=dict)
    """A search for at least this many pods was cut off and must go deeper, as long as the conditions do not improve."""
    asked: Mapping[Likeness, int] = field(default_factory=dict)
    """A search for at least this many pods was made in this cycle. It is repeated after all others had their turn."""
    deepened: frozenset[tuple[Likeness, int]] = frozenset()
    """The searches, by number of pods, that were cut off and repeated in this cycle."""
    plans_left: int = 0
    """How many plans this cycle still has; 0 when none has begun."""
    caps: Mapping[tuple[Likeness, int], int] = field(default_factory=dict)
    """For each search that was cut off: how many what-ifs the next deep search for this many pods may try."""

    def is_in_vain(self, likeness: Likeness, pods: int) -> bool:
        """Return whether a search for this many pods is known to find nothing."""
        return pods >= self.in_vain.get(likeness, pods + 1)


NOT_SEARCHED = Searched()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIdle:
    """The cost of keeping nodes free for PodGroups that have waited for long."""

    group: GroupKey | None = None
    """The PodGroup for which nodes are kept free."""
    part: float = 0.0
    """What is idle on these nodes while others wait, as a fraction of the cluster."""
    debt_s: float = 0.0
    """The accumulated idle time, in seconds of the whole cluster, minus what has been paid back."""
    at: float = 0.0
    """When these values were computed, in seconds since the epoch."""
    most: float = 0.0
    """The most that was free on the nodes since they are kept for this group, as a fraction of the cluster."""
    until: float = 0.0
    """When the nodes stop being kept for this group unless more becomes free, in seconds since the epoch."""
    in_vain: frozenset[GroupKey] = frozenset()
    """PodGroups for which nodes were kept until `until` without success, since the debt was last paid back."""
    pause_until: float = 0.0
    """Seconds since the epoch. Until then, nodes are kept for no PodGroup unless the debt is paid.

    For PodGroups in `in_vain`, this also applies after that.
    """


NOTHING_KEPT = KeptIdle()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanMemory:
    """Input of the next plan. Its size is bounded by the number of waiting PodGroups."""

    searched: Mapping[str, Searched] = field(default_factory=dict)
    """By action."""
    conditions: Conditions | None = None
    """The conditions at the end of the plan; None when nothing was searched."""
    waiting_since: Mapping[GroupKey, tuple[float, bool]] = field(default_factory=dict)
    """Since when PodGroups wait for victims (seconds since the epoch), and whether they borrow."""
    asks_again_at: float = inf
    """When one of these may find victims that were too expensive before, in seconds since the epoch."""
    kept_idle: KeptIdle = NOTHING_KEPT
    since: float = 0.0
    """The earliest possible time of the oldest search in vain that is remembered, in seconds since the epoch."""


NO_MEMORY = PlanMemory()
