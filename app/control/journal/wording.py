"""Chooses the refusal that is shown for a PodGroup, so that it does not depend on the order of plans.

Two kinds of plans refuse: the short plans of the loop and of the webhooks, which search for no victims, and the full
plans of `search_loop`, which know more. In one state of the cluster the full plan takes precedence. After a change the
newer plan takes precedence, and the result about victims stays until the next full plan.
"""

from dataclasses import dataclass, replace

from app.model.names import GroupKey
from app.model.reason import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    told: Refusal
    short: Refusal | None = None
    """The refusal of the last short plan itself."""
    short_version: int = -1
    full_version: int = -1


class Words:
    """The shown refusal of each PodGroup. Only `PlanApplier` changes it."""

    def __init__(self) -> None:
        """Start without refusals."""
        self._said: dict[GroupKey, _Said] = {}

    def of_short_plan(self, key: GroupKey, refusal: Refusal, version: int) -> Refusal:
        """Return the refusal to show after a short plan refused a group, on a snapshot of this version."""
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
        """Return the refusal to show after a full plan; the plan may be older than the last short plan."""
        said = self._said.get(key) or _Said(told=refusal)
        told = _completed(refusal, said.told)
        if said.short is not None and said.short_version > version and said.short.reason is refusal.reason:
            told = _completed(said.short, told)
        self._said[key] = replace(said, told=told, full_version=version)
        return told

    def forget(self, key: GroupKey) -> None:
        """Forget a group that no longer waits."""
        self._said.pop(key, None)


def _completed(refusal: Refusal, known: Refusal) -> Refusal:
    """Return the refusal with the victims of another refusal, if it has no victims itself."""
    if refusal.of_victims is not None or known.of_victims is None or not refusal.may_find_victims:
        return refusal
    return refusal.with_victims(known.of_victims)
