"""Finds which of the named victims are worth a trial: one comparison for all nodes.

For each node it computes what is free after the first, the first two, the first three victims on it are gone, and so
on. The bounds may wrongly say yes, except where `noderoom` says otherwise; the caller checks more closely.
"""

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.model.names import NodeName, QueueName
from app.model.pod import Pod
from app.model.resources import GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement import fit
from app.scheduling.placement.links import MOST_NODES, joined
from app.scheduling.placement.rows import Numbers
from app.scheduling.placement.slots import SIZES, Slots
from app.scheduling.preemption.evictable import Evictable
from app.scheduling.preemption.noderoom import NodeRoom
from app.scheduling.preemption.victims import VictimBatch

MANY = 1 << 40
"""Unlimited, in any unit."""

_SIZES = np.array(SIZES)[:, None]


@dataclass(frozen=True, slots=True)
class Spot:
    """A node that may have room after some of the named victims are evicted from it."""

    number: int
    """The number of the last of these chunks."""
    node: NodeName
    chunks: Sequence[VictimBatch]
    """The chunks on this node that were not evicted before and that may be lost, or moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The pods of the named chunks, by node and then in eviction order."""

    chunk: Numbers
    """Shape [pod]: the number of the pod's chunk."""
    node: Numbers
    """Shape [pod]: the column of the pod's node."""
    shape: Numbers
    """Shape [pod]: the shape's number, as in `Evictable.rows`."""
    amounts: Amounts
    """Shape [resource, pod]."""
    shares: Mask
    """Shape [pod]: whether the pod has parts of GPUs."""
    node_begins: Numbers
    """Shape [node of these]: where the pods of each node begin."""
    at_node: Numbers
    """Shape [pod]: the number of the pod's node in `node_begins`."""
    run_begins: Numbers
    """Shape [run]: where each run begins. The pods of one chunk on one node are a run."""
    run: Numbers
    """Shape [pod]: the number of the pod's run."""
    is_last: Mask
    """Shape [pod]: whether the pod is the last of its run."""
    may_be_lost: Mask
    """Shape [pod]: whether the pod may be lost, so that it needs no other place."""
    unlike: Mask
    """Shape [pod]: whether the pods of its chunk differ."""
    is_elsewhere: Mask
    """Shape [pod]: whether its chunk has pods on other nodes as well."""
    moved: Amounts
    """Shape [size, pod]: how many slots the pods of the chunk need, at the last pod of a run; 0 where they may be lost.
    """
    is_open: Mask
    """Shape [pod]: whether it is unknown what the chunk frees on other nodes, at the last pod of a run."""
    here: Numbers
    """Shape [pair]: the last pod of a run, for each other node of its chunk; by both nodes and eviction order."""
    there: Numbers
    """Shape [pair]: the last pod of the chunk's run on that other node."""
    leaves: Amounts
    """Shape [pair]: how many milli-GPUs the chunk frees on that other node."""
    pair_begins: Numbers
    """Shape [pair of nodes]: where the pairs of two nodes begin."""
    at_pair: Numbers
    """Shape [pair]: the number of its two nodes in `pair_begins`."""
    sharer: Numbers
    """Shape [part]: which of the pods has a part of a GPU; `MANY` for a pod that is not among them."""
    device_begins: Numbers
    """Shape [device]: where the parts of each GPU begin; the parts of one GPU are adjacent."""


class Lineup:
    """The victims of one search in their order. Only `extend` changes it."""

    work = 1
    """The work of walking over one victim, in the unit of a budget."""

    def __init__(self, evictable: Evictable, losing: Container[QueueName]) -> None:
        """Name no victim yet; `losing` are the queues that may lose pods."""
        self._evictable = evictable
        self._losing = losing
        self.count = 0
        """How many chunks have been named so far."""
        self._columns: _Columns | None = None

    def extend(self) -> bool:
        """Name more chunks; return whether there were any."""
        raise NotImplementedError

    def chunk(self, number: int) -> VictimBatch:
        """Return one of the chunks named so far."""
        raise NotImplementedError

    def number(self, chunk: VictimBatch) -> int:
        """Return the number of one of the chunks named so far."""
        raise NotImplementedError

    def up_to(self, chunks: Sequence[VictimBatch]) -> int:
        """Name chunks until all of these have been named; return how many were named up to the last of these."""
        raise NotImplementedError

    def with_spare(self, chunks: Sequence[VictimBatch], taken: Collection[int]) -> list[VictimBatch]:
        """For a gang that is evicted as a whole, add its chunks elsewhere beyond its minimum: they cannot run alone."""
        raise NotImplementedError

    def _named(self) -> tuple[Numbers, Numbers, Mask]:
        """Return the rows of the pods, the chunk of each, and three facts for every chunk, shape [chunk, fact].

        The facts: whether the chunk may be lost, whether its pods differ, whether other chunks of its PodGroup are
        before it.
        """
        raise NotImplementedError

    def at(self, number: int) -> VictimBatch | None:
        """Return the chunk with this number, and name it if necessary; None if there are not so many."""
        while number >= self.count:
            if not self.extend():
                return None
        return self.chunk(number)

    def spots(
        self, room: NodeRoom, pods: Sequence[Pod], slots: Slots, taken: Collection[VictimBatch], begin: int
    ) -> Iterator[Spot]:
        """Yield the nodes where one of the pods might fit after some named chunks are evicted, in eviction order.

        `taken` are the chunks that were evicted before. The chunks with numbers below `begin` are known not to suffice.
        """
        columns = self._columns
        if columns is None:
            columns = self._columns = self._made()
        stays = np.ones(self.count, dtype=np.bool_)
        stays[[self.number(each) for each in taken]] = False
        free = stays[columns.chunk]
        leaving = free if room.is_moot else free & self._may_leave(columns, room)
        (found,) = np.nonzero(columns.is_last & leaving & (columns.chunk >= begin))
        if found.size and not room.is_moot:
            gone = [one for chunk in room.again for one in chunk.placed]
            moved = [one.pod for chunk in room.again if chunk.group.queue not in self._losing for one in chunk.placed]
            prefixes = _Prefixes(columns, room, free, leaving)
            found = found[prefixes.have_room(found)]
            if found.size:
                found = found[prefixes.have_slots(found, slots.left((*pods, *moved), gone))]
        yield from self._in_order(columns, found, leaving)

    def _in_order(self, columns: _Columns, found: Numbers, leaving: Mask) -> Iterator[Spot]:
        nodes, by_chunk = self._evictable.nodes.nodes, dict[int, dict[NodeName, int]]()
        for index in found[np.argsort(columns.chunk[found], kind="stable")].tolist():
            by_chunk.setdefault(columns.chunk.item(index), {})[nodes[columns.node.item(index)].name] = index
        for number, by_node in by_chunk.items():
            for node in dict.fromkeys(one.node for one in self.chunk(number).placed):
                if node in by_node:
                    here = slice(columns.node_begins.item(columns.at_node.item(by_node[node])), by_node[node] + 1)
                    numbers = dict.fromkeys(columns.chunk[here][leaving[here]].tolist())
                    yield Spot(number, node, [self.chunk(each) for each in numbers])

    def _may_leave(self, columns: _Columns, room: NodeRoom) -> Mask:
        """Return which pods, with those of their chunk on the node, may be lost or find other places, shape [pod]."""
        examples = self._evictable.examples
        settles = np.ones(len(examples) + 1, dtype=np.bool_)
        for shape in np.unique(columns.shape[~columns.may_be_lost]).tolist():
            settles[shape] = shape == 0 or room.finds_place(examples[shape - 1])
        may_settle = settles[columns.shape] | (columns.shares & room.repackable[columns.node])
        together = np.logical_and.reduceat(may_settle, columns.run_begins)[columns.run]
        found: Mask = columns.may_be_lost | columns.unlike | together
        return found

    def _made(self) -> _Columns:
        rows, (row, chunk, facts) = self._evictable.rows, self._named()
        order = np.lexsort((chunk, rows.node[row]))
        row, chunk = row[order], chunk[order]
        node, amounts, shares = rows.node[row], rows.amounts[row].T, rows.shares[row]
        begins_node = np.diff(node, prepend=-1) != 0
        begins_run = begins_node | (np.diff(chunk, prepend=-1) != 0)
        run, is_last = np.cumsum(begins_run) - 1, np.append(begins_run, [True])[1:]
        may_be_lost, unlike, has_spare = facts[chunk].T
        is_elsewhere = np.bincount(chunk)[chunk] > np.bincount(run)[run]
        gpus = amounts[GPU] // GPU_MILLI
        moved = np.where(may_be_lost, 0, gpus // _SIZES)
        # Unknown: what becomes free elsewhere with spare pods, on many nodes, or when all pods of a shared GPU are
        # evicted.
        is_wide = np.bincount(chunk[is_last])[chunk] > MOST_NODES
        is_open = has_spare | (is_elsewhere & (is_wide | (_sums(shares[None], chunk)[0] > 0)))
        sharer, device_begins = self._parts(row)
        last = np.flatnonzero(is_last)
        by_chunk = np.argsort(chunk[last], kind="stable")
        here, there = (last[by_chunk[side]] for side in joined(chunk[last][by_chunk]))
        by_nodes = np.lexsort((chunk[here], node[there], node[here]))
        here, there = here[by_nodes], there[by_nodes]
        begins_pair = (np.diff(node[here], prepend=-1) != 0) | (np.diff(node[there], prepend=-1) != 0)
        return _Columns(
            chunk=chunk,
            node=node,
            shape=rows.shape[row],
            amounts=amounts,
            shares=shares,
            node_begins=np.flatnonzero(begins_node),
            at_node=np.cumsum(begins_node) - 1,
            run_begins=np.flatnonzero(begins_run),
            run=run,
            is_last=is_last,
            may_be_lost=may_be_lost,
            unlike=unlike,
            is_elsewhere=is_elsewhere,
            moved=np.where(is_last, _sums(moved, chunk), 0),
            is_open=is_last & is_open,
            here=here,
            there=there,
            leaves=np.bincount(run, weights=amounts[GPU]).astype(np.int64)[run[there]],
            pair_begins=np.flatnonzero(begins_pair),
            at_pair=np.cumsum(begins_pair) - 1,
            sharer=sharer,
            device_begins=device_begins,
        )

    def _parts(self, row: Numbers) -> tuple[Numbers, Numbers]:
        """Return which pods share GPUs with these rows (and the rows themselves), and where each GPU's parts begin."""
        rows = self._evictable.rows
        places = np.full(len(rows.node), MANY)
        places[row] = np.arange(len(row))
        alive = rows.alive[rows.sharer]
        place, device = places[rows.sharer[alive]], rows.device[alive]
        is_named = np.zeros(device.max(initial=-1) + 1, dtype=np.bool_)
        is_named[device[place < MANY]] = True
        place, device = place[is_named[device]], device[is_named[device]]
        order = np.argsort(device, kind="stable")
        return place[order], np.flatnonzero(np.diff(device[order], prepend=-1))


class _Prefixes:
    """What each node has free after its evictable pods are evicted, up to each position in the columns."""

    def __init__(self, columns: _Columns, room: NodeRoom, free: Mask, leaving: Mask) -> None:
        """`free` are the pods not evicted before; `leaving` are those of them that may be evicted, shape [pod]."""
        self._columns, self._room, self._leaving = columns, room, leaving
        self._future = room.stock.future[:, columns.node]
        # How many GPUs become whole.
        self._whole_before = np.zeros(len(leaving), dtype=np.int64)
        self._leaves_parts = np.zeros(len(leaving), dtype=np.bool_)
        for column, amounts, whole, leaves_parts in room.kept():
            here = columns.node == column
            self._future[:, here] = np.array(amounts, dtype=np.int64)[:, None]
            self._whole_before[here], self._leaves_parts[here] = whole, leaves_parts
        self._freed = self._summed(columns.amounts)
        emptied = self._sums(np.bincount(self._last_of_devices(free), minlength=len(leaving)))
        self._whole = self._whole_before + emptied

    def have_room(self, found: Numbers) -> Mask:
        """Return at which of these positions one of the pods may fit on the node."""
        columns, room = self._columns, self._room
        there = self._future[:, found] + self._freed[:, found]
        there[GPU] += GPU_MILLI * self._whole[found]
        fits: Mask = np.logical_or.reduce([fit.room(asked, there) for asked in room.asked])
        # Only the board can compute what becomes free with these pods.
        unknown = (columns.shape == 0) | (columns.shares & room.asks_for_part)
        fits |= self._leaves_parts[found] | (self._summed(unknown)[found] > 0)
        if room.open is not None:
            fits &= room.open[columns.node[found]] | (self._summed(columns.is_elsewhere)[found] > 0)
        return fits

    def have_slots(self, found: Numbers, left: Sequence[int]) -> Mask:
        """Return at which positions the pods that need places may find slots; `left` counts the slots of each size."""
        future, freed = self._future[GPU, found], self._freed[GPU, found]
        before = np.maximum(future, 0) // GPU_MILLI + self._whole_before[found]
        after = np.maximum(future + freed, 0) // GPU_MILLI + self._whole[found]
        more = after // _SIZES - before // _SIZES
        more += self._summed(self._gained() - self._columns.moved)[:, found]
        suffice: Mask = (np.array(left)[:, None] + more >= 0).all(axis=0)
        return suffice

    def _gained(self) -> Amounts:
        """Return how many slots each chunk frees on other nodes, shape [size, pod], at the last pod of a run."""
        columns = self._columns
        leaves = np.where(self._leaving[columns.here], columns.leaves, 0)
        with_it = _sums_since(leaves, columns.pair_begins, columns.at_pair)
        future, whole = self._future[GPU, columns.there], self._whole_before[columns.there]
        after, before = (
            (np.maximum(future + gone, 0) // GPU_MILLI + whole) // _SIZES for gone in (with_it, with_it - leaves)
        )
        gained = [np.bincount(columns.here, weights=each, minlength=len(self._leaving)) for each in after - before]
        return np.array(gained).astype(np.int64) + MANY * columns.is_open

    def _summed(self, amounts: Amounts | Mask) -> Amounts:
        """Return the sums of the values of evicted pods, shape [..., pod]."""
        return self._sums(np.where(self._leaving, amounts, 0))

    def _sums(self, amounts: Amounts) -> Amounts:
        """Return the sums over the pods of the same node up to each pod, shape [..., pod]."""
        return _sums_since(amounts, self._columns.node_begins, self._columns.at_node)

    def _last_of_devices(self, free: Mask) -> Numbers:
        """Return, for each GPU that becomes whole when all its pods are evicted, the last of these pods."""
        sharer = self._columns.sharer
        if not sharer.size:
            return sharer
        known = np.minimum(sharer, len(free) - 1)
        stays = (sharer == MANY) | (free & ~self._leaving)[known]
        places = np.where(stays, MANY, np.where(free[known], sharer, -1))
        last = np.maximum.reduceat(places, self._columns.device_begins)
        found: Numbers = last[(last >= 0) & (last < MANY)]
        return found


def _sums_since(amounts: Amounts, begins: Numbers, part: Numbers) -> Amounts:
    """Return the sums since the part began; `begins` says where each part begins."""
    sums = np.cumsum(amounts, axis=-1)
    before = (sums - amounts)[..., begins]
    found: Amounts = sums - before[..., part]
    return found


def _sums(amounts: Amounts | Mask, index: Numbers) -> Amounts:
    """Return, for each pod, the sums over all pods with the same index, shape [..., pod]."""
    return np.array([np.bincount(index, weights=each)[index] for each in amounts]).astype(np.int64)
