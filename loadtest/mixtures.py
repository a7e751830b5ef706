"""Makes snapshots of clusters as people have them: kinds of nodes, selectors, taints, racks, half of it in use."""

from dataclasses import replace
from itertools import product

from app.model.node import Node, Taint
from app.model.pod import ANYWHERE, Constraint, Operator, Pod, Requirement, Toleration
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.resources import Resources
from app.model.snapshot import NodeTable, Snapshot
from app.model.topology import Topology
from loadtest.snapshots import GIB, GPUS, NOW, gangs, learnt, running, snapshot, waiting

KIND, ZONE, RACK = "kind", "zone", "rack"
LARGE = Taint("large")
NEAR = Topology(name="near", levels=(ZONE, RACK))

WHERE = (
    ANYWHERE,
    Constraint(node_selector=((KIND, "small"),)),
    Constraint(node_selector=((KIND, "large"),), tolerations=(Toleration(LARGE.key, "Exists"),)),
    Constraint(terms=((Requirement(ZONE, Operator.IN, ("z0", "z1")),),), tolerations=(Toleration(operator="Exists"),)),
)
SIZES = (0, 1, 2, 4, 8)
"""GPUs of a pod."""


def mixed(nodes: int, pods: int, *, queues: int = 50) -> Snapshot:
    """Build a cluster half full of single-GPU pods, for which lone pods of twenty shapes wait in many queues."""
    held = (
        running(f"r{slot}-{index:05}", f"q{index % queues}", f"n{index:05}", gpus=1, at=slot * nodes + index)
        for slot in range(GPUS // 2)
        for index in range(nodes)
        if _kind(index) != "cpu"
    )
    asked = list(product(WHERE, SIZES))
    more = (_asking(index, f"q{index % queues}", *asked[index % len(asked)]) for index in range(pods))
    made = snapshot(nodes, [*held, *more], {f"q{index}": nodes * GPUS // queues for index in range(queues)})
    return _labelled(made)


def _asking(index: int, queue: str, where: Constraint, gpus: int) -> PodGroup:
    group = waiting(f"w{index:05}", queue, pods=1, gpus=gpus, at=NOW + index)
    return replace(group, pending=tuple(_at(pod, where) for pod in group.pending))


def _at(pod: Pod, where: Constraint) -> Pod:
    cores = pod.request + Resources(cpu_milli=2000, memory_bytes=8 * GIB)
    return replace(pod, constraint=where, request=cores)


def _kind(index: int) -> str:
    """Return the kind of a node: of ten, six are small machines, three large ones, and one has no GPUs."""
    return (*["small"] * 6, *["large"] * 3, "cpu")[index % 10]


def racks(nodes: int, count: int, *, pods: int) -> Snapshot:
    """Build an empty cluster of racks of 16 nodes for which gangs wait, each of which has to be inside one rack."""
    made = _labelled(gangs(nodes, count, pods=pods))
    return replace(made, groups={key: _inside_rack(group) for key, group in made.groups.items()})


def _inside_rack(group: PodGroup) -> PodGroup:
    near = TopologyConstraint(topology=NEAR.name, required=RACK)
    return replace(group, root=SubGroup(topology=near, pod_sets=(PodSet(min_member=group.min_member),)))


def _labelled(made: Snapshot) -> Snapshot:
    """Give the nodes kinds, zones and racks; those without GPUs lose what they have."""
    nodes = NodeTable.of(_of_kind(each, index) for index, each in enumerate(made.nodes.nodes))
    free = made.free - made.nodes.allocatable + nodes.allocatable
    return learnt(replace(made, nodes=nodes, free=free, total=nodes.capacity, topologies={NEAR.name: NEAR}))


def _of_kind(each: Node, index: int) -> Node:
    kind = _kind(index)
    labels = {KIND: kind, ZONE: f"z{index // 640}", RACK: f"r{index // 16}"}
    amounts = replace(each.allocatable, gpu_milli=0) if kind == "cpu" else each.allocatable
    return replace(each, labels=labels, allocatable=amounts, taints=(LARGE,) if kind == "large" else ())
