"""Sorts a plan into batches; each batch is carried out as a whole or dropped as a whole.

A batch is one of these: the starts of one group that wait for room, with the victims that free the room; a start that
needs no victims; or the pods of a stale gang, which are evicted for no beneficiary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from app.model.decision import Eviction, Plan, Start
from app.model.names import GroupKey


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """Starts and evictions that are carried out together or not at all."""

    starts: tuple[Start, ...]
    evictions: tuple[Eviction, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether other pods must be evicted or deleted first."""
        return bool(self.evictions) or any(start.awaits_release for start in self.starts)


def deals(plan: Plan) -> Iterator[PlanBatch]:
    """Yield the batches: stale gangs first, since the others may count on their room, then in the order of the plan."""
    waiting: dict[GroupKey, list[Start]] = {}
    for start in plan.starts:
        if start.awaits_release:
            waiting.setdefault(start.group, []).append(start)
    victims: dict[GroupKey | None, list[Eviction]] = {}
    for eviction in plan.evictions:
        victims.setdefault(eviction.beneficiary, []).append(eviction)
    stale: dict[GroupKey, list[Eviction]] = {}
    for eviction in victims.get(None, ()):
        stale.setdefault(eviction.group, []).append(eviction)
    for evictions in stale.values():
        yield PlanBatch((), tuple(evictions))
    for start in plan.starts:
        if not start.awaits_release:
            yield PlanBatch((start,))
        elif start.group in waiting:
            yield PlanBatch(tuple(waiting.pop(start.group)), tuple(victims.get(start.group, ())))
