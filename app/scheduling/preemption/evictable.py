"""Stores in columns what evictable pods hold: which nodes could have room, before any victim is named.

It computes what nodes have at most when all pods of a scope are gone. Pods that are moved need places that are free
now. Only pods of no known shape, and pods of PodGroups with unlike pods, may also take places that other pods leave
elsewhere at the same time. So the bound wrongly says no where a pod could only move to the place of a pod of another
PodGroup.
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from app.model.names import GroupKey, QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU, GPU_MILLI, QUOTA_AXES, Amounts
from app.model.snapshot import PART, Mask, Snapshot
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.links import Links
from app.scheduling.placement.rows import Numbers, RowMaker, are_alike
from app.scheduling.placement.slots import SIZES
from app.scheduling.preemption.victims import VictimBatch

MOST_SCOPES = 256
"""How many scopes are remembered in one plan: one takes as much memory as four columns of the nodes."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which pods may be evicted."""

    queues: frozenset[QueueName] | None = None
    """Pods of these queues; of all queues if None."""
    below: int | None = None
    """Only pods of PodGroups with a priority below this one."""
    bare: bool = True
    """Whether pods without a controller are included."""
    moved: bool = False
    """Whether each pod needs another place."""
    worked: tuple[float, float] = (0.0, inf)
    """Only pods of PodGroups that have worked for at most so many milli-GPU-seconds (second) at this time (first)."""


EVERYBODY = Scope()


@dataclass(slots=True)
class _Held:
    """What pods of one scope hold; `seen` is how many changes of nodes are included."""

    scope: Scope
    placeable: Mask
    """Shape [shape]: whether pods of the shape find other places, if the scope requires other places."""
    amounts: Amounts
    """Shape [resource, node]."""
    sizes: Amounts
    """Shape [size, node]: how many pods hold so many whole GPUs; larger sizes are not counted."""
    unlike: Amounts
    """Shape [size, node]: how many of these are of no known shape, or of PodGroups with unlike pods."""
    seen: int


class Evictable:
    """The running pods during one plan. Only `update` changes it; all other methods read and remember."""

    def __init__(self, snapshot: Snapshot, stock: FreeResources) -> None:
        self.nodes = snapshot.nodes
        groups = list(snapshot.running.values())
        self._before = groups
        self.ids: Mapping[GroupKey, int] = {group.key: index for index, group in enumerate(groups)}
        """The number of each running PodGroup."""
        queues = {name: index for index, name in enumerate(dict.fromkeys(group.queue for group in groups))}
        self._queues = queues
        self._queue_names = list(queues)
        self._queue = np.array([queues[group.queue] for group in groups], dtype=np.int64)
        self.priority = np.array([group.priority for group in groups], dtype=np.int64)
        """Shape [group]."""
        self._preemptible = np.array([group.preemptible for group in groups], dtype=np.bool_)
        self._bare = np.array([any(one.pod.bare for one in group.placed) for group in groups], dtype=np.bool_)
        self.unlike = np.array([not are_alike(group.placed) for group in groups], dtype=np.bool_)
        """Shape [group]: whether a pod of the group may move to the place that another pod of the group leaves."""
        self.whole = np.array([_leaves_whole(group) for group in groups], dtype=np.bool_)
        """Shape [group]: whether the group is known to be evicted only as a whole."""
        self._created_at = np.array([group.created_at for group in groups], dtype=np.float64)
        self.started_at = np.array([-inf if group.started_at is None else group.started_at for group in groups])
        """Shape [group]."""
        self._now = dict(snapshot.running)
        self._maker = RowMaker(stock, self.ids)
        self.rows = self._maker.made(groups)
        """The pods as columns; read-only for other modules."""
        self._links = Links(self.rows, len(groups), len(snapshot.nodes.nodes))
        self.changed: Mask = np.zeros(len(groups), dtype=np.bool_)
        """Shape [group]: whether the group holds something else than before the plan."""
        self.changes = 0
        """How often PodGroups have changed."""
        self._keys = [group.key for group in groups]
        self._seen: Mapping[GroupKey, PodGroup] = {}
        self._seen_groups: list[PodGroup] = []
        # Nodes that have changed, in order.
        self._touched: list[int] = []
        self._held: dict[Hashable, _Held] = {}
        self._scopes: dict[Scope, Mask] = {}
        self._unsaved: tuple[float | None, NDArray[np.float64]] = None, np.zeros(0)
        # The free resources for which this is valid, and the result.
        self._repackable: tuple[object, Mask] = None, np.zeros(0, dtype=np.bool_)

    # Asking ---------------------------------------------------------------------------------------------------------

    @property
    def examples(self) -> Sequence[Pod]:
        """One pod of each known shape, in the order of the shapes' numbers, which begin with 1."""
        return self._maker.examples

    def most(self, scopes: Sequence[Scope], stock: FreeResources, placeable: Mask) -> Amounts:
        """Return an upper bound of what is free when all pods of some scopes are gone, shape [resource, node].

        `placeable` has shape [shape]: whether pods of the shape find other places now. Pods that are moved need that.
        """
        most, repacked = stock.future.copy(), self.repackable(stock)
        lost = [self._of(scope, placeable, repacked) for scope in scopes if not scope.moved]
        moved = [self._of(scope, placeable, repacked) for scope in scopes if scope.moved]
        for each in (*lost, *moved):
            most += each.amounts
        if moved:
            most[GPU] -= self._staying(scopes, moved, stock)
        whole = GPU_MILLI * self._whole([self._chosen(each, self.rows.sharer, repacked) for each in (*lost, *moved)])
        most[GPU] += whole
        if moved:
            # Moving pods does not increase the total that is free.
            free = np.maximum(stock.future[GPU], 0).sum() + self._links.freed(self.any_of(scopes, moved=False))
            most[GPU] = np.minimum(most[GPU], sum((each.amounts[GPU] for each in lost), free + whole))
        return most

    def _staying(self, scopes: Sequence[Scope], moved: Sequence[_Held], stock: FreeResources) -> Amounts:
        """Return how many milli-GPUs stay in use because there are too few slots elsewhere, shape [node]."""
        future = stock.future[GPU]
        free = np.maximum(future, 0) // GPU_MILLI
        slots = np.array([(free // size).sum() for size in SIZES])[:, None]
        unlike: Amounts = np.sum([each.unlike for each in moved], axis=0)
        scarce: Mask = np.logical_or.reduce(unlike > slots, axis=1)
        gained = self._links.gained(self.any_of(scopes, moved=False), self.any_of(scopes), future, scarce)
        staying = np.maximum(sum(each.sizes for each in moved) - unlike - slots, 0)
        staying += np.maximum(unlike - slots - gained, 0)
        found: Amounts = GPU_MILLI * (staying * np.array(SIZES)[:, None]).sum(axis=0)
        return found

    def choice(
        self, scopes: Sequence[Scope], stock: FreeResources, placeable: Mask, pods: Numbers
    ) -> tuple[Mask, Mask]:
        """Return which of these pods, as rows, may probably be evicted now, and which of them need other places.

        Pods that could only move to a place that another pod leaves are not included.
        """
        rows, groups = self.rows, self.rows.group[pods]
        leaves = rows.alive[pods] & self.any_of(scopes, moved=False)[groups]
        moved = [self._groups(scope) for scope in scopes if scope.moved]
        if not moved:
            return leaves, np.zeros_like(leaves)
        may_move = placeable[rows.shape[pods]] | (self.repackable(stock)[rows.node[pods]] & rows.shares[pods])
        stays = np.zeros(len(self.ids), dtype=np.bool_)
        stays[rows.group[~placeable[rows.shape] & rows.alive]] = True
        may_move &= ~(stays & self.unlike)[groups]
        moves = rows.alive[pods] & np.logical_or.reduce(moved)[groups] & may_move & ~leaves
        return leaves | moves, moves

    def charges(self) -> NDArray[np.float64]:
        """Return what the queues pay for every running PodGroup, shape [axis, group]; pods of a GPU pay equally."""
        rows, count = self.rows, len(self.ids)
        paid = [rows.gpus() if axis == GPU else rows.amounts[:, axis] for axis in QUOTA_AXES]
        return np.array([np.bincount(rows.group, weights=each * rows.alive, minlength=count) for each in paid])

    def group(self, number: int) -> PodGroup:
        """Return the current state of a PodGroup."""
        return self._now[self._keys[number]]

    @cached_property
    def equal(self) -> Mask:
        """Which PodGroups differ from another one at most in name and number of pods, shape [group]."""
        keys = np.stack([self._queue, self.priority, self._created_at])
        _, number, count = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
        found: Mask = (count > 1)[number.reshape(-1)]
        return found

    def are_in(self, queues: Container[QueueName]) -> Mask:
        """Return which PodGroups are of these queues, shape [group]."""
        chosen = np.array([name in queues for name in self._queues], dtype=np.bool_)
        return chosen[self._queue]

    def leaving(self, scopes: Sequence[Scope], stock: FreeResources, placeable: Mask) -> Mask:
        """Return which pods of some scopes may be evicted now, shape [pod]: a hint, not a bound."""
        repacked = self.repackable(stock)
        held = (self._of(scope, placeable, repacked) for scope in scopes)
        found: Mask = np.logical_or.reduce([self._leaving(each, repacked) for each in held])
        return found

    def repackable(self, stock: FreeResources) -> Mask:
        """Return the nodes whose free parts of shared GPUs add up to a whole GPU, shape [node]: pods may fit there."""
        (seen, found), whole = self._repackable, self.nodes.device_memory_mib * PART
        if seen != (stock, stock.changes):
            found = (stock.devices.free_parts() >= whole) & (whole > 0)
            self._repackable = (stock, stock.changes), found
        return found

    def groups_on(self, scopes: Iterable[Scope], nodes: Mask) -> Mask:
        """Return which PodGroups of some scopes have a pod on one of the nodes, shape [group]."""
        return self._with(self.rows.alive & nodes[self.rows.node]) & self.any_of(scopes)

    def with_pods(self, scopes: Iterable[Scope]) -> Mask:
        """Return which PodGroups of some scopes have pods that the plan has not evicted, shape [group]."""
        return self._with(self.rows.alive) & self.any_of(scopes)

    def _with(self, pods: Mask) -> Mask:
        """Return the PodGroups of these pods, shape [group]; `pods` has shape [pod]."""
        found = np.zeros(len(self._queue), dtype=np.bool_)
        found[self.rows.group[pods]] = True
        return found

    def rows_of(self, chunks: Sequence[VictimBatch]) -> tuple[Numbers, Numbers]:
        """Return the rows of the pods of these chunks, and the number of the chunk of each pod."""
        row_of = self._maker.row_of
        found = [
            (row_of[one.pod.uid], number)
            for number, chunk in enumerate(chunks)
            for one in chunk.placed
            if one.pod.uid in row_of
        ]
        row, number = np.array(found, dtype=np.int64).reshape(len(found), 2).T
        return row, number

    def queues(self, groups: Mask) -> set[QueueName]:
        """Return the queues of these PodGroups, shape [group]."""
        return {self._queue_names[number] for number in np.unique(self._queue[groups]).tolist()}

    def keys(self, groups: Mask) -> list[GroupKey]:
        """Return the keys of these PodGroups, shape [group]."""
        return [self._keys[number] for number in np.flatnonzero(groups).tolist()]

    def any_of(self, scopes: Iterable[Scope], *, moved: bool = True) -> Mask:
        """Return which PodGroups are in one of the scopes, shape [group]; `moved` includes scopes of moved pods."""
        chosen = [self._groups(scope) for scope in scopes if moved or not scope.moved]
        found: Mask = np.logical_or.reduce([np.zeros(len(self._queue), dtype=np.bool_), *chosen])
        return found

    def _of(self, scope: Scope, placeable: Mask, repacked: Mask) -> _Held:
        key = scope, placeable.tobytes() if scope.moved else None
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= MOST_SCOPES:
                self._held.clear()
            held = self._held[key] = self._new(scope, placeable, repacked)
        elif held.seen < len(self._touched):
            self._mend(held, sorted(set(self._touched[held.seen :])), repacked)
        return held

    def _groups(self, scope: Scope) -> Mask:
        """Return which PodGroups are in a scope, shape [group]."""
        found = self._scopes.get(scope)
        if found is None:
            found = self._preemptible.copy()
            if scope.queues is not None:
                found &= self.are_in(scope.queues)
            if scope.below is not None:
                found &= self.priority < scope.below
            if not scope.bare:
                found &= ~self._bare
            now, most = scope.worked
            if most < inf:
                # A PodGroup that may lose a part of its pods loses less; one that has no start has done no work. What a
                # part of a GPU costs depends on the other pods of the GPU, so pods with parts are not judged here.
                unsaved_s = self._unsaved_s(now)
                sharers = np.bincount(self.rows.group, weights=self.rows.shares, minlength=len(self.ids)) > 0
                found &= ~(self.whole & ~sharers & (unsaved_s * self.charges()[GPU] > most))
            if len(self._scopes) >= MOST_SCOPES:
                self._scopes.clear()
            self._scopes[scope] = found
        return found

    def _unsaved_s(self, now: float) -> NDArray[np.float64]:
        """Return `PodGroup.unsaved_s` of all groups, shape [group]. All scopes of one plan have the same time."""
        if self._unsaved[0] != now:
            self._unsaved = now, np.array([group.unsaved_s(now) for group in self._before])
        return self._unsaved[1]

    def _new(self, scope: Scope, placeable: Mask, repacked: Mask) -> _Held:
        width, nodes = self.rows.amounts.shape[1], len(self.nodes.nodes)
        amounts, sizes, unlike = (np.zeros((count, nodes), dtype=np.int64) for count in (width, len(SIZES), len(SIZES)))
        held = _Held(scope, placeable, amounts, sizes, unlike, len(self._touched))
        self._fill(held, np.flatnonzero(self._leaving(held, repacked)))
        return held

    def _leaving(self, held: _Held, repacked: Mask) -> Mask:
        """Return which pods the scope includes, shape [pod]."""
        return self._chosen(held, np.arange(len(self.rows.node)), repacked)

    def _chosen(self, held: _Held, pods: Amounts, repacked: Mask) -> Mask:
        """Return which of these pods the scope includes."""
        rows = self.rows
        found: Mask = rows.alive[pods] & self._groups(held.scope)[rows.group[pods]]
        if not held.scope.moved:
            return found
        return found & self.may_settle(pods, held.placeable, repacked)

    def may_settle(self, pods: Amounts, placeable: Mask, repacked: Mask) -> Mask:
        """Return which of these pods, as rows, may find another place.

        A pod may also take the place that another pod of its PodGroup, or another part of its GPU, leaves.
        """
        rows = self.rows
        found: Mask = placeable[rows.shape[pods]] | self.unlike[rows.group[pods]]
        return found | (repacked[rows.node[pods]] & rows.shares[pods])

    def _mend(self, held: _Held, nodes: Iterable[int], repacked: Mask) -> None:
        held.seen = len(self._touched)
        mask = np.zeros(len(self.nodes.nodes), dtype=np.bool_)
        mask[list(nodes)] = True
        held.amounts[:, mask], held.sizes[:, mask], held.unlike[:, mask] = 0, 0, 0
        pods = np.flatnonzero(mask[self.rows.node])
        self._fill(held, pods[self._chosen(held, pods, repacked)])

    def _fill(self, held: _Held, pods: Numbers) -> None:
        """Add what these pods hold; `pods` are rows."""
        rows = self.rows
        where, amounts = rows.node[pods], rows.amounts[pods]
        for axis in range(amounts.shape[1]):
            np.add.at(held.amounts[axis], where, amounts[:, axis])
        gpus = amounts[:, GPU] // GPU_MILLI
        counted = (gpus > 0) & (gpus <= SIZES[-1])
        np.add.at(held.sizes, (gpus[counted] - 1, where[counted]), 1)
        unlike = counted & (self.unlike[rows.group[pods]] | (rows.shape[pods] == 0))
        np.add.at(held.unlike, (gpus[unlike] - 1, where[unlike]), 1)

    def _whole(self, leaving: Sequence[Mask]) -> Amounts:
        """Return how many shared GPUs lose all their pods, shape [node]; `leaving` has shape [part]."""
        rows, at = self.rows, np.array(self._maker.device_node, dtype=np.int64)
        sharing = rows.alive[rows.sharer]
        all_of, some = (
            np.bincount(rows.device[each], minlength=len(at)) for each in (sharing, np.logical_or.reduce(leaving))
        )
        return np.bincount(at[(some > 0) & (some >= all_of)], minlength=len(self.nodes.nodes))

    # Changing -------------------------------------------------------------------------------------------------------

    def update(self, changed: Mapping[GroupKey, PodGroup]) -> None:
        """Record that these PodGroups hold something else than before."""
        if changed is self._seen and len(changed) == len(self._seen_groups):
            return  # A plan changes by adopting a copy of itself.
        # Earlier entries keep their places in the mapping.
        before, groups = self._seen_groups, list(changed.values())
        differ = [group for group, known in zip(groups, before, strict=False) if group is not known]
        self._seen, self._seen_groups = changed, groups
        new = [group for group in (*differ, *groups[len(before) :]) if group is not self._now.get(group.key, group)]
        if not new:
            return
        self.changes += 1
        mask = np.zeros(len(self._queue), dtype=np.bool_)
        mask[[self.ids[group.key] for group in new]] = True
        self.changed |= mask
        gone = self.rows.alive & mask[self.rows.group]
        self._touched += self.rows.node[gone].tolist()
        self.rows.alive[gone] = False
        self._now |= {group.key: group for group in new}
        more = self._maker.made(new)
        self._touched += more.node.tolist()
        self.rows = self.rows.followed_by(more)
        self._links.change(mask, more)


def _leaves_whole(group: PodGroup) -> bool:
    if group.evicted_whole or len(group.placed) < 2:  # noqa: PLR2004
        return True
    return group.root is None and len(group.placed) <= group.min_member
