"""One plan under construction: the decisions so far, and the PodGroups for which nodes and shares are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.model.decision import Action, Start
from app.model.memory import NO_MEMORY, KeptIdle, Likeness, PlanMemory
from app.model.names import GroupKey, NodeName
from app.model.podgroup import PodGroup
from app.model.reason import Refusal
from app.model.snapshot import Snapshot
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.rivals import Rivals
from app.scheduling.planner.keeping import Keeping
from app.scheduling.policy import Policy
from app.scheduling.preemption import ageing, lending
from app.scheduling.preemption.likeness import likeness_of
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import next_chunk


@dataclass(slots=True)
class PlanDraft:
    """What the actions of one plan read and write. Each action continues with the result of the previous one."""

    snapshot: Snapshot
    policy: Policy
    memory: PlanMemory = NO_MEMORY
    """The memory of the previous plan, later that of this plan."""
    now: float = 0.0
    """Seconds since the epoch."""
    state: WhatIf = field(init=False)
    starts: list[Start] = field(default_factory=list)
    refusals: dict[GroupKey, Refusal] = field(default_factory=dict)
    waiting: dict[GroupKey, PodGroup] = field(default_factory=dict)
    """The PodGroups that found no room, in their present state."""
    withheld: tuple[NodeName, ...] = ()
    keeping: Keeping = field(init=False)
    """The room kept for the missing pods of partially bound gangs."""
    kept_nodes: ageing.Kept | None = None
    """The nodes kept for an aged group."""
    kept_idle: KeptIdle = field(init=False)
    owed: GroupKey | None = None
    """The first PodGroup that is owed room and has found none."""
    precedence: ageing.Precedence = field(init=False)
    rivals: Rivals = field(init=False)
    """Used only to explain decisions."""
    seats: list[Assignment] = field(default_factory=list)
    """The places of the preemptible groups that start: other groups may take these places in the next plan."""
    likenesses: dict[GroupKey, Likeness] = field(default_factory=dict)
    whatifs: int = 0
    unfinished: bool = False

    def __post_init__(self) -> None:
        self.state = WhatIf(self.snapshot, self.policy.strategy)
        self.rivals = Rivals(self.snapshot, self.policy.strategy)
        self.keeping = Keeping(self.state, self.rivals)
        self.precedence = ageing.Precedence(self.state)
        self.kept_idle = ageing.carried(self.memory.kept_idle, self.snapshot.groups, self.now)

    def goes_first(self, group: PodGroup) -> bool:
        """Whether a partially bound gang is completed before others start: for a short time and within fairness."""
        return self.policy.keeps_room_for(group, self.now) and self.precedence.completes(group)

    def close_nodes_to(self, group: PodGroup) -> None:
        """Close the kept nodes to a group. Open them if they are not kept from it."""
        if self.kept_nodes is not None:
            is_open = self.goes_first(group) or not self.kept_nodes.is_closed_to(self.state, group)
            self.state.board.is_closed = not is_open

    def is_share_kept_from(self, group: PodGroup) -> bool:
        """Whether the remaining share of the group's queue is kept for another group. Call `close_nodes_to` first."""
        kept, board = self.kept_nodes, self.state.board
        return kept is not None and board.is_closed and kept.needs_share_of(self.state, group)

    def withhold(self, group: PodGroup) -> None:
        """Keep nodes for a PodGroup. Later PodGroups in this plan use other nodes.

        As in EASY backfill, nodes are kept for one group at a time. The nodes that will be empty soonest are chosen, so
        that the next plan chooses the same nodes.
        """
        self.withheld = self.state.board.soonest_empty(next_chunk(group))
        self.state.board.withhold(self.withheld, is_owed=group.key == self.owed)

    def refuse(self, group: PodGroup, refusal: Refusal) -> None:
        """Record why a group is pending."""
        self.refusals[group.key] = refusal
        self.waiting[group.key] = group

    def note(self, group: PodGroup, seats: Sequence[Assignment], action: Action = Action.ALLOCATE) -> None:
        """Record where pods of a group start."""
        later = any(seat.later for seat in seats)
        placements = tuple(self.state.board.placement(seat) for seat in seats)
        self.starts.append(Start(group=group.key, placements=placements, awaits_release=later, action=action))
        self.seats += seats if group.preemptible else ()
        self.rivals.note(group.key, seats)

    def may_ask(self, group: PodGroup) -> bool:
        """Whether pods may be evicted for a pending group."""
        refusal = self.refusals.get(group.key, group.refusal)
        return refusal is None or refusal.may_find_victims

    def likeness(self, group: PodGroup) -> Likeness:
        """Return a key for the results of searches: equal keys with equal numbers of pods have the same result."""
        found = self.likenesses.get(group.key)
        if found is None:
            found = self.likenesses[group.key] = likeness_of(self.state.board, group)
        return found

    def is_owed_until(self, key: GroupKey) -> float:
        """Return until when room is kept from borrowers for a group, in seconds since the epoch."""
        since, borrows = self.memory.waiting_since.get(key, (self.now, False))
        return (self.now if borrows else since) + max(lending.MOST_OWED_S, self.policy.patience_s)

    def owed_group(self) -> PodGroup | None:
        """Return the group that is owed room, while it is pending."""
        return None if self.owed is None else self.waiting.get(self.owed)
