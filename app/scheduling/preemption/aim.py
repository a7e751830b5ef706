"""What the aims of a search (reclaim, preempt, consolidate) tell it, and what they judge of what it has found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.model.decision import Action
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.scheduling.preemption.evictable import Scope
from app.scheduling.preemption.victims import Safety, VictimBatch
from app.scheduling.preemption.whatif import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search has found, before its aim has judged it."""

    group: PodGroup
    """Who asked."""
    pods: Sequence[Pod]
    """Of it: those that have a place now."""
    before: WhatIf
    after: WhatIf
    chunks: Sequence[VictimBatch]
    """Who had to leave for it, in this order; some of them have found another place."""


class Aim(Protocol):
    """What a search may make leave, and what it may leave behind."""

    @property
    def action(self) -> Action:
        """Under which name the plan does it."""

    @property
    def sure_before(self) -> float:
        """Who began to run before, in seconds since the epoch, is not safe."""

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether the group may ask others to leave at all."""

    def scopes(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Sequence[Scope]:
        """Return who may have to leave at all."""

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return how far a preemptible running group is safe from the one that asks."""

    def may_allow(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod], lost: Sequence[VictimBatch]) -> bool:
        """Return whether it may be fair that these lose their places for good, among others; False is certain."""

    def allows(self, found: Found) -> bool:
        """Return whether what is left behind is fair."""
