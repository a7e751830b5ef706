"""Decides which victims may stay, for equal pending pods: counted node by node, without placing the pods again.

A node takes as many of the pods as fit into its remaining room. A victim may stay if its own place is free and the
places of all nodes still suffice, perhaps because another pod is evicted instead. Each part of a shared GPU that stays
is assumed to block the GPU for the pods, so the count may spare too few victims.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from app.model.names import GroupKey
from app.model.pod import Placed, Pod, claims_of, once_milli
from app.model.resources import GPU, GPU_MILLI, NOTHING, Amounts
from app.scheduling.placement.topology import fitting_counts
from app.scheduling.preemption.lineup import Lineup
from app.scheduling.preemption.scenario import lost_of
from app.scheduling.preemption.victims import VictimBatch, charge_at
from app.scheduling.preemption.whatif import WhatIf

MOST_ASKED = 64
"""How many victims are checked at most for staying while another pod is evicted instead."""

MOST_OTHERS = 16
"""How many other chunks are considered that might be evicted instead of several victims; few are tried."""


def spared(found: WhatIf, pods: Sequence[Pod], lost: Iterable[VictimBatch]) -> Sequence[VictimBatch]:
    """Return which of the lost chunks may stay together, checked in this order; `found` has the places of the pods.

    The pods are equal and request no parts of GPUs.
    """
    places = _Places(found, pods)
    # A victim that fits beside the pods already has its place back.
    return places.kept(lost) if places.spare > 0 else ()


def spared_instead(
    found: WhatIf, pods: Sequence[Pod], lost: Sequence[VictimBatch], other: VictimBatch
) -> Sequence[VictimBatch]:
    """Return which of the lost chunks may stay if `other`, a single pod, is evicted instead; empty if no better.

    Better means that fewer pods are evicted, which hold no more GPUs, and that a staying pod is protected as well as
    `other`.
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
    """Return alternatives: single pods that move, or that are protected better than the lost ones only by name."""
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
    """Return what decides the eviction order in a queue, without names and the number of pods: the highest is first."""
    priority, elastic, created_at, *_ = chunk.turn
    return priority, elastic, created_at


def gpus_of(chunk: VictimBatch) -> int:
    """Return how many milli-GPUs a chunk holds; a part of a GPU counts as a whole GPU, and each claim once."""
    own = sum(one.pod.request.gpu_milli + GPU_MILLI * len(one.devices) for one in chunk.placed)
    return own + once_milli(claims_of(one.pod for one in chunk.placed))


class _Places:
    """How many of the pods fit when all victims are gone; `keep` lets some victims stay."""

    def __init__(self, found: WhatIf, pods: Sequence[Pod]) -> None:
        self._found, self._stock, self._ledger = found, found.board.stock, found.ledger.copy()
        self._asked = np.array([self._stock.taken(pod) for pod in pods], dtype=np.int64)
        self._eligible = found.board.eligible(pods[0])
        # Shape [resource, node]: what is left for the pods and for the victims that stay.
        self._room, uids = self._stock.future.copy(), {pod.uid for pod in pods}
        for seat in found.all_seated:
            if seat.pod.uid in uids:
                self._room[:, seat.column] += self._asked[0]
        self.spare = self._slots(np.arange(self._room.shape[1])) - len(pods)
        """How many more of the pods would fit."""

    def leave(self, chunk: VictimBatch) -> None:
        """Free the places of a chunk's pods, or the places to which they were to move."""
        for one in chunk.placed:
            moved = self._found.leaving.get(one.pod.uid)
            column = moved.seat.column if moved is not None and moved.seat is not None else self._stock.column(one.node)
            if column is not None and one.pod.sharing is None:
                before = self._slots(np.array([column]))
                self._room[:, column] += np.array(self._stock.taken(one.pod, column), dtype=np.int64)
                self.spare += self._slots(np.array([column])) - before

    def kept(self, lost: Iterable[VictimBatch]) -> Sequence[VictimBatch]:
        """Let as many of the lost chunks stay as possible, checked in this order."""
        torn, staying = set[GroupKey](), list[VictimBatch]()
        for chunk in lost:
            # Pods of a gang beyond its minimum cannot stay without the others.
            if chunk.group.key not in torn and self.keep(chunk):
                staying.append(chunk)
            elif len(chunk.placed) == len(chunk.group.placed):
                torn.add(chunk.group.key)
        return staying

    def keep(self, chunk: VictimBatch) -> bool:
        """Let the lost pods of a chunk stay in their places, if then all of them and all the pods have room."""
        gone = lost_of(chunk, self._found)
        staying = [one for one in chunk.placed if one.pod.uid in gone]
        request = sum((charge_at(self._found.snapshot, one) for one in staying), NOTHING)
        claims = claims_of(one.pod for one in staying)
        rooms = self._rooms_with(staying)
        if not rooms or self._ledger.check(chunk.group, request, claims) is not None:
            return False
        columns = np.array(list(rooms))
        before, slots = self._room[:, columns], self._slots(columns)
        self._room[:, columns] = np.array(list(rooms.values())).T
        fewer = slots - self._slots(columns)
        if fewer > self.spare:
            self._room[:, columns] = before
            return False
        self.spare -= fewer
        self._ledger.charge(chunk.group, request, claims)
        return True

    def _slots(self, columns: Amounts) -> int:
        """Return how many of the pods fit on these nodes."""
        columns = columns[self._eligible[columns]]
        return int(fitting_counts(self._asked, self._room[:, columns]).sum())

    def _rooms_with(self, staying: Iterable[Placed]) -> Mapping[int, list[int]]:
        """Return the remaining room of the nodes with these pods, by column; empty if a node has no room for them."""
        rooms: dict[int, list[int]] = {}
        for one in staying:
            column = self._stock.column(one.node)
            if column is None or self._stock.amounts(one.pod) is None:
                return {}
            amounts = self._stock.taken(one.pod, column)
            room = rooms.setdefault(column, self._room[:, column].tolist())
            for row, amount in enumerate(amounts):
                room[row] -= amount
            room[GPU] -= GPU_MILLI * len(one.devices)
            if room[GPU] < 0 or any(room[row] < 0 for row, amount in enumerate(amounts) if amount):
                return {}
        return rooms
