"""Searches for the victims of one PodGroup, and rejects results that other queues would reclaim."""

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
    """The searches of one plan, one PodGroup after another."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft, self._state = draft, draft.state
        self.held_back: set[GroupKey] = set()
        """The groups that might get victims or room, but are refused it because another group is owed room."""

    def find(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Search for a group and adopt the result."""
        self._draft.close_nodes_to(group)
        if self._draft.is_share_kept_from(group):
            return None
        self.held_back.discard(group.key)
        if self.open_nodes_to(group) and self._draft.owed is not None and lending.borrows(self._state, group):
            self.held_back.add(group.key)
            return None
        return self._draft.keeping.aside(group, next_chunk(group), lambda: self._find_fairly(group, aim, budget))

    def _find_fairly(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Find victims. Return None when other queues would reclaim the places."""
        found = self._find_victims(group, aim, budget)
        if found is None or not self._is_unfair(found, group):
            return found
        self.held_back.add(group.key)
        return None

    def _is_unfair(self, found: WhatIf, group: PodGroup) -> bool:
        """Whether the next plan would reclaim the places found for a group, or this plan reclaimed such places."""
        owed, queue = self._draft.owed_group(), group.queue
        if queue in self.losers and lending.is_above_share(found, queue):
            return True
        return owed is not None and lending.may_be_taken_back(found, group, owed)

    @property
    def losers(self) -> frozenset[QueueName]:
        """The queues from which this plan evicts pods. They do not borrow again in it."""
        return lending.losers(self._state) if self._draft.policy.borrow_last else frozenset()

    def open_nodes_to(self, group: PodGroup) -> bool:
        """Open kept nodes to a group that may get victims. Return whether it finds room now.

        If it finds room there without victims, these nodes are closed to it. Other groups still get help.
        """
        self._state.board.is_closed = False
        finds_room = lending.finds_room(self._state, group)
        if finds_room:
            self._draft.close_nodes_to(group)
        return finds_room

    def _find_victims(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Look for victims without pods that a PodDisruptionBudget protects. If there are none, look among all pods."""
        guarded = self._draft.snapshot.guarded
        if guarded:
            found = VictimSearch(
                self._state, group, Sparing(aim, guarded), budget.part(max(1, budget.left // 2))
            ).solve()
            if found is not None:
                return found
        return VictimSearch(self._state, group, aim, budget).solve()
