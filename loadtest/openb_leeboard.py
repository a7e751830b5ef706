"""Leeboard's own placement in the replay of a trace: one lone pod at a time, by what has arrived so far."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.cluster.state.pod_arrivals import PodArrivals
from app.control.cycle.policy_settings import policy_of
from app.model.decision import Action
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import ANYWHERE, PPM, Constraint, Operator, Placed, Pod, Requirement, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.resources import GPU_MILLI, Resources
from app.model.snapshot import PART, Mask, NodeTable, SharedDevice, Snapshot
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.ranks import Strategy, Where
from app.scheduling.placement.state import PlacementState, Shape, shape_of
from app.scheduling.planner.planner import plan
from app.settings import Settings
from loadtest.openb import MOST_PODS, Move, OpenbError, OpenbNode, OpenbPlace, OpenbPod
from loadtest.snapshots import DEVICE_MIB

MODEL_LABEL = "nvidia.com/gpu.product"
NAMESPACE = "openb"
QUEUE = QueueName("openb")
MIB = 1 << 20


class Offers:
    """The nodes that kube-scheduler offers: the first ones that pass its filters, from where its last search ended."""

    def __init__(self, most: int) -> None:
        """Offer at most so many nodes at a time. Start at the first node."""
        self._most = most
        self._start = 0

    def of(self, passing: Mask) -> Mask:
        """Return which of the nodes that pass are found, shape [node]."""
        columns = np.flatnonzero(passing)
        found = np.roll(columns, -int(columns.searchsorted(self._start)))[: self._most]
        if len(found) == self._most:
            self._start = (int(found[-1]) + 1) % len(passing)
        offered: Mask = np.zeros_like(passing)
        offered[found] = True
        return offered


class LeeboardPlacer:
    """Places pods by the code that the planner uses. No pod of a trace ever leaves."""

    def __init__(
        self, nodes: Sequence[OpenbNode], trace: Sequence[OpenbPod], seed: int, *, sample: int | None = None
    ) -> None:
        """Start with empty nodes; nothing is known of the trace, and nothing is random.

        `sample`: kube-scheduler offers so many nodes at a time; None: all.
        """
        del trace, seed
        self._offers = None if sample is None else Offers(sample)
        self._state = PlacementState(_empty(nodes), Strategy())
        self._arrived = 0
        self._arrivals = PodArrivals()
        self._waiting: dict[GroupKey, PodGroup] = {}
        self._requests: dict[OpenbPod, tuple[Resources, Sharing | None, Constraint]] = {}
        self.moves: list[Move] = []

    def place(self, pod: OpenbPod) -> OpenbPlace | None:
        """Place the pod for good. Return None if it fits nowhere."""
        self._arrived += 1
        self._learn()
        one = self._pending(pod)
        seats = self._seats(one)
        if seats is None:
            self._waiting[one.group] = PodGroup(key=one.group, queue=QUEUE, pending=(one,))
            return None
        self._arrivals.note_start(one, QUEUE, DEVICE_MIB)
        return OpenbPlace(seats[0].column, seats[0].devices)

    def _seats(self, pod: Pod) -> Sequence[Assignment] | None:
        """Take the best node, or the best offered one, as filter does where the planned node is not offered.

        Some pods are nominated for their planned node, and kube-scheduler looks at that node first: those that share a
        GPU, and those without GPUs where only nodes with GPUs are offered.
        """
        if self._offers is None or pod.sharing is not None:
            return self._state.place([pod])
        # For whole GPUs, kube-scheduler's own filters know what is free.
        passing = self._state.allowed(pod)
        offered = self._offers.of(passing)
        if not pod.request.gpu_milli:
            without = passing & ~self._state.snapshot.nodes.has_gpus
            if without.any() and not (without & offered).any():
                return self._state.place([pod])
        return self._state.place([pod], where=Where(within=offered))

    def _learn(self) -> None:
        """Begin a new plan with the typical mix of what has arrived so far, when it is due."""
        if not self._arrivals.is_due(self._state.snapshot.nodes):
            return
        now = replace(self._now(), groups=self._waiting)
        self._state = PlacementState(replace(now, mix=self._arrivals.learn(now)), Strategy())

    def _now(self) -> Snapshot:
        """Return the cluster without what was given back."""
        before, stock = self._state.snapshot, self._state.stock
        whole = (before.nodes.device_memory_mib * PART).tolist()
        shared = {
            node.name: tuple(
                SharedDevice(each.name, each.future) for each in stock.devices.at(column) if each.future < whole[column]
            )
            for column, node in enumerate(before.nodes.nodes)
        }
        return replace(before, free=stock.future.copy(), shared=shared)

    def _pending(self, pod: OpenbPod) -> Pod:
        request, sharing, constraint = self._requests.get(pod) or self._requests.setdefault(pod, _request(pod))
        name = f"pod-{self._arrived}"
        return Pod(
            uid=PodUid(name),
            namespace=NAMESPACE,
            name=name,
            group=GroupKey(NAMESPACE, name),
            queue=QUEUE,
            request=request,
            sharing=sharing,
            constraint=constraint,
            created_at=self._arrived,
        )


class ConsolidatingPlacer(LeeboardPlacer):
    """Also moves pods for a pod that finds no room, by the planner's own consolidation. All pods may move.

    No time passes, so no move loses work.
    """

    def __init__(self, nodes: Sequence[OpenbNode], trace: Sequence[OpenbPod], seed: int) -> None:
        """Start with empty nodes."""
        super().__init__(nodes, trace, seed)
        # The last setting is a time, and no time passes.
        self._policy = replace(
            policy_of(Settings()), actions=(Action.ALLOCATE, Action.CONSOLIDATE), consolidate_min_runtime_s=0.0
        )
        self._running: dict[GroupKey, PodGroup] = {}
        self._in_vain: set[Shape] = set()

    def _seats(self, pod: Pod) -> Sequence[Assignment] | None:
        seats = super()._seats(pod)
        if seats is None and shape_of(pod) not in self._in_vain:
            seats = self._consolidated(pod)
        if seats is not None:
            self._note(seats[0])
        else:
            # Until pods move, there is only less room for the next pod like this one.
            self._in_vain.add(shape_of(pod))
        return seats

    def _note(self, seat: Assignment) -> None:
        placed = Placed(pod=seat.pod, node=self._state.placement(seat).node, devices=seat.devices)
        self._running[seat.pod.group] = PodGroup(key=seat.pod.group, queue=QUEUE, placed=(placed,), started_at=0.0)

    def _consolidated(self, pod: Pod) -> Sequence[Assignment] | None:
        """Carry out a plan for this pod; return its place, or None when no moves help."""
        waiting = {pod.group: PodGroup(key=pod.group, queue=QUEUE, pending=(pod,))}
        made = plan(replace(self._now(), groups=waiting, running=self._running), self._policy)
        if not made.starts:
            return None
        moved = [(placed.pod, each.moves_to) for each in made.evictions for placed in self._running[each.group].placed]
        for each in made.evictions:
            for placed in self._running.pop(each.group).placed:
                self._state.give_back(placed)
        self._state = PlacementState(self._now(), Strategy())
        self._in_vain.clear()
        (start,) = made.starts[0].placements
        seats = self._put(pod, start.node)
        for one, node in moved:
            (seat,) = self._put(one, node)
            self._note(seat)
            # A pod is created at the number of its arrival, which begins with 1.
            self.moves.append(Move(int(one.created_at) - 1, self._arrived - 1, OpenbPlace(seat.column, seat.devices)))
        return seats

    def _put(self, pod: Pod, node: NodeName | None) -> Sequence[Assignment]:
        """Place the pod on the planned node."""
        here = Where(within=self._state.snapshot.nodes.mask([node] if node else []))
        seats = self._state.place([pod], where=here)
        if seats is None:
            raise OpenbError(f"The plan moved {pod} to {node}, where it has no room. This is a bug of Leeboard.")
        return seats


def _request(pod: OpenbPod) -> tuple[Resources, Sharing | None, Constraint]:
    is_part = 0 < pod.gpu_milli < GPU_MILLI
    sharing = Sharing(portion_ppm=pod.gpu_milli * PPM // GPU_MILLI, devices=pod.gpus) if is_part else None
    request = Resources(
        cpu_milli=pod.cpu_milli,
        memory_bytes=pod.memory_mib * MIB,
        gpu_milli=0 if is_part else pod.total_milli,
        pods=1,
    )
    if not pod.models:
        return request, sharing, ANYWHERE
    return request, sharing, Constraint(terms=((Requirement(MODEL_LABEL, Operator.IN, pod.models),),))


def _empty(nodes: Sequence[OpenbNode]) -> Snapshot:
    # The table is in the order of names, and the first of equal nodes is taken: the names keep the order of the replay.
    table = NodeTable.of(_node(node, f"{index:06}-{node.name}") for index, node in enumerate(nodes))
    return Snapshot(
        version=1,
        nodes=table,
        free=table.allocatable.copy(),
        queues={QUEUE: Queue(name=QUEUE)},
        usage={},
        groups={},
        total=table.capacity,
    )


def _node(node: OpenbNode, name: str) -> Node:
    amounts = Resources(
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_mib * MIB,
        gpu_milli=node.gpus * GPU_MILLI,
        pods=MOST_PODS,
    )
    labels = {MODEL_LABEL: node.model}
    return Node(
        name=NodeName(name), allocatable=amounts, device_memory_mib=DEVICE_MIB if node.gpus else 0, labels=labels
    )
