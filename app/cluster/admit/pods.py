"""What is wrong with a managed pod, as a sentence for its owner, and what is only unusual about it."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import inf

from app.cluster import decode
from app.cluster.admit.parts import annotations_of, spec_of
from app.cluster.admit.policy import missing_queue
from app.cluster.admit.shape import scheduler_of
from app.cluster.decode.environment import path_of, sharing_container, variables
from app.cluster.decode.excess import excess
from app.cluster.decode.parts import CONTAINERS, fields, items
from app.cluster.decode.pods import CHECKPOINT_ANNOTATION, PREEMPTIBILITY, PREEMPTIBILITY_LABEL
from app.cluster.decode.reading import Fields, ObjectReading
from app.cluster.decode.sharing import (
    CONTAINER_ANNOTATION,
    DEVICES_ANNOTATION,
    FRACTION_ANNOTATION,
    MEMORY_ANNOTATION,
    MPS_ANNOTATION,
    asks_for_part,
    sharing,
)
from app.model.marks import QUEUE_ANNOTATION
from app.model.names import QueueName
from app.model.pod import Pod
from app.model.quantity import shown
from app.model.queue import Queue
from app.model.seam import RawObject

NAMES_SHOWN = 5
"""Containers that a message names."""


class GpuSharing(StrEnum):
    """Whether parts of devices are offered."""

    OFF = "off"
    ON = "on"


def problem(raw: RawObject, *, profiles: frozenset[str], gpu_sharing: GpuSharing) -> str:
    """Return what is wrong with a managed pod; empty for a valid pod, and for any other pod."""
    if scheduler_of(raw) not in profiles:
        return ""
    if found := excess(raw):
        return found
    pod = decode.pod(raw, profiles=profiles)
    return _sharing_problem(raw, pod, gpu_sharing) or pod.problem


def oddities(raw: RawObject, *, profiles: frozenset[str], queues: Mapping[QueueName, Queue]) -> Iterator[str]:
    """Return why a new managed pod stays pending, or what does not mean what its owner may think."""
    if scheduler_of(raw) not in profiles:
        return
    pod = decode.pod(raw, profiles=profiles)
    queue = queues.get(pod.queue)
    if queue is None:
        yield missing_queue(pod.queue, queues, "the pod waits")
    elif queue.problem:
        yield f"queue {shown(pod.queue)} takes no pods: {queue.problem}"
    labels = ObjectReading().mapping(raw["metadata"], "labels")
    value = labels.get(PREEMPTIBILITY_LABEL)
    if value and value not in PREEMPTIBILITY:
        label = f"label {PREEMPTIBILITY_LABEL} is {shown(value)} and counts as not set"
        yield f"{label}; write {' or '.join(PREEMPTIBILITY)}"
    annotations = annotations_of(raw)
    if CHECKPOINT_ANNOTATION in annotations and pod.checkpoint_s == inf:
        written = f"annotation {CHECKPOINT_ANNOTATION} is {shown(annotations[CHECKPOINT_ANNOTATION])}"
        yield f"{written} and counts as not set; write a duration such as 10m"
    yield from _sharing_oddities(annotations)


def relabelled(old: RawObject, raw: RawObject, *, profiles: frozenset[str]) -> Iterator[str]:
    """Yield a warning when the queue label of a pod was changed after its queue was fixed."""
    if scheduler_of(raw) not in profiles:
        return
    before, now = (decode.pod(each, profiles=profiles).queue for each in (old, raw))
    fixed = annotations_of(raw).get(QUEUE_ANNOTATION)
    if isinstance(fixed, str) and now not in (before, fixed):
        stays = f"the pod stays in queue {shown(fixed)}, whatever its labels say"
        yield f"{stays}; to use another queue, create the pod again"


def replaced(raw: RawObject) -> Iterator[str]:
    """Yield which of its owner's variables are replaced in the container that shares devices.

    The variables of Leeboard must not be in the pod yet.
    """
    spec, annotations = spec_of(raw), annotations_of(raw)
    wanted, found = variables(annotations), sharing_container(spec, annotations)
    if not wanted or found is None:
        return
    kind, position = found
    container = items(spec, kind)[position]
    shows = {shown(entry.get("name")): _shown_field(entry) for entry in items(container, "env")}
    paths = {name: path_of(annotation) for name, annotation in wanted.items()}
    lost = [name for name, path in paths.items() if shows.get(shown(name), path) != path]
    if lost:
        theirs = f"{' and '.join(lost)} of container {shown(container.get('name'))}"
        yield f"{theirs} will be replaced by Leeboard, because the container shares GPUs; leave it out"


def _shown_field(entry: Fields) -> object:
    """Return the field that a variable shows; None when it shows something else."""
    return fields(fields(entry, "valueFrom"), "fieldRef").get("fieldPath")


def _sharing_oddities(annotations: Fields) -> Iterator[str]:
    mps = annotations.get(MPS_ANNOTATION)
    if mps not in (None, "true", "false"):
        yield f'annotation {MPS_ANNOTATION} is {shown(mps)} and counts as not set; write "true"'
    if asks_for_part(annotations):
        return
    idle = [CONTAINER_ANNOTATION] if CONTAINER_ANNOTATION in annotations else []
    idle += [MPS_ANNOTATION] if mps == "false" else []
    for name in idle:
        change = f"add annotation {FRACTION_ANNOTATION} or {MEMORY_ANNOTATION}, or remove it"
        yield f"annotation {name} changes nothing: the pod asks for no part of a GPU; {change}"


def _sharing_problem(raw: RawObject, pod: Pod, gpu_sharing: GpuSharing) -> str:
    reading = ObjectReading()
    annotations = reading.mapping(raw["metadata"], "annotations")
    if gpu_sharing is GpuSharing.OFF and (asks_for_part(annotations) or DEVICES_ANNOTATION in annotations):
        name = f"{pod.namespace}/{pod.name}"
        attempt = f"attempting to create a pod {name} with gpu sharing request, while GPU sharing is disabled"
        return f"{attempt}; ask for whole GPUs with nvidia.com/gpu, without its annotations"
    sharing(reading, annotations, whole_gpu_milli=pod.request.gpu_milli, scalars=pod.scalars)
    if not reading.problem and asks_for_part(annotations) and sharing_container(spec_of(raw), annotations) is None:
        return _no_such_container(raw, annotations)
    return reading.problem


def _no_such_container(raw: RawObject, annotations: Fields) -> str:
    spec, reading = ObjectReading().mapping(raw, "spec"), ObjectReading()
    names = [shown(one.get("name")) for kind in CONTAINERS for one in reading.mappings(spec, kind)]
    wanted = f"annotation {CONTAINER_ANNOTATION} is {shown(annotations.get(CONTAINER_ANNOTATION))}"
    return f"{wanted}, and the pod has no such container; write one of {', '.join(names[:NAMES_SHOWN])}"
