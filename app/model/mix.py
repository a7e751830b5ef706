"""The typical mix of pods in a cluster, by which a placement is judged: what it leaves free must suit later pods."""

from dataclasses import dataclass
from typing import NamedTuple

from app.model.pod import Pod
from app.model.resources import GPU_MILLI, gpu_milli_of


class TypicalPod(NamedTuple):
    """What pods of one kind request. Node constraints are left out: they made placements no better when measured."""

    cpu_milli: int
    memory_bytes: int
    devices: int
    """The number of GPUs, whole or shared; 0 without GPUs of the `GPU` axis."""
    part_milli: int
    """The part of each of these GPUs, 1 .. 1000; 0 without GPUs of the `GPU` axis."""
    other_milli: int
    """About how many milli-GPUs the pod requests in other forms: MIG profiles, DRA claims, other vendors' GPUs."""

    @property
    def gpu_milli(self) -> int:
        """All GPUs of the pod together."""
        return self.devices * self.part_milli + self.other_milli

    @staticmethod
    def of(pod: Pod, device_memory_mib: int) -> "TypicalPod":
        """Read the request of a pod, given the memory of the GPUs that it shares."""
        devices, part_milli = pod.request.gpu_milli // GPU_MILLI, GPU_MILLI
        if pod.sharing is not None:
            devices = pod.sharing.devices
            part_milli = max(pod.sharing.gpu_milli(device_memory_mib) // max(devices, 1), 1)
        other = sum(gpu_milli_of(name) * count for name, count in pod.scalars)
        other += GPU_MILLI * sum(claim.count for claim in pod.claims)
        cpu_milli, memory_bytes, *_ = pod.request.amounts
        return TypicalPod(cpu_milli, memory_bytes, devices, part_milli if devices else 0, other)


@dataclass(frozen=True, slots=True, eq=False)
class TypicalMix:
    """How often pods of each kind arrive, and where they found room when this was learnt. Never empty."""

    pods: tuple[TypicalPod, ...]
    counts: tuple[int, ...]
    """By kind, at least 1. Only the ratios count."""
    rooms: tuple[int, ...]
    """By kind: the number of nodes with room for one more pod."""
    gpu_nodes: int
    """The number of nodes with GPUs."""
