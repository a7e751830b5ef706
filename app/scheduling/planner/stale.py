"""The action evict-stale: evicts gangs that lost pods which are not replaced."""

from collections.abc import Callable

from app.model.decision import Action
from app.model.podgroup import PodGroup
from app.scheduling.planner.draft import PlanDraft


def end_stale(draft: PlanDraft, is_lost: Callable[[PlanDraft, PodGroup], bool]) -> None:
    """Evict gangs that have held less than their minimum for longer than the grace period and are lost."""
    if Action.EVICT_STALE not in draft.policy.actions:
        return
    stale = ((group, group.stale_since) for group in draft.snapshot.running.values())
    over = [
        group
        for group, since in stale
        if since is not None and draft.now - since >= draft.policy.grace_s(group.stale_grace_s)
    ]
    lost = [group for group in map(draft.state.as_it_is, over) if group.placed and is_lost(draft, group)]
    for group in lost:
        draft.state.evict(group, group.placed, Action.EVICT_STALE, None)
    if lost:
        draft.state.reprieve()


def cannot_be_completed(draft: PlanDraft, group: PodGroup) -> bool:
    """Whether no pending pod can complete the gang, so that its resources are free for others at once."""
    return group.key not in draft.snapshot.groups


def is_incomplete(draft: PlanDraft, group: PodGroup) -> bool:
    """Whether the plan has not completed the gang. Its missing pods start together or not at all."""
    return all(start.group != group.key for start in draft.starts)
