"""A service without ports in virtual time: a simulated cluster, a shell, and one who asks as kube-scheduler does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Failed, FilterAnswer, Fits, PodQuestion, Refused
from app.model.seam import Cluster, RawObject, Resource
from app.service.components import Clocks
from app.service.shell import Shell
from app.settings import Settings
from app.simulation import manifests
from app.simulation.agents import Agents
from app.simulation.cluster import SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import SimulatedKubelet
from app.simulation.manifests import Job, Quota
from app.simulation.scheduler import Scheduler
from app.simulation.users import Users
from app.simulation.webhooks import BIND_TIMEOUT_S, FILTER_TIMEOUT_S, ExtenderError, Filtered
from app.simulation.workload import arrivals
from app.simulation.world import furnished
from app.telemetry import Metrics
from tests.control.virtual import threads_take
from tests.control.wired import ref

T = TypeVar("T")

EPOCH_S = 1_700_000_000.0


class Service:
    """One process of the service, and the cluster that it sees."""

    def __init__(self, cluster: SimulatedCluster, settings: Settings, *, seen: Cluster | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.ahead_s = 0.0
        """By how much the clock is set forward, as after a pause of the process."""
        clocks = Clocks(monotonic=lambda: loop.time() + self.ahead_s, wall=lambda: EPOCH_S + loop.time())
        self.running: asyncio.Task[None]
        self.cluster = cluster
        self.shell = Shell(settings, seen or cluster, Metrics(), clocks=clocks)

    def nodes(self, count: int, *, gpus: int = 8) -> tuple[NodeName, ...]:
        names = [f"node-{number:02}" for number in range(count)]
        for name in names:
            self.cluster.create(Resource.NODES, manifests.node(name, gpus=gpus, cpu=64, labels={}))
        return tuple(map(NodeName, names))

    def queue(self, name: str = "q", *, gpus: int = 8) -> None:
        self.cluster.create(Resource.QUEUES, manifests.queue(name, None, Quota(gpus=gpus)))

    def pod(self, name: str, **more: Any) -> RawObject:
        job = Job(**{"name": name, "queue": "q", "gpus": 1, "cpu": 0, **more})
        return self.cluster.create(Resource.PODS, manifests.pod(job))

    def gang(self, name: str, *, size: int, **more: Any) -> list[RawObject]:
        job = Job(**{"name": name, "queue": "q", "gpus": 1, "cpu": 0, "group": name, **more})
        self.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=size))
        return [self.cluster.create(Resource.PODS, manifests.pod(job, member=member)) for member in range(size)]

    async def filter(self, pod: RawObject, *offered: NodeName) -> FilterAnswer:
        question = PodQuestion(pod=pod, uid=PodUid(pod["metadata"]["uid"]), offered=offered)
        return await self.shell.filter(question)

    async def starts(self, pod: RawObject, *offered: NodeName) -> str:
        """Filter and bind a pod; return its node, empty if it waits."""
        answer = await self.filter(pod, *offered)
        if not isinstance(answer, Fits):
            return ""
        error = await self.shell.bind(BindQuestion(pod=ref(pod), node=answer.nodes[0]))
        assert not error, error
        return answer.nodes[0]


@asynccontextmanager
async def serving(
    *, record_dir: Path | None = None, seen: Callable[[SimulatedCluster], Cluster] | None = None, **settings: Any
) -> AsyncIterator[Service]:
    """Run a service on an empty cluster until the end of the block."""
    cluster = SimulatedCluster(now=lambda: EPOCH_S)
    folder = str(record_dir) if record_dir else None
    service = Service(cluster, Settings(record_dir=folder, **settings), seen=seen(cluster) if seen else None)
    running = service.running = asyncio.create_task(service.shell.run())
    try:
        await asyncio.sleep(1.0)
        yield service
    finally:
        running.cancel()
        await asyncio.wait({running})
        service.shell.close()


class VirtualClock:
    """The clock of the actors: the time of the loop."""

    def now(self) -> float:
        return EPOCH_S + asyncio.get_running_loop().time()

    async def sleep(self, simulated_s: float) -> None:
        await asyncio.sleep(simulated_s)


class ShellClient:
    """kube-scheduler's side of the extender, without HTTP."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        question = PodQuestion(pod=pod, uid=PodUid(pod["metadata"]["uid"]), offered=tuple(map(NodeName, names)))
        answer = await self._asked(self._shell.filter(question), FILTER_TIMEOUT_S)
        match answer:
            case Fits(nodes):
                return Filtered(names=nodes)
            case Refused(reason):
                return Filtered(names=(), reasons=dict.fromkeys(names, reason.value))
            case Failed(error):
                raise ExtenderError(error)

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        question = PodQuestion(pod=pod, uid=None, offered=tuple(map(NodeName, names)))
        return {str(name): score for name, score in self._shell.prioritize(question).items()}

    async def bind(self, pod: RawObject, node: str) -> None:
        error = await self._asked(self._shell.bind(BindQuestion(pod=ref(pod), node=NodeName(node))), BIND_TIMEOUT_S)
        if error:
            raise ExtenderError(error)

    async def _asked(self, answer: Coroutine[Any, Any, T], within_s: float) -> T:
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise ExtenderError("timed out") from None


async def demo(
    record_dir: Path,
    *,
    seed: int,
    minutes: float,
    beside: Callable[[Service], Coroutine[Any, Any, None]] | None = None,
    **settings: Any,
) -> None:
    """Record the cluster of the demo with its users, kubelets, agents and kube-scheduler, and who reads `beside` it."""
    threads_take(0.2)
    cluster, clock = furnished(now=VirtualClock().now), VirtualClock()
    devices = SimulatedDevices(cluster)
    service = Service(cluster, Settings(record_dir=str(record_dir), **settings))
    actors: list[Coroutine[Any, Any, None]] = [
        service.shell.run(),
        SimulatedKubelet(cluster, devices, clock).run(),
        Agents(cluster, devices, clock).run(),
        Scheduler(cluster, ShellClient(service.shell), clock).run(),
        Users(cluster, clock).run(arrivals(seed)),
        *([beside(service)] if beside else []),
    ]
    tasks = [asyncio.create_task(actor) for actor in actors]
    try:
        await asyncio.wait(tasks, timeout=minutes * 60, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        service.shell.close()
