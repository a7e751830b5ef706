"""Tells what the cluster could hold without its other pods: an upper bound that needs no placement.

The emptied cluster is the nodes that take new pods now and that the pods may use. It holds only pods that belong to
their node: pods of DaemonSets, and mirror pods. All other pods, also those of other schedulers, count as gone, because
they may end. Affinity to other pods, resource claims and refusals of kube-scheduler are not judged. So "does not fit"
is certain while nodes and DaemonSets stay as they are, and "fits" is only possible.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from app.model.node import Node
from app.model.pod import Near, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.resources import GPU, GPU_MILLI, NOTHING, Amounts
from app.model.snapshot import PART, Mask, Memo, NodeTable, Snapshot, parts_of
from app.scheduling.placement import gang
from app.scheduling.placement.fit import label_codes
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Timing, shape_of
from app.scheduling.placement.topology import Numbers, fitting_counts

MOST_KINDS = 8
"""The most shapes of one PodGroup's pods that are compared in combination. With more shapes, each shape alone and all
together are compared.
"""

MENDED = "nodes that take pods"
"""The key under which the node table remembers `_mended`."""

BESIDE_RESIDENTS = "nodes without what their resident pods hold"

CONDITIONS = "node.kubernetes.io/"
"""Prefixes of the taints that Kubernetes sets while a node is not ready, is under pressure or shuts down."""

MOST_REMEMBERED = 2048
"""The most answers of one kind that are remembered. The bound is needed because tenants choose the requests."""


class Emptied:
    """The cluster of one snapshot without its pods; local to one plan, like a placement state."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Store the snapshot. Nodes are emptied only for questions whose answer the node table does not remember."""
        self.nodes = _beside_residents(snapshot)
        self._snapshot = snapshot if self.nodes is snapshot.nodes else replace(snapshot, nodes=self.nodes)
        self._given = snapshot.nodes

    @cached_property
    def board(self) -> PlacementState:
        """The nodes without any pod. Callers must not change it."""
        return PlacementState(_emptied(self._snapshot), Strategy())

    @cached_property
    def mended(self) -> "Emptied | None":
        """The emptied cluster if all nodes were ready, readable and not cordoned. None when they are."""
        nodes = _mended(self.nodes)
        return None if nodes is None else Emptied(replace(self._snapshot, nodes=nodes, residents=None))

    @cached_property
    def without_residents(self) -> "Emptied | None":
        """The emptied cluster without pods that belong to their node. None when there are no such pods."""
        if self.nodes is self._given:
            return None
        return Emptied(replace(self._snapshot, nodes=self._given, residents=None))

    @property
    def out(self) -> int:
        """The number of nodes that take no pods now for a temporary cause."""
        mended = _mended(self.nodes)
        if mended is None:
            return 0
        return sum(new is not node for new, node in zip(mended.nodes, self.nodes.nodes, strict=True))

    def beside(self, group: PodGroup) -> PlacementState:
        """Return the emptied nodes with only what the group already holds, where the pods complete that group.

        Pods that the group holds beyond its minimum do not count, because they may end at any time.
        """
        if not group.owed:
            return self.board
        board = self.board.copy()
        for one in group.placed:
            pod, column = self.plain(one.pod), board.stock.column(one.node)
            if column is not None and board.stock.amounts(pod) is not None:
                board.stock.take(Assignment(pod, column, one.devices, later=False))
        return board

    def plain(self, pod: Pod) -> Pod:
        """Return the pod without its relations to other pods, and without resources that no node table lists."""
        scalars = pod.scalars
        if scalars:
            known, seen = _scalars(self.nodes), self._snapshot.scalars
            scalars = tuple(one for one in scalars if one[0] in known or one[0] not in seen)
        if not (pod.near or pod.claims) and pod.labels is None and scalars == pod.scalars:
            return pod
        return replace(pod, near=(), claims=(), labels=None, scalars=scalars)

    def may_hold(self, pod: Pod) -> bool:
        """Return whether some node could hold the pod."""
        pod = self.plain(pod)
        known, shape = remembered("may hold", self.nodes), shape_of(pod)
        answer: bool | None = known.get(shape)
        if answer is None:
            answer = known[shape] = bool(room(pod, self.board).any())
        return answer

    def has_places(self, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether the pods, which complete the group, find places together beside what the group holds."""
        known = remembered("places when empty", self.nodes)
        asked, answer = known.get(group.key, (None, False))
        if asked is not group:
            plain = [self.plain(pod) for pod in pods]
            answer = gang.place(self.beside(group), group, plain, timing=Timing.NOW_OR_LATER) is not None
            known[group.key] = group, answer
        return bool(answer)

    def most_apart(self, pods: Sequence[Pod]) -> int:
        """Return how many of the pods find nodes at most, where some of the pods have anti-affinity to each other."""
        alike = dict[Near, list[Pod]]()
        for pod in pods:
            for near in pod.near:
                if near.apart and pod.labels is not None and pod.labels.items() >= set(near.labels):
                    alike.setdefault(near, []).append(pod)
        fewer = (max(0, len(some) - self._domains(near.topology_key, some)) for near, some in alike.items())
        return len(pods) - max(fewer, default=0)

    def _domains(self, key: str, pods: Sequence[Pod]) -> int:
        """Return how many pods fit at one pod a domain. Return all when a node lacks the label or no node fits."""
        plain = self.board.unlike([self.plain(pod) for pod in pods])
        mask: Mask = np.logical_or.reduce([room(pod, self.board) for pod in plain])
        codes = np.unique(label_codes(key, self.nodes)[mask])
        return len(pods) if not codes.size or codes[0] < 0 else codes.size


def remembered(what: str, nodes: NodeTable) -> dict[Hashable, Any]:
    """Return the remembered answers of one kind. Callers add to them. They are cleared when there are too many."""
    known: dict[Hashable, Any] = nodes.memo.setdefault(what, {})
    if len(known) >= MOST_REMEMBERED:
        known.clear()
    return known


def room(pod: Pod, board: PlacementState) -> Mask:
    """Return the nodes of the placement state that could hold the pod, shape [node]."""
    return board.eligible(pod) & board.room_later(pod)


def most_together(pods: Sequence[Pod], board: PlacementState) -> int:
    """Return how many of the pods the nodes of the placement state hold at most. "All of them" is only a possibility.

    Each subset that is checked must fit into the nodes that it may use: by whole pods a node, and by sums.
    """
    kinds = _kinds(pods, board)
    nowhere = sum(kind.number for kind in kinds if not kind.mask.any())
    if nowhere:
        return len(pods) - nowhere
    most = len(pods)
    for some in _subsets(kinds):
        number = sum(kind.number for kind in some)
        most = min(most, len(pods) - number + _capacity(some, number, board))
    return most


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Pods of one shape."""

    pod: Pod
    number: int
    asked: Amounts
    """Shape [resource]: the least that each pod takes of a node."""
    mask: Mask
    """Shape [node]: the nodes that the pods may use."""


def _kinds(pods: Sequence[Pod], board: PlacementState) -> list[_Kind]:
    numbers, first = dict[object, int](), dict[object, Pod]()
    for pod in pods:
        shape = shape_of(pod)
        first.setdefault(shape, pod)
        numbers[shape] = numbers.get(shape, 0) + 1
    return [_Kind(pod, numbers[shape], _asked(pod, board), room(pod, board)) for shape, pod in first.items()]


def _asked(pod: Pod, board: PlacementState) -> Amounts:
    asked = np.array(board.stock.amounts(pod) or board.stock.impossible, dtype=np.int64)
    if pod.sharing is not None:
        largest = int(board.snapshot.nodes.device_memory_mib.max(initial=1))
        asked[GPU] += pod.sharing.gpu_milli(largest)
    return asked


def _subsets(kinds: Sequence[_Kind]) -> Iterable[Sequence[_Kind]]:
    """Yield the subsets to check: each kind, all kinds, kinds with a large request, and kinds limited to some nodes."""
    yield from ([kind] for kind in kinds)
    if len(kinds) == 1:
        return
    yield kinds
    if len(kinds) > MOST_KINDS:
        return
    for row in range(kinds[0].asked.size):
        for least in sorted({int(kind.asked[row]) for kind in kinds} - {0}):
            yield [kind for kind in kinds if kind.asked[row] >= least]
    for wide in kinds:
        yield [kind for kind in kinds if not (kind.mask & ~wide.mask).any()]


def _capacity(some: Sequence[_Kind], number: int, board: PlacementState) -> int:
    """Return how many of these pods fit at most on the nodes that any of them may use."""
    mask: Mask = np.logical_or.reduce([kind.mask for kind in some])
    asked = np.repeat([kind.asked for kind in some], [kind.number for kind in some], axis=0)
    free = np.maximum(board.stock.future[:, mask], 0)
    if any(kind.pod.sharing is not None for kind in some):
        # Other GPUs may have free parts beside the GPUs that the group shares already.
        free[GPU] = board.snapshot.nodes.allocatable[GPU][mask]
    counts = fitting_counts(asked, free)
    sharing = some[0].pod.sharing
    if len(some) == 1 and sharing is not None:
        counts = np.minimum(counts, _by_devices(sharing, free[GPU], board.snapshot.nodes.device_memory_mib[mask]))
    summed = fitting_counts(asked, free.sum(axis=1, keepdims=True))
    return min(number, int(counts.sum()), int(summed[0]))


def _by_devices(sharing: Sharing, gpus: Amounts, memory_mib: Amounts) -> Numbers:
    """Return for how many pods the devices of each node suffice, where each pod has parts of several devices."""
    sizes, index = np.unique(memory_mib, return_inverse=True)
    each = np.array([size * PART // max(parts_of(sharing, size), 1) for size in map(int, sizes)], dtype=np.int64)
    found: Numbers = gpus // GPU_MILLI * each[index] // sharing.devices
    return found


def _emptied(snapshot: Snapshot) -> Snapshot:
    nodes = snapshot.nodes
    return Snapshot(
        version=snapshot.version,
        nodes=nodes,
        free=nodes.allocatable,
        scalars=_scalars(nodes),
        queues={},
        usage={},
        groups={},
        total=NOTHING,
        topologies=snapshot.topologies,
    )


def _beside_residents(snapshot: Snapshot) -> NodeTable:
    """Return the node table with allocatable amounts reduced by the pods that belong to their node."""
    nodes, residents = snapshot.nodes, snapshot.residents
    if residents is None or not residents.any():
        return nodes
    known, found = nodes.memo.get(BESIDE_RESIDENTS, (None, None))
    if known is not residents or found is None:
        found = replace(nodes, allocatable=np.maximum(nodes.allocatable - residents, 0), memo=Memo())
        nodes.memo.remember(BESIDE_RESIDENTS, (residents, found))
    table: NodeTable = found
    return table


def _mended(nodes: NodeTable) -> NodeTable | None:
    """Return the node table without temporary causes that keep pods off a node. Return None when there are none."""
    known: tuple[NodeTable | None] | None = nodes.memo.get(MENDED)
    if known is None:
        mended = tuple(map(_taking_pods, nodes.nodes))
        takes_work = np.ones(len(mended), dtype=np.bool_)
        is_changed = any(new is not node for new, node in zip(mended, nodes.nodes, strict=True))
        known = (replace(nodes, nodes=mended, takes_work=takes_work, memo=Memo()) if is_changed else None,)
        nodes.memo.remember(MENDED, known)
    return known[0]


def _taking_pods(node: Node) -> Node:
    taints = tuple(taint for taint in node.taints if not taint.key.startswith(CONDITIONS))
    if node.takes_work and not node.unschedulable and len(taints) == len(node.taints):
        return node
    return replace(node, ready=True, problem="", unschedulable=False, taints=taints)


def _scalars(nodes: NodeTable) -> Mapping[str, Amounts]:
    """Return the amounts of each extended resource, shape [node] each."""
    found: dict[str, Amounts] | None = nodes.memo.get("allocatable scalars")
    if found is None:
        found = {}
        for column, node in enumerate(nodes.nodes):
            for name, amount in node.scalars:
                if name not in found:
                    found[name] = np.zeros(len(nodes.nodes), dtype=np.int64)
                found[name][column] = amount
        nodes.memo.remember("allocatable scalars", found)
    return found
