"""Chooses the words in which people are told why a PodGroup waits, so that they do not depend on which plan came last.

Two kinds of plans refuse: the short ones of the loop and of the webhooks, which look for no victims, and the full ones
of `search_loop`, which know more. In one state of the cluster a full plan has the last word. After a
change the newer plan has it, and what is known of victims stays until a full plan says otherwise.
"""

from dataclasses import dataclass, replace

from app.model.names import GroupKey
from app.model.reason import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    told: Refusal
    short: Refusal | None = None
    """What the last short plan said by itself, and the version of its snapshot."""
    short_version: int = -1
    full_version: int = -1


class Words:
    """What was said of each PodGroup. Changed by `PlanApplier` alone."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._said: dict[GroupKey, _Said] = {}

    def of_short_plan(self, key: GroupKey, refusal: Refusal, version: int) -> Refusal:
        """Return what is told after a plan without victims refused a group, on a snapshot of this version."""
        said = self._said.get(key)
        if said is None:
            told = refusal
        elif said.told.reason is refusal.reason and (said.full_version == version or said.short == refusal):
            told = said.told
        else:
            told = _completed(refusal, said.told)
        full_version = said.full_version if said is not None else -1
        self._said[key] = _Said(told=told, short=refusal, short_version=version, full_version=full_version)
        return told

    def of_full_plan(self, key: GroupKey, refusal: Refusal, version: int) -> Refusal:
        """Return what is told after a plan that looked for victims; it may be older than what a short one said."""
        said = self._said.get(key) or _Said(told=refusal)
        told = _completed(refusal, said.told)
        if said.short is not None and said.short_version > version and said.short.reason is refusal.reason:
            told = _completed(said.short, told)
        self._said[key] = replace(said, told=told, full_version=version)
        return told

    def forget(self, key: GroupKey) -> None:
        """Forget a group that waits no more."""
        self._said.pop(key, None)


def _completed(refusal: Refusal, known: Refusal) -> Refusal:
    """Return the refusal with what another one knows of victims, if it knows nothing of them itself."""
    if refusal.of_victims is not None or known.of_victims is None or not refusal.may_find_victims:
        return refusal
    return refusal.with_victims(known.of_victims)
