"""Holds what the last search for victims passes to the plans that follow: the nodes it keeps free, and its memory."""

from collections.abc import Collection

from app.control.cycle.apply_plan import PlanApplier
from app.model.decision import Plan
from app.model.memory import NO_MEMORY, PlanMemory
from app.model.names import GroupKey, NodeName


class KeptRoom:
    """The nodes kept for a PodGroup that has waited for long. Searches and plans write and read them."""

    def __init__(self, applier: PlanApplier) -> None:
        """Start with nothing kept."""
        self._applier = applier
        self._withheld: Collection[NodeName] = ()
        self._aged: GroupKey | None = None
        self.memory: PlanMemory = NO_MEMORY
        """What the last search passes to the next plan."""

    @property
    def withheld(self) -> Collection[NodeName]:
        """The nodes kept free for a PodGroup that has waited for long, while a group waits that victims may help."""
        return self._withheld if self._withheld and self._applier.somebody_waits() else ()

    @property
    def aged(self) -> GroupKey | None:
        """The PodGroup that has waited for long; these nodes and a part of its queue's share are kept for it."""
        return self._aged if self.withheld else None

    def note_search(self, plan: Plan) -> None:
        """Store what a search keeps and remembers."""
        self._withheld, self._aged, self.memory = plan.withheld, plan.aged, plan.memory

    def note_plan(self, plan: Plan) -> None:
        """Store the nodes that this plan keeps, if any.

        Such a plan has no victims. It has found since then which PodGroup is owed room.
        """
        if plan.withheld:
            self._withheld, self._aged = plan.withheld, plan.aged
