"""Writes what a pod is told of the GPUs that it shares: the annotations that bind writes and its environment shows."""

from collections.abc import Mapping, Sequence

from app.cluster.sharedgpus import SharedGpu
from app.model import marks
from app.model.pod import Sharing


def marks_of(sharing: Sharing, gpus: Sequence[SharedGpu]) -> Mapping[str, str]:
    """Return the annotations of a pod that shares these GPUs, all of which are ready."""
    memory_mib = [sharing.mib_of(gpu.whole_mib) for gpu in gpus]
    return {
        marks.DEVICES_ANNOTATION: ",".join(gpu.uuid for gpu in gpus),
        marks.GROUPS_ANNOTATION: ",".join(gpu.name for gpu in gpus),
        marks.PORTION_ANNOTATION: portion(sharing, gpus[0].whole_mib),
        marks.MEMORY_ANNOTATION: str(memory_mib[0]),
        marks.MPS_MEMORY_ANNOTATION: ",".join(f"{index}={mib}M" for index, mib in enumerate(memory_mib)),
    }


def portion(sharing: Sharing, whole_mib: int) -> str:
    """Return the part of each GPU as a decimal: `0.50`, `0.125`; what was asked for in MiB is rounded up to hundredths.

    That is how KAI tells it: who needs to know exactly reads the memory.
    """
    if sharing.memory_mib:
        return f"{-(-100 * sharing.memory_mib // max(whole_mib, 1)) / 100:.2f}"
    digits = f"{sharing.portion_ppm:06}".rstrip("0")
    return f"0.{digits:0<2}"
