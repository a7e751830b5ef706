"""What a person may choose about planning; the settings of the service become one `Policy`."""

from dataclasses import dataclass

from app.model.decision import Action
from app.model.podgroup import PodGroup
from app.scheduling.placement.state import Strategy
from app.settings import PlacementStrategy, ResolveMethod

ALL_ACTIONS = tuple(Action)

MOST_KEPT_S = 600.0
"""For how long room is kept for the rest of a gang at most, however long a gang may be stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a person may choose about planning."""

    placement: PlacementStrategy = PlacementStrategy.BINPACK
    """Of nodes."""
    sharing: PlacementStrategy = PlacementStrategy.BINPACK
    """Of devices in shared use."""
    actions: tuple[Action, ...] = ALL_ACTIONS
    stale_grace_s: float = 60.0
    """For how long a gang that says nothing itself may hold less than its minimum before all of it has to leave."""
    preempt_min_runtime_s: float = 10.0
    """For queues that say nothing themselves, as the next."""
    reclaim_min_runtime_s: float = 10.0
    consolidate_min_runtime_s: float = 10.0
    """For all queues."""
    reclaim_resolve_method: ResolveMethod = ResolveMethod.LCA
    """Which queue's reclaim min-runtime counts where several on the line state one."""
    patience_s: float = 0.0
    """For how long a PodGroup waits at most for what its queue is owed beyond what it deserves, before pods lose more
    work for it than it has waited for. 0, as for a plan that knows of none before it: not at all."""
    ageing_s: float | None = 120.0
    """From this age on the oldest PodGroup that finds no room has nodes withheld for it; None: nobody's age counts."""
    most_whatifs: int = 6000
    """How many possible plans one plan may look at: each action has an equal part, and what earlier ones have left.

    A plan in which searches of earlier plans are still due may look at twice as many.
    """

    borrow_last: bool = True
    """Whether those go first that stay within their queue's fair share, and nobody borrows what is owed to another."""

    def keeps_room_for(self, group: PodGroup, now: float) -> bool:
        """Whether a gang that is bound in part is so for a time so short that room may be kept for its rest.

        For no longer than a gang that says nothing itself may be stale, nor than `MOST_KEPT_S`.
        """
        grace_s = min(self.grace_s(group.stale_grace_s), self.stale_grace_s, MOST_KEPT_S)
        return group.torn_since is None or now - group.torn_since < grace_s

    @property
    def strategy(self) -> Strategy:
        """Both strategies of placement."""
        return Strategy(self.placement, self.sharing)

    def grace_s(self, stated: float | None) -> float:
        """Return for how long a gang may be stale that states this itself, or nothing."""
        return self.stale_grace_s if stated is None else stated


DEFAULT_POLICY = Policy()
