"""Turns the readings into the status of a GpuNode, within the limits of its CRD. Pure functions.

The API server refuses the whole object for one value outside the limits, so every value is limited here.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.agent.readings import (
    DeviceReading,
    DriverFailure,
    Holding,
    KubeletReading,
    Link,
    MachineReading,
    Memory,
    Mig,
    Owners,
)
from app.model.device import Health

Status = Mapping[str, Any]

API_VERSION = "leeboard.dev/v1alpha1"
MOST_DEVICES, MOST_FAILURES, MOST_HOLDERS, MOST_PROCESSES, MOST_INSTANCES = 64, 64, 64, 256, 8
MOST_NVLINKS = 36
MOST_MIB = 1 << 40
UUID = re.compile(r"[A-Za-z0-9-]{1,96}")
INSTANCE_UUID = re.compile(r"[A-Za-z0-9/-]{1,96}")
NAMESPACE, POD = re.compile(r".{1,63}"), re.compile(r".{1,253}")
PROFILE = re.compile(r"[0-9a-z.+-]{1,32}")

REPLICA = "::"
"""The separator after the UUID in the id of a device replica."""

WORST_FIRST = (Health.UNHEALTHY, Health.UNKNOWN, Health.HEALTHY)

SILENT = "the NVIDIA driver does not answer"
OF_GKE = re.compile(r"nvidia(\d+)(?:/.*)?")
"""GKE's device plugin names a device, or a part of it, by the number of its file in /dev."""

NO_PIDS = "not found: the agent must see the processes of the host (hostPID)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All readings of one moment."""

    machine: MachineReading
    kubelet: KubeletReading
    owners: Owners
    agent_version: str = ""
    boot_id: str = ""


def status_of(sight: Sight) -> dict[str, Any]:
    """Return the status without the time. Unknown values are left out."""
    machine, kubelet = sight.machine, sight.kubelet
    # Unique by UUID: the API server refuses a list with duplicates.
    devices = [*{device.uuid: device for device in machine.devices if UUID.fullmatch(device.uuid)}.values()]
    devices = devices[:MOST_DEVICES]
    holders = _holders(devices, kubelet.holdings)
    failures = [*_unseen(devices, sight.owners), *_strange(devices, holders), *machine.failures][:MOST_FAILURES]
    return _known(
        agentVersion=sight.agent_version[:64],
        driverVersion=machine.driver_version[:64],
        bootId=sight.boot_id[:36],
        message=machine.message[:512],
        kubelet=_known(answers=kubelet.answers, reason=kubelet.reason[:256]),
        failures=[_failure(each) for each in failures],
        summary=summary_of((each.health for each in devices), (each.product or "" for each in devices)) or None,
    ) | {"devices": [_device(_linked(each, devices), sight.owners, holders[each.uuid]) for each in devices]}


def gpu_node(node_name: str, status: Status) -> dict[str, Any]:
    """Return the whole object."""
    return {"apiVersion": API_VERSION, "kind": "GpuNode", "metadata": {"name": node_name}, "status": status}


def silent(machine: MachineReading) -> MachineReading:
    """Return the reading of a machine whose driver has not answered for long: the health of all devices is unknown."""
    doubted = (replace(each, health=Health.UNKNOWN, health_reason=SILENT) for each in machine.devices)
    return replace(machine, devices=tuple(doubted), message=SILENT)


def summary_of(healths: Iterable[Health], names: Iterable[str]) -> dict[str, str]:
    """Return a summary of all devices, the worst health first, for a column of `kubectl get`."""
    health, products = Counter(healths), Counter(names)
    worst_first = {each.value: health[each] for each in WORST_FIRST if health[each]}
    return _known(
        health=_all_of(worst_first, "{count} {name}")[:128],
        products=_all_of(dict(products.most_common()), "{count} x {name}")[:512],
    )


def _all_of(counts: Mapping[str, int], form: str) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(form.format(count=count, name=name) for name, count in counts.items() if name)


def _device(device: DeviceReading, owners: Owners, holders: Iterable[tuple[str, str]]) -> dict[str, Any]:
    by_pod, foreign_mib = _usage(device, owners)
    return _known(
        uuid=device.uuid,
        index=_within(device.index, MOST_DEVICES - 1),
        minor=_within(device.minor, 1023),
        product=(device.product or "")[:96],
        pciBusId=device.pci_bus_id if re.fullmatch(r"[0-9A-Fa-f:.]{1,32}", device.pci_bus_id or "") else None,
        numaNode=_within(device.numa_node, 1023),
        memoryMiB=_memory(device.memory, foreign_mib),
        health=device.health.value,
        healthReason=device.health_reason[:256],
        mig=_mig(device.mig),
        links=[_link(each) for each in device.links],
        fabric=device.fabric and {"cluster": device.fabric.cluster, "clique": device.fabric.clique},
        pods=[{"namespace": namespace, "name": name} for namespace, name in sorted(holders)[:MOST_HOLDERS]],
        processes=[_known(podUid=uid, memoryMiB=_at_most(used)) for uid, used in sorted(by_pod.items())][
            :MOST_PROCESSES
        ],
    )


def _memory(memory: Memory | None, foreign_mib: int | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    return _known(
        total=min(memory.total_mib, MOST_MIB),
        used=_within(memory.used_mib, MOST_MIB),
        reserved=_within(memory.reserved_mib, MOST_MIB),
        foreign=_at_most(foreign_mib),
    )


def _mig(mig: Mig | None) -> dict[str, Any] | None:
    if mig is None:
        return None
    instances = {
        each.uuid: _known(uuid=each.uuid, profile=each.profile, memoryMiB=_within(each.memory_mib, MOST_MIB))
        for each in mig.instances
        if INSTANCE_UUID.fullmatch(each.uuid) and PROFILE.fullmatch(each.profile)
    }
    return _known(enabled=mig.enabled, pending=mig.pending, instances=[*instances.values()][:MOST_INSTANCES])


def _linked(device: DeviceReading, devices: Sequence[DeviceReading]) -> DeviceReading:
    others = {each.uuid for each in devices} - {device.uuid}
    return replace(device, links=tuple({each.uuid: each for each in device.links if each.uuid in others}.values()))


def _link(link: Link) -> dict[str, Any]:
    return _known(uuid=link.uuid, nvlinks=min(link.nvlinks, MOST_NVLINKS), p2p=link.p2p, ancestor=link.ancestor)


def _failure(failure: DriverFailure) -> dict[str, Any]:
    return {"call": failure.call[:96], "error": failure.error[:128]} | _known(device=failure.device[:96])


def _usage(device: DeviceReading, owners: Owners) -> tuple[dict[str, int | None], int | None]:
    """Return the memory by pod, and that of processes outside pods.

    A pod's value is None when the memory of one of its processes is unknown.
    """
    if device.processes is None:
        return {}, None
    by_pod: dict[str, int | None] = {}
    foreign_mib = 0
    for process in device.processes:
        if process.pid not in owners:
            continue  # the process has ended since the driver was read
        uid = owners[process.pid]
        if uid is None:
            foreign_mib += process.memory_mib or 0
        else:
            so_far = by_pod.get(uid, 0)
            by_pod[uid] = None if so_far is None or process.memory_mib is None else so_far + process.memory_mib
    return by_pod, foreign_mib


def _unseen(devices: Sequence[DeviceReading], owners: Owners) -> Iterator[DriverFailure]:
    pids = {process.pid for device in devices for process in device.processes or ()}
    if pids and not owners:
        yield DriverFailure("/proc/PID/cgroup", NO_PIDS)


def _holders(devices: Sequence[DeviceReading], holdings: Iterable[Holding]) -> Mapping[str, set[tuple[str, str]]]:
    """Return the pods by the device that they hold, also for a device that does not exist."""
    names = {part.uuid: device.uuid for device in devices if device.mig for part in device.mig.instances}
    minors = {str(device.minor): device.uuid for device in devices if device.minor is not None}
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for holding in (each for each in holdings if NAMESPACE.fullmatch(each.namespace) and POD.fullmatch(each.name)):
        for uuid in (each.partition(REPLICA)[0] for each in holding.device_ids):
            of_gke = OF_GKE.fullmatch(uuid)
            device = minors.get(of_gke.group(1)) if of_gke else names.get(uuid)
            found[device or _parent(uuid)].add((holding.namespace, holding.name))
    return found


def _strange(devices: Sequence[DeviceReading], holders: Mapping[str, object]) -> Iterator[DriverFailure]:
    """Report devices that pods hold but the driver does not know. Without any devices, another failure reports it."""
    strange = sorted(set(holders) - {device.uuid for device in devices})
    if devices and strange:
        yield DriverFailure("PodResources", f"pods hold devices that the driver does not know: {', '.join(strange)}")


def _parent(uuid: str) -> str:
    # Drivers before R470 name a MIG instance after its device: MIG-GPU-<uuid>/<instance>/<part of it>.
    return uuid.removeprefix("MIG-").partition("/")[0] if uuid.startswith("MIG-GPU-") else uuid


def _within(number: int | None, most: int) -> int | None:
    return number if number is not None and 0 <= number <= most else None


def _at_most(mib: int | None) -> int | None:
    return None if mib is None else min(mib, MOST_MIB)


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", [])}
