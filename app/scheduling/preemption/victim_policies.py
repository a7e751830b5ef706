"""The three victim policies: reclaim a queue's share, preempt by priority, consolidate free room."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from app.model.decision import Action
from app.model.names import GroupKey, QueueName
from app.model.pod import Placed, Pod, claims_of
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING
from app.scheduling.preemption import bound, prospects
from app.scheduling.preemption.aim import Aim, Found
from app.scheduling.preemption.evictable import Scope
from app.scheduling.preemption.patience import Patience, is_deserved
from app.scheduling.preemption.scenario import is_touched, lost_of
from app.scheduling.preemption.victims import Safety, VictimBatch, charge_at
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.order import next_chunk
from app.scheduling.queues.reclaimable import Judgement
from app.scheduling.queues.shared_claims import with_milli

Age = Callable[[PodGroup, PodGroup], Safety]
"""How far min-runtime makes the second group safe from the first."""


@dataclass(frozen=True, slots=True)
class Consolidate:
    """Moves running pods together so that a preemptible group finds room; no pod may lose its place."""

    claimed: bool
    """Whether a PodGroup is pending for what its queue is owed. Then no pod is moved for a PodGroup that is owed
    nothing: the room would be reclaimed at once, and the moves would be useless.
    """
    min_runtime: Age
    moving: Patience
    sure_before: float = -inf
    action = Action.CONSOLIDATE

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether the total free room suffices, so that it is only fragmented."""
        if not group.preemptible or not state.board.stock.holds_in_all(pods):
            return False
        return not self.claimed or _judgement(state, group, pods).may_begin()

    def scopes(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Sequence[Scope]:
        """Return that pods of any queue may be moved, unless their work alone is more than the group has waited for."""
        every = Scope(bare=False, moved=True)
        most = self.moving.most_lost(group, quantities(state.most_request(group, pods)))
        if most == inf:
            return (every,)
        limited = replace(every, worked=(self.moving.now, most))
        is_limiting = (state.evictable.any_of((every,)) & ~state.evictable.any_of((limited,))).any()
        if is_limiting and bound.candidates(state.board, pods, prospects.most(state, every)).any():
            self.moving.find_too_dear(group)
        return (limited,)

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that groups may be moved after their min-runtime, if their pods are recreated elsewhere."""
        is_safe = any(one.pod.bare for one in other.placed) or self.min_runtime(group, other) is not Safety.NONE
        return Safety.ALL if is_safe else Safety.NONE

    def may_allow(self, _: WhatIf, __: PodGroup, ___: Sequence[Pod], lost: Sequence[VictimBatch]) -> bool:
        """Return whether all pods may find a place again."""
        return not lost

    def allows(self, found: Found) -> bool:
        """Return whether all pods have a place again, and the group has waited for as much work as they lose."""
        if any(lost_of(chunk, found.after) for chunk in found.chunks):
            return False
        return _pays(self.moving, found, lambda: True)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Makes room inside a queue for a group of higher priority."""

    min_runtime: Age
    sure_before: float = -inf
    action = Action.PREEMPT
    moving = None

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether a non-preemptible group stays within its queue's quota. Evictions would not change that."""
        return state.over_quota(group, pods) is None

    def scopes(self, _: WhatIf, group: PodGroup, __: Sequence[Pod]) -> Sequence[Scope]:
        """Return that only pods of the same queue and of lower priority may be evicted."""
        return (Scope(queues=frozenset((group.queue,)), below=group.priority),)

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that groups with a lower priority are not safe after their min-runtime."""
        if other.priority >= group.priority:
            return Safety.ALL
        return self.min_runtime(group, other)

    def may_allow(self, _: WhatIf, __: PodGroup, ___: Sequence[Pod], ____: Sequence[VictimBatch]) -> bool:
        """Return True: the higher priority suffices."""
        return True

    def allows(self, _: Found) -> bool:
        """Return True: the higher priority suffices."""
        return True


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Reclaims what other queues hold beyond their share."""

    min_runtime: Age
    patience: Patience
    moving: Patience
    """For victims that all move, beyond the deserved share: this is consolidation."""
    sure_before: float = -inf
    action = Action.RECLAIM

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether the group's queue stays within its own share."""
        return _judgement(state, group, pods).may_begin()

    def scopes(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Sequence[Scope]:
        """Return that pods of queues above their share may be lost, and pods with a controller may move elsewhere."""
        others = [name for name in state.roster.queues if name != group.queue and state.ledger.payer(name) is not None]
        taken = frozenset(_judgement(state, group, pods).takeable(others))
        return Scope(queues=taken), Scope(queues=frozenset(others) - taken, bare=False, moved=True)

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that groups are not safe after their min-runtime."""
        return self.min_runtime(group, other)

    def may_allow(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod], lost: Sequence[VictimBatch]) -> bool:
        """Return whether these chunks are what their queues hold beyond their share; other victims are unknown."""

        def is_fair() -> bool:
            charges = _charges_of(state, ((chunk, chunk.placed) for chunk in lost))
            return _judgement(state, group, pods).reclaimable(charges)

        may_lose = self.patience.may_lose(state, group, quantities(state.most_request(group, pods)), lost)
        return self.patience.agrees(group, is_fair, may_lose=may_lose)

    def allows(self, found: Found) -> bool:
        """Return whether each queue loses only what it holds beyond its share, and the group has waited long enough."""

        def is_fair() -> bool:
            gone = ((chunk, lost_of(chunk, found.after)) for chunk in found.chunks)
            lost = ((chunk, [one for one in chunk.placed if one.pod.uid in uids]) for chunk, uids in gone if uids)
            charges = _charges_of(found.before, lost)
            return _judgement(found.before, found.group, found.pods).reclaimable(charges)

        if self._only_moves(found):
            return _pays(self.moving, found, is_fair)
        may_lose = _may_lose(self.patience, found, found.pods)
        return self.patience.agrees(found.group, is_fair, may_lose=may_lose)

    def _only_moves(self, found: Found) -> bool:
        """Return whether pods only move, for a whole group that its queue does not deserve."""
        request = quantities(found.before.most_request(found.group, found.pods))
        is_whole = len(found.pods) == len(next_chunk(found.group))
        is_lost = any(lost_of(chunk, found.after) for chunk in found.chunks)
        return is_whole and not is_lost and not is_deserved(found.before, found.group, request)


@dataclass(frozen=True, slots=True)
class Sparing:
    """Wraps another policy and spares some groups."""

    aim: Aim
    spared: frozenset[GroupKey]

    @property
    def action(self) -> Action:
        """The action of the wrapped policy."""
        return self.aim.action

    @property
    def moving(self) -> Patience | None:
        """The answer of the wrapped policy."""
        return self.aim.moving

    @property
    def sure_before(self) -> float:
        """Return `-inf`: any running group may be spared, so each group is checked."""
        return -inf

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return the answer of the wrapped policy."""
        return self.aim.may_begin(state, group, pods)

    def scopes(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Sequence[Scope]:
        """Return the answer of the wrapped policy."""
        return self.aim.scopes(state, group, pods)

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that spared groups are safe; for the others, the answer of the wrapped policy."""
        return Safety.ALL if other.key in self.spared else self.aim.safety(group, other)

    def may_allow(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod], lost: Sequence[VictimBatch]) -> bool:
        """Return the answer of the wrapped policy."""
        return self.aim.may_allow(state, group, pods, lost)

    def allows(self, found: Found) -> bool:
        """Return the answer of the wrapped policy."""
        return self.aim.allows(found)


def _charges_of(
    before: WhatIf, lost: Iterable[tuple[VictimBatch, Sequence[Placed]]]
) -> Mapping[QueueName, Sequence[Quantities]]:
    """Return what each queue no longer pays when these pods leave, batch by batch: a claim ends with its last user."""
    claims, found = before.ledger.claims.copy(), dict[QueueName, list[Quantities]]()
    for chunk, placed in lost:
        shared = claims_of(one.pod for one in placed)
        if len(placed) == len(chunk.placed) and not shared:
            charge = chunk.charge
        else:
            own = sum((charge_at(before.snapshot, one) for one in placed), NOTHING)
            charge = quantities(with_milli(own, -claims.remove(chunk.group, shared)[0]))
        found.setdefault(chunk.group.queue, []).append(charge)
    return found


def _may_lose(patience: Patience, found: Found, pods: Sequence[Pod]) -> bool:
    """Return whether these pods of the group have waited long enough for all its victims."""
    request = quantities(found.before.most_request(found.group, pods))
    gone = (chunk for chunk in found.chunks if is_touched(chunk, found.after, found.before))
    return patience.may_lose(found.before, found.group, request, gone)


def _pays(patience: Patience, found: Found, is_fair: Callable[[], bool]) -> bool:
    """Return whether a move is fair, and the group has waited for as much work as the moved pods lose."""
    may_lose = _may_lose(patience, found, next_chunk(found.group))
    return patience.agrees(found.group, is_fair, may_lose=may_lose)


def _judgement(state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Judgement:
    return Judgement(state.ledger, state.shares, group, quantities(state.most_request(group, pods)))
