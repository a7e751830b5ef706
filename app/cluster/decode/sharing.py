"""Reads what a pod's annotations ask for of shared devices, by one strict grammar, with KAI's words where it errs.

Whoever checks and whoever accounts reads it here: two parsers that disagree are how a pod gets a device for nothing.
"""

from functools import partial

from app.cluster.decode.reading import Fields, Reading
from app.model.pod import Sharing
from app.model.quantity import fraction_milli, integer

FRACTION_ANNOTATION = "gpu-fraction"
MEMORY_ANNOTATION = "gpu-memory"
DEVICES_ANNOTATION = "gpu-fraction-num-devices"
CONTAINER_ANNOTATION = "gpu-fraction-container-name"
MPS_ANNOTATION = "mps"

MAX_MEMORY_MIB = 1 << 40
MAX_DEVICES = 64
PPM_IN_MILLI = 1000

BOTH_FRACTION_AND_WHOLE = "cannot have both GPU fraction request and whole GPU resource request/limit"
BOTH_MEMORY_AND_GPU = "cannot request both GPU and GPU memory"
DEVICES_ALONE = "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
MPS_ALONE = "MPS is only supported with GPU fraction request"
NO_FRACTION = "gpu-fraction annotation value must be a positive number smaller than 1.0"
NO_MEMORY = "gpu-memory annotation value must be a positive integer greater than 0"
NO_DEVICES = "fraction count annotation value must be a positive integer greater than 0"

memory_mib = partial(integer, minimum=1, maximum=MAX_MEMORY_MIB)
device_count = partial(integer, minimum=1, maximum=MAX_DEVICES)


def asks_for_part(annotations: Fields) -> bool:
    """Return whether a part of a device is asked for, well or badly."""
    return FRACTION_ANNOTATION in annotations or MEMORY_ANNOTATION in annotations


def sharing(reading: Reading, annotations: Fields, *, whole_gpu_milli: int) -> Sharing | None:
    """Return what is asked for of each of some devices; None when nothing is, or when it cannot be read.

    `whole_gpu_milli` is what the pod's containers ask for of whole devices: nobody gets both (KAI).
    """
    if not asks_for_part(annotations):
        _doubt_what_needs_a_part(reading, annotations)
        return None
    by_memory = MEMORY_ANNOTATION in annotations
    if FRACTION_ANNOTATION in annotations and whole_gpu_milli:
        reading.doubt(f"{BOTH_FRACTION_AND_WHOLE}; remove nvidia.com/gpu, or the annotation {FRACTION_ANNOTATION}")
    if by_memory and (whole_gpu_milli or FRACTION_ANNOTATION in annotations):
        other = "nvidia.com/gpu" if whole_gpu_milli else f"the annotation {FRACTION_ANNOTATION}"
        reading.doubt(f"{BOTH_MEMORY_AND_GPU}; remove {other}, or the annotation {MEMORY_ANNOTATION}")
    fraction, memory = annotations.get(FRACTION_ANNOTATION), annotations.get(MEMORY_ANNOTATION)
    asked = Sharing(
        portion_ppm=PPM_IN_MILLI * reading.number(f"{NO_FRACTION}; it", fraction, fraction_milli),
        memory_mib=reading.number(f"{NO_MEMORY}; it", memory, memory_mib),
        devices=reading.number(f"{NO_DEVICES}; it", annotations.get(DEVICES_ANNOTATION), device_count, otherwise=1),
    )
    return None if reading.problem else asked


def _doubt_what_needs_a_part(reading: Reading, annotations: Fields) -> None:
    either = f"{FRACTION_ANNOTATION} or {MEMORY_ANNOTATION}"
    if DEVICES_ANNOTATION in annotations:
        reading.doubt(f"{DEVICES_ALONE}; add annotation {either}, or remove {DEVICES_ANNOTATION}")
    if annotations.get(MPS_ANNOTATION) == "true":
        reading.doubt(f"{MPS_ALONE}; add annotation {either}, or remove {MPS_ANNOTATION}")
