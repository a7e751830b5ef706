"""Judges from the driver's answers whether a device should take new pods. It only calls NVML, and stores nothing.

An XID marks a device until the driver is reopened: NVML does not report the end of a fault.
"""

from collections.abc import Collection, Iterator
from typing import Any

import pynvml

from app.agent.asking import Asking
from app.agent.readings import Memory
from app.model.device import Health

USUALLY_IGNORED = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that applications cause: the list of NVIDIA's device plugin."""

RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain its peers",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain and reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover its IMEX domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "reset its bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "reboot the node",
}

Judgement = tuple[Health, str]
"""The health, and why it is not healthy."""


def judge(asking: Asking, handle: Any, uuid: str, *, xids: Collection[int], memory: Memory | None) -> Judgement:
    """Return the health of a device that answers, with every reason against it."""
    reasons = [*_reported(xids), *_recovery(asking, handle, uuid), *_memory_cells(asking, handle, uuid)]
    if reasons:
        return Health.UNHEALTHY, "; ".join(reasons)
    doubts = [each for each in asking.failures if each.device == uuid and each.call in MEMORY_CALLS]
    doubts = [each for each in doubts if each.error != NOT_OURS]
    if memory is None and doubts:
        return Health.UNKNOWN, f"its memory cannot be read: {doubts[0].error}"
    return Health.HEALTHY, ""


MEMORY_CALLS = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"}
NOT_OURS = str(pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION))
"""This error is about the agent, not the device: with MIG, only a privileged agent may read the memory."""


def _reported(xids: Collection[int]) -> Iterator[str]:
    if xids:
        yield f"it has reported XID {', '.join(map(str, sorted(xids)))}"


def _recovery(asking: Asking, handle: Any, uuid: str) -> Iterator[str]:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    answers = asking.ask(pynvml.nvmlDeviceGetFieldValues, handle, [field], device=uuid)
    if answers is None or answers[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return  # drivers before R555 do not have this field
    action = int(answers[0].value.uiVal)
    if action != pynvml.NVML_GPU_RECOVERY_ACTION_NONE:
        yield f"the driver requests recovery: {RECOVERY.get(action, f'action {action}')}"


def _memory_cells(asking: Asking, handle: Any, uuid: str) -> Iterator[str]:
    rows = asking.ask(pynvml.nvmlDeviceGetRemappedRows, handle, device=uuid)
    if rows is not None:
        # Remapped uncorrectable errors are repaired. Errors of GPUs before Ampere are not.
        _, uncorrectable, is_pending, has_failed = rows
        if has_failed:
            yield "a row of its memory could not be remapped"
        elif is_pending and uncorrectable:
            yield "a row of its memory is to be remapped: it must be reset"
        return
    if asking.has_failed("nvmlDeviceGetRemappedRows", uuid):
        return  # the error may have been repaired
    if asking.ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle, device=uuid):
        yield "a page of its memory is to be retired: it must be reset"
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    if count := asking.ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, since, device=uuid):
        yield f"{count} uncorrected memory errors since the driver was loaded"
