"""Who need not leave after all for pods that are all alike: counted node by node, before anybody is placed again.

A node takes as many of the pods as fit into what it has left. A victim may stay where its own place is free and the
places of all nodes still suffice, perhaps because another pod leaves instead. A shared GPU is taken to be lost to the
pods with each of its parts that stays, so the count may spare too few.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from app.model.names import GroupKey
from app.model.pod import Placed, Pod
from app.model.resources import GPU, GPU_MILLI, NOTHING, Amounts
from app.scheduling.placement.topology import fitting_counts
from app.scheduling.preemption.lineup import Lineup
from app.scheduling.preemption.scenario import lost_of
from app.scheduling.preemption.victims import VictimBatch, charge_at
from app.scheduling.preemption.whatif import WhatIf

MOST_ASKED = 64
"""So many victims are asked at most whether they may stay when another one leaves instead."""

MOST_OTHERS = 16
"""So many others are looked at, of whom one might leave instead of several of the victims; few are tried."""


def spared(found: WhatIf, pods: Sequence[Pod], lost: Iterable[VictimBatch]) -> Sequence[VictimBatch]:
    """Return which of the lost chunks may stay together, asked in this order; the pods have their seats in `found`.

    The pods are all alike and ask for no parts of GPUs.
    """
    places = _Places(found, pods)
    # Who fits beside the pods has its place back already.
    return places.kept(lost) if places.spare > 0 else ()


def spared_instead(
    found: WhatIf, pods: Sequence[Pod], lost: Sequence[VictimBatch], other: VictimBatch
) -> Sequence[VictimBatch]:
    """Return which of the lost chunks may stay if another one, of one pod, leaves instead; nobody if that is no better.

    Then fewer pods leave, which hold no more GPUs, and one of those that stay is protected as well as the other.
    """
    places = _Places(found, pods)
    places.leave(other)
    staying = places.kept(lost[:MOST_ASKED])
    is_less = sum(len(chunk.placed) for chunk in staying) > 1 and sum(map(gpus_of, staying)) >= gpus_of(other)
    same = (chunk for chunk in staying if chunk.group.queue == other.group.queue)
    return staying if is_less and any(rank_of(chunk) <= rank_of(other) for chunk in same) else ()


def others(
    lineup: Lineup, seen: int, taken: Sequence[VictimBatch], lost: Sequence[VictimBatch], found: WhatIf
) -> Sequence[VictimBatch]:
    """Return who else might leave: single pods that move, or that only their names protect better than the lost."""
    ranks = {(chunk.group.queue, rank_of(chunk)) for chunk in lost}
    least = min(map(gpus_of, lost))

    def is_equal(chunk: VictimBatch) -> bool:
        return (chunk.group.queue, rank_of(chunk)) in ranks

    known = [lineup.chunk(number) for number in range(seen)]
    for number in range(seen, seen + MOST_OTHERS):
        chunk = lineup.at(number)
        if chunk is None or not is_equal(chunk):
            break
        known.append(chunk)
    moved = {id(chunk) for chunk in taken} - {id(chunk) for chunk in lost}
    stay = (chunk for chunk in known if id(chunk) in moved or is_equal(chunk))
    single = (chunk for chunk in stay if len(chunk.placed) == 1 and gpus_of(chunk) > least)
    return [chunk for chunk in single if not lost_of(chunk, found)][:MOST_OTHERS]


def rank_of(chunk: VictimBatch) -> tuple[int, int, float]:
    """Return what decides in a queue when a chunk leaves, but for names and the number of its pods: the last first."""
    priority, elastic, created_at, *_ = chunk.turn
    return priority, elastic, created_at


def gpus_of(chunk: VictimBatch) -> int:
    """Return how many milli-GPUs a chunk holds; parts count as whole ones."""
    return sum(one.pod.request.gpu_milli + GPU_MILLI * len(one.devices) for one in chunk.placed)


class _Places:
    """How many of the pods could sit when all victims have left; `keep` lets some of these stay."""

    def __init__(self, found: WhatIf, pods: Sequence[Pod]) -> None:
        self._found, self._stock, self._ledger = found, found.board.stock, found.ledger.copy()
        self._asked = np.array([self._stock.taken(pod) for pod in pods], dtype=np.int64)
        self._eligible = found.board.eligible(pods[0])
        # Shape [resource, node]: what is left for the pods and for those who stay.
        self._room, uids = self._stock.future.copy(), {pod.uid for pod in pods}
        for seat in found.all_seated:
            if seat.pod.uid in uids:
                self._room[:, seat.column] += self._asked[0]
        self.spare = self._slots(np.arange(self._room.shape[1])) - len(pods)
        """How many more of the pods could sit."""

    def leave(self, chunk: VictimBatch) -> None:
        """Have the pods of a chunk leave where they are now, or were to move."""
        for one in chunk.placed:
            moved = self._found.leaving.get(one.pod.uid)
            column = moved.seat.column if moved is not None and moved.seat is not None else self._stock.column(one.node)
            if column is not None and one.pod.sharing is None:
                before = self._slots(np.array([column]))
                self._room[:, column] += np.array(self._stock.taken(one.pod), dtype=np.int64)
                self.spare += self._slots(np.array([column])) - before

    def kept(self, lost: Iterable[VictimBatch]) -> Sequence[VictimBatch]:
        """Let those of the lost chunks stay that may, asked in this order."""
        torn, staying = set[GroupKey](), list[VictimBatch]()
        for chunk in lost:
            # What a gang has beyond its minimum cannot stay without the others.
            if chunk.group.key not in torn and self.keep(chunk):
                staying.append(chunk)
            elif len(chunk.placed) == len(chunk.group.placed):
                torn.add(chunk.group.key)
        return staying

    def keep(self, chunk: VictimBatch) -> bool:
        """Let the lost pods of a chunk stay where they were, if there is room for them and all the pods then."""
        gone = lost_of(chunk, self._found)
        staying = [one for one in chunk.placed if one.pod.uid in gone]
        request = sum((charge_at(self._found.snapshot, one) for one in staying), NOTHING)
        rooms = self._rooms_with(staying)
        if not rooms or self._ledger.check(chunk.group, request) is not None:
            return False
        columns = np.array(list(rooms))
        before, slots = self._room[:, columns], self._slots(columns)
        self._room[:, columns] = np.array(list(rooms.values())).T
        fewer = slots - self._slots(columns)
        if fewer > self.spare:
            self._room[:, columns] = before
            return False
        self.spare -= fewer
        self._ledger.charge(chunk.group, request)
        return True

    def _slots(self, columns: Amounts) -> int:
        """Return how many of the pods could sit on these nodes."""
        columns = columns[self._eligible[columns]]
        return int(fitting_counts(self._asked, self._room[:, columns]).sum())

    def _rooms_with(self, staying: Iterable[Placed]) -> Mapping[int, list[int]]:
        """Return what their nodes have left with these, by column; nothing where one has no room for them."""
        rooms: dict[int, list[int]] = {}
        for one in staying:
            column, amounts = self._stock.column(one.node), self._stock.amounts(one.pod)
            if column is None or amounts is None:
                return {}
            room = rooms.setdefault(column, self._room[:, column].tolist())
            for row, amount in enumerate(amounts):
                room[row] -= amount
            room[GPU] -= GPU_MILLI * len(one.devices)
            if room[GPU] < 0 or any(room[row] < 0 for row, amount in enumerate(amounts) if amount):
                return {}
        return rooms
