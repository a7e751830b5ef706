"""Reads values of one device: memory, MIG, fabric, processes. `connections` reads values of pairs."""

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pynvml

from app.agent.asking import Asking
from app.agent.readings import Fabric, Memory, Mig, MigInstance, Process

MIB = 1 << 20
MOST_MIB = 1 << 40
"""More than any device has. Drivers write such a number when they have no value."""

MOST_PARTS = 8
"""The most parts of a device."""

RUNNING = (
    (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2),
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
)
"""Processes that share a device through MPS are only in the last list. A process may be in two lists."""

NUMA_WORDS, WORD_BITS = 16, 64
"""The size of NVML's set of NUMA nodes: 1,024, more than Linux supports."""

EMPTY_SLOT = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}


def bus_id(pci: Any) -> str:
    """Return a PCI address as `nvidia-smi` prints it."""
    try:
        return str(pci.busId).upper()
    except UnicodeDecodeError:
        return f"{pci.domain:08X}:{pci.bus:02X}:{pci.device:02X}.0"


def memory(asking: Asking, handle: Any, uuid: str) -> Memory | None:
    """Read the total and the used memory. Before R510, reserved memory counts as used."""
    found = asking.first_of([nvmlDeviceGetMemoryInfo_v2, pynvml.nvmlDeviceGetMemoryInfo], handle, device=uuid)
    if found is None:
        return None
    total, used, reserved = found.total // MIB, _mib_up(found.used), _mib_up(getattr(found, "reserved", 0))
    if max(total, used, reserved) > MOST_MIB:
        asking.failed(nvmlDeviceGetMemoryInfo_v2.__name__, "no device has so much memory", uuid)
    if total > MOST_MIB:
        return None
    return Memory(
        total_mib=total,
        used_mib=_possible(used),
        reserved_mib=_possible(reserved) if hasattr(found, "reserved") else None,
    )


def nvmlDeviceGetMemoryInfo_v2(handle: Any) -> Any:  # noqa: N802 - the name of the call in failures
    """Call for memory in the version that reports reserved memory separately."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def mig(asking: Asking, handle: Any, uuid: str) -> Mig | None:
    """Read the MIG state; None when the device does not support MIG."""
    modes = asking.ask(pynvml.nvmlDeviceGetMigMode, handle, device=uuid)
    if modes is None:
        return None
    enabled, wanted = (mode == pynvml.NVML_DEVICE_MIG_ENABLE for mode in modes)
    instances = tuple(_instances(asking, handle, uuid)) if enabled else ()
    return Mig(enabled=enabled, pending=enabled != wanted, instances=instances)


def _instances(asking: Asking, handle: Any, uuid: str) -> Iterator[MigInstance]:
    most = asking.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, device=uuid) or 0
    for slot in range(min(most, MOST_PARTS)):
        call = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        part = asking.ask(call, handle, slot, device=uuid, expected=EMPTY_SLOT)
        name = None if part is None else asking.ask(pynvml.nvmlDeviceGetUUID, part, device=uuid)
        if name:
            yield _instance(asking, part, str(name), uuid)


def _instance(asking: Asking, part: Any, name: str, uuid: str) -> MigInstance:
    product = str(asking.ask(pynvml.nvmlDeviceGetName, part, device=uuid) or "")
    attributes = asking.ask(pynvml.nvmlDeviceGetAttributes_v2, part, device=uuid)
    _, _, profile = product.partition(" MIG ")
    return MigInstance(
        uuid=name,
        profile=profile.strip().lower() or _profile(attributes),
        memory_mib=None if attributes is None else _possible(int(attributes.memorySizeMB)),
    )


def _profile(attributes: Any) -> str:
    """Build a profile's name from its size, in the form of drivers that report names."""
    if attributes is None:
        return "unknown"
    slices, of_them = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    whole = f"{slices}g.{round(attributes.memorySizeMB / 1024)}gb"
    return whole if slices == of_them else f"{of_them}c.{whole}"


def fabric(asking: Asking, handle: Any, uuid: str) -> Fabric | None:
    """Read the NVLink domain that the device has joined; None when it has joined none, or not yet."""
    found = asking.first_of(FABRIC, handle, device=uuid)
    if found is None:
        return None
    joined = found.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and found.status == pynvml.NVML_SUCCESS
    cluster = UUID(bytes=bytes(found.clusterUuid))
    return Fabric(str(cluster), int(found.cliqueId)) if joined and cluster.int else None


def nvmlDeviceGetGpuFabricInfoV(handle: Any) -> Any:  # noqa: N802 - the name of the call in failures
    """Return the structure that pynvml fills."""
    return _filled(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.c_nvmlGpuFabricInfo_v2_t())


def nvmlDeviceGetGpuFabricInfo_v3(handle: Any) -> Any:  # noqa: N802 - as above; pynvml has no function for it
    """Return the structure that pynvml fills."""
    return _filled(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.c_nvmlGpuFabricInfo_v3_t())


def nvmlDeviceGetGpuFabricInfo(handle: Any) -> Any:  # noqa: N802 - as above; before R545
    """Return the structure that pynvml fills."""
    return _filled(pynvml.nvmlDeviceGetGpuFabricInfo, handle, pynvml.c_nvmlGpuFabricInfo_t())


FABRIC = (nvmlDeviceGetGpuFabricInfoV, nvmlDeviceGetGpuFabricInfo_v3, nvmlDeviceGetGpuFabricInfo)


def _filled(call: Callable[..., Any], handle: Any, form: Any) -> Any:
    call(handle, ctypes.byref(form))
    return form


def processes(asking: Asking, handle: Any, uuid: str) -> tuple[Process, ...] | None:
    """Read the processes with memory on the device; None when the driver reports none of the lists."""
    answers = [asking.first_of(calls, handle, device=uuid) for calls in RUNNING]
    if all(answer is None for answer in answers):
        return None
    found: dict[int, int | None] = {}
    for one in (one for answer in answers for one in answer or ()):
        used = None if one.usedGpuMemory is None else _possible(_mib_up(one.usedGpuMemory))
        known = found.get(one.pid)
        found[one.pid] = known if used is None else max(used, known or 0)
    return tuple(Process(pid, used) for pid, used in sorted(found.items()))


def plain(text: str) -> str:
    """Return a text of the driver without characters that are not printable ASCII."""
    return re.sub(r"[^\x20-\x7e]", "", text)


def _possible(mib: int) -> int | None:
    return mib if mib <= MOST_MIB else None


def _mib_up(amount: int) -> int:
    return -(-int(amount) // MIB)


def nvmlDeviceGetMemoryAffinity(handle: Any) -> int | None:  # noqa: N802 - the name of the call in failures
    """Return the NUMA node whose memory is nearest to a device; None when the driver names none."""
    words = pynvml.nvmlDeviceGetMemoryAffinity(handle, NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    bits = sum(int(word) << (WORD_BITS * position) for position, word in enumerate(words))
    return (bits & -bits).bit_length() - 1 if bits else None
