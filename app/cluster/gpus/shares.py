"""Writes what a pod is told about its shared GPUs: the annotations that bind writes and its environment shows."""

from collections.abc import Mapping, Sequence

from app.cluster.decode.sharing import MEBIBYTES
from app.cluster.gpus.shared_gpus import SharedGpu
from app.model import marks
from app.model.pod import Sharing


def marks_of(sharing: Sharing, gpus: Sequence[SharedGpu]) -> Mapping[str, str]:
    """Return the annotations of a pod that shares these GPUs, all of which are ready."""
    memory_mib = [sharing.mib_of(gpu.whole_mib) for gpu in gpus]
    return {
        marks.DEVICES_ANNOTATION: ",".join(gpu.uuid for gpu in gpus),
        marks.GROUPS_ANNOTATION: ",".join(gpu.name for gpu in gpus),
        marks.SHARE_ANNOTATION: share(sharing),
        marks.PORTION_ANNOTATION: portion(sharing, gpus[0].whole_mib),
        marks.MEMORY_ANNOTATION: str(memory_mib[0]),
        marks.MPS_MEMORY_ANNOTATION: ",".join(f"{index}={mib}M" for index, mib in enumerate(memory_mib)),
    }


def share(sharing: Sharing) -> str:
    """Return exactly what the pod requested of each GPU, as `decode.sharing.bound` reads it."""
    return f"{sharing.memory_mib}{MEBIBYTES}" if sharing.memory_mib else _fraction(sharing.portion_ppm)


def portion(sharing: Sharing, whole_mib: int) -> str:
    """Return the part of each GPU as a decimal: `0.50`, `0.125`; a request in MiB is rounded up to hundredths.

    This is KAI's format; the exact value is the memory.
    """
    if sharing.memory_mib:
        return f"{-(-100 * sharing.memory_mib // max(whole_mib, 1)) / 100:.2f}"
    return _fraction(sharing.portion_ppm)


def _fraction(portion_ppm: int) -> str:
    digits = f"{portion_ppm:06}".rstrip("0")
    return f"0.{digits:0<2}"
