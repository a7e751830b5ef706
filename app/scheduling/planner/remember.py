"""Collects what the next plan needs from this one."""

from dataclasses import replace

from app.model.memory import KeptIdle, PlanMemory
from app.model.reason import NO_PLACE
from app.scheduling.planner.draft import PlanDraft
from app.scheduling.preemption import ageing


def remembered(draft: PlanDraft) -> PlanMemory:
    """Return the memory for the next plan. The next plan is due when nodes are no longer kept."""
    kept_idle, found = _cost_of_keeping(draft), draft.memory.conditions
    until = ageing.changes_at(kept_idle, draft.now)
    if draft.owed is not None:
        until = min(until, draft.is_owed_until(draft.owed))
    if found is not None and until < found.changes_at:
        found = replace(found, changes_at=until)
    return replace(draft.memory, kept_idle=kept_idle, conditions=found)


def _cost_of_keeping(draft: PlanDraft) -> KeptIdle:
    kept = draft.kept_nodes
    if kept is None:
        return ageing.ended(draft.kept_idle, draft.now)
    others = (each for key, each in draft.refusals.items() if key != kept.group.key)
    return ageing.cost(draft.kept_idle, draft.state, kept, is_wanted=any(each.reason in NO_PLACE for each in others))
