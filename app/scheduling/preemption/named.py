"""Names the victims of one search: all at once if the PodGroups are evicted as a whole, else one by one."""

from collections.abc import Collection, Container, Sequence
from functools import cached_property
from itertools import islice

import numpy as np

from app.model.names import GroupKey, QueueName
from app.model.snapshot import Mask
from app.scheduling.placement.rows import Numbers
from app.scheduling.preemption.budget import NAMED
from app.scheduling.preemption.evictable import Evictable
from app.scheduling.preemption.lineup import Lineup
from app.scheduling.preemption.victims import VictimBatch, VictimCandidates, Victims

FIRST = 128
"""How many chunks are named at first; each time these are not enough, the number doubles."""


class OneByOne(Lineup):
    """Chunks of PodGroups that may also lose single pods. More chunks are named when the earlier ones are too few."""

    work = NAMED

    def __init__(self, victims: Victims, evictable: Evictable, losing: Container[QueueName]) -> None:
        """Name no chunk yet; `losing` are the queues that may lose pods."""
        super().__init__(evictable, losing)
        self._victims = victims
        self._chunks: list[VictimBatch] = []
        self._by_group: dict[GroupKey, list[VictimBatch]] = {}
        self._numbers: dict[int, int] = {}
        self._facts: list[tuple[bool, bool, bool]] = []
        # The rows of their pods, and the number of the chunk of each, part by part.
        self._rows: list[tuple[Numbers, Numbers]] = []

    def extend(self) -> bool:
        """Name more chunks; return whether there were any."""
        known = self.count
        new = list(islice(iter(self._victims.pop, None), max(FIRST, known)))
        row, number = self._evictable.rows_of(new)
        self._rows.append((row, number + known))
        for chunk in new:
            self._add(chunk)
        self.count, self._columns = len(self._chunks), None
        return bool(new)

    def _add(self, chunk: VictimBatch) -> None:
        together = self._by_group.setdefault(chunk.group.key, [])
        # A chunk that is evicted as a whole is the last of its PodGroup: all chunks beyond its minimum are named before
        # it.
        has_spare = bool(together) and _is_whole(chunk)
        together.append(chunk)
        self._facts.append((chunk.group.queue in self._losing, not chunk.is_alike, has_spare))
        self._numbers[id(chunk)] = len(self._chunks)
        self._chunks.append(chunk)

    def chunk(self, number: int) -> VictimBatch:
        """Return one of the chunks named so far."""
        return self._chunks[number]

    def number(self, chunk: VictimBatch) -> int:
        """Return the number of one of the chunks named so far."""
        return self._numbers[id(chunk)]

    def up_to(self, chunks: Sequence[VictimBatch]) -> int:
        """Name chunks until all of these have been named; return how many were named up to the last of these."""
        while any(id(chunk) not in self._numbers for chunk in chunks) and self.extend():
            pass
        return 1 + max((self._numbers.get(id(chunk), -1) for chunk in chunks), default=-1)

    def with_spare(self, chunks: Sequence[VictimBatch], taken: Collection[int]) -> list[VictimBatch]:
        """For a gang that is evicted as a whole, add its chunks elsewhere beyond its minimum: they cannot run alone."""
        found: dict[int, VictimBatch] = {}
        for chunk in chunks:
            together = self._by_group[chunk.group.key] if _is_whole(chunk) else [chunk]
            found |= {id(each): each for each in together if id(each) not in taken}
        return list(found.values())

    def _named(self) -> tuple[Numbers, Numbers, Mask]:
        row, chunk = (np.concatenate(each) for each in zip(*self._rows, strict=True))
        return row, chunk, np.array(self._facts, dtype=np.bool_).reshape(-1, 3)


class AtOnce(Lineup):
    """PodGroups that are evicted as a whole, all of them named: a chunk is built when it is first read."""

    def __init__(
        self, groups: Numbers, evictable: Evictable, roster: VictimCandidates, losing: Container[QueueName]
    ) -> None:
        """Order PodGroups, given by their numbers; the first is evicted first."""
        super().__init__(evictable, losing)
        self.count = len(groups)
        self._groups = groups
        self._roster = roster

    def extend(self) -> bool:
        """Return False: all chunks are already named."""
        return False

    def chunk(self, number: int) -> VictimBatch:
        """Return one of the chunks."""
        return self._roster.first_chunk(self._evictable.group(self._groups.item(number)))

    def number(self, chunk: VictimBatch) -> int:
        """Return the number of one of the chunks."""
        return self._place.item(self._evictable.ids[chunk.group.key])

    def up_to(self, chunks: Sequence[VictimBatch]) -> int:
        """Return how many chunks there are up to the last of these."""
        return 1 + max(map(self.number, chunks), default=-1)

    def with_spare(self, chunks: Sequence[VictimBatch], taken: Collection[int]) -> list[VictimBatch]:
        """Return the same chunks: these PodGroups have no pods beyond their minimum."""
        return [chunk for chunk in chunks if id(chunk) not in taken]

    @cached_property
    def _place(self) -> Numbers:
        place = np.full(len(self._evictable.ids), -1)
        place[self._groups] = np.arange(self.count)
        return place

    def _named(self) -> tuple[Numbers, Numbers, Mask]:
        evictable, place = self._evictable, self._place
        row = np.flatnonzero((place[evictable.rows.group] >= 0) & evictable.rows.alive)
        may_be_lost, unlike = evictable.are_in(self._losing)[self._groups], evictable.unlike[self._groups]
        return row, place[evictable.rows.group[row]], np.stack([may_be_lost, unlike, np.zeros_like(unlike)], axis=1)


def _is_whole(chunk: VictimBatch) -> bool:
    return len(chunk.placed) == len(chunk.group.placed)
