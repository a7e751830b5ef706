"""Leeboard's components, the simulated kube-scheduler, kubelets and agents together, for an hour of virtual time."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from app.model.marks import DEVICES_ANNOTATION, MEMORY_ANNOTATION, RESERVATION_APP
from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Failed, Fits, PodQuestion, Refused
from app.model.reason import phrase
from app.model.seam import Changed, RawObject, Resource
from app.simulation import manifests
from app.simulation.agents import Agents
from app.simulation.cluster import SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import SimulatedKubelet
from app.simulation.manifests import MEMORY_LABEL, Job, Quota
from app.simulation.scheduler import Scheduler
from app.simulation.users import Users
from app.simulation.webhooks import ExtenderError, Filtered
from app.simulation.workload import PARTS, Arrival, Creation
from tests.control.wired import FickleCluster, World, living, ref

pytestmark = pytest.mark.slow

NODES, GPUS = ("n1", "n2", "n3"), 4
MEMORY_MIB = 81559
AGEING_S = 300
HOUR_S = 3600
LOOK_EVERY_S = 10
SHARERS = 0.7


class LoopClock:
    """The actors use the virtual time of the event loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, simulated_s: float) -> None:
        await asyncio.sleep(simulated_s)


class Leeboard:
    """Calls the components as their webhooks would."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        question = PodQuestion(pod=pod, uid=PodUid(pod["metadata"]["uid"]), offered=tuple(map(NodeName, names)))
        match await self._world.extender.filter(question):
            case Fits(nodes):
                return Filtered(names=nodes)
            case Refused(reason):
                return Filtered(names=(), reasons=dict.fromkeys(names, phrase(reason)))
            case Failed(error):
                raise ExtenderError(error)

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        question = PodQuestion(pod=pod, uid=PodUid(pod["metadata"]["uid"]), offered=tuple(map(NodeName, names)))
        return {str(name): score for name, score in self._world.extender.prioritize(question).items()}

    async def bind(self, pod: RawObject, node: str) -> None:
        if error := await self._world.extender.bind(BindQuestion(pod=ref(pod), node=NodeName(node))):
            raise ExtenderError(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A world in which users use whole GPUs and shares."""

    cluster: SimulatedCluster
    ran: set[str]
    """The pods that have been seen running."""

    @property
    def pods(self) -> list[RawObject]:
        return self.cluster.objects(Resource.PODS)

    @property
    def reservations(self) -> list[str]:
        labelled = (pod["metadata"] for pod in self.pods)
        return [each["name"] for each in labelled if each["labels"].get("app") == RESERVATION_APP]

    def overfull(self) -> list[str]:
        """Return the devices that are overcommitted, or shared with a pod that has all of it."""
        parts: Counter[str] = Counter()
        for pod in self.pods:
            annotations = pod["metadata"].get("annotations", {})
            for uuid in filter(None, annotations.get(DEVICES_ANNOTATION, "").split(",")):
                parts[uuid] += int(annotations[MEMORY_ANNOTATION])
        wholes: dict[str, list[str]] = defaultdict(list)
        for report in self.cluster.objects(Resource.GPU_NODES):
            for device in report["status"]["devices"]:
                wholes[device["uuid"]] += [each["name"] for each in device["pods"] if each["namespace"] == "q"]
        return [uuid for uuid, mib in parts.items() if mib > MEMORY_MIB or wholes[uuid]]

    async def watch(self) -> None:
        async for event in self.cluster.watch_whole(Resource.PODS):
            if isinstance(event, Changed) and event.object["status"].get("phase") == "Running":
                self.ran.add(event.object["metadata"]["name"])


@asynccontextmanager
async def playing(work: Sequence[Arrival]) -> AsyncIterator[Play]:
    cluster, clock = FickleCluster(), LoopClock()
    cluster.create(Resource.QUEUES, manifests.queue("q", None, Quota(gpus=len(NODES) * GPUS)))
    for name in manifests.PRIORITIES:
        cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class(name))
    for name in NODES:
        cluster.create(Resource.NODES, manifests.node(name, gpus=GPUS, cpu=64, labels={MEMORY_LABEL: str(MEMORY_MIB)}))
    devices, play = SimulatedDevices(cluster), Play(cluster=cluster, ran=set())
    # Without ageing a gang that needs all machines at once may wait for as long as small pods are created.
    async with living(cluster=cluster, ageing_s=AGEING_S) as world:
        scheduler = Scheduler(cluster, Leeboard(world), clock)
        actors = (
            SimulatedKubelet(cluster, devices, clock).run(),
            Agents(cluster, devices, clock).run(),
            scheduler.run(),
            Users(cluster, clock).run(work),
            play.watch(),
        )
        tasks = [asyncio.create_task(actor) for actor in actors]
        try:
            yield play
            assert [task for task in tasks if task.done() and task.exception()] == []
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def traffic(seed: int) -> Iterator[Arrival]:
    """Yield as much work as three nodes do in less than an hour: shares, whole GPUs, and gangs of both."""
    chance = random.Random(seed)
    for number in range(160):
        job = Job(name=f"j{number}", queue="q", cpu=1, runtime_s=chance.randint(20, 240))
        yield Arrival(after_s=chance.expovariate(1 / 18), kind="any", objects=tuple(_objects(chance, job)))


def _objects(chance: random.Random, job: Job) -> Iterator[Creation]:
    shares = chance.random() < SHARERS
    asks = replace(job, part=chance.choice(PARTS)) if shares else replace(job, gpus=chance.choice((1, 1, 2)))
    size = chance.choice((1, 1, 1, 3))
    if size > 1:
        asks = replace(asks, group=job.name)
        yield Resource.POD_GROUPS, manifests.pod_group(asks, min_member=size)
    for member in range(size):
        yield Resource.PODS, manifests.pod(asks, member=member)


@pytest.mark.parametrize("seed", [1, 2])
async def test_in_an_hour_every_pod_runs_no_gpu_is_overcommitted_and_nothing_stays_reserved(seed: int) -> None:
    work = list(traffic(seed))
    submitted = {item["metadata"]["name"] for each in work for kind, item in each.objects if kind is Resource.PODS}
    most_sharing = 0
    async with playing(work) as play:
        for _ in range(HOUR_S // LOOK_EVERY_S):
            await asyncio.sleep(LOOK_EVERY_S)
            assert play.overfull() == []
            most_sharing = max(most_sharing, len(play.reservations))
        await asyncio.sleep(HOUR_S // 4)

        assert submitted - play.ran == set()
        assert [pod["metadata"]["name"] for pod in play.pods] == []
    assert most_sharing > 1
