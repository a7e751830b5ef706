"""kubelets that may be down with their node, and that end no pod any more when the run is quiet."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from app.model.seam import RawObject, Resource
from app.simulation.clock import Clock
from app.simulation.cluster import Ref
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import SimulatedKubelet
from tests.faults.api import ApiServer


class LoopClock:
    """The time of the loop, for actors; its epoch is that of the world."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def now(self) -> float:
        return self._now()

    async def sleep(self, simulated_s: float) -> None:
        await asyncio.sleep(simulated_s)


class Kubelets(SimulatedKubelet):
    """All kubelets. What a kubelet that is down would do, it does when it is up again."""

    def __init__(
        self, api: ApiServer, devices: SimulatedDevices, clock: Clock, down: "Down", finished: Callable[[Ref], None]
    ) -> None:
        super().__init__(api, devices, clock)
        self._api, self._down, self._finished = api, down, finished

    def _start(self, pods: list[RawObject], lives: asyncio.TaskGroup) -> None:
        up = [pod for pod in pods if not self._down.holds(pod)]
        super()._start(up, lives)
        for pod in pods:
            if self._down.holds(pod):
                self._down.wait(pod, lambda pod=pod: self._resume(pod, lives))  # type: ignore[misc] # mypy infers no default

    def _resume(self, pod: RawObject, lives: asyncio.TaskGroup) -> None:
        now = self._api.pod(pod["metadata"]["namespace"], pod["metadata"]["name"], pod["metadata"]["uid"])
        if now is not None:
            super()._start([now], lives)

    async def _end(self, pod: RawObject) -> None:
        await self._down.up(pod)
        await super()._end(pod)

    async def _finish(self, ref: Ref) -> None:
        if self._down.is_quiet:
            return
        pod = self._api.pod(ref.namespace, ref.name, ref.uid)
        if pod is not None:
            await self._down.up(pod)
            self._finished(ref)
            await super()._finish(ref)


class Down:
    """The nodes whose kubelets are down, and what is done when they are up again."""

    def __init__(self) -> None:
        self.is_quiet = False
        self._nodes: set[str] = set()
        self._waiting: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    def begin(self, node: str) -> None:
        self._nodes.add(node)

    def end(self, node: str) -> None:
        self._nodes.discard(node)
        for act in self._waiting.pop(node, []):
            act()

    def end_all(self) -> None:
        for node in sorted(self._nodes):
            self.end(node)

    def holds(self, pod: RawObject) -> bool:
        return pod["spec"].get("nodeName") in self._nodes

    def wait(self, pod: RawObject, act: Callable[[], None]) -> None:
        self._waiting[pod["spec"]["nodeName"]].append(act)

    async def up(self, pod: RawObject) -> None:
        while self.holds(pod):
            done = asyncio.get_running_loop().create_future()
            self.wait(pod, lambda done=done: done.set_result(None))  # type: ignore[misc] # mypy infers no default
            await done


def healthy_gpus(api: ApiServer, node: str) -> int:
    """Return how many GPUs the agent of a node reports as healthy; none when it reports nothing."""
    found = api.one(Resource.GPU_NODES, node)
    devices = found["status"]["devices"] if found else []
    return sum(device["health"] == "Healthy" for device in devices)
