"""The typical mix of pods in a cluster, by which a placement is judged: what it leaves free must suit later pods."""

from dataclasses import dataclass
from typing import NamedTuple

from app.model.pod import Pod
from app.model.resources import GPU_MILLI

_SCARCEST = 100
"""A kind of pod counts as if at least one in this number of GPU nodes had room for it."""


class TypicalPod(NamedTuple):
    """What pods of one kind request. Node constraints are left out: they made placements no better when measured."""

    cpu_milli: int
    """Rounded up to four binary digits, as the memory: few kinds stand for many different requests."""
    memory_bytes: int
    devices: int
    """The number of GPUs, whole or shared."""
    part_milli: int
    """The part of each of these GPUs, 1 .. 1000."""

    @property
    def gpu_milli(self) -> int:
        """All GPUs of the pod together."""
        return self.devices * self.part_milli

    @staticmethod
    def of(pod: Pod, device_memory_mib: int) -> "TypicalPod | None":
        """Read the request of a pod, given the memory of the GPUs that it shares.

        Return None for a pod that requests no GPUs, or GPUs in another form only: MIG profiles and DRA claims.
        """
        devices, part_milli = pod.request.gpu_milli // GPU_MILLI, GPU_MILLI
        if pod.sharing is not None:
            devices = pod.sharing.devices
            part_milli = max(pod.sharing.gpu_milli(device_memory_mib) // max(devices, 1), 1)
        cpu_milli, memory_bytes, *_ = pod.request.amounts
        return TypicalPod(_rounded(cpu_milli), _rounded(memory_bytes), devices, part_milli) if devices > 0 else None


def competing(room: int, gpu_nodes: int) -> float:
    """Return by which number of nodes the pods of a kind are divided, given the nodes with room for one of them.

    Fewer nodes compete for a pod for which few have room, so each of them expects it more often.
    """
    return max(room, gpu_nodes / _SCARCEST, 1.0)


def _rounded(amount: int) -> int:
    step = 1 << max(amount.bit_length() - 4, 0)
    return -(-amount // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class TypicalMix:
    """How often pods with GPUs arrive, and for how many of them there was room when this was learnt. Never empty."""

    pods: tuple[TypicalPod, ...]
    counts: tuple[int, ...]
    """By kind, at least 1. Only the ratios count."""
    rooms: tuple[int, ...]
    """By kind: the number of nodes with room for one more pod."""
    gpu_nodes: int
    """The number of nodes with GPUs."""
