"""The three aims for which pods may have to leave: to reclaim a share, to preempt by priority, to consolidate space."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.model.decision import Action
from app.model.names import GroupKey, QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING
from app.scheduling.quota import Quantities, quantities
from app.scheduling.reclaimable import Judgement
from app.scheduling.scenario import lost_of
from app.scheduling.search import Aim, Found
from app.scheduling.victims import Safety, charge_at
from app.scheduling.whatif import WhatIf

Age = Callable[[PodGroup, PodGroup], Safety]
"""How far min-runtime makes the second group safe from the first."""


@dataclass(frozen=True, slots=True)
class Consolidate:
    """Moves running pods together so that a preemptible group finds room; nobody may lose its place."""

    claimed: bool
    """Somebody waits for what is owed to its queue. Nobody is moved then for one that is owed nothing: the room would
    be taken back at once, and pods would have been moved for nothing."""
    action = Action.CONSOLIDATE

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether there is room enough in all, spread too thinly."""
        if not group.preemptible or not state.board.stock.holds_in_all(pods):
            return False
        return not self.claimed or _judgement(state, group, pods).may_begin()

    def concerns(self, _: PodGroup, __: QueueName) -> bool:
        """Return that pods of any queue may be moved."""
        return True

    def safety(self, _: PodGroup, other: PodGroup) -> Safety:
        """Return that whatever is preemptible may be moved, if it is made again elsewhere."""
        return Safety.ALL if any(one.pod.bare for one in other.placed) else Safety.NONE

    def allows(self, found: Found) -> bool:
        """Return whether everybody has a place again."""
        return not any(lost_of(chunk, found.after) for chunk in found.chunks)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Makes room inside a queue for a group of higher priority."""

    min_runtime: Age
    action = Action.PREEMPT

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether a non-preemptible group stays within its queue's quota: nobody's leaving would change that."""
        return state.ledger.over_quota(group, state.request(pods)) is None

    def concerns(self, group: PodGroup, queue: QueueName) -> bool:
        """Return that only pods of the same queue may have to leave."""
        return queue == group.queue

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that groups with a lower priority are not safe after their min-runtime."""
        if other.priority >= group.priority:
            return Safety.ALL
        return self.min_runtime(group, other)

    def allows(self, _: Found) -> bool:
        """Return that priority is reason enough."""
        return True


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Takes back what other queues hold beyond their share."""

    min_runtime: Age
    action = Action.RECLAIM

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether the group's queue stays within its own share."""
        return _judgement(state, group, pods).may_begin()

    def concerns(self, group: PodGroup, queue: QueueName) -> bool:
        """Return that only pods of other queues may have to leave."""
        return queue != group.queue

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that groups are not safe after their min-runtime."""
        return self.min_runtime(group, other)

    def allows(self, found: Found) -> bool:
        """Return whether what each queue loses for good is what it holds beyond its share."""
        lost: dict[QueueName, list[Quantities]] = {}
        for chunk in found.chunks:
            gone = lost_of(chunk, found.after)
            if len(gone) == len(chunk.placed):
                lost.setdefault(chunk.group.queue, []).append(chunk.charge)
            elif gone:
                parts = (charge_at(found.before.snapshot, one) for one in chunk.placed if one.pod.uid in gone)
                lost.setdefault(chunk.group.queue, []).append(quantities(sum(parts, NOTHING)))
        return _judgement(found.before, found.group, found.pods).reclaimable(lost)


@dataclass(frozen=True, slots=True)
class Sparing:
    """Another aim, which leaves some groups alone."""

    aim: Aim
    spared: frozenset[GroupKey]

    @property
    def action(self) -> Action:
        """The other aim's."""
        return self.aim.action

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return what the other aim says."""
        return self.aim.may_begin(state, group, pods)

    def concerns(self, group: PodGroup, queue: QueueName) -> bool:
        """Return what the other aim says."""
        return self.aim.concerns(group, queue)

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return that the spared are safe, and others as far as the other aim says."""
        return Safety.ALL if other.key in self.spared else self.aim.safety(group, other)

    def allows(self, found: Found) -> bool:
        """Return what the other aim says."""
        return self.aim.allows(found)


def _judgement(state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Judgement:
    return Judgement(state.ledger, state.shares, group, quantities(state.request(pods)))
