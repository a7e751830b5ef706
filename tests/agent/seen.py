"""Builders of readings, for tests of the reports made from them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.agent.readings import DeviceReading, Holding, KubeletReading, MachineReading, Memory, Owners, Process
from app.agent.report import Sight, status_of
from app.model.device import DeviceUuid
from app.model.names import PodUid

ANSWERS = KubeletReading(answers=True)


def device(index: int = 0, **fields: Any) -> DeviceReading:
    """Build a device of 80 GiB."""
    plain = DeviceReading(uuid=DeviceUuid(f"GPU-{index}"), index=index, memory=memory(0), processes=())
    return replace(plain, **fields)


def memory(used_mib: int) -> Memory:
    """Build its memory."""
    return Memory(total_mib=81920, used_mib=used_mib, reserved_mib=512)


def holding(pod: str, *ids: str) -> Holding:
    """Build the devices that a pod holds."""
    namespace, _, name = pod.partition("/")
    return Holding(namespace=namespace, name=name, device_ids=frozenset(ids))


def sight(
    *devices: DeviceReading, kubelet: KubeletReading = ANSWERS, owners: Owners | None = None, **machine: Any
) -> Sight:
    """Build a complete reading."""
    return Sight(machine=MachineReading(devices=devices, **machine), kubelet=kubelet, owners=owners or {})


def using(used_mib: int, **of_pods: int) -> Mapping[str, Any]:
    """Build the report of one device whose memory is used by pods."""
    processes = tuple(Process(number, mib) for number, mib in enumerate(of_pods.values()))
    owners = {number: PodUid(uid) for number, uid in enumerate(of_pods)}
    return status_of(sight(device(memory=memory(used_mib), processes=processes), owners=owners))
