"""Prints what Leeboard asks of a cluster in one scenario in virtual time, in order. Two processes must print the same.

The scenario has many objects of each kind, so that a loop over a set shows: the order of a set of texts is another one
in a process with another PYTHONHASHSEED, and the order of a set of other objects in a process with other addresses.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from app.model.marks import GATE
from app.model.question import Fits
from app.model.seam import RawObject, Resource
from app.simulation.cluster import Ref
from tests.control.gpu_machines import SharingCluster, exists, machines, sharer
from tests.control.jobs import JOBS, job, pods_of
from tests.control.virtual import VirtualTimeLoop
from tests.control.wired import World, passes

VERBS = (
    *("bind", "nominate", "release", "say_unschedulable", "mark_disrupted", "evict", "may_evict", "delete_pod"),
    *("create_pod", "annotate_pod", "remove_pod", "write_status", "record_event", "create_object", "amend_object"),
    *("remove_object", "read_object", "read_pod", "tight_budgets"),
)
NODES = [f"node-{number}" for number in range(12)]


class PrintedCluster(SharingCluster):
    """Prints each call."""

    def __init__(self) -> None:
        super().__init__()
        self.serve("batch/v1", "Job", JOBS)
        for verb in VERBS:
            setattr(self, verb, _printed(verb, getattr(self, verb)))


def _printed(verb: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    def printed(*arguments: Any, **options: Any) -> Awaitable[Any]:
        print(f"{asyncio.get_running_loop().time():.3f}", verb, *arguments, options)
        return call(*arguments, **options)

    return printed


async def scenario() -> None:
    """Let gangs, single pods, pods of Jobs and pods that share GPUs start, wait, lose their nodes, and be evicted."""
    async with machines(*NODES, gpus=2, cluster=PrintedCluster(), preset="kai", promise_ttl_s=20) as (world, _):
        for name in ("r", "s", "t"):
            world.queue(name, gpus=6)
        for name in NODES[:9]:
            world.runs(f"old-{name}", name, queue="r")
        gangs = [pod for number in range(6) for pod in world.gang(f"gang-{number}", size=3, gates=[GATE])]
        alone = [world.pod(f"alone-{number}", queue="s", gates=[GATE]) for number in range(8)]
        parts = [sharer(world, f"part-{number}", gates=[GATE]) for number in range(6)]
        owned = pods_of(world, job(world), *(f"owned-{number}" for number in range(6)))
        await passes(5)
        await schedule(world, [*gangs, *alone, *parts, *owned])
        for name in NODES[:4]:
            world.delete_node(name)
        await passes(5)
        world.cluster.delete(Ref(resource=Resource.QUEUES, name="s"))
        world.nodes(*NODES[:4], gpus=2)
        await passes(5)
        world.queue("s", gpus=6)
        claims = [pod for number in range(3) for pod in world.gang(f"claim-{number}", size=4, queue="t", gates=[GATE])]
        await passes(30)
        await schedule(world, [*claims, *gangs, *alone])
        await passes(60)
        for pod in (*parts, *owned):
            if exists(world, pod):
                world.delete(pod)
        await passes(20)


async def schedule(world: World, pods: Sequence[RawObject]) -> None:
    """Let kube-scheduler try these pods twice."""
    binds: list[asyncio.Task[str]] = []
    for pod in (*pods, *pods):
        if pod["metadata"]["name"] in world.bound():
            continue
        answer = await world.filter(pod, *NODES)
        print("filter", pod["metadata"]["name"], answer)
        if isinstance(answer, Fits):
            binds.append(world.binding(pod, answer.nodes[0]))
        await passes(0.5)
    print("bind", await asyncio.gather(*binds))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scenario())
