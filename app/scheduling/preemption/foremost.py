"""Finds where the first victims in order make enough room: one comparison for all nodes, before any victim is named.

The order is the order of `victims` at one moment. PodGroups evicted or moved since then are not in it.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.model.decision import Share
from app.model.names import QueueName
from app.model.resources import GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.rows import Numbers
from app.scheduling.placement.slots import SIZES
from app.scheduling.preemption.evictable import Evictable
from app.scheduling.preemption.victims import VictimCandidates
from app.scheduling.queues.accounts import Account
from app.scheduling.queues.order import PENALTIES, Contender
from app.scheduling.queues.quota import QueueLedger

PARTS = (1 / 32, 1 / 4, 1)
"""The order is read up to these parts, one after the other, until one part is enough."""

Levels = NDArray[np.float64]
Line = tuple[Numbers, Levels]
"""PodGroups in eviction order, and how full their queue is at that point, shape [key, group]; the highest keys are
first.
"""

Choice = Callable[[Numbers], tuple[Mask, Mask]]
"""Returns for pods, as rows, which may be evicted, and which of these need other places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPlaces:
    """Places that are needed."""

    asked: Sequence[int]
    """The requests of one pod, in the order of the rows of the free resources."""
    count: int
    """How many places are missing."""
    nodes: Mask
    """Where the places may be, shape [node]."""
    future: Amounts
    """Shape [resource, node]: free after all releasing pods have ended."""
    slots: Sequence[int]
    """How many slots of each size there are."""
    taken: Sequence[int]
    """How many slots of each size one pod takes."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Pods that may be evicted, by node and then in eviction order."""

    pods: Numbers
    """Shape [pod], as rows."""
    moves: Mask
    """Shape [pod]: whether the pod needs another place."""
    gpus: Numbers
    """Shape [pod]: how many whole GPUs the pod holds."""
    free: Amounts
    """Shape [resource, pod]: what the pod's node has free now."""
    there: Amounts
    """Shape [resource, pod]: what the pod's node has free after the pod, and the pods before it, are gone."""
    begins: Numbers
    """Shape [node of these]: where the pods of each node begin."""
    part: Numbers
    """Shape [pod]: the number of the pod's node in `begins`."""

    def slots(self) -> Amounts:
        """Return how many slots the node gains, less the slots that moved pods need, shape [size, pod]."""
        before, after = (np.maximum(each[GPU], 0) // GPU_MILLI // _SIZES for each in (self.free, self.there))
        needed = _sums_since(np.where(self.moves, self.gpus, 0) // _SIZES, self.begins, self.part)
        found: Amounts = after - before - needed
        return found


_SIZES = np.array(SIZES)[:, None]


class Foremost:
    """The order in which the pods of one moment would be evicted, as columns."""

    def __init__(
        self, evictable: Evictable, roster: VictimCandidates, ledger: QueueLedger, shares: Mapping[QueueName, Share]
    ) -> None:
        """Compute the eviction order of all PodGroups."""
        rows = evictable.rows
        self._evictable = evictable
        self.changes = evictable.changes
        self._node = rows.node
        self._gpus = rows.gpus()
        self.places = _in_line(roster, ledger, shares, evictable)
        """Shape [group]: the position of every PodGroup in eviction order; PodGroups that are never evicted are last.
        """
        self._place = self.places[rows.group]
        self._order = np.lexsort((self._place, rows.node))
        place = self._place[self._order]
        firsts = (self._order[place < len(self.places) * part] for part in PARTS)
        self._firsts = [(pods, rows.node[pods]) for pods in firsts]
        # The parts of each shared GPU, in eviction order of their pods.
        by_device = np.lexsort((self._place[rows.sharer], rows.device))
        self._sharer, self._device = rows.sharer[by_device], rows.device[by_device]

    def nodes(self, leaving: Mask, candidates: Mask, needed: Amounts, most: int) -> Mask:
        """Return at most `most` of the candidates, shape [node]: those where `needed` GPUs become free first.

        `leaving` are the pods that may be evicted, shape [pod]; `needed` has shape [node], in milli.
        """
        pods = self._order[leaving[self._order]]
        nodes, gpus = self._node[pods], self._gpus[pods]
        freed = np.cumsum(gpus)
        begins = np.flatnonzero(np.diff(nodes, prepend=-1))
        before = np.repeat((freed - gpus)[begins], np.diff(begins, append=len(pods)))
        # Three thirds of a GPU add up to slightly less than one GPU.
        enough = candidates[nodes] & (freed - before >= needed[nodes] - 0.5)
        chosen, first = np.unique(nodes[enough], return_index=True)
        places = self._place[pods[enough][first]]
        found = np.zeros(len(candidates), dtype=np.bool_)
        found[chosen[np.argsort(places, kind="stable")[:most]]] = True
        return found

    def pods(self, wanted: WantedPlaces, choice: Choice) -> Numbers:
        """Return the first pods in order that free all the places, as rows; empty if no pods do."""
        for pods, nodes in self._firsts:
            # Later pods do not change the result of earlier ones.
            found = self._first_of(pods[wanted.nodes[nodes]], wanted, choice)
            if found.size:
                break
        return found

    def _first_of(self, pods: Numbers, wanted: WantedPlaces, choice: Choice) -> Numbers:
        leaving = self._leaving(pods, wanted, choice)
        before, after = _places(leaving.free, wanted.asked), _places(leaving.there, wanted.asked)
        slots = None
        if leaving.moves.any():
            slots = leaving.slots()
            is_short = (slots + (np.array(wanted.slots) - np.array(wanted.taken))[:, None] < 0).any(axis=0)
            # Evicting more pods may be one too many, if these pods need slots themselves.
            after[is_short] = 0
        after = np.maximum.accumulate(np.maximum(after, before) + leaving.part * _MORE) - leaving.part * _MORE
        gains = np.diff(after, prepend=0)
        gains[leaving.begins] = (after - before)[leaving.begins]
        found = np.flatnonzero(gains)
        found = found[np.argsort(self._place[leaving.pods[found]], kind="stable")]
        if slots is not None and wanted.count > 1:
            found = found[_together(found, leaving.part, slots, gains, wanted)]
        enough = np.cumsum(gains[found]) >= wanted.count
        if not enough.any():
            return found[:0]
        # Take the pods up to the last needed one on each node.
        found = found[: int(enough.argmax()) + 1]
        last = np.zeros(len(leaving.begins), dtype=np.int64)
        np.maximum.at(last, leaving.part[found], found + 1)
        taken = leaving.pods[np.arange(len(leaving.pods)) < last[leaving.part]]
        return taken[np.argsort(self._place[taken], kind="stable")]

    def _leaving(self, pods: Numbers, wanted: WantedPlaces, choice: Choice) -> "_Leaving":
        leaves, moves = choice(pods)
        pods, moves = pods[leaves], moves[leaves]
        node = self._node[pods]
        begins = np.flatnonzero(np.diff(node, prepend=-1))
        part = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(pods)))
        freed = self._evictable.rows.amounts[pods].T.copy()
        gpus = freed[GPU] // GPU_MILLI
        freed[GPU] += GPU_MILLI * self._emptied(pods)
        free = wanted.future[:, node]
        return _Leaving(pods, moves, gpus, free, free + _sums_since(freed, begins, part), begins, part)

    def _emptied(self, pods: Numbers) -> Numbers:
        """Return of how many shared GPUs each of these pods is the last to be evicted, shape [pod of these]."""
        rows, leaves = self._evictable.rows, np.zeros(len(self._evictable.rows.node), dtype=np.bool_)
        leaves[pods] = True
        going = leaves[self._sharer]
        sharer, device = self._sharer[going], self._device[going]
        all_of = np.bincount(rows.device[rows.alive[rows.sharer]])
        count = np.bincount(device, minlength=len(all_of))
        last = np.flatnonzero(np.diff(device, append=-1))
        last = last[count[device[last]] >= all_of[device[last]]]
        return np.bincount(sharer[last], minlength=len(leaves))[pods]


_MORE = 1 << 32
"""More places than a node has."""


def places(room: Amounts, asked: Sequence[int]) -> int:
    """Return how many pods with these requests could fit where nodes have this room, shape [resource, node]."""
    return int(_places(room, asked).sum())


def _places(there: Amounts, asked: Sequence[int]) -> Amounts:
    rows = [row for row, amount in enumerate(asked) if amount > 0]
    room, least = np.maximum(there[rows], 0), np.array([asked[row] for row in rows])[:, None]
    found: Amounts = (room // least).min(axis=0, initial=_MORE - 1)
    return found


def _together(found: Numbers, part: Numbers, slots: Amounts, gains: Numbers, wanted: WantedPlaces) -> list[int]:
    """Return which of these, in this order, leave enough slots for all moved pods and for the pods together."""
    left, missing, chosen = list(wanted.slots), wanted.count, list[int]()
    known = dict[int, list[int]]()
    parts, more = part[found].tolist(), gains[found].tolist()
    for index, (at, here) in enumerate(zip(parts, slots[:, found].T.tolist(), strict=True)):
        gain = min(more[index], missing)
        rest = [
            there + now - before - gain * taken
            for there, now, before, taken in zip(left, here, known.get(at, _NO_SLOTS), wanted.taken, strict=True)
        ]
        if min(rest) >= 0:
            left, known[at] = rest, here
            chosen.append(index)
            missing -= gain
            if missing <= 0:
                break
    return chosen


_NO_SLOTS = [0] * len(SIZES)


def _sums_since(amounts: Amounts, begins: Numbers, part: Numbers) -> Amounts:
    """Return the sums since the part began, shape [..., pod]."""
    sums = np.cumsum(amounts, axis=-1)
    found: Amounts = sums - (sums - amounts)[..., begins][..., part]
    return found


_KEYS, _TURN = 12, 9
"""How many keys compare queues; one of them is the priority of the next PodGroup, the lowest first."""


def _in_line(
    roster: VictimCandidates, ledger: QueueLedger, shares: Mapping[QueueName, Share], evictable: Evictable
) -> Numbers:
    """Return the position of every running PodGroup in eviction order, shape [group]; unevictable ones are last."""
    charges, priority = evictable.charges(), evictable.priority
    lines, tree = defaultdict[QueueName, list[Line]](list), dict[QueueName, tuple[Account, ...]]()
    for name in roster.queues:
        payer = ledger.payer(name)
        if payer is not None:
            numbers, _ = roster.order(name)
            # They are evicted after the PodGroups of the queues below, if there are any.
            levels = np.full((_KEYS, len(numbers)), -np.inf)
            levels[_TURN] = -priority[numbers]
            lines[payer].append((numbers, levels))
            line = tuple(ledger.ancestors(payer))
            tree |= {account.name: line[index:] for index, account in enumerate(line)}
    names, top = {name: index for index, name in enumerate(sorted(tree))}, list[Line]()
    for line in sorted(tree.values(), key=len, reverse=True):
        account, share = line[0], shares.get(line[0].name, Share())
        contender = Contender.of(account.queue, fair_share=share.fair_share, total=roster.total)
        order, below = _by_level(lines[account.name])
        levels = _levels(contender, account.allocated, charges[:, order], turn=below[_TURN], name=names[account.name])
        (lines[line[1].name] if len(line) > 1 else top).append((order, levels))
    order, _ = _by_level(top)
    places = np.full(len(priority), len(priority), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places


def _levels(contender: Contender, allocated: Sequence[int], charges: Levels, *, turn: Levels, name: int) -> Levels:
    """Return how full a queue is before each eviction, as `Contender.rank` and `victims` compare it.

    `turn` is the priority of each PodGroup with the opposite sign; `name` is the rank of the queue's name among all
    names.
    """
    held = np.array(allocated)[:, None] - (np.cumsum(charges, axis=1) - charges)
    fair, deserved, allocatable, divisor = (
        np.array(each, dtype=np.float64)[:, None]
        for each in (contender.fair_share, contender.deserved, contender.allocatable, contender.divisor)
    )
    by_use = np.where(divisor > 0, held / np.maximum(divisor, 1), held * np.array(PENALTIES)[:, None])
    queue, (cpu, memory, gpu) = contender.queue, contender.allocatable
    keys = (
        bool(queue.problem),
        (fair < held).all(axis=0),
        (held > deserved).any(axis=0),
        -queue.priority,
        ((held > 0) & (allocatable == 0)).any(axis=0),
        by_use.max(axis=0),
        gpu,
        cpu,
        memory,
        turn,
        queue.created_at,
        name,
    )
    return np.array(np.broadcast_arrays(*keys), dtype=np.float64)


def _by_level(lines: Sequence[Line]) -> Line:
    """Merge the orders into one: first the PodGroup whose queue is fullest at that point."""
    if not lines:
        return np.zeros(0, dtype=np.int64), np.zeros((_KEYS, 0))
    order, levels = (np.concatenate(each, axis=-1) for each in zip(*lines, strict=True))
    keys = levels[(levels != levels[:, :1]).any(axis=1)]
    by_level = np.lexsort(-keys[::-1]) if len(keys) else np.arange(len(order))
    return order[by_level], levels[:, by_level]
