"""Remembers recent decisions, so that Leeboard can explain why a deleted pod was evicted.

Actions and refusals are stored separately: ten thousand PodGroups that are refused at once do not displace the records
of evictions.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice

from app.model.explanation import Decision, Outcome
from app.model.names import GroupKey
from app.model.sentence import open_ended, say

KEPT = 1_000
"""Decisions of each of the two sorts."""

MOST_PODS = 20_000
"""Pods that all decisions of one sort name in total: a few MB, however large gangs are."""

REFUSALS = frozenset({Outcome.REFUSED, Outcome.FAILED})


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    at: float
    decision: Decision

    def told(self) -> Decision:
        return replace(self.decision, at=self.at)


class _Ring:
    """The newest entries of one sort. Only `put` changes it."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._pods = 0

    def put(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._pods += len(entry.decision.pods)
        while len(self._entries) > KEPT or (self._pods > MOST_PODS and len(self._entries) > 1):
            self._pods -= len(self._entries.popleft().decision.pods)

    def __reversed__(self) -> Iterator[_Entry]:
        return reversed(self._entries)


class Decisions:
    """The recent decisions, the newest first. Only the event loop calls this class."""

    def __init__(self, *, wall_clock: Callable[[], float]) -> None:
        """`wall_clock` is in seconds since the epoch."""
        self._wall_clock = wall_clock
        self._done, self._refused = _Ring(), _Ring()
        self._number = 0

    def record(self, decision: Decision) -> None:
        """Store a decision that was taken, or carried out, just now."""
        self._number += 1
        ring = self._refused if decision.outcome in REFUSALS else self._done
        ring.put(_Entry(self._number, self._wall_clock(), decision))

    def of_group(self, key: GroupKey, most: int) -> Sequence[Decision]:
        """Return the newest decisions about a PodGroup; simultaneous evictions for one cause are one decision."""
        return self._newest(most, lambda one: one.group == key)

    def of_pod(self, group: GroupKey, name: str, most: int) -> Sequence[Decision]:
        """Return the newest decisions that name a pod in the namespace of its group, or that refuse its group."""
        return self._newest(
            most,
            lambda one: _names(one, group.namespace, name) or (one.group == group and one.outcome in REFUSALS),
        )

    def last_of_pod(self, namespace: str, name: str) -> Decision | None:
        """Return the newest decision that names a pod; None when no stored decision does."""
        return next(self._about(namespace, name), None)

    def evicted_at(self) -> dict[str, float]:
        """Return when pods were evicted, by their uid."""
        found: dict[str, float] = {}
        for entry in reversed(self._done):
            if entry.decision.outcome is Outcome.EVICTED:
                found.update({seat.uid: entry.at for seat in entry.decision.pods})
        return found

    def _about(self, namespace: str, name: str) -> Iterator[Decision]:
        return (entry.told() for entry in self._all() if _names(entry.decision, namespace, name))

    def _newest(self, most: int, which: Callable[[Decision], bool]) -> Sequence[Decision]:
        return tuple(islice(_folded(entry.told() for entry in self._all() if which(entry.decision)), most))

    def _all(self) -> Iterator[_Entry]:
        return merge(reversed(self._done), reversed(self._refused), key=lambda entry: entry.number, reverse=True)


def _names(decision: Decision, namespace: str, name: str) -> bool:
    return decision.group.namespace == namespace and any(seat.name == name for seat in decision.pods)


def _folded(decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield one decision for evictions that belong together: evictions of a gang are recorded pod by pod."""
    one: Decision | None = None
    more: list[Decision] = []
    for decision in decisions:
        if one is not None and _belong_together(one, decision):
            more.append(decision)
            continue
        if one is not None:
            yield _together(one, more)
        one, more = decision, []
    if one is not None:
        yield _together(one, more)


def _belong_together(one: Decision, other: Decision) -> bool:
    if one.outcome is not Outcome.EVICTED:
        return False
    return replace(other, pods=one.pods, sentence=one.sentence, at=one.at) == one


def _together(one: Decision, more: Sequence[Decision]) -> Decision:
    if not more:
        return one
    said = open_ended(one.sentence)
    pods = (*one.pods, *(seat for each in more for seat in each.pods))
    sentence = say("{said}, and {more} more of its PodGroup with it.", said=said, more=len(more))
    return replace(one, pods=pods, sentence=sentence)
