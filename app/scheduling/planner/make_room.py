"""The actions consolidate, reclaim and preempt: evict pods for PodGroups that found no room."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from app.model.decision import Action
from app.model.memory import NOT_SEARCHED, Conditions, Likeness, PlanMemory, Searched
from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.scheduling.explain.unevicted import Unevicted
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.planner.draft import PlanDraft
from app.scheduling.planner.fairness import FairSearch
from app.scheduling.planner.unhelped import say_why_nobody_leaves
from app.scheduling.preemption import lending
from app.scheduling.preemption.aim import Aim
from app.scheduling.preemption.budget import Budget
from app.scheduling.preemption.conditions import conditions, still_true
from app.scheduling.preemption.minruntime import Protection, runtimes
from app.scheduling.preemption.patience import MOVES, Patience
from app.scheduling.preemption.searches import Searches, needed
from app.scheduling.preemption.victim_policies import Consolidate, Preempt, Reclaim
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import Turns, next_chunk


class RoomMaking:
    """Searches for victims under one budget of counted work, the least disruptive action first."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft, self._state = draft, draft.state
        self._search = FairSearch(draft)
        self._since: dict[GroupKey, tuple[float, bool]] = {}
        """The next value of `PlanMemory.waiting_since`."""
        self._too_dear: dict[Action, set[GroupKey]] = {}
        """The same sets as in `Patience`."""

    def make_room(self) -> None:
        """Evict pods for the pending PodGroups, by every action that the policy allows."""
        policy, now = self._draft.policy, self._draft.now
        protection = Protection(self._draft.snapshot.queues, policy, now, method=policy.reclaim_resolve_method)
        patience = Patience(policy.patience_s, now)
        moving = Patience(policy.patience_s * MOVES, now, spares_deserved=False)
        if self._draft.memory.asks_again_at > now:
            patience.asks_again_at = self._draft.memory.asks_again_at
        sure_before = now - max(runtimes(self._draft.snapshot.queues.values(), policy))
        reclaim = Reclaim(protection.from_reclaim, patience, moving, sure_before)
        claimed = self._claimed(reclaim)
        patience.since = moving.since = self._waiting_since(claimed=claimed)
        aims: tuple[Aim, ...] = (
            Consolidate(claimed, protection.from_consolidate, moving, sure_before),
            reclaim,
            Preempt(protection.from_preempt, sure_before),
        )
        chosen = [aim for aim in aims if aim.action in policy.actions]
        if not chosen:
            return
        self._too_dear = {Action.CONSOLIDATE: moving.too_dear, Action.RECLAIM: patience.too_dear}
        self._pursue_all(chosen, claimed=claimed)
        self._remember_patience(min(patience.asks_again_at, moving.asks_again_at))
        say_why_nobody_leaves(self._draft, self._search, Unevicted(self._state, protection, policy.actions, now))

    def _claimed(self, reclaim: Reclaim) -> bool:
        """Whether any pending PodGroup may begin reclaim. It would reclaim room that goes to borrowers."""
        if Action.RECLAIM not in self._draft.policy.actions:
            return False
        asked = set[Likeness]()
        for group in self._draft.waiting.values():
            likeness = self._draft.likeness(group)
            if self._draft.may_ask(group) and likeness not in asked:
                asked.add(likeness)
                if reclaim.may_begin(self._state, group, next_chunk(group)):
                    return True
        return False

    def _waiting_since(self, *, claimed: bool) -> Mapping[GroupKey, float]:
        """Return since when groups wait that may get victims: the groups that are owed room, or all if none is.

        Groups that are alike wait since the first of them: one search answers for all of them.
        """
        before, now = self._draft.memory.waiting_since, self._draft.now
        for key, group in self._draft.waiting.items():
            borrows = lending.borrows(self._state, group)
            if self._draft.may_ask(group) and not (claimed and borrows):
                # Time spent as a borrower does not count for room that the queue is owed.
                known, has_borrowed = before.get(key, (now, borrows))
                self._since[key] = known if borrows == has_borrowed else now, borrows
        likeness = {key: self._draft.likeness(self._draft.waiting[key]) for key in self._since}
        first = dict[Likeness, float]()
        for key, (since, _) in self._since.items():
            first[likeness[key]] = min(since, first.get(likeness[key], since))
        return {key: first[likeness[key]] for key in self._since}

    def _remember_patience(self, asks_again_at: float) -> None:
        """Pass the pending times to the next plan, and make it search again when a group has waited long enough."""
        found = self._draft.memory.conditions
        if found is not None and asks_again_at < found.changes_at:
            found = replace(found, changes_at=asks_again_at)
        self._draft.memory = replace(
            self._draft.memory, waiting_since=self._since, asks_again_at=asks_again_at, conditions=found
        )

    def _pursue_all(self, aims: Sequence[Aim], *, claimed: bool) -> None:
        """Give each action its part of the budget and what earlier actions left. Remember the results."""
        seen, now = self._conditions(claimed=claimed), self._draft.now
        known = still_true(self._draft.memory, seen, now)
        part, left, searched = max(1, self._draft.policy.most_whatifs // len(aims)), 0, dict[str, Searched]()
        waiting = {(self._draft.likeness(group), len(next_chunk(group))) for group in self._draft.waiting.values()}
        for aim in aims:
            budget, starts = Budget(part + left), len(self._draft.starts)
            searches = Searches(part, known.searched.get(aim.action, NOT_SEARCHED))
            self._pursue(aim, searches, budget)
            left = budget.left
            self._draft.whatifs += budget.used
            self._draft.unfinished |= budget.spent or searches.is_unfinished
            if len(self._draft.starts) > starts:
                # An eviction may free more room than needed, which may help the searches of the other actions.
                before = PlanMemory(searched=searched, conditions=seen, since=now)
                to_come = replace(before, searched=known.searched)
                seen = self._conditions(claimed=claimed)
                searched = dict(still_true(before, seen, now).searched)
                known = replace(known, searched=still_true(to_come, seen, now).searched)
            searched[aim.action] = searches.frozen(waiting)
        after = self._conditions(
            self._draft.seats,
            claimed=claimed,
            runtimes_s=runtimes(self._draft.snapshot.queues.values(), self._draft.policy),
        )
        self._draft.memory = PlanMemory(searched=searched, conditions=after, since=known.since)

    def _conditions(
        self, seats: Sequence[Assignment] = (), *, claimed: bool, runtimes_s: Collection[float] = ()
    ) -> Conditions:
        kept_for = None if self._draft.kept_nodes is None else self._draft.kept_nodes.group.key
        owed, losers = self._draft.owed_group(), self._search.losers
        return conditions(
            self._state,
            seats,
            claimed=claimed,
            kept_for=kept_for,
            owed=owed,
            losers=losers,
            runtimes_s=runtimes_s,
            now=self._draft.now,
        )

    def _pursue(self, aim: Aim, searches: Searches, budget: Budget) -> None:
        """Run all searches that are due in this cycle. Then search deeper where a search was cut off."""
        asking = [group for group in self._draft.waiting.values() if self._draft.may_ask(group)]

        def due() -> list[PodGroup]:
            return [group for group in asking if searches.is_due(self._draft.likeness(group), len(next_chunk(group)))]

        def due_deeper() -> list[PodGroup]:
            waiting = (group for group in asking if group.key in self._draft.waiting)
            return [
                group
                for group in waiting
                if searches.is_due_deeper(self._draft.likeness(group), len(next_chunk(group)))
            ]

        if not due():
            searches.begin_cycle()
        first = due()
        wide = searches.begin_plan([len(next_chunk(group)) for group in first], budget)
        self._search_each(aim, searches, wide, first, deep=False)
        if wide.spent:
            budget.spent = True
            searches.end_plan()
        else:
            searches.begin_cycle()
        while not budget.is_over:
            if not due_deeper():
                searches.begin_deep_cycle()
            deeper = due_deeper()
            if not deeper:
                return
            self._search_each(aim, searches, budget, deeper, deep=True)

    def _search_each(
        self, aim: Aim, searches: Searches, budget: Budget, groups: Sequence[PodGroup], *, deep: bool
    ) -> None:
        growing = dict[QueueName, int]()
        turns = Turns(self._draft.snapshot, self._state.ledger, self._state.shares, groups)
        left = sum(needed(len(next_chunk(group))) for group in groups)
        while (group := turns.pop()) is not None:
            if budget.is_over:
                budget.spent = True
                return
            likeness, pods = self._draft.likeness(group), len(next_chunk(group))
            due, left = left, left - needed(pods)
            is_due = searches.is_due_deeper(likeness, pods) if deep else searches.is_due(likeness, pods)
            # A group that grows in the next plan would evict the lower-priority pods that this plan starts after it.
            if not is_due or group.priority < growing.get(group.queue, group.priority):
                continue
            part = searches.deep(likeness, pods, budget) if deep else searches.wide(pods, budget, due)
            found = self._search.find(group, aim, part)
            if found is None and part.spent:
                searches.was_cut_off(likeness, pods, part, budget)
            elif found is None:
                too_dear = group.key in self._too_dear.get(aim.action, ())
                owed = group.key in self._search.held_back
                searches.ended_in_vain(likeness, pods, too_dear=too_dear, owed=owed)
            else:
                searches.found(likeness, pods)
                self._adopt(found, group, aim)
                if len(found.seated) < len(group.pending):
                    growing.setdefault(group.queue, group.priority)

    def _adopt(self, found: WhatIf, group: PodGroup, aim: Aim) -> None:
        del self._draft.waiting[group.key]
        self._draft.refusals.pop(group.key, None)
        self._draft.note(group, found.seated, aim.action)
