"""Looks for the fewest evictions that let a pending PodGroup start; one search for three victim policies.

1. the pods of the group that start together, one more at a time; the victims of earlier pods stay evicted
2. victims by the reverse order of turns, one chunk more at a time; of these, the victims of one node at a time
3. a trial without these victims: the group and the victims are placed in the order of turns; victims may find another
   place
4. whether the policy allows the result

Rules: KAI v0.13 (solvers of the reclaim, preempt and consolidation actions).
"""

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np

from app.model.names import QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.state import largest_first
from app.scheduling.preemption import bound, moves, prospects, reprieve, scenario
from app.scheduling.preemption.aim import Aim
from app.scheduling.preemption.budget import NAMED, Budget
from app.scheduling.preemption.evictable import EVERYBODY, Scope
from app.scheduling.preemption.lineup import Lineup
from app.scheduling.preemption.named import AtOnce, OneByOne
from app.scheduling.preemption.noderoom import NodeRoom
from app.scheduling.preemption.patience import Patience
from app.scheduling.preemption.trials import REPRIEVES, SearchStep, Trials
from app.scheduling.preemption.victims import Safety, VictimBatch, Victims
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import quantities
from app.scheduling.queues.order import Turns, next_chunk

THOROUGH = 16
"""Up to so many pods of a gang are placed again with each victim; larger gangs of equal pods are placed pod by pod."""


LOOK = 64
"""How many nodes, and one more for each pod, are searched for victims first."""


FEW_VICTIMS = 4
"""Fewer nodes are searched if the budget allows fewer victims than so many on each node."""


WIDER = 8
"""After a failed search, so many times as many nodes are searched, again and again."""


class VictimSearch:
    """One search for one pending group."""

    def __init__(self, state: WhatIf, group: PodGroup, aim: Aim, budget: Budget) -> None:
        self._before = state
        self._group = group = scenario.as_it_is(group, state)
        self._aim = aim
        self._budget = budget
        # The victims named so far, how far this step and any step have walked over them, and which are evicted already.
        self._lineup: Lineup | None = None
        self._walked = 0
        self._seen = 0
        self._trials = Trials(state, group, aim, budget)
        self._scopes: Sequence[Scope] = (EVERYBODY,)
        self._near: Mask = np.zeros(0, dtype=np.bool_)
        """The nodes where an eviction may help even if no other pod is evicted, shape [node]."""
        self._useful: Mask | None = None
        """The groups that are considered, shape [group]; None for all groups."""

    def _lined_up(self) -> Lineup:
        evictable = self._before.evictable
        groups = evictable.with_pods(self._scopes) if self._useful is None else self._useful
        if (groups & ~evictable.whole).any():
            return OneByOne(self._one_by_one(), evictable, self._trials.losing)
        return AtOnce(
            prospects.in_line(self._before, self._unsafe(groups)), evictable, self._before.roster, self._trials.losing
        )

    def _unsafe(self, groups: Mask) -> Mask:
        """Return which of these groups may be evicted as a whole, shape [group]."""
        # Groups that have run for long are not safe; the safety of the others is checked one by one.
        evictable = self._before.evictable
        unsure = groups & (evictable.started_at >= self._aim.sure_before)
        own = [evictable.ids[key] for key in (self._group.key, *self._before.growing) if key in evictable.ids]
        unsure[own] = groups[own]
        for number in np.flatnonzero(unsure).tolist():
            unsure[number] = self._safety(evictable.group(number)) is not Safety.NONE
        return groups & ~unsure

    def _one_by_one(self) -> Victims:
        state = self._before
        queues: Container[QueueName] = _queues(self._scopes, state.roster.queues)
        unchanged, changed = self._useful, state.changed
        if self._useful is not None:
            queues = state.evictable.queues(self._useful)
            unchanged = self._useful & ~state.evictable.changed
            changed = {key: changed[key] for key in state.evictable.keys(self._useful & state.evictable.changed)}
        return Victims(
            state.roster.of(queues, unchanged),
            changed,
            self._safety,
            ledger=state.ledger,
            shares=state.shares,
        )

    def _safety(self, other: PodGroup) -> Safety:
        is_own = other.key == self._group.key or other.key in self._before.growing
        return Safety.ALL if is_own else self._aim.safety(self._group, other)

    def solve(self) -> WhatIf | None:
        """Return the plan with places for the group's next pods; None if no evictions would help."""
        pods = () if scenario.has_lost(self._group, self._before) else next_chunk(self._group)
        if not pods or not self._aim.may_begin(self._before, self._group, pods):
            return None
        state, board = self._before, self._before.board
        self._scopes = self._aim.scopes(state, self._group, pods)
        self._trials.losing = _queues([scope for scope in self._scopes if not scope.moved], state.roster.queues)
        if self._is_moot(pods):
            return self._solve(pods) if bound.may_suffice(board, pods, self._most()) else None
        self._near = nodes = bound.candidates(board, pods, prospects.most(state, *self._scopes))
        if not self._near.any():
            return None
        moving = self._aim.moving if all(scope.moved for scope in self._scopes) else None
        if moving is not None and len(pods) == 1:
            # A gang would need a what-if for each of its pods; the search below places it in one.
            return self._solve_by_moves(pods, moving)
        found = self._solve_at_once(pods)
        if found is None and len(pods) > 1 and not self._budget.spent:
            # Victims of the first pod of a gang may leave places for victims of the next pod.
            if not bound.may_suffice(board, pods, self._most()):
                return None
            nodes = bound.candidates(board, pods, self._most())
        return self._solve_on(pods, nodes) if found is None else found

    def _solve_by_moves(self, pods: Sequence[Pod], moving: Patience) -> WhatIf | None:
        """Return the plan with the cheapest moves that make room for one pod; None if none help."""
        state, step = self._before, SearchStep(self._before, self._group, pods, pods, ())
        found = self._trials.attempt(step, ())
        if found is not None:
            return found
        axis = moving.axis(quantities(state.most_request(self._group, pods)))
        movable = self._unsafe(state.evictable.any_of(self._scopes))
        # Groups that moved earlier in this plan stay: `evictable` has their new places.
        movable[[state.evictable.ids[key] for key in state.changed if key in state.evictable.ids]] = False
        sets = moves.cheapest(
            state,
            pods[0],
            self._near,
            movable,
            price=lambda chunk: moving.price(chunk, axis),
            budget=self._budget,
        )
        for chunks in sets:
            found = self._trials.attempt(step, chunks) or self._trials.attempt(step, chunks, asking_first=True)
            if found is not None or self._budget.spent:
                return found
        return None

    def _most(self) -> Amounts:
        """Return an upper bound of what is free without all pods that may be lost or moved, shape [resource, node]."""
        return prospects.most(self._before, *(replace(scope, moved=False) for scope in self._scopes))

    def _solve_at_once(self, pods: Sequence[Pod]) -> WhatIf | None:
        """Evict the first victims in order that may make room for all pods, if the pods are alike."""
        state, step = self._before, SearchStep(self._before, self._group, pods, pods, ())
        if not self._are_alike(pods) or pods[0].sharing is not None or len(pods) > THOROUGH:
            return None
        lost = [scope for scope in self._scopes if not scope.moved]
        for scopes in (lost, self._scopes) if 0 < len(lost) < len(self._scopes) else (self._scopes,):
            groups = prospects.first_victims(state, scopes, pods, self._near)
            if groups is None or not all(self._may_lose(group) for group in groups):
                continue
            found = self._trials.attempt(step, [state.roster.first_chunk(group) for group in groups])
            if found is not None:
                self._budget.complete(REPRIEVES)
                found = self._trials.reprieved(found, pods)
                ids = [state.evictable.ids[chunk.group.key] for chunk in self._trials.taken]
                if not state.evictable.equal[ids].any():
                    return found
                taken = self._trials.taken
                self._look_at(state.evictable.groups_on(self._scopes, self._near))
                self._trials.taken, self._seen = taken, self._named().up_to(taken)
                return self._exchanged(found, pods)
        return None

    def _may_lose(self, group: PodGroup) -> bool:
        """Return whether the whole group may be evicted, and is only evicted as a whole."""
        state = self._before
        if state.roster.chunk(group) is None or len(state.roster.first_chunk(group).placed) < len(group.placed):
            return False
        return self._safety(group) is Safety.NONE

    def _solve_on(self, pods: Sequence[Pod], nodes: Mask) -> WhatIf | None:
        """Look for victims on some of the nodes, and on more nodes while that fails."""
        if len(pods) > 1 and not self._may_place_one(pods):
            return None
        state, most, found = self._before, self._first_look(pods), None
        asked = min((state.board.stock.taken(pod)[GPU] for pod in pods), default=0)
        needed = np.maximum(asked - state.board.stock.future[GPU], 1)
        while found is None and not self._budget.spent:
            is_all = most >= nodes.sum()
            here = nodes if is_all else prospects.foremost(state, self._scopes, nodes, needed, most)
            self._look_at(state.evictable.groups_on(self._scopes, here))
            found = self._solve(pods)
            if is_all:
                break
            most *= WIDER
        return found

    def _may_place_one(self, pods: Sequence[Pod]) -> bool:
        """Return whether the first pod of a gang finds a place after evictions; False is certain."""
        self._look_at(self._before.evictable.groups_on(self._scopes, self._near))
        first = pods[:1] if len(pods) > THOROUGH and self._are_alike(pods) else sorted(pods, key=largest_first)[:1]
        return self._step(SearchStep(self._before, self._group, first, first, ())) is not None

    def _first_look(self, pods: Sequence[Pod]) -> int:
        """Return on how many nodes victims are looked for first: not more than the budget allows."""
        most, victims = LOOK + len(pods), self._budget.victims // NAMED
        if victims >= FEW_VICTIMS * most:
            return most
        walks = 1 if len(pods) > THOROUGH and self._are_alike(pods) else len(pods)
        on_each = -(-len(self._before.evictable.ids) // max(len(self._before.snapshot.nodes.nodes), 1))
        return max(len(pods), min(most, victims // max(walks * on_each, 1)))

    def _look_at(self, useful: Mask) -> None:
        self._useful, self._lineup, self._walked, self._seen, self._trials.taken = useful, None, 0, 0, []

    def _solve(self, pods: Sequence[Pod]) -> WhatIf | None:
        if len(pods) > THOROUGH and self._are_alike(pods):
            return self._solve_quickly(pods)
        return self._solve_thoroughly(pods)

    def _are_alike(self, pods: Sequence[Pod]) -> bool:
        return self._group.root is None and self._before.board.common_shape(pods) is not None

    def _is_moot(self, pods: Sequence[Pod]) -> bool:
        """Whether an eviction may help wherever it is."""
        is_over = self._before.check_most(self._group, pods) is not None
        return is_over or any(pod.near or pod.labels is not None or pod.claims for pod in pods)

    def _solve_thoroughly(self, pods: Sequence[Pod]) -> WhatIf | None:
        """Start again with each further pod, but keep the victims: earlier pods may fit better elsewhere (as KAI)."""
        # A pod that has found its place may block a larger pod, for which only the victims of one node make room.
        largest, found = sorted(range(len(pods)), key=lambda number: largest_first(pods[number])), None
        for count in range(1, len(pods) + 1):
            self._walked = 0
            some = [pods[number] for number in sorted(largest[:count])]
            found = self._step(SearchStep(self._before, self._group, some, some, tuple(self._trials.taken)))
            if found is None:
                return None
        if found is None:
            return None
        self._budget.complete(REPRIEVES)
        return self._exchanged(self._trials.reprieved(found, pods), pods)

    def _exchanged(self, found: WhatIf, pods: Sequence[Pod]) -> WhatIf:
        """Evict one pod instead of several where the eviction order does not protect it better."""
        lost = [chunk for chunk in reversed(self._trials.taken) if scenario.lost_of(chunk, found)]
        if len(lost) < 2 or not self._are_alike(pods) or pods[0].sharing is not None:  # noqa: PLR2004 # several
            return found
        asked = 0
        for other in reprieve.others(self._named(), self._seen, self._trials.taken, lost, found):
            staying = reprieve.spared_instead(found, pods, lost, other)
            better = self._trials.without(found, pods, staying, other) if staying and asked < REPRIEVES else None
            asked += bool(staying)
            if better is not None:
                found, lost = better, [chunk for chunk in lost if scenario.lost_of(chunk, better)]
        return found

    def _solve_quickly(self, pods: Sequence[Pod]) -> WhatIf | None:
        """Continue where the previous pod found its place: victims that did not help it do not help an equal pod.

        The thorough search takes cubic time in the number of pods, and pods that are all equal gain little by it.
        """
        found, group = self._before, self._group
        for number, pod in enumerate(pods, start=1):
            step = self._step(SearchStep(found, group, (pod,), pods[:number], ()))
            if step is None:
                return None
            found, group = step, scenario.with_seats(group, step)
        found.bring_home(self._group.key)
        homeless = [one for one in scenario.homeless(self._trials.taken, found) if one.pending]
        scenario.resettle(found, Turns(found.snapshot, found.ledger, found.shares, homeless))
        found.seated = tuple(seat for seat in found.all_seated if seat.pod.group == self._group.key)
        self._budget.complete(REPRIEVES)
        is_shared = pods[0].sharing is not None
        found = self._trials.reprieved(found, pods) if is_shared else self._trials.reprieved_together(found, pods)
        return self._exchanged(found, pods)

    def _step(self, step: SearchStep) -> WhatIf | None:
        found = self._trials.attempt(step, ())
        if found is not None:
            return found
        lineup, taken = self._named(), {id(chunk) for chunk in self._trials.taken}
        room = NodeRoom(step.base, step.group, step.pods, step.again)
        while self._walked < lineup.count or lineup.extend():
            for spot in lineup.spots(room, step.pods, step.base.slots(), self._trials.taken, self._walked):
                if not self._walk_to(spot.number + 1):
                    return None
                if not room.may_do(spot.node, spot.chunks):
                    continue
                more = lineup.with_spare(spot.chunks, taken)
                found = self._trials.attempt(step, more) if self._may_allow(step, room.lost(spot.node, more)) else None
                if found is not None or self._budget.spent:
                    return found
            if not self._walk_to(lineup.count):
                return None
        return None

    def _named(self) -> Lineup:
        if self._lineup is None:
            self._lineup = self._lined_up()
        return self._lineup

    def _walk_to(self, number: int) -> bool:
        """Walk over the victims up to this number; return whether the budget allows it."""
        walked, self._walked, self._seen = self._walked, number, max(self._seen, number)
        return number == walked or self._budget.walk(self._named().work * (number - walked))

    def _may_allow(self, step: SearchStep, lost: Sequence[VictimBatch]) -> bool:
        """Return whether the loss of these chunks may be allowed; False is certain."""
        return self._aim.may_allow(self._before, self._group, step.all_pods, lost)


def _queues(scopes: Sequence[Scope], every: Container[QueueName]) -> Container[QueueName]:
    """Return the queues of these scopes; all queues if a scope has no queues."""
    found = [scope.queues for scope in scopes]
    return every if None in found else frozenset[QueueName]().union(*(each for each in found if each is not None))
