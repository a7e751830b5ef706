"""Explains why no pod is evicted for PodGroups whose search for victims failed."""

from app.model.memory import Likeness
from app.model.podgroup import PodGroup
from app.model.reason import NO_PLACE, OfVictims, Refusal
from app.model.sentence import EVERYTHING, told
from app.scheduling.explain.unevicted import Unevicted
from app.scheduling.planner.draft import PlanDraft
from app.scheduling.planner.fairness import FairSearch
from app.scheduling.queues.order import next_chunk

MOST_UNEVICTED = 64
"""For how many kinds of PodGroups one plan explains why no pod is evicted. Each kind reads all running pods."""


def say_why_nobody_leaves(draft: PlanDraft, search: FairSearch, unevicted: Unevicted) -> None:
    """Add to the refusal of each PodGroup with a failed search why no pod is evicted for it."""
    causes: dict[tuple[Likeness, int, bool, bool], OfVictims] = {}
    said: dict[tuple[object, str], Refusal] = {}
    searched = draft.memory.searched.values()
    for key, group in draft.waiting.items():
        refusal, likeness, pods = draft.refusals.get(key), draft.likeness(group), len(next_chunk(group))
        if refusal is None or refusal.reason not in NO_PLACE or group.queue not in draft.state.shares:
            continue
        if not refusal.exceeds_cluster and not all(each.is_in_vain(likeness, pods) for each in searched):
            continue  # The cause is not known yet.
        # Ten thousand pods of one template are pending for one cause.
        like = likeness, pods, refusal.exceeds_cluster, "kept" in refusal.details
        if like not in causes:
            if len(causes) >= MOST_UNEVICTED:
                continue
            causes[like] = _of_victims(draft, search, group, refusal, unevicted)
        same = like, told(refusal.sentence, EVERYTHING)
        if same not in said:
            said[same] = refusal.with_victims(causes[like])
        draft.refusals[key] = said[same]


def _of_victims(
    draft: PlanDraft, search: FairSearch, group: PodGroup, refusal: Refusal, unevicted: Unevicted
) -> OfVictims:
    if refusal.exceeds_cluster or "kept" in refusal.details:
        return OfVictims()
    # Independent of the latest search, so that equal states get equal sentences.
    search.open_nodes_to(group)
    likeness, searched = draft.likeness(group), draft.memory.searched
    too_dear = [action for action, each in searched.items() if likeness in each.too_dear]
    return unevicted.why(group, next_chunk(group), too_dear, draft.policy.patience_s)
