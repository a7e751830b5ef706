"""Simulates all kubelets: a bound pod starts after a moment, runs for its time, succeeds and is removed.

A deleted pod ends after its grace period. A pod without a free device fails.
"""

import asyncio
from contextlib import suppress

from app.model.seam import Changed, Deleted, Listed, NotFoundError, RawObject, Resource, rfc3339
from app.simulation.clock import Clock
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.manifests import RUNTIME_ANNOTATION

START_S = 2.0
REFUSED = "UnexpectedAdmissionError"
"""A kubelet's reason when a pod's devices are not available."""


class SimulatedKubelet:
    """Follows the pods of one cluster. A pod without a runtime annotation runs until it is deleted."""

    def __init__(self, cluster: SimulatedCluster, devices: SimulatedDevices, clock: Clock) -> None:
        self._cluster = cluster
        self._devices = devices
        self._clock = clock
        # uids of the admitted pods, and of those whose early end has a task. `run` and the tasks change them.
        self._alive: set[str] = set()
        self._ending: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as lives:
            async for event in self._cluster.watch_whole(Resource.PODS):
                match event:
                    case Listed(objects):
                        self._devices.keep_only(objects)
                        self._start(objects, lives)
                    case Changed(pod):
                        self._start([pod], lives)
                    case Deleted(pod):
                        self._alive.discard(pod["metadata"]["uid"])
                        self._devices.release(pod)
                    case _:
                        pass

    def _start(self, pods: list[RawObject], lives: asyncio.TaskGroup) -> None:
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if pod["spec"].get("nodeName") and uid not in self._alive:
                self._alive.add(uid)
                self._admit(pod, lives)
            if pod["metadata"].get("deletionTimestamp") and uid not in self._ending:
                self._ending.add(uid)
                lives.create_task(self._end(pod))

    def _admit(self, pod: RawObject, lives: asyncio.TaskGroup) -> None:
        # At once, not in a task: otherwise a pod deleted in the meantime would keep a device that is never released.
        obstacle = self._devices.admit(pod)
        if not obstacle:
            lives.create_task(self._live(pod))
            return
        with suppress(NotFoundError):
            status = {"phase": "Failed", "reason": REFUSED, "message": obstacle}
            self._cluster.patch(Ref.of(Resource.PODS, pod), {"status": status})

    async def _live(self, pod: RawObject) -> None:
        with suppress(NotFoundError):  # A deleted pod ends there.
            await self._run_to_the_end(Ref.of(Resource.PODS, pod), pod)

    async def _end(self, pod: RawObject) -> None:
        ref = Ref.of(Resource.PODS, pod)
        await self._clock.sleep(pod["metadata"]["deletionGracePeriodSeconds"])
        with suppress(NotFoundError):  # The pod finished just before.
            self._cluster.delete(ref)
        self._ending.discard(ref.uid)

    async def _run_to_the_end(self, ref: Ref, pod: RawObject) -> None:
        runtime_s = pod["metadata"].get("annotations", {}).get(RUNTIME_ANNOTATION)
        if pod["status"].get("phase") != "Running":  # It runs already when the kubelet restarts.
            await self._clock.sleep(START_S)
            started = rfc3339(self._clock.now())
            self._cluster.patch(ref, {"status": {"phase": "Running", "startTime": started}})
        self._devices.start(pod)
        if runtime_s is not None:
            await self._clock.sleep(float(runtime_s))
            await self._finish(ref)

    async def _finish(self, ref: Ref) -> None:
        self._cluster.patch(ref, {"status": {"phase": "Succeeded"}})
        self._cluster.delete(ref)
