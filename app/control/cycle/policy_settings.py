"""Derives the planner's policy from the settings."""

from app.model.decision import Action
from app.scheduling.policy import Policy
from app.settings import Settings


def policy_of(settings: Settings) -> Policy:
    """Return the planner's policy for these settings."""
    chosen = {Action.ALLOCATE, *(Action(one.value) for one in settings.actions)}
    return Policy(
        placement=settings.placement,
        packing=settings.packing,
        actions=tuple(action for action in Action if action in chosen),
        stale_grace_s=settings.stale_grace_s,
        preempt_min_runtime_s=settings.preempt_min_runtime_s,
        reclaim_min_runtime_s=settings.reclaim_min_runtime_s,
        consolidate_min_runtime_s=settings.consolidate_min_runtime_s,
        reclaim_resolve_method=settings.reclaim_resolve_method,
        borrow_last=settings.borrow_last,
        patience_s=settings.patience_s,
        ageing_s=settings.ageing_s,
    )
