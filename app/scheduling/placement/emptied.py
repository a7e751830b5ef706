"""What the cluster could hold if nobody else were in it: an upper bound that takes no placement to find out.

Emptied means the nodes that take work now and to which the pods may go, without any pod but those that belong to the
nodes: pods of DaemonSets, and mirror pods. All other pods of other schedulers count as gone, since they may end.
Affinity to other pods, resource claims and what kube-scheduler refuses are left out. So a no is certain as long as
nodes and DaemonSets stay as they are, and a yes is a perhaps.
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
from app.scheduling.placement.state import PlacementState, Strategy, Timing, shape_of
from app.scheduling.placement.topology import Numbers, fitting_counts

MOST_KINDS = 8
"""Shapes of one PodGroup's pods that are compared with each other; of more, only each by itself and all together."""

MENDED = "nodes that take pods"
"""Under which the table of nodes remembers `_mended`."""

BESIDE_RESIDENTS = "nodes without what pods hold that belong to them"

CONDITIONS = "node.kubernetes.io/"
"""How the taints begin that Kubernetes sets while a node is not ready, is under pressure or shuts down."""

MOST_REMEMBERED = 2048
"""Answers of one kind: tenants choose what they ask for."""


class Emptied:
    """The cluster of one snapshot without its pods; local to one plan, like a board."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Remember the snapshot; its nodes are only emptied when somebody asks what the table does not remember."""
        self.nodes = _beside_residents(snapshot)
        self._snapshot = snapshot if self.nodes is snapshot.nodes else replace(snapshot, nodes=self.nodes)
        self._given = snapshot.nodes

    @cached_property
    def board(self) -> PlacementState:
        """The nodes without any pod; not to be changed."""
        return PlacementState(_emptied(self._snapshot), Strategy())

    @cached_property
    def mended(self) -> "Emptied | None":
        """The same if all nodes took pods: without cordons, and all ready and readable; None where they do."""
        nodes = _mended(self.nodes)
        return None if nodes is None else Emptied(replace(self._snapshot, nodes=nodes, residents=None))

    @cached_property
    def without_residents(self) -> "Emptied | None":
        """The same if no pod belonged to its node; None where none does."""
        if self.nodes is self._given:
            return None
        return Emptied(replace(self._snapshot, nodes=self._given, residents=None))

    @property
    def out(self) -> int:
        """How many nodes take no pods now, for what passes by itself."""
        mended = _mended(self.nodes)
        if mended is None:
            return 0
        return sum(new is not node for new, node in zip(mended.nodes, self.nodes.nodes, strict=True))

    def beside(self, group: PodGroup) -> PlacementState:
        """Return the nodes with nothing on them but what the group holds that the pods complete.

        What a group beyond its minimum holds may end at any time.
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
        """Return the pod without what depends on other pods, and without resources that no table of nodes tells of."""
        scalars = pod.scalars
        if scalars:
            known, seen = _scalars(self.nodes), self._snapshot.scalars
            scalars = tuple(one for one in scalars if one[0] in known or one[0] not in seen)
        if not (pod.near or pod.claims) and pod.labels is None and scalars == pod.scalars:
            return pod
        return replace(pod, near=(), claims=(), labels=None, scalars=scalars)

    def may_hold(self, pod: Pod) -> bool:
        """Whether some node could hold the pod."""
        pod = self.plain(pod)
        known, shape = remembered("may hold", self.nodes), shape_of(pod)
        answer: bool | None = known.get(shape)
        if answer is None:
            answer = known[shape] = bool(room(pod, self.board).any())
        return answer

    def has_places(self, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Whether the pods, which complete the group, find places together beside what it holds."""
        known = remembered("places when empty", self.nodes)
        asked, answer = known.get(group.key, (None, False))
        if asked is not group:
            plain = [self.plain(pod) for pod in pods]
            answer = gang.place(self.beside(group), group, plain, timing=Timing.NOW_OR_LATER) is not None
            known[group.key] = group, answer
        return bool(answer)

    def most_apart(self, pods: Sequence[Pod]) -> int:
        """Return how many of the pods, some of which keep apart from each other, find nodes at most."""
        alike = dict[Near, list[Pod]]()
        for pod in pods:
            for near in pod.near:
                if near.apart and pod.labels is not None and pod.labels.items() >= set(near.labels):
                    alike.setdefault(near, []).append(pod)
        fewer = (max(0, len(some) - self._domains(near.topology_key, some)) for near, some in alike.items())
        return len(pods) - max(fewer, default=0)

    def _domains(self, key: str, pods: Sequence[Pod]) -> int:
        """Return how many of the pods may be, one in each domain; all where a node has no such label, or none fits."""
        plain = self.board.unlike([self.plain(pod) for pod in pods])
        mask: Mask = np.logical_or.reduce([room(pod, self.board) for pod in plain])
        codes = np.unique(label_codes(key, self.nodes)[mask])
        return len(pods) if not codes.size or codes[0] < 0 else codes.size


def remembered(what: str, nodes: NodeTable) -> dict[Hashable, Any]:
    """Return the answers of one kind that the table remembers, to be added to; emptied when they are too many."""
    known: dict[Hashable, Any] = nodes.memo.setdefault(what, {})
    if len(known) >= MOST_REMEMBERED:
        known.clear()
    return known


def room(pod: Pod, board: PlacementState) -> Mask:
    """Return the nodes of the board that could hold the pod, shape [node]."""
    return board.eligible(pod) & board.room_later(pod)


def most_together(pods: Sequence[Pod], board: PlacementState) -> int:
    """Return how many of the pods the nodes of the board hold at most; all of them means perhaps.

    Each subset that is looked at must fit into the nodes that are open to it: by whole pods a node, and by sums.
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
    """Shape [resource]: what each takes of a node at least."""
    mask: Mask
    """Where they may be, shape [node]."""


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
    """Yield what is looked at: each kind, all, those that ask for much of a resource, those confined to some nodes."""
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
    """Return how many of these pods fit at most where any of them may be."""
    mask: Mask = np.logical_or.reduce([kind.mask for kind in some])
    asked = np.repeat([kind.asked for kind in some], [kind.number for kind in some], axis=0)
    free = np.maximum(board.stock.future[:, mask], 0)
    if any(kind.pod.sharing is not None for kind in some):
        # GPUs of which the group itself has parts may have others left.
        free[GPU] = board.snapshot.nodes.allocatable[GPU][mask]
    counts = fitting_counts(asked, free)
    sharing = some[0].pod.sharing
    if len(some) == 1 and sharing is not None:
        counts = np.minimum(counts, _by_devices(sharing, free[GPU], board.snapshot.nodes.device_memory_mib[mask]))
    summed = fitting_counts(asked, free.sum(axis=1, keepdims=True))
    return min(number, int(counts.sum()), int(summed[0]))


def _by_devices(sharing: Sharing, gpus: Amounts, memory_mib: Amounts) -> Numbers:
    """Return for how many pods the devices of each node suffice, of which each pod has parts of several."""
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
    """Return the table of nodes as if they had less, by what pods hold that belong to them."""
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
    """Return the table in which nothing that passes by itself keeps pods off a node; None where that is so."""
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
    """Return what the nodes have of each extended resource, shape [node] each."""
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
