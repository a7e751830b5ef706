"""Reads what a pod's annotations request of shared devices, by one strict grammar, with KAI's error texts.

Checks and accounts both use this reader: if two parsers disagree, a pod can get a device without a charge.
"""

import re
from functools import partial

from app.cluster.decode.reading import Fields, ObjectReading
from app.model import marks
from app.model.pod import Sharing
from app.model.quantity import fraction_ppm, integer
from app.model.resources import Scalars

FRACTION_ANNOTATION = "gpu-fraction"
MEMORY_ANNOTATION = "gpu-memory"
DEVICES_ANNOTATION = "gpu-fraction-num-devices"
CONTAINER_ANNOTATION = "gpu-fraction-container-name"
MPS_ANNOTATION = "mps"

MIG_PREFIX = "nvidia.com/mig-"
"""Of every extended resource that is a MIG profile."""

MEBIBYTES = "Mi"
"""The suffix of an amount of memory that bind has written."""

MAX_MEMORY_MIB = 1 << 40
MAX_DEVICES = 64

BOTH_FRACTION_AND_WHOLE = "cannot have both GPU fraction request and whole GPU resource request/limit"
BOTH_MEMORY_AND_GPU = "cannot request both GPU and GPU memory"
BOTH_PART_AND_MIG = "cannot have both a part of a GPU and a MIG profile: a container sees only one of them"
DEVICES_ALONE = "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
MPS_ALONE = "MPS is only supported with GPU fraction request"
NO_FRACTION = "gpu-fraction annotation value must be a positive number smaller than 1.0"
NO_MEMORY = "gpu-memory annotation value must be a positive integer greater than 0"
NO_DEVICES = "fraction count annotation value must be a positive integer greater than 0"

GIVEN = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
"""The form of a UUID, or of the name of a shared device, which is a label's value."""

Texts = tuple[str, ...]

memory_mib = partial(integer, minimum=1, maximum=MAX_MEMORY_MIB)
device_count = partial(integer, minimum=1, maximum=MAX_DEVICES)


def asks_for_part(annotations: Fields) -> bool:
    """Return whether a part of a device is requested, in valid form or not."""
    return FRACTION_ANNOTATION in annotations or MEMORY_ANNOTATION in annotations


def sharing(
    reading: ObjectReading, annotations: Fields, *, whole_gpu_milli: int, scalars: Scalars = ()
) -> Sharing | None:
    """Return the requested part of each of some devices; None when none is requested, or when it cannot be read.

    `whole_gpu_milli` is the containers' request for whole devices: a pod cannot have both (KAI). A pod with a part
    cannot have MIG profiles either, which are among `scalars`.
    """
    if not asks_for_part(annotations):
        _doubt_what_needs_a_part(reading, annotations)
        return None
    profile = next((name for name, _ in scalars if name.startswith(MIG_PREFIX)), "")
    if profile:
        reading.doubt(f"{BOTH_PART_AND_MIG}; remove {profile}, or the annotation {_asking(annotations)}")
    by_memory = MEMORY_ANNOTATION in annotations
    if FRACTION_ANNOTATION in annotations and whole_gpu_milli:
        reading.doubt(f"{BOTH_FRACTION_AND_WHOLE}; remove nvidia.com/gpu, or the annotation {FRACTION_ANNOTATION}")
    if by_memory and (whole_gpu_milli or FRACTION_ANNOTATION in annotations):
        other = "nvidia.com/gpu" if whole_gpu_milli else f"the annotation {FRACTION_ANNOTATION}"
        reading.doubt(f"{BOTH_MEMORY_AND_GPU}; remove {other}, or the annotation {MEMORY_ANNOTATION}")
    fraction, memory = annotations.get(FRACTION_ANNOTATION), annotations.get(MEMORY_ANNOTATION)
    asked = Sharing(
        portion_ppm=reading.number(f"{NO_FRACTION}; it", fraction, fraction_ppm),
        memory_mib=reading.number(f"{NO_MEMORY}; it", memory, memory_mib),
        devices=reading.number(f"{NO_DEVICES}; it", annotations.get(DEVICES_ANNOTATION), device_count, otherwise=1),
    )
    return None if reading.problem else asked


def bound(annotations: Fields) -> Sharing | None:
    """Return what a bound pod pays for its shared devices, as bind wrote it; None where it cannot be from bind."""
    names, _ = given(annotations)
    value = annotations.get(marks.SHARE_ANNOTATION)
    if not names or not isinstance(value, str):
        return None
    own = ObjectReading()
    if value.endswith(MEBIBYTES):
        mib = own.number("it", value.removesuffix(MEBIBYTES), memory_mib)
        return None if own.problem else Sharing(memory_mib=mib, devices=len(names))
    ppm = own.number("it", value, fraction_ppm)
    return None if own.problem else Sharing(portion_ppm=ppm, devices=len(names))


def given(annotations: Fields) -> tuple[Texts, Texts]:
    """Return the names and UUIDs of the shared devices of a bound pod; none where these cannot be from bind."""
    names, uuids = (_listed(annotations, key) for key in (marks.GROUPS_ANNOTATION, marks.DEVICES_ANNOTATION))
    is_from_bind = len(set(names)) == len(names) == len(uuids) and all(map(GIVEN.fullmatch, names + uuids))
    return (names, uuids) if is_from_bind else ((), ())


def reserved(annotations: Fields) -> Texts:
    """Return the UUID that is recorded on a reservation pod, none when there is none."""
    return _listed(annotations, marks.RESERVED_DEVICE_ANNOTATION)[:1]


def _listed(annotations: Fields, name: str) -> Texts:
    value = annotations.get(name)
    return tuple(value.split(",", MAX_DEVICES)[:MAX_DEVICES]) if isinstance(value, str) and value else ()


def _asking(annotations: Fields) -> str:
    return FRACTION_ANNOTATION if FRACTION_ANNOTATION in annotations else MEMORY_ANNOTATION


def _doubt_what_needs_a_part(reading: ObjectReading, annotations: Fields) -> None:
    either = f"{FRACTION_ANNOTATION} or {MEMORY_ANNOTATION}"
    if DEVICES_ANNOTATION in annotations:
        reading.doubt(f"{DEVICES_ALONE}; add annotation {either}, or remove {DEVICES_ANNOTATION}")
    if annotations.get(MPS_ANNOTATION) == "true":
        reading.doubt(f"{MPS_ALONE}; add annotation {either}, or remove {MPS_ANNOTATION}")
