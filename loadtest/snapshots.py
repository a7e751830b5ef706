"""Makes snapshots of large clusters of values alone, as the planner sees them; `budgets` times plans of them."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from app.cluster.state.pod_arrivals import PodArrivals
from app.model.layout import Layout
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import PPM, Placed, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.resources import GPU, NOTHING, Resources
from app.model.snapshot import NodeTable, SharedDevice, Snapshot, Usage

GPUS = 8
GIB = 1 << 30
DEVICE_MIB = 81_920
NOW = 1_000_000.0


def node(index: int) -> Node:
    """Build a node of eight GPUs."""
    amounts = Resources(cpu_milli=128_000, memory_bytes=1024 * GIB, gpu_milli=GPUS * 1000, pods=110)
    return Node(name=NodeName(f"n{index:05}"), allocatable=amounts)


def pod(name: str, group: str, queue: str, *, gpus: int, at: float) -> Pod:
    """Build a pod that asks for whole GPUs."""
    return Pod(
        uid=PodUid(name),
        namespace="bench",
        name=name,
        group=GroupKey("bench", group),
        queue=QueueName(queue),
        request=Resources(cpu_milli=gpus * 4000, memory_bytes=gpus * 16 * GIB, gpu_milli=gpus * 1000, pods=1),
        created_at=at,
    )


def waiting(name: str, queue: str, *, pods: int, gpus: int, at: float) -> PodGroup:
    """Build a gang that waits."""
    members = tuple(pod(f"{name}-{index:03}", name, queue, gpus=gpus, at=at) for index in range(pods))
    return PodGroup(
        key=members[0].group, queue=QueueName(queue), priority=50, min_member=pods, created_at=at, pending=members
    )


def running(name: str, queue: str, on: str, *, gpus: int, at: float) -> PodGroup:
    """Build a pod alone that runs."""
    one = replace(pod(name, name, queue, gpus=gpus, at=at), node=NodeName(on))
    held = (Placed(pod=one, node=NodeName(on)),)
    return PodGroup(key=one.group, queue=one.queue, priority=50, created_at=at, placed=held, started_at=NOW - 10_000)


def snapshot(nodes: int, groups: Iterable[PodGroup], deserved: dict[str, int]) -> Snapshot:
    """Build a cluster with its queues' usage worked out."""
    table = NodeTable.of(node(index) for index in range(nodes))
    free, usage, every = table.allocatable.copy(), dict[QueueName, Usage](), list(groups)
    for group in every:
        held = sum((one.pod.charge(DEVICE_MIB) for one in group.placed), NOTHING)
        wanted = sum((one.charge(DEVICE_MIB) for one in group.pending), held)
        before = usage.get(group.queue, Usage())
        usage[group.queue] = replace(before, allocated=before.allocated + held, requested=before.requested + wanted)
        for one in group.placed:
            free[:, table.index[one.node]] -= np.array(one.pod.request.amounts)
    made = Snapshot(
        version=1,
        nodes=table,
        free=free,
        queues={QueueName(name): queue(name, gpus) for name, gpus in deserved.items()},
        usage=usage,
        groups={group.key: group for group in every if group.pending},
        running={group.key: group for group in every if group.placed},
        total=table.capacity,
    )
    return learnt(made)


def learnt(made: Snapshot) -> Snapshot:
    """Add the typical mix that Leeboard learns from these pods."""
    arrivals, nodes = PodArrivals(), made.nodes
    for group in made.running.values():
        for one in group.placed:
            arrivals.note_start(one.pod, group.queue, nodes.device_memory_mib.item(nodes.index[one.node]))
    return replace(made, mix=arrivals.learn(made))


def queue(name: str, deserved: int) -> Queue:
    """Build a top-level queue."""
    return Queue(name=QueueName(name), gpu_milli=Entitlement(deserved=deserved * 1000))


def lone_pods(nodes: int, pods: int, *, gpus: int = 1) -> Snapshot:
    """Build an empty cluster for which many single pods wait, in ten queues."""
    groups = (waiting(f"p{index:05}", f"q{index % 10}", pods=1, gpus=gpus, at=index) for index in range(pods))
    return snapshot(nodes, groups, {f"q{index}": nodes * GPUS // 10 for index in range(10)})


def gangs(nodes: int, count: int, *, pods: int, gpus: int = 1) -> Snapshot:
    """Build an empty cluster for which gangs wait, in ten queues."""
    groups = (waiting(f"g{index:05}", f"q{index % 10}", pods=pods, gpus=gpus, at=index) for index in range(count))
    return snapshot(nodes, groups, {f"q{index}": nodes * GPUS // 10 for index in range(10)})


def known(made: Snapshot) -> Snapshot:
    """Have an agent tell how the devices of every node are connected, and that all are idle."""
    kinds = machine(GPUS), machine(GPUS, unlike=11)
    table = NodeTable.of(replace(each, layout=kinds[index % 2]) for index, each in enumerate(made.nodes.nodes))
    return replace(made, nodes=table, idle_devices=np.full(len(table.nodes), (1 << GPUS) - 1, dtype=np.int64))


def machine(devices: int, *, unlike: int = 7) -> Layout:
    """Build a machine in which hardly two pairs of devices are connected alike."""

    def score(one: int, other: int) -> int:
        return 0 if one == other else 10 + (min(one, other) * 37 + max(one, other) * 61) % 97 * unlike

    return Layout(tuple(tuple(score(one, other) for other in range(devices)) for one in range(devices)))


def full(nodes: int, more: Iterable[PodGroup]) -> Snapshot:
    """Build a cluster full of single-GPU pods of the queue `rich`, with a queue `poor` that deserves half of it.

    Neighbours in age are on different nodes, so that the youngest pods are spread over all nodes.
    """
    groups = [
        running(f"r{slot}-{index:05}", "rich", f"n{index:05}", gpus=1, at=slot * nodes + index)
        for slot in range(GPUS)
        for index in range(nodes)
    ]
    half = nodes * GPUS // 2
    return snapshot(nodes, [*groups, *more], {"rich": half, "poor": half})


def reclaim(nodes: int) -> Snapshot:
    """Build a full cluster in which a gang of 8-GPU pods waits that deserves a tenth of it (at most 100 pods)."""
    return full(nodes, [waiting("gang", "poor", pods=min(100, nodes // 10), gpus=8, at=NOW)])


def hopeless(nodes: int) -> Snapshot:
    """Build a full cluster in which many pods wait that are owed nothing."""
    more = [waiting(f"w{index:04}", "rich", pods=1, gpus=1 + index % 8, at=NOW + index) for index in range(1000)]
    return full(nodes, more)


def fragmented(nodes: int) -> Snapshot:
    """Build a cluster with one GPU free on every node, for which ten 8-GPU pods wait."""
    groups = [
        running(f"r{slot}-{index:05}", "rich", f"n{index:05}", gpus=1, at=slot * nodes + index)
        for slot in range(GPUS - 1)
        for index in range(nodes)
    ]
    more = [waiting(f"w{index}", "rich", pods=1, gpus=8, at=NOW + index) for index in range(10)]
    return snapshot(nodes, [*groups, *more], {"rich": nodes * GPUS})


def rigid(nodes: int) -> Snapshot:
    """Build a cluster with two 3-GPU pods on every node, which fit nowhere else, and ten 8-GPU pods that wait."""
    groups = [
        running(f"r{slot}-{index:05}", "rich", f"n{index:05}", gpus=3, at=slot * nodes + index)
        for slot in range(2)
        for index in range(nodes)
    ]
    more = [waiting(f"w{index}", "rich", pods=1, gpus=8, at=NOW + index) for index in range(10)]
    return snapshot(nodes, [*groups, *more], {"rich": nodes * GPUS})


def helpless(nodes: int) -> Snapshot:
    """Build a full cluster with a firm pod on every node, in which 200 gangs of different shapes ask for whole ones."""
    made = full(
        nodes, [_unlike(waiting(f"w{index:03}", "poor", pods=2, gpus=8, at=index), index) for index in range(200)]
    )
    firm = {key: replace(one, preemptible=False) for key, one in made.running.items() if key.name.startswith("r0-")}
    return replace(made, running={**made.running, **firm})


def _unlike(group: PodGroup, index: int) -> PodGroup:
    pods = (replace(one, request=one.request + Resources(cpu_milli=index)) for one in group.pending)
    return replace(group, pending=tuple(pods))


def many_queues(nodes: int, *, queues: int = 1000) -> Snapshot:
    """Build a cluster in which fifty pods a queue run that use CPU alone, and ten a queue wait for eight GPUs each."""
    held = (
        running(f"r{index:05}", f"q{index % queues}", f"n{index % nodes:05}", gpus=0, at=index)
        for index in range(50 * queues)
    )
    more = (
        waiting(f"w{index:05}", f"q{index % queues}", pods=1, gpus=8, at=NOW + index) for index in range(10 * queues)
    )
    return snapshot(nodes, [*held, *more], {f"q{index}": nodes * GPUS // queues for index in range(queues)})


def halves(nodes: int, pods: int) -> Snapshot:
    """Build an empty cluster for which pods wait that ask for half a GPU each."""
    made, sharing = lone_pods(nodes, pods), Sharing(portion_ppm=PPM // 2)
    groups = {key: _sharing(group, sharing) for key, group in made.groups.items()}
    return learnt(replace(made, groups=groups, nodes=with_memory(made.nodes)))


def _sharing(group: PodGroup, sharing: Sharing) -> PodGroup:
    pods = (replace(one, request=replace(one.request, gpu_milli=0), sharing=sharing) for one in group.pending)
    return replace(group, pending=tuple(pods))


def gangs_of_parts(nodes: int, count: int, *, pods: int) -> Snapshot:
    """Build an empty cluster for which gangs wait whose pods ask for a quarter of each of two GPUs."""
    made, sharing = gangs(nodes, count, pods=pods), Sharing(portion_ppm=PPM // 4, devices=2)
    groups = {key: _sharing(group, sharing) for key, group in made.groups.items()}
    return learnt(replace(made, groups=groups, nodes=with_memory(made.nodes)))


def shared_full(nodes: int, *more: PodGroup) -> Snapshot:
    """Build a cluster on which pods of the queue `rich` have half of every GPU each, and `poor` deserves half of it."""
    half, count = Sharing(portion_ppm=PPM // 2), nodes * GPUS * 2
    groups = (running(f"r{index:05}", "rich", f"n{index % nodes:05}", gpus=0, at=index) for index in range(count))
    halves_of = [_half_of(group, half, index // nodes) for index, group in enumerate(groups)]
    made = snapshot(nodes, [*halves_of, *more], {"rich": nodes * GPUS // 2, "poor": nodes * GPUS // 2})
    free = made.free.copy()
    free[GPU] = 0
    shared = {each.name: tuple(SharedDevice(f"d{number}", 0) for number in range(GPUS)) for each in made.nodes.nodes}
    return learnt(replace(made, nodes=with_memory(made.nodes), free=free, shared=shared))


def _half_of(group: PodGroup, half: Sharing, slot: int) -> PodGroup:
    (placed,) = group.placed
    devices = (f"d{slot // 2}",)
    one = replace(placed.pod, sharing=half, devices=devices, device_uuids=devices)
    return replace(group, placed=(replace(placed, pod=one, devices=devices),))


def with_memory(table: NodeTable) -> NodeTable:
    """Give every GPU of the nodes a memory, so that pods may share it."""
    return NodeTable.of(replace(each, device_memory_mib=DEVICE_MIB) for each in table.nodes)


def lone_halves(count: int) -> list[PodGroup]:
    """Build pods of the queue `poor` that wait for half a GPU each."""
    made = (waiting(f"h{index:03}", "poor", pods=1, gpus=0, at=NOW + index) for index in range(count))
    return [_sharing(group, Sharing(portion_ppm=PPM // 2)) for group in made]


def elastic(nodes: int, pods: int) -> Snapshot:
    """Build an empty cluster for which one group waits that needs one pod and would like many."""
    return snapshot(nodes, [replace(waiting("big", "q", pods=pods, gpus=1, at=0), min_member=1)], {"q": 0})
