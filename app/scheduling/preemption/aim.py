"""What a victim policy (reclaim, preempt, consolidate) tells a search, and how it judges the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.model.decision import Action
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.scheduling.preemption.evictable import Scope
from app.scheduling.preemption.patience import Patience
from app.scheduling.preemption.victims import Safety, VictimBatch
from app.scheduling.preemption.whatif import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search before its policy has judged it."""

    group: PodGroup
    """The pending group for which the search was made."""
    pods: Sequence[Pod]
    """The pods of the group that have a place now."""
    before: WhatIf
    after: WhatIf
    chunks: Sequence[VictimBatch]
    """The victims, in this order; some of them have found another place."""


class Aim(Protocol):
    """Which pods a search may evict, and which results are allowed."""

    @property
    def action(self) -> Action:
        """The name of the action in the plan."""

    @property
    def moving(self) -> Patience | None:
        """How long a PodGroup waits before pods move for it; None if pods do not move."""

    @property
    def sure_before(self) -> float:
        """Groups that started before this time are not safe, in seconds since the epoch."""

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether a search for the group may begin at all."""

    def scopes(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> Sequence[Scope]:
        """Return the scopes of pods that may be evicted at all."""

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return how far a preemptible running group is safe from the asking group."""

    def may_allow(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod], lost: Sequence[VictimBatch]) -> bool:
        """Return whether it may be fair to evict these pods, perhaps together with others; False is certain."""

    def allows(self, found: Found) -> bool:
        """Return whether the result is fair."""
