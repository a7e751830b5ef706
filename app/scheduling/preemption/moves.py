"""Finds pods that may move away from one node so that a pending pod fits there. The cheapest moves come first.

Nodes where the fewest GPUs are missing are looked at. On each of them pods are chosen one after the other, by the work
that they lose for what they free, and pods that turn out not to be needed stay. A trial decides whether all of them
find other places.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import AXES, CPU, GPU, GPU_MILLI, MEMORY
from app.model.snapshot import PART, Mask, NodeTable
from app.scheduling.placement import fit
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.rows import Numbers
from app.scheduling.placement.state import Shape, shape_of
from app.scheduling.preemption import prospects
from app.scheduling.preemption.budget import NAMED, Budget
from app.scheduling.preemption.victims import VictimBatch
from app.scheduling.preemption.whatif import WhatIf

MOST_NODES = 64
"""Moves are looked for on at most this many nodes."""

MOST_TRIALS = 16
"""At most this many sets of moves are tried for one pod."""

MOST_CHOSEN = 16
"""A set has at most this many items. An item is one chunk, or all chunks that share a GPU."""

_USE = 1 << 10
"""The use of an item that frees all that is missing of one resource."""

_WORK, _POD_WORK = NAMED // 4, NAMED // 16
"""Looking at one PodGroup on a node, and at each pod of it, counts as walking over so many victims."""

Price = Callable[[VictimBatch], int]
"""What it costs to move a chunk: at least 0, in any unit."""


def cheapest(  # noqa: PLR0913 - one question: for which pod, where, and which pods may move at which price
    state: WhatIf, pod: Pod, candidates: Mask, movable: Mask, *, price: Price, budget: Budget
) -> list[Sequence[VictimBatch]]:
    """Return sets of chunks on one node each that make room for the pod, the cheapest first: at most `MOST_TRIALS`.

    `candidates` are the nodes where moves may help, shape [node]; `movable` are the PodGroups that may move, shape
    [group]. Sets with the same price are in eviction order.
    """
    evictable, place, nodes = state.evictable, prospects.line(state).places, state.snapshot.nodes
    stock = state.board.stock
    found = list[tuple[int, tuple[int, int], Sequence[VictimBatch]]]()
    pods = np.flatnonzero(evictable.rows.alive & candidates[evictable.rows.node] & movable[evictable.rows.group])
    pods = pods[evictable.may_settle(pods, prospects.placeable(state), evictable.repackable(stock))]
    near = candidates & _may_hold(state, pod, pods)
    for column, groups in _on_nodes(state, pods, _nearest(pod, stock, near, nodes)):
        if not budget.walk(sum(_WORK + _POD_WORK * len(group.placed) for group in groups)):
            break
        chunks = [chunk for group in groups for chunk in state.roster.chunks_on(group, nodes.nodes[column].name)]
        chunks.sort(key=lambda chunk: place.item(evictable.ids[chunk.group.key]))
        here = NodeMoves(pod, column, stock, nodes)
        for total, chosen in here.cheapest(chunks, price):
            last = max((place.item(evictable.ids[each.group.key]), here.turn(each)) for each in chosen)
            found.append((total, last, chosen))
    elsewhere = _Elsewhere(state)
    ordered = (chosen for *_, chosen in sorted(found, key=lambda each: each[:2]))
    return list(islice(filter(elsewhere.holds, ordered), MOST_TRIALS))


class _Elsewhere:
    """Tells which pods may find room on another node than their own."""

    def __init__(self, state: WhatIf) -> None:
        self._board = state.board
        self._rooms: dict[Shape, Mask] = {}

    def holds(self, chunks: Sequence[VictimBatch]) -> bool:
        """Return whether each pod of the chunks may find room elsewhere. False is certain."""
        return all(self._finds(chunk, one) for chunk in chunks for one in chunk.placed)

    def _finds(self, chunk: VictimBatch, one: Placed) -> bool:
        pod = one.pod
        # Such a pod may take the place that another pod leaves, or that an eviction opens.
        if not chunk.is_alike or pod.sharing is not None or pod.near or pod.claims or pod.labels is not None:
            return True
        shape = shape_of(pod)
        room = self._rooms.get(shape)
        if room is None:
            room = self._rooms[shape] = self._board.eligible(pod) & self._board.room_later(pod)
        column = self._board.stock.column(one.node)
        return int(room.sum()) > (column is not None and room.item(column))


def _nearest(pod: Pod, stock: FreeResources, candidates: Mask, nodes: NodeTable) -> list[int]:
    """Return the columns of at most `MOST_NODES` nodes: where the fewest GPUs are missing.

    Of these, the fewest extended resources, the least CPU, the least memory.
    """
    columns, asked = np.flatnonzero(candidates), stock.taken(pod)
    whole = np.maximum(nodes.device_memory_mib[columns] * PART, 1)
    parts = 0 if pod.sharing is None else stock.devices.needs(pod.sharing)[columns] * GPU_MILLI // whole
    wanted = asked[GPU] + parts * (pod.sharing.devices if pod.sharing else 0)
    there = np.maximum(stock.future[GPU, columns], 0) + stock.devices.free_parts()[columns] * GPU_MILLI // whole
    missing = np.maximum(np.array(asked)[:, None] - stock.future[:, columns], 0)
    extended = missing[len(AXES) :].sum(axis=0)
    order = np.lexsort((missing[MEMORY], missing[CPU], extended, np.maximum(wanted - there, 0)))
    found: list[int] = columns[order[:MOST_NODES]].tolist()
    return found


def _may_hold(state: WhatIf, pod: Pod, pods: Numbers) -> Mask:
    """Return the nodes where the pod may have room without these pods, which are rows, shape [node]."""
    rows, stock = state.evictable.rows, state.board.stock
    most = stock.future.copy()
    np.add.at(most.T, rows.node[pods], rows.amounts[pods])
    leaves = np.zeros(len(rows.node), dtype=np.bool_)
    leaves[pods] = True
    np.add.at(most[GPU], rows.node[rows.sharer[leaves[rows.sharer]]], GPU_MILLI)
    return fit.room(stock.taken(pod), most)


def _on_nodes(state: WhatIf, pods: Numbers, columns: Sequence[int]) -> Iterator[tuple[int, list[PodGroup]]]:
    """Yield for each of these nodes the PodGroups of these pods, which are rows."""
    evictable, rows = state.evictable, state.evictable.rows
    here = np.zeros(len(state.snapshot.nodes.nodes), dtype=np.bool_)
    here[columns] = True
    pods, groups = pods[here[rows.node[pods]]], dict[int, dict[int, None]]()
    for column, group in zip(rows.node[pods].tolist(), rows.group[pods].tolist(), strict=True):
        groups.setdefault(column, {})[group] = None
    for column in columns:
        yield column, [evictable.group(number) for number in groups.get(column, ())]


@dataclass(frozen=True, slots=True)
class _Item:
    """Chunks that only help together."""

    chunks: tuple[VictimBatch, ...]
    freed: Sequence[int]
    """What they free on the node, by resource; GPUs that they share are not included."""
    gpus: int
    """How many GPUs they free for the pod."""
    price: int


class NodeMoves:
    """The chunks with pods on one node, for one pod that needs room there."""

    def __init__(self, pod: Pod, column: int, stock: FreeResources, nodes: NodeTable) -> None:
        """Compute what the pod is missing on the node."""
        self._pod, self._column, self._stock = pod, column, stock
        self._node, self._whole = nodes.nodes[column].name, nodes.device_memory_mib.item(column) * PART
        self._devices = stock.devices.at(column)
        self._asked = list(stock.taken(pod))
        future: list[int] = stock.future[:, column].tolist()
        self._missing = [
            max(asked - there, 0) if asked else 0 for asked, there in zip(self._asked, future, strict=True)
        ]
        idle = future[GPU] // GPU_MILLI  # Negative on an overcommitted node: so many GPUs more must become free.
        if pod.sharing is None:
            self._gpus = max(-(-self._asked[GPU] // GPU_MILLI) - idle, 0) if self._asked[GPU] else 0
        else:
            need = stock.devices.need(pod.sharing, column)
            fitting = sum(need <= each.future < self._whole for each in self._devices)
            self._gpus = max(pod.sharing.devices - idle - fitting, 0)
        self._missing[GPU] = 0

    def cheapest(self, chunks: Sequence[VictimBatch], price: Price) -> Iterator[tuple[int, Sequence[VictimBatch]]]:
        """Yield sets of chunks that make room for the pod, each with its price. `chunks` are in eviction order."""
        prices = {id(chunk): price(chunk) for chunk in chunks}
        chosen = self._chosen(self._items(chunks, prices))
        if chosen:
            found = _chunks(chosen)
            yield sum(prices[id(chunk)] for chunk in found), found
        if self._gpus == 1 and sum(each.future for each in self._devices) >= self._whole:
            # Their parts may fit together in another order.
            sharing = [chunk for chunk in chunks if any(one.devices and one.node == self._node for one in chunk.placed)]
            if sharing:
                yield sum(prices[id(chunk)] for chunk in sharing), sharing

    def _chosen(self, items: list[_Item]) -> Sequence[_Item] | None:
        """Return the items that free what is missing, those with the lowest price for their use; None if none do."""
        chosen, missing, gpus = list[_Item](), list(self._missing), self._gpus
        while gpus > 0 or any(missing):
            uses = ((item.price, _use(item, missing, gpus), number) for number, item in enumerate(items))
            best = min(((price * _USE // use, -use, number) for price, use, number in uses if use), default=None)
            if best is None or len(chosen) == MOST_CHOSEN:
                return None
            item = items.pop(best[-1])
            chosen.append(item)
            gpus -= item.gpus
            freed = self._freed(_chunks(chosen))
            missing = [max(short - more, 0) for short, more in zip(self._missing, freed, strict=True)]
        return self._needed(chosen)

    def turn(self, chunk: VictimBatch) -> int:
        """Return the number of the first pod of a chunk on the node, in the order in which its pods are evicted."""
        return next(number for number, one in enumerate(chunk.placed) if one.node == self._node)

    def _needed(self, chosen: Sequence[_Item]) -> Sequence[_Item]:
        """Return the items without those that are not needed; the most expensive ones are left out first."""
        needed = list(chosen)
        for item in sorted(chosen, key=lambda each: -each.price):
            rest = [each for each in needed if each is not item]
            freed = self._freed(_chunks(rest))
            suffices = all(short <= there for short, there in zip(self._missing, freed, strict=True))
            if suffices and sum(each.gpus for each in rest) >= self._gpus:
                needed = rest
        return needed

    def _items(self, chunks: Sequence[VictimBatch], prices: Mapping[int, int]) -> list[_Item]:
        """Return each chunk alone, and for each shared GPU the chunks whose pods make it useful for the pod."""
        items, sharers = list[_Item](), dict[str, list[tuple[int, VictimBatch]]]()
        for chunk in chunks:
            here = [one for one in chunk.placed if one.node == self._node]
            freed = self._freed((chunk,))
            items.append(_Item((chunk,), freed, freed[GPU] // GPU_MILLI, prices[id(chunk)]))
            for one in here:
                if one.pod.sharing is not None:
                    need = self._stock.devices.need(one.pod.sharing, self._column)
                    for name in one.devices:
                        sharers.setdefault(name, []).append((need, chunk))
        if self._gpus:
            leaving = (self._leaving(each.future, sharers.get(each.name, ())) for each in self._devices)
            order = {id(chunk): number for number, chunk in enumerate(chunks)}
            for each in sorted(filter(None, leaving), key=lambda each: max(order[id(chunk)] for chunk in each)):
                items.append(_Item(each, self._freed(each), 1, sum(prices[id(chunk)] for chunk in each)))
        return items

    def _leaving(self, future: int, sharers: Iterable[tuple[int, VictimBatch]]) -> tuple[VictimBatch, ...]:
        """Return the chunks to move away from a shared GPU so that the pod can use it; none if that does not suffice.

        A single chunk that suffices is best, the smallest one; otherwise the largest ones are moved.
        """
        sharing = self._pod.sharing
        need = self._whole if sharing is None else self._stock.devices.need(sharing, self._column)
        if future >= min(need, self._whole):
            return ()
        ordered = sorted(sharers, key=lambda each: each[0])
        for parts, chunk in ordered:
            if future + parts >= need:
                return (chunk,)
        chosen = dict[int, VictimBatch]()
        for parts, chunk in reversed(ordered):
            chosen[id(chunk)] = chunk
            future += parts
            if future >= need:
                return tuple(chosen.values())
        return ()

    def _freed(self, chunks: Iterable[VictimBatch]) -> list[int]:
        """Return what these chunks free on the node, by resource, without GPUs that they share."""
        freed = [0] * len(self._asked)
        for chunk in chunks:
            for one in chunk.placed:
                if one.node == self._node:
                    for row, amount in enumerate(self._stock.amounts(one.pod) or ()):
                        freed[row] += amount
        return freed


def _chunks(items: Iterable[_Item]) -> list[VictimBatch]:
    """Return the chunks of these items, each once."""
    return list({id(chunk): chunk for item in items for chunk in item.chunks}.values())


def _use(item: _Item, missing: Sequence[int], gpus: int) -> int:
    """Return how much of what is missing the item frees: 0 for nothing, `_USE` for all of one resource."""
    pairs = [(item.gpus, gpus), *zip(item.freed, missing, strict=True)]
    return sum(-(-min(freed, short) * _USE // short) for freed, short in pairs if short > 0)
