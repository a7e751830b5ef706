"""Searches for the victims of one PodGroup, unless other queues would take their places back."""

from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.scheduling.planner.draft import PlanDraft
from app.scheduling.preemption import lending
from app.scheduling.preemption.aim import Aim
from app.scheduling.preemption.budget import Budget
from app.scheduling.preemption.search import VictimSearch
from app.scheduling.preemption.victim_policies import Sparing
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import next_chunk


class FairSearch:
    """The searches of one plan, one PodGroup after the other."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft, self._state = draft, draft.state
        self.held_back: set[GroupKey] = set()
        """Those that might have victims, or room, but for what is owed to another."""

    def find(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Search for a group and adopt what is found."""
        self._draft.close_nodes_to(group)
        if self._draft.is_share_kept_from(group):
            return None
        self.held_back.discard(group.key)
        if self.open_nodes_to(group) and self._draft.owed is not None and lending.borrows(self._state, group):
            self.held_back.add(group.key)
            return None
        return self._draft.keeping.aside(group, next_chunk(group), lambda: self._find_fairly(group, aim, budget))

    def _find_fairly(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Find victims, unless others would take their places back."""
        found = self._find_victims(group, aim, budget)
        if found is None or not self._is_unfair(found, group):
            return found
        self.held_back.add(group.key)
        return None

    def _is_unfair(self, found: WhatIf, group: PodGroup) -> bool:
        """Whether the next plan would take the places that were found for a group, or this plan took such places."""
        owed, queue = self._draft.owed_group(), group.queue
        if queue in self.losers and lending.is_above_share(found, queue):
            return True
        return owed is not None and lending.may_be_taken_back(found, group, owed)

    @property
    def losers(self) -> frozenset[QueueName]:
        """The queues from which this plan takes pods: they do not borrow again in it."""
        return lending.losers(self._state) if self._draft.policy.borrow_last else frozenset()

    def open_nodes_to(self, group: PodGroup) -> bool:
        """Open kept nodes to a group for which others may leave; return whether it finds room there as things are.

        If it needs no victims there, these nodes are closed to it: others are helped, whoever waits.
        """
        self._state.board.is_closed = False
        finds_room = lending.finds_room(self._state, group)
        if finds_room:
            self._draft.close_nodes_to(group)
        return finds_room

    def _find_victims(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Look for victims among those whom no disruption budget guards, and only then among all."""
        guarded = self._draft.snapshot.guarded
        if guarded:
            found = VictimSearch(
                self._state, group, Sparing(aim, guarded), budget.part(max(1, budget.left // 2))
            ).solve()
            if found is not None:
                return found
        return VictimSearch(self._state, group, aim, budget).solve()
