"""Times single plans of large clusters and prints each beside its budget; `make bench`.

Everything is CPU time of this process on one core, so a busy machine changes it less than wall time; every figure is
one run. The clusters are made of values, so what is timed is the planner alone.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from app.model.decision import Plan
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import PPM, Placed, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.resources import NOTHING, Resources
from app.model.snapshot import NodeTable, Snapshot, Usage
from app.scheduling.planner import plan

GPUS = 8
GIB = 1 << 30
NOW = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Bench:
    """One plan to be timed."""

    name: str
    budget_s: float | None
    """None: shown for its growth only."""
    starts: int
    """How many pods the plan must find a place for; another number is no result."""
    snapshot: Callable[[], Snapshot]


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
        held = sum((one.pod.request for one in group.placed), NOTHING)
        wanted = sum((one.request for one in group.pending), held)
        before = usage.get(group.queue, Usage())
        usage[group.queue] = replace(before, allocated=before.allocated + held, requested=before.requested + wanted)
        for one in group.placed:
            free[:, table.index[one.node]] -= np.array(one.pod.request.amounts)
    return Snapshot(
        version=1,
        nodes=table,
        free=free,
        queues={QueueName(name): queue(name, gpus) for name, gpus in deserved.items()},
        usage=usage,
        groups={group.key: group for group in every if group.pending},
        running={group.key: group for group in every if group.placed},
        total=table.capacity,
    )


def queue(name: str, deserved: int) -> Queue:
    """Build a top-level queue."""
    return Queue(name=QueueName(name), gpu_milli=Entitlement(deserved=deserved * 1000))


def lone_pods(nodes: int, pods: int, *, gpus: int = 1) -> Snapshot:
    """Build an empty cluster for which many single pods wait, in ten queues."""
    groups = (waiting(f"p{index:05}", f"q{index % 10}", pods=1, gpus=gpus, at=index) for index in range(pods))
    return snapshot(nodes, groups, {f"q{index}": nodes * GPUS // 10 for index in range(10)})


def gangs(nodes: int, count: int, *, pods: int) -> Snapshot:
    """Build an empty cluster for which gangs wait, in ten queues."""
    groups = (waiting(f"g{index:05}", f"q{index % 10}", pods=pods, gpus=1, at=index) for index in range(count))
    return snapshot(nodes, groups, {f"q{index}": nodes * GPUS // 10 for index in range(10)})


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


def many_queues(nodes: int) -> Snapshot:
    """Build a cluster whose 50,000 pods use CPU alone and in which ten pods a queue wait, in 1,000 queues."""
    held = (
        running(f"r{index:05}", f"q{index % 1000}", f"n{index % nodes:05}", gpus=0, at=index) for index in range(50_000)
    )
    more = (waiting(f"w{index:05}", f"q{index % 1000}", pods=1, gpus=8, at=NOW + index) for index in range(10_000))
    return snapshot(nodes, [*held, *more], {f"q{index}": nodes * GPUS // 1000 for index in range(1000)})


def halves(nodes: int, pods: int) -> Snapshot:
    """Build an empty cluster for which pods wait that ask for half a GPU each."""
    made = lone_pods(nodes, pods)
    sharing, table = Sharing(portion_ppm=PPM // 2), made.nodes.nodes
    groups = {key: _sharing(group, sharing) for key, group in made.groups.items()}
    return replace(made, groups=groups, nodes=NodeTable.of(replace(each, device_memory_mib=81_920) for each in table))


def _sharing(group: PodGroup, sharing: Sharing) -> PodGroup:
    pods = (replace(one, request=replace(one.request, gpu_milli=0), sharing=sharing) for one in group.pending)
    return replace(group, pending=tuple(pods))


def elastic(nodes: int, pods: int) -> Snapshot:
    """Build an empty cluster for which one group waits that needs one pod and would like many."""
    return snapshot(nodes, [replace(waiting("big", "q", pods=pods, gpus=1, at=0), min_member=1)], {"q": 0})


BENCHES = (
    Bench("10,000 lone pods, 5,000 nodes", 1.0, 10_000, lambda: lone_pods(5000, 10_000)),
    Bench("500 gangs of 20, 5,000 nodes", 1.0, 10_000, lambda: gangs(5000, 500, pods=20)),
    Bench("10,000 pods that fit nowhere, 5,000 nodes", 1.0, 0, lambda: lone_pods(5000, 10_000, gpus=9)),
    Bench("reclaim for 10 x 8 GPUs, 100 nodes", None, 10, lambda: reclaim(100)),
    Bench("reclaim for 20 x 8 GPUs, 200 nodes", None, 20, lambda: reclaim(200)),
    Bench("reclaim for 50 x 8 GPUs, 500 nodes", None, 50, lambda: reclaim(500)),
    Bench("reclaim for 100 x 8 GPUs, 1,000 nodes", 2.0, 100, lambda: reclaim(1000)),
    Bench("1,000 pods that are owed nothing, 1,000 nodes", None, 0, lambda: hopeless(1000)),
    Bench("200 gangs that nobody can help, 1,000 nodes", None, 0, lambda: helpless(1000)),
    Bench("10,000 pods in 1,000 queues, 50,000 running", None, 5000, lambda: many_queues(5000)),
    Bench("10,000 halves of GPUs, 5,000 nodes", None, 10_000, lambda: halves(5000, 10_000)),
    Bench("an elastic group of 5,000, 1,000 nodes", None, 5000, lambda: elastic(1000, 5000)),
    Bench("consolidate for 10 x 8 GPUs, 500 nodes", None, 10, lambda: fragmented(500)),
    Bench("nobody can be moved, 1,000 nodes", None, 0, lambda: rigid(1000)),
)


def measure(bench: Bench) -> tuple[float, Plan]:
    """Return the CPU seconds of one plan, and the plan."""
    made = bench.snapshot()
    gc.collect()
    gc.freeze()
    began = time.process_time()
    result = plan(made, now=NOW)
    took_s = time.process_time() - began
    gc.unfreeze()
    return took_s, result


def main() -> int:
    """Time every plan and print a line each; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.budgets", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name contains this")
    only = parser.parse_args().only
    print(f"{'plan':48} {'CPU s':>7} {'budget':>7} {'starts':>7} {'evicted':>8}")
    failed = 0
    for bench in BENCHES:
        if only in bench.name:
            took_s, made = measure(bench)
            placed = sum(len(start.placements) for start in made.starts)
            budget = "" if bench.budget_s is None else f"< {bench.budget_s:g}"
            is_wrong = placed != bench.starts or made.unfinished
            failed += is_wrong
            remark = f"  WRONG PLAN, {bench.starts} starts expected" if is_wrong else ""
            print(f"{bench.name:48} {took_s:7.2f} {budget:>7} {placed:7} {len(made.evictions):8}{remark}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
