"""The options of planning. The settings of the service become one `Policy`."""

from dataclasses import dataclass

from app.model.decision import Action
from app.model.podgroup import PodGroup
from app.scheduling.placement.ranks import Strategy
from app.settings import Packing, PlacementStrategy, ResolveMethod

ALL_ACTIONS = tuple(Action)

MOST_KEPT_S = 600.0
"""The longest time for which room is kept for the rest of a gang, however long a gang may be stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options of planning."""

    placement: PlacementStrategy = PlacementStrategy.BINPACK
    """The strategy for nodes."""
    packing: Packing = Packing.EXPECTED_USE
    """How `binpack` chooses a node once a typical mix of pods is known."""
    sharing: PlacementStrategy = PlacementStrategy.BINPACK
    """The strategy for devices in shared use."""
    actions: tuple[Action, ...] = ALL_ACTIONS
    stale_grace_s: float = 60.0
    """How long a gang without its own setting may hold less than its minimum before all its pods are evicted."""
    preempt_min_runtime_s: float = 10.0
    """For queues without their own setting; the next field too."""
    reclaim_min_runtime_s: float = 10.0
    consolidate_min_runtime_s: float = 10.0
    """For all queues."""
    reclaim_resolve_method: ResolveMethod = ResolveMethod.LCA
    """Selects the queue whose reclaim min-runtime counts where several queues on the line set one."""
    patience_s: float = 0.0
    """The longest time for which a PodGroup waits for room that its queue is owed beyond its deserved share. After that
    time, pods may lose more work for the PodGroup than it has waited for. Where pods only move, the longest time is
    `patience.MOVES` times as long, for consolidation in every queue. 0 means no such wait.
    """
    ageing_s: float | None = 120.0
    """From this age on the oldest PodGroup without room has nodes withheld for it; None: age does not count."""
    most_whatifs: int = 6000
    """How many what-ifs one plan may try. Each action has an equal part, and what earlier actions have left.

    A plan in which searches of earlier plans are still due may try twice as many.
    """

    borrow_last: bool = True
    """Whether PodGroups within their queue's fair share go first, and no PodGroup borrows what another queue is owed.
    """

    def keeps_room_for(self, group: PodGroup, now: float) -> bool:
        """Whether a gang has been partially bound for so short a time that room may be kept for its remaining pods.

        The time is at most the stale grace of a gang without its own setting, and at most `MOST_KEPT_S`.
        """
        grace_s = min(self.grace_s(group.stale_grace_s), self.stale_grace_s, MOST_KEPT_S)
        return group.torn_since is None or now - group.torn_since < grace_s

    @property
    def strategy(self) -> Strategy:
        """The strategies for nodes and devices."""
        return Strategy(self.placement, self.sharing, self.packing)

    def grace_s(self, stated: float | None) -> float:
        """Return how long a gang may be stale, by its own setting or by default."""
        return self.stale_grace_s if stated is None else stated


DEFAULT_POLICY = Policy()
