"""Computes the state of one node after evictions: whether there may be room, and which victims cannot return.

The bounds wrongly say no in two rare cases. Pods of a gang that have found room are assumed to stay there. A pod is
assumed not to move to the place that a pod of another PodGroup leaves on another node.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from app.model.names import NodeName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU, GPU_MILLI
from app.model.snapshot import Mask
from app.scheduling.placement import fit
from app.scheduling.placement.state import Shape, Timing, shape_of
from app.scheduling.preemption.victims import VictimBatch
from app.scheduling.preemption.whatif import WhatIf


class NodeRoom:
    """Answers for one step of a search: for these pods of a group, in this state, with `again` evicted as well."""

    def __init__(self, base: WhatIf, group: PodGroup, pods: Sequence[Pod], again: Sequence[VictimBatch]) -> None:
        self._board = base.board
        self._evictable = base.evictable
        self.stock = base.board.stock
        # Where quota is the obstacle, an eviction helps wherever it is.
        is_over = base.check_most(group, pods) is not None
        # A pod on one node may also keep a pod away from all other nodes of a domain.
        is_near = any(pod.near or pod.labels is not None for pod in pods)
        self.is_moot = is_over or is_near
        """Whether an eviction may help wherever it is."""
        asked = {tuple(amounts) for pod in pods if (amounts := self.stock.amounts(pod)) is not None}
        self.asked = list(asked)
        """The distinct requests of the pods."""
        self.asks_for_part = any(pod.sharing is not None for pod in pods)
        # Pods evicted before may move to the place of another victim, and make room elsewhere. A device that a victim
        # has claimed is free for other pods on any node.
        is_bound = not again and not any(pod.claims for pod in pods)
        self.open: Mask | None = self._board.open_to_any(pods) if is_bound else None
        """The nodes where an eviction is necessary, shape [node]; None where evictions elsewhere may help."""
        self.again = again
        """The chunks that are evicted as well."""
        self._kept: dict[NodeName, list[VictimBatch]] = {}
        for chunk in again:
            for node in dict.fromkeys(one.node for one in chunk.placed):
                self._kept.setdefault(node, []).append(chunk)
        # Whether there is room somewhere for a shape now.
        self._has_place: dict[Shape, bool] = {}

    def kept(self) -> Iterator[tuple[int, Sequence[int], int, bool]]:
        """Yield the nodes of the chunks in `again`: the column, and what the node has free then for each resource.

        Then how many of the node's GPUs become whole, and whether parts of GPUs, or claims, become free.
        """
        for node in self._kept:
            column = self.stock.column(node)
            if column is not None:
                leaving = self._leaving(node, ())
                is_open = any(one.pod.claims or (one.pod.sharing is not None and self.asks_for_part) for one in leaving)
                yield column, self._amounts(column, leaving), self.stock.devices.whole_without(leaving, column), is_open

    def may_do(self, node: NodeName, chunks: Sequence[VictimBatch]) -> bool:
        """Return whether one of the pods might fit on the node after these chunks are evicted."""
        column = self._board.snapshot.nodes.index.get(node)
        if column is None:
            return False
        if self.is_moot:
            return True
        if self.open is not None and not self.open.item(column) and _leave_only(node, chunks):
            return False
        leaving = self._leaving(node, chunks)
        if any(one.pod.claims or (one.pod.sharing is not None and self.asks_for_part) for one in leaving):
            return True  # only the board can compute what becomes free with these pods
        room = self._room(column, leaving)
        return any(fit.suffices(asked, room) for asked in self.asked)

    def lost(self, node: NodeName, chunks: Sequence[VictimBatch]) -> Sequence[VictimBatch]:
        """Return the chunks that certainly find no place again when one of the pods is placed on the node."""
        column = self._board.snapshot.nodes.index.get(node)
        if column is None or self.is_moot or self.asks_for_part or len(self.asked) != 1:
            return ()
        left = self._left(column, self._leaving(node, chunks))
        return [
            chunk
            for chunk in chunks
            if chunk.is_alike
            and any(not (self._fits(one.pod, left) or self._may_settle(one)) for one in _on(node, chunk))
        ]

    def _fits(self, pod: Pod, left: Sequence[int]) -> bool:
        amounts = self.stock.amounts(pod)
        if amounts is None or not fit.suffices(amounts, left):
            return False
        return pod.sharing is None or left[GPU] >= GPU_MILLI * pod.sharing.devices

    def _may_settle(self, one: Placed) -> bool:
        """Return whether a pod may find room elsewhere, or between other parts of the GPUs of its node."""
        column = self.stock.column(one.node)
        if one.pod.sharing is not None and column is not None and self.repackable.item(column):
            return True
        return self.finds_place(one.pod)

    @cached_property
    def repackable(self) -> Mask:
        """Return the nodes where parts of GPUs may find room between other parts, shape [node]."""
        return self._evictable.repackable(self.stock)

    def finds_place(self, pod: Pod) -> bool:
        """Return whether there may be room for a pod elsewhere, including nodes that victims left before."""
        shape = shape_of(pod)
        found = self._has_place.get(shape)
        if found is None:
            found = self._has_place[shape] = self._may_place(pod)
        return found or bool(pod.near or pod.claims) or pod.labels is not None

    def _may_place(self, pod: Pod) -> bool:
        if self._board.find(pod, timing=Timing.LATER) is not None:
            return True
        index = self._board.snapshot.nodes.index
        columns = ((index.get(node), node) for node in self._kept)
        lefts = (self._left(column, self._leaving(node, ())) for column, node in columns if column is not None)
        return any(self._fits(pod, left) for left in lefts)

    def _left(self, column: int, leaving: Sequence[Placed]) -> list[int]:
        """Return what is left of the node after these pods are evicted and the smallest of the pods is placed there."""
        least = [min(each) for each in zip(*self.asked, strict=True)]
        return [there - asked for there, asked in zip(self._room(column, leaving), least, strict=True)]

    def _leaving(self, node: NodeName, chunks: Iterable[VictimBatch]) -> list[Placed]:
        return [one for chunk in (*self._kept.get(node, ()), *chunks) for one in chunk.placed if one.node == node]

    def _room(self, column: int, leaving: Sequence[Placed]) -> list[int]:
        """Return what the node has free after these pods are evicted, a number for each resource."""
        room = self._amounts(column, leaving)
        room[GPU] += GPU_MILLI * self.stock.devices.whole_without(leaving, column)
        return room

    def _amounts(self, column: int, leaving: Sequence[Placed]) -> list[int]:
        """Return the same without GPUs that become whole."""
        room: list[int] = self.stock.future[:, column].tolist()
        for one in leaving:
            for row, amount in enumerate(self.stock.amounts(one.pod) or ()):
                room[row] += amount
        return room


def _on(node: NodeName, chunk: VictimBatch) -> Iterable[Placed]:
    return (one for one in chunk.placed if one.node == node)


def _leave_only(node: NodeName, chunks: Iterable[VictimBatch]) -> bool:
    return all(one.node == node for chunk in chunks for one in chunk.placed)
