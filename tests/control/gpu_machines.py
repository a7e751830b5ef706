"""GPU machines in virtual time: the device plugin, kubelet and agent of each, and kube-scheduler for reservation pods.

A machine reads the cluster ten times a second. It binds reservation pods that may only run there. Every pod there gets
the first free devices. The agent publishes which pod has which device. The test can make a machine misbehave.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.cluster.decode.environment import VISIBLE_DEVICES, path_of
from app.cluster.gpus.shared_gpus import GpuState
from app.model.marks import DEVICES_ANNOTATION
from app.model.names import NodeName, PodUid
from app.model.question import Fits
from app.model.seam import PodRef, RawObject, Resource
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import FINISHED, Ref
from app.simulation.manifests import Job
from tests.control.wired import FickleCluster, World, furnished, gated, living, passes

LOOK_S = 0.1
GPU_MIB = 80_000
RESERVATIONS = "kai-resource-reservation"
HEARTBEAT_S = 60.0
GRACE_S = Settings().reservation_grace_s
"""For how long a GPU without pods stays reserved."""


class SharingCluster(FickleCluster):
    """Can fail and delay operations on reservation pods, too."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []
        self.removed: list[str] = []

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        self.created.append(pod["metadata"]["name"])
        await self._begin("create_pod")
        await super().create_pod(namespace, pod)
        self._end("create_pod")

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        await self._begin("annotate_pod")
        await super().annotate_pod(pod, annotations)

    async def remove_pod(self, pod: PodRef) -> None:
        self.removed.append(pod.name)
        await self._begin("remove_pod")
        await super().remove_pod(pod)
        self._end("remove_pod")


class Machine:
    """One node with GPUs. Its behavior is in `devices`, `holders` and the flags, which the test changes freely."""

    def __init__(self, cluster: FickleCluster, name: str, *, gpus: int) -> None:
        self.name = name
        self.devices = [f"GPU-{name}-{index}" for index in range(gpus)]
        """The existing devices, in the order in which the device plugin assigns them."""
        self.states: dict[str, RawObject] = {}
        """Further fields that the agent reports of a device."""
        self.holders: dict[str, str] = {}
        """Which pod has a device, by uid."""
        self.binds_reservations = True
        self.admits = True
        """Whether the kubelet admits new pods with GPUs; otherwise they fail."""
        self.reports = True
        self.status: RawObject = {}
        """Further fields that the agent reports of the node, instead."""
        self.reserved: set[str] = set()
        """All reservation pods that ever existed, by uid."""
        self.both: list[str] = []
        """Devices given to a pod while sharing pods were told to use them."""
        self._cluster = cluster
        self._published: RawObject = {}
        self._published_at = 0.0

    async def run(self) -> None:
        while True:
            for pod in self._pods():
                self._look_after(pod)
            self._take_back()
            self._publish()
            await asyncio.sleep(LOOK_S)

    def reservations(self) -> list[RawObject]:
        """Return the existing reservation pods that have not failed."""
        return [pod for pod in self._pods() if pod["metadata"].get("namespace") == RESERVATIONS]

    def held_by(self, pod: RawObject) -> list[str]:
        """Return the devices that the kubelet has given to a pod."""
        return [uuid for uuid, uid in self.holders.items() if uid == pod["metadata"]["uid"]]

    def fail(self, pod: RawObject) -> None:
        """Let a pod fail, as a kubelet does that does not admit it."""
        self._cluster.patch(Ref.of(Resource.PODS, pod), {"status": {"phase": "Failed", "reason": "Unexpected"}})

    # Its own actions

    def _pods(self) -> list[RawObject]:
        pods = self._cluster.objects(Resource.PODS)
        alive = [pod for pod in pods if pod["status"].get("phase") not in FINISHED]
        return [pod for pod in alive if self.name in (pod["spec"].get("nodeName"), _pinned_to(pod))]

    def _look_after(self, pod: RawObject) -> None:
        ref = Ref.of(Resource.PODS, pod)
        if _pinned_to(pod):
            self.reserved.add(ref.uid)
        if "nodeName" not in pod["spec"]:
            if self.binds_reservations and self._requested() < len(self.devices):
                self._cluster.patch(ref, {"spec": {"nodeName": self.name}})
        elif pod["metadata"].get("deletionTimestamp"):
            self._cluster.delete(ref)
        elif not self.held_by(pod):
            self._admit(pod)

    def _requested(self) -> int:
        return sum(_gpus(pod) for pod in self._pods() if "nodeName" in pod["spec"])

    def _admit(self, pod: RawObject) -> None:
        asked, free = _gpus(pod), [uuid for uuid in self.devices if self._is_free(uuid)]
        if asked and (not self.admits or asked > len(free)):
            self.fail(pod)
            return
        for uuid in free[:asked]:
            self.holders[uuid] = pod["metadata"]["uid"]
            if pod["metadata"]["namespace"] != RESERVATIONS and uuid in self._told():
                self.both.append(uuid)

    def _is_free(self, uuid: str) -> bool:
        return uuid not in self.holders and self.states.get(uuid, {}).get("health") != "Unhealthy"

    def _told(self) -> set[str]:
        annotations = [pod["metadata"].get("annotations", {}) for pod in self._pods()]
        return {uuid for one in annotations for uuid in one.get(DEVICES_ANNOTATION, "").split(",")}

    def _take_back(self) -> None:
        there = {pod["metadata"]["uid"] for pod in self._pods()}
        self.holders = {uuid: uid for uuid, uid in self.holders.items() if uid in there and uuid in self.devices}

    def _publish(self) -> None:
        now = asyncio.get_running_loop().time()
        status = {"kubelet": {"answers": True}, "devices": list(self._states())} | self.status
        due = status != self._published or now >= self._published_at + HEARTBEAT_S
        if not self.reports or not due:
            return
        self._published, self._published_at = status, now
        known = [one["metadata"]["name"] for one in self._cluster.objects(Resource.GPU_NODES)]
        if self.name not in known:
            self._cluster.create(Resource.GPU_NODES, {"metadata": {"name": self.name}})
        ref = Ref(resource=Resource.GPU_NODES, name=self.name)
        self._cluster.patch(ref, {"status": {"message": None, **status, "observedAt": str(now)}})

    def _states(self) -> Iterator[RawObject]:
        pods = {pod["metadata"]["uid"]: pod["metadata"] for pod in self._pods()}
        # By name: the device plugin has an order of its own.
        for uuid in sorted(self.devices):
            pod = pods.get(self.holders.get(uuid, ""))
            holders = [{key: pod[key] for key in ("namespace", "name", "uid")}] if pod else []
            memory = {"total": GPU_MIB, **self.states.get(uuid, {}).get("memoryMiB", {})}
            yield {"uuid": uuid, "pods": holders, **self.states.get(uuid, {}), "memoryMiB": memory}


def _pinned_to(pod: RawObject) -> str:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity")
    if not affinity or pod["metadata"].get("namespace") != RESERVATIONS:
        return ""
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    name: str = term["matchFields"][0]["values"][0]
    return name


def _gpus(pod: RawObject) -> int:
    return sum(
        int(container["resources"]["requests"].get("nvidia.com/gpu", 0)) for container in pod["spec"]["containers"]
    )


# Pods


def sharer(
    world: World, name: str, fraction: str = "0.5", *, gates: Sequence[str] = (), **annotations: str
) -> RawObject:
    """Create a pod with a GPU share, as admission has prepared it."""
    return world.cluster.create(Resource.PODS, gated(part(name, fraction, **annotations), gates))


def part(name: str, fraction: str, *, queue: str = "q", **more: str) -> RawObject:
    """Build such a pod."""
    pod = manifests.pod(Job(name=name, queue=queue, cpu=0))
    reference = {"fieldRef": {"fieldPath": path_of(DEVICES_ANNOTATION)}}
    pod["spec"]["containers"][0]["env"] = [{"name": VISIBLE_DEVICES, "valueFrom": reference}]
    asked = {"gpu-fraction": fraction} if fraction else {}
    pod["metadata"]["annotations"] |= asked | {name.replace("_", "-"): value for name, value in more.items()}
    return pod


async def runs(world: World, *pods: RawObject, within_s: float = 30.0) -> list[str]:
    """Let kube-scheduler try until all these pods are bound, all at once; return the devices that each pod got."""
    nodes = [node["metadata"]["name"] for node in world.cluster.objects(Resource.NODES)]
    end = world.now() + within_s
    await asyncio.gather(*(_is_scheduled(world, pod, nodes, end) for pod in pods))
    await passes(0.5)
    return [devices(world, pod) for pod in pods]


async def _is_scheduled(world: World, pod: RawObject, nodes: Sequence[str], end: float) -> None:
    while world.now() < end:
        answer = await world.filter(pod, *nodes)
        if isinstance(answer, Fits) and await world.bind(pod, answer.nodes[0]) == "":
            return
        await passes(0.5)
    raise AssertionError(f"{pod['metadata']['name']} waits: {world.reason(pod)}, {world.held(pod)}")


def uid_of(pod: RawObject) -> PodUid:
    """Return the uid of a pod."""
    return PodUid(pod["metadata"]["uid"])


def devices(world: World, pod: RawObject) -> str:
    """Return the annotation with the devices of a pod."""
    return world.annotations(pod).get(DEVICES_ANNOTATION, "")


def exists(world: World, pod: RawObject) -> bool:
    """Whether a pod exists and is not terminating."""
    found = [one for one in world.cluster.objects(Resource.PODS) if one["metadata"]["uid"] == pod["metadata"]["uid"]]
    return any(not one["metadata"].get("deletionTimestamp") for one in found)


def gpu_is_free(world: World, node: str) -> int:
    """Return the number of free whole GPUs on a node, according to the cache."""
    return world.free_gpus()[NodeName(node)]


def stands(world: World, node: str = "a") -> list[GpuState]:
    """Return the states of the shared GPUs of a node."""
    return [gpu.state for gpu in world.cache.gpus.shared(NodeName(node))]


@asynccontextmanager
async def machines(
    *names: str, gpus: int = 1, cluster: SharingCluster | None = None, known: Sequence[Machine] = (), **settings: Any
) -> AsyncIterator[tuple[World, list[Machine]]]:
    """Run Leeboard on a cluster of machines: new ones, or `known` ones, which then must be of the `cluster`."""
    there = cluster or SharingCluster()
    if not known:
        furnished(*names, gpus=gpus, cluster=there)
    all_of_them = list(known) or [Machine(there, name, gpus=gpus) for name in names]
    running = [asyncio.create_task(machine.run()) for machine in all_of_them]
    try:
        async with living(cluster=there, **settings) as world:
            await passes(1)
            yield world, all_of_them
    finally:
        for task in running:
            task.cancel()
        for end in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(end, asyncio.CancelledError), end
        assert not any(machine.both for machine in all_of_them), "a device was given to two"
