"""The what-ifs of one search: evict pods, place the group and these pods, and let the policy judge the result."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from app.model.names import QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.scheduling.placement.state import Timing
from app.scheduling.preemption import reprieve, scenario
from app.scheduling.preemption.aim import Aim, Found
from app.scheduling.preemption.budget import Budget
from app.scheduling.preemption.victims import VictimBatch
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import Turns

REPRIEVES = 8
"""For how many victims of a search at most it is tried whether they may stay."""


@dataclass(frozen=True, slots=True)
class SearchStep:
    """Some pods of a group that need places."""

    base: WhatIf
    group: PodGroup
    """The group, with the places of its pods in `base`."""
    pods: Sequence[Pod]
    all_pods: Sequence[Pod]
    """These pods and the pods of the steps before."""
    again: Sequence[VictimBatch]
    """The victims of the steps before that still have their places in `base`."""

    def may_do_without(self) -> bool:
        """Return whether the pods might find places without further evictions; False is certain."""
        return (
            bool(self.again)
            or len(self.pods) > 1
            or self.base.board.find(self.pods[0], timing=Timing.LATER) is not None
        )


class Trials:
    """The what-ifs of one search, and the victims of the last successful one."""

    def __init__(self, before: WhatIf, group: PodGroup, aim: Aim, budget: Budget) -> None:
        self._before = before
        self._group = group
        self._aim = aim
        self._budget = budget
        self.taken: list[VictimBatch] = []
        """The victims, evicted or moved, of the last successful what-if."""
        self.losing: Container[QueueName] = ()
        """The queues that may lose pods."""

    def attempt(self, step: SearchStep, more: Sequence[VictimBatch], *, asking_first: bool = False) -> WhatIf | None:
        """Return the plan that evicts these chunks and those of the step; None if it fails or is not allowed.

        `asking_first`: the group gets its places before the victims, regardless of the order of turns.
        """
        if not more and not step.may_do_without():
            return None
        if not self._may_settle(step, (*step.again, *more)):
            return None
        if not self._budget.take():
            return None
        state, chunks = step.base.copy(), (*step.again, *more)
        for chunk in chunks:
            state.evict(chunk.group, chunk.placed, self._aim.action, self._group.key)
        if not self._settle(state, step, chunks, asking_first=asking_first):
            return None
        chunks = (*dict.fromkeys((*self.taken, *more)),)
        found = Found(group=self._group, pods=step.all_pods, before=self._before, after=state, chunks=chunks)
        if not self._aim.allows(found):
            return None
        self.taken = [chunk for chunk in chunks if scenario.is_touched(chunk, state, self._before)]
        return state

    def _may_settle(self, step: SearchStep, chunks: Iterable[VictimBatch]) -> bool:
        """Return whether there may be slots for the group's pods and for the pods that may not be lost."""
        gone, moved = list[Placed](), list[Pod]()
        for chunk in chunks:
            gone += chunk.placed
            if chunk.group.queue not in self.losing:
                moved += (one.pod for one in chunk.placed)
        return step.base.slots().may_hold((*step.pods, *moved), gone)

    def _settle(self, state: WhatIf, step: SearchStep, chunks: Sequence[VictimBatch], *, asking_first: bool) -> bool:
        """Place the group's pods and the victims, in the order of turns; False if the group fails."""
        asking = replace(step.group, pending=tuple(step.pods))
        moving = scenario.homeless(chunks, state)
        for groups in ([asking], moving) if asking_first else ([asking, *moving],):
            turns = Turns(state.snapshot, state.ledger, state.shares, groups)
            if not scenario.resettle(state, turns, asking if asking in groups else None):
                return False
        keys = {chunk.group.key: None for chunk in chunks}
        state.evict_torn(keys, self._aim.action, self._group.key)
        return not any(scenario.is_torn(state.changed[key], self._before) for key in keys)

    def reprieved(self, found: WhatIf, pods: Sequence[Pod]) -> WhatIf:
        """Let victims stay that are not needed, the last named first: later victims may make more room."""
        lost = [chunk for chunk in reversed(self.taken) if scenario.lost_of(chunk, found)]
        for chunk in lost[:REPRIEVES] if len(lost) > 1 else ():
            found = self.without(found, pods, (chunk,)) or found
        return found

    def reprieved_together(self, found: WhatIf, pods: Sequence[Pod]) -> WhatIf:
        """Let victims stay that are not needed, for pods that are alike. One count decides for hundreds of victims.

        The count does not consider which pods move where. So fewer victims are spared when the plan without all these
        fails.
        """
        # A victim that has its own place back might lose it if the pods were placed first.
        self.taken = [chunk for chunk in self.taken if scenario.is_touched(chunk, found, self._before)]
        lost = [chunk for chunk in reversed(self.taken) if scenario.lost_of(chunk, found)]
        staying = reprieve.spared(found, pods, lost) if len(lost) > 1 else ()
        while staying:
            better = self.without(found, pods, staying)
            if better is not None:
                return better
            staying = staying[: len(staying) // 2]
        return found

    def without(
        self, found: WhatIf, pods: Sequence[Pod], staying: Sequence[VictimBatch], *instead: VictimBatch
    ) -> WhatIf | None:
        """Return the plan in which `staying` stay and `instead` are evicted; None if it loses no fewer pods."""
        taken, ids = self.taken, {id(chunk) for chunk in (*staying, *instead)}
        fewer = tuple(each for each in taken if id(each) not in ids)
        better = self.attempt(SearchStep(self._before, self._group, pods, pods, fewer), instead)
        if better is not None and _number_lost(better) < _number_lost(found):
            return better
        self.taken = taken
        return None


def _number_lost(state: WhatIf) -> int:
    return sum(each.seat is None for each in state.leaving.values())
