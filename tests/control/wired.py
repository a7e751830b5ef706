"""The parts of `control`, connected as in the service, on a cluster in memory that can be made to fail.

The test plays all others: owners (`pod`, `gang`), kube-scheduler (`filter`, `bind`, `refuse`), and time (`passes`).
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from app.cluster.ledger.reservations import Reservation
from app.control.cycle.search_loop import Plans
from app.control.webhooks.fast_path import AdmissionFastPath
from app.model.names import GroupKey, NodeName, PodUid
from app.model.question import BindQuestion, FilterAnswer, Fits, PodQuestion
from app.model.reason import Reason
from app.model.seam import BudgetError, KubeError, Lease, OutcomeUnknownError, PodRef, RawObject, Resource, WatchEvent
from app.scheduling.planner.planner import plan as full_plan
from app.service import Clocks, Components
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.manifests import Job, Quota
from app.telemetry import Metrics

T = TypeVar("T")
USUAL = Settings()
"""Made once: to read them takes milliseconds, and nearly every test has them."""


class FickleCluster(SimulatedCluster):
    """Records its calls, delays them, and fails as often as the test tells it to."""

    def __init__(self) -> None:
        super().__init__(now=lambda: 0.0)
        self.binds: list[tuple[str, str]] = []
        self.nominations: list[tuple[str, str | None]] = []
        self.releases: list[str] = []
        self.statuses: list[tuple[str, RawObject]] = []
        self.told: list[tuple[str, str]] = []
        self.marks: list[tuple[str, str]] = []
        """The pods that were marked as disrupted, and the messages."""
        self.evictions: list[str] = []
        self.deletions: list[str] = []
        self.guarded: set[str] = set()
        """The pods whose budget allows no disruption."""
        self.lists = 0
        """How often all budgets were listed."""
        self.asked: list[str] = []
        """The pods for which a dry-run eviction was requested."""
        self.takes_s: defaultdict[str, float] = defaultdict(float)
        """How long each verb takes."""
        self.errors: defaultdict[str, deque[KubeError]] = defaultdict(deque)
        """The errors that the next calls of each verb raise instead of doing anything."""
        self.lost_replies: Counter[str] = Counter()
        """How many of the next calls of each verb are done without a reply."""
        self.holders: dict[str, str] = {}
        """The holder of each lease."""
        self.is_renewed = True
        """Whether the holders of leases renew them between any two reads."""
        self.replies_after_s = 0.0
        """How long the answer to a read of a lease is in flight, or stays unread."""
        self._renewals = 0
        self._shown = {resource: asyncio.Event() for resource in Resource}
        for resource in Resource:
            self.show(resource)

    def hide(self, resource: Resource) -> None:
        """Let the watch lag until `show`."""
        self._shown[resource].clear()

    def show(self, resource: Resource) -> None:
        self._shown[resource].set()

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        return self._when_shown(self._shown[resource], super().watch(resource, keep))

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        self.binds.append((pod.name, node))
        await self._begin("bind")
        await super().bind(pod, node, annotations)
        self._end("bind")

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        await self._begin("finished_pods")
        return await super().finished_pods(keep)

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        await self._begin("read_lease")
        holder = self.holders.get(f"{namespace}/{name}")
        if self.is_renewed:
            self._renewals += 1
        lease = None if holder is None else Lease(holder=holder, duration_s=15, renewed=str(self._renewals))
        await asyncio.sleep(self.replies_after_s)
        return lease

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        await self._begin("read_pod")
        return await super().read_pod(pod)

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        self.nominations.append((pod.name, node))
        await self._begin("nominate")
        await super().nominate(pod, node)

    async def release(self, pod: PodRef) -> None:
        self.releases.append(pod.name)
        await self._begin("release")
        await super().release(pod)
        self._end("release")

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        self.marks.append((pod.name, message))
        await self._begin("mark_disrupted")
        await super().mark_disrupted(pod, reason=reason, message=message)

    async def evict(self, pod: PodRef) -> None:
        self.evictions.append(pod.name)
        await self._begin("evict")
        if pod.name in self.guarded:
            raise BudgetError("Cannot evict pod as it would violate the pod's disruption budget.")
        await super().evict(pod)
        self._end("evict")

    async def tight_budgets(self) -> frozenset[str]:
        self.lists += 1
        await self._begin("tight_budgets")
        pods = (pod["metadata"] for pod in self.objects(Resource.PODS))
        return frozenset(metadata["namespace"] for metadata in pods if metadata["name"] in self.guarded)

    async def may_evict(self, pod: PodRef) -> bool:
        self.asked.append(pod.name)
        await self._begin("may_evict")
        return await super().may_evict(pod) and pod.name not in self.guarded

    async def delete_pod(self, pod: PodRef) -> None:
        self.deletions.append(pod.name)
        await self._begin("delete_pod")
        await super().delete_pod(pod)

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        self.statuses.append((name, status))
        await self._begin("write_status")
        await super().write_status(resource, namespace, name, status)

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        self.told.append((regarding["name"], reason))
        await self._begin("record_event")
        await super().record_event(regarding, warning=warning, reason=reason, note=note)

    async def _begin(self, verb: str) -> None:
        await asyncio.sleep(self.takes_s[verb])
        if self.errors[verb]:
            raise self.errors[verb].popleft()

    def _end(self, verb: str) -> None:
        if self.lost_replies[verb]:
            self.lost_replies[verb] -= 1
            raise OutcomeUnknownError("connection lost")

    @staticmethod
    async def _when_shown(shown: asyncio.Event, events: AsyncIterator[WatchEvent[T]]) -> AsyncIterator[WatchEvent[T]]:
        async for event in events:
            await shown.wait()
            yield event


class World:
    """A cluster with one queue `q`, and Leeboard's own components beside it, in virtual time."""

    def __init__(self, cluster: FickleCluster, settings: Settings | None = None, *, plan: Plans = full_plan) -> None:
        self.now = clock = asyncio.get_running_loop().time
        self.cluster, self.metrics = cluster, Metrics()
        clocks = Clocks(monotonic=clock, wall=clock)
        components = Components(settings or USUAL, cluster, self.metrics, clocks=clocks, plan=plan)
        self.running = components.running
        self.cache = components.cache
        self.leadership, self.freshness = components.leadership, components.freshness
        self.feed, self.readiness = components.feed, components.readiness
        self.planning, self.applier, self.reserver = components.planning, components.applier, components.reserver
        self.unevictable = components.unevictable
        self.preemptions, self.evictor, self.search = components.preemptions, components.evictor, components.search
        self.barrier, self.waker, self.gpus = components.barrier, components.waker, components.gpus
        self.grouper, self.meter, self.status = components.grouper, components.meter, components.status
        self.inspect, self.events, self.autoscaler = components.inspect, components.events, components.autoscaler
        self.extender, self.fast_path = components.extender, components.fast_path
        self.corrections = components.corrections

    # Owners and administrators

    def nodes(self, *names: str, gpus: int = 1) -> None:
        for name in names:
            self.cluster.create(Resource.NODES, manifests.node(name, gpus=gpus, cpu=64, labels={}))

    def delete_node(self, name: str) -> None:
        self.cluster.delete(Ref(resource=Resource.NODES, name=name))

    def queue(self, name: str, *, parent: str | None = None, gpus: int = 0) -> None:
        self.cluster.create(Resource.QUEUES, manifests.queue(name, parent, Quota(gpus=gpus)))

    def pod(self, name: str, *, gates: Sequence[str] = (), **more: Any) -> RawObject:
        """Create a pod that requests one GPU and nothing else, unless told otherwise (`Job`)."""
        return self.cluster.create(Resource.PODS, gated(self.asked(name, **more), gates))

    def asked(self, name: str, **more: Any) -> RawObject:
        """Build such a pod without creating it."""
        return manifests.pod(Job(**{"name": name, "queue": "q", "gpus": 1, "cpu": 0, **more}))

    def runs(self, name: str, node: str, **more: Any) -> RawObject:
        """Create a pod that runs on a node already."""
        pod = self.asked(name, **more)
        placed = pod | {"spec": pod["spec"] | {"nodeName": node}, "status": {"phase": "Running"}}
        return self.cluster.create(Resource.PODS, placed)

    def gang(
        self, name: str, *, size: int, min_member: int | None = None, gates: Sequence[str] = (), **more: Any
    ) -> list[RawObject]:
        """Create a PodGroup and its pods, which request one GPU each."""
        job = Job(**{"name": name, "queue": "q", "gpus": 1, "cpu": 0, "group": name, **more})
        self.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=min_member or size))
        pods = [gated(manifests.pod(job, member=member), gates) for member in range(size)]
        return [self.cluster.create(Resource.PODS, pod) for pod in pods]

    def native_gang(
        self, name: str, *, size: int, min_count: int | None, gates: Sequence[str] = (), **more: Any
    ) -> list[RawObject]:
        """Create a native PodGroup and its pods; without `min_count` it is a basic one."""
        job = Job(**{"name": name, "queue": "q", "gpus": 1, "cpu": 0, "native_group": name, **more})
        self.cluster.create(Resource.NATIVE_POD_GROUPS, manifests.native_pod_group(job, min_count=min_count))
        pods = [gated(manifests.pod(job, member=member), gates) for member in range(size)]
        return [self.cluster.create(Resource.PODS, pod) for pod in pods]

    def rack(self, rack: str, *names: str, gpus: int = 1) -> None:
        """Create nodes in one rack."""
        for name in names:
            self.cluster.create(Resource.NODES, manifests.node(name, gpus=gpus, cpu=64, labels={"rack": rack}))

    def keep_in_a_rack(self, name: str, *, level: str = "requiredTopologyLevel") -> None:
        """Keep the pods of a PodGroup of queue `q` in one rack; to be called once."""
        self.cluster.create(Resource.TOPOLOGIES, manifests.topology("t", "rack"))
        group = Ref(resource=Resource.POD_GROUPS, namespace="q", name=name)
        self.cluster.patch(group, {"spec": {"topologyConstraint": {"topology": "t", level: "rack"}}})

    def make_firm(self, name: str) -> None:
        """Delete a PodGroup of queue `q` and create it again as a non-preemptible one."""
        ref = Ref(resource=Resource.POD_GROUPS, namespace="q", name=name)
        job = Job(name=name, queue="q", group=name, priority_class="inference")
        self.cluster.delete(ref)
        self.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=1))

    def delete(self, pod: RawObject) -> None:
        self.cluster.delete(Ref.of(Resource.PODS, pod))

    def patch(self, pod: RawObject, **change: object) -> None:
        self.cluster.patch(Ref.of(Resource.PODS, pod), change)

    # kube-scheduler

    async def filter(self, pod: RawObject, *offered: str, nominated: object = None) -> FilterAnswer:
        """Call filter as kube-scheduler does, with the current pod of the store."""
        asked = pod | {"status": {"nominatedNodeName": nominated}} if nominated else pod
        uid = PodUid(pod["metadata"]["uid"])
        question = PodQuestion(pod=asked, uid=uid, offered=tuple(NodeName(name) for name in offered))
        return await self.extender.filter(question)

    async def what_if(self, pod: RawObject, *offered: str) -> FilterAnswer:
        question = PodQuestion(pod=pod, uid=None, offered=tuple(NodeName(name) for name in offered))
        return await self.extender.filter(question)

    def scores(self, pod: RawObject, *offered: str) -> Mapping[NodeName, int]:
        question = PodQuestion(pod=pod, uid=None, offered=tuple(NodeName(name) for name in offered))
        return self.extender.prioritize(question)

    async def bind(self, pod: RawObject, node: str) -> str:
        return await self.extender.bind(BindQuestion(pod=ref(pod), node=NodeName(node)))

    def binding(self, pod: RawObject, node: str) -> asyncio.Task[str]:
        """Call bind in a task of its own, as kube-scheduler does in a goroutine."""
        return asyncio.create_task(self.bind(pod, node))

    async def choose(self, pod: RawObject, *offered: str) -> str:
        """Call filter for a node that the test is sure to get."""
        answer = await self.filter(pod, *offered)
        assert isinstance(answer, Fits), answer
        return answer.nodes[0]

    def refuse(self, pod: RawObject, message: str = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.") -> None:
        """Park a pod that the filters of kube-scheduler refuse on every node; kube-scheduler clears the nomination."""
        self.patch(pod, status={"conditions": [not_scheduled("Unschedulable", message)], "nominatedNodeName": None})

    def fail(self, pod: RawObject, message: str) -> None:
        """End an attempt of kube-scheduler with an error; it retries by itself."""
        self.patch(pod, status={"conditions": [not_scheduled("SchedulerError", message)]})

    # The outcome

    def held(self, pod: RawObject) -> Reservation | None:
        return self.cache.reservations.get(PodUid(pod["metadata"]["uid"]))

    def promised(self, pod: RawObject) -> str | None:
        """Return the node that is reserved for the pod."""
        held = self.held(pod)
        return None if held is None else held.node

    def bound(self) -> dict[str, str]:
        """Return which pods run on which node, in the store."""
        pods = self.cluster.objects(Resource.PODS)
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}

    def annotations(self, pod: RawObject) -> dict[str, str]:
        """Return the current annotations of the pod."""
        pods = self.cluster.objects(Resource.PODS)
        (found,) = (one["metadata"] for one in pods if one["metadata"]["uid"] == pod["metadata"]["uid"])
        annotations: dict[str, str] = found["annotations"]
        return annotations

    def reason(self, pod: RawObject) -> Reason | None:
        """Return why the pod's group is pending."""
        metadata = pod["metadata"]
        name = metadata["annotations"].get(manifests.GROUP_ANNOTATION, metadata["uid"])
        refusal = self.planning.refusals.get(GroupKey(metadata["namespace"], name))
        return None if refusal is None else refusal.reason

    def count(self, metric: str, **labels: str) -> float:
        """Return the value of one of our counters."""
        value = self.metrics.registry.get_sample_value(f"leeboard_{metric}_total", labels)
        assert value is not None
        return value

    def free_gpus(self) -> dict[str, int]:
        """Return the free GPUs on each node, according to the cache."""
        snapshot = self.cache.snapshot()
        return {node.name: int(free) // 1000 for node, free in zip(snapshot.nodes.nodes, snapshot.free[2], strict=True)}


@asynccontextmanager
async def living(
    *nodes: str, gpus: int = 1, cluster: FickleCluster | None = None, plan: Plans = full_plan, **settings: Any
) -> AsyncIterator[World]:
    """Run Leeboard on a new cluster of `nodes`, or on one that is there."""
    world = World(cluster or furnished(*nodes, gpus=gpus), Settings(**settings) if settings else USUAL, plan=plan)
    running = [asyncio.create_task(part.run()) for part in world.running]
    try:
        await world.freshness.synced()
        yield world
    finally:
        for task in running:
            task.cancel()
        for end in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(end, asyncio.CancelledError), end


def gated(pod: RawObject, gates: Sequence[str]) -> RawObject:
    """Return the pod as it is created with these scheduling gates."""
    return pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": name} for name in gates]}} if gates else pod


def furnished(*nodes: str, gpus: int = 1, cluster: FickleCluster | None = None) -> FickleCluster:
    """Build a cluster with one queue `q` and no Leeboard yet, on an empty one if that is given."""
    cluster = cluster or FickleCluster()
    cluster.create(Resource.QUEUES, manifests.queue("q", None, Quota(gpus=0)))
    for name in nodes:
        cluster.create(Resource.NODES, manifests.node(name, gpus=gpus, cpu=64, labels={}))
    return cluster


async def passes(seconds: float) -> None:
    """Let virtual time pass; one second if the test does not depend on the amount."""
    await asyncio.sleep(seconds)


def not_scheduled(reason: str, message: str) -> dict[str, str]:
    """Return the condition that kube-scheduler writes on a pod that it has not placed."""
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


def lets_in(entrance: AdmissionFastPath, pod: RawObject) -> bool:
    """Return whether admission passes a new pod to kube-scheduler without a gate."""
    return entrance.can_run_now(entrance.look(pod))


def ref(pod: RawObject) -> PodRef:
    metadata = pod["metadata"]
    return PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=PodUid(metadata["uid"]))
