"""Simulates the agents of all nodes: publishes GpuNodes with the devices, their pods and their memory use."""

import itertools
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from app.model.names import PodUid
from app.model.seam import RawObject, Resource, rfc3339
from app.simulation.clock import Clock
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.devices import SimulatedDevices, SimulatedMachine, Use

LOOK_EVERY_S = 1.0
MEASURE_EVERY = 10
"""Looks between two measurements."""
HEARTBEAT_EVERY = 45
"""Looks between two heartbeats."""

PERIOD = 6
"""Consecutive measurements in which a pod's use is the same."""
LEAST_PERCENT, MOST_PERCENT = 70, 97
"""The range of a pod's memory use, in per cent of its share."""
ONE_IN = 16
"""In one of this many periods a pod uses more than its share."""
EXCESS_MIB = 300

NVLINKS = 18
"""NVLinks of each device to the NVSwitch of an H100 machine."""


class Agents:
    """One agent per node, all in one task. An unchanged node costs almost nothing."""

    def __init__(self, cluster: SimulatedCluster, devices: SimulatedDevices, clock: Clock) -> None:
        self._cluster = cluster
        self._devices = devices
        self._clock = clock
        # Links never change, and an unchanged report is not published again. Only `run` changes these.
        self._links: dict[str, Mapping[str, list[RawObject]]] = {}
        self._published: dict[str, list[RawObject]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        for look in itertools.count():
            changed = self._devices.take_changed()
            for machine in self._devices.machines():
                if machine.name in changed or look % MEASURE_EVERY == 0 or machine.name not in self._published:
                    self._look(machine, look // MEASURE_EVERY)
                if look % HEARTBEAT_EVERY == 0:
                    self._write(machine)
            await self._clock.sleep(LOOK_EVERY_S)

    def _look(self, machine: SimulatedMachine, measurement: int) -> None:
        found = list(self._devices_of(machine, measurement))
        if found != self._published.get(machine.name):
            self._published[machine.name] = found
            self._write(machine)

    def _write(self, machine: SimulatedMachine) -> None:
        status = {
            "observedAt": rfc3339(self._clock.now()),
            "agentVersion": "simulated",
            "driverVersion": "570.124.06",
            "kubelet": {"answers": True},
            "devices": self._published[machine.name],
        }
        ref = Ref(resource=Resource.GPU_NODES, name=machine.name)
        if machine.name in {item["metadata"]["name"] for item in self._cluster.objects(Resource.GPU_NODES)}:
            self._cluster.patch(ref, {"status": status})
        else:
            kind = {"apiVersion": "leeboard.dev/v1alpha1", "kind": "GpuNode"}
            self._cluster.create(Resource.GPU_NODES, kind | {"metadata": {"name": machine.name}, "status": status})

    def _devices_of(self, machine: SimulatedMachine, measurement: int) -> Iterator[RawObject]:
        if machine.name not in self._links:
            self._links[machine.name] = _links(machine)
        links = self._links[machine.name]
        for index, uuid in enumerate(machine.uuids):
            used = used_mib(machine, uuid, measurement)
            holder = machine.holders.get(uuid)
            yield {
                "uuid": uuid,
                "index": index,
                "product": machine.product,
                "numaNode": index // 4,
                "memoryMiB": {"total": machine.memory_mib, "used": sum(used.values()), "foreign": 0},
                "health": "Unhealthy" if uuid in machine.broken else "Healthy",
                "links": links[uuid],
                "pods": [{"namespace": holder.namespace, "name": holder.name}] if holder else [],
                "processes": [{"podUid": uid, "memoryMiB": mib} for uid, mib in used.items()],
            }


def used_mib(machine: SimulatedMachine, uuid: str, measurement: int) -> Mapping[PodUid, int]:
    """Return the memory that each pod uses on a device, by uid. The sum never exceeds the device's memory."""
    used: dict[PodUid, int] = {}
    left = machine.memory_mib
    for use in machine.uses.values():
        if uuid in use.uuids:
            used[use.pod.uid] = min(left, _wanted_mib(use, measurement))
            left -= used[use.pod.uid]
    return used


def _wanted_mib(use: Use, measurement: int) -> int:
    """Return the memory that a pod would use. It is a pure function of the pod and the measurement."""
    chance = _drawn(use.pod.uid)
    period = (measurement + chance) // PERIOD
    if _drawn(f"{use.pod.uid}/{period}") % ONE_IN == 0:
        return use.part_mib + EXCESS_MIB
    percent = LEAST_PERCENT + chance % (MOST_PERCENT - LEAST_PERCENT + 1)
    return use.part_mib * percent // 100


def _drawn(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest())


def _links(machine: SimulatedMachine) -> Mapping[str, list[RawObject]]:
    return {
        uuid: [_link(other, near=index // 4 == at // 4) for at, other in enumerate(machine.uuids) if other != uuid]
        for index, uuid in enumerate(machine.uuids)
    }


def _link(uuid: str, *, near: bool) -> RawObject:
    return {"uuid": uuid, "nvlinks": NVLINKS, "p2p": "NVLink", "ancestor": "Node" if near else "System"}
