"""Holds what the last search for victims tells the plans that follow: the nodes that it keeps free, and its memory."""

from collections.abc import Collection

from app.control.cycle.apply_plan import PlanApplier
from app.model.decision import Plan
from app.model.memory import NO_MEMORY, PlanMemory
from app.model.names import GroupKey, NodeName


class KeptRoom:
    """What is kept for a PodGroup that has waited for long. Searches and plans write it and read it."""

    def __init__(self, applier: PlanApplier) -> None:
        """Start with nothing kept."""
        self._applier = applier
        self._withheld: Collection[NodeName] = ()
        self._aged: GroupKey | None = None
        self.memory: PlanMemory = NO_MEMORY
        """What the last search tells the next plan."""

    @property
    def withheld(self) -> Collection[NodeName]:
        """The nodes that are kept free for a PodGroup that has waited for long, as long as somebody waits."""
        return self._withheld if self._withheld and self._applier.somebody_waits() else ()

    @property
    def aged(self) -> GroupKey | None:
        """The PodGroup that has waited for long, for which these nodes are kept and a part of its queue's share."""
        return self._aged if self.withheld else None

    def note_search(self, plan: Plan) -> None:
        """Take over what a search keeps and remembers."""
        self._withheld, self._aged, self.memory = plan.withheld, plan.aged, plan.memory

    def note_plan(self, plan: Plan) -> None:
        """Keep what this plan keeps, if it keeps nodes: it has no victims, and has found since who is owed room."""
        if plan.withheld:
            self._withheld, self._aged = plan.withheld, plan.aged
