"""What is wrong with a managed pod, as a sentence for its owner, and what is merely odd about it."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from app.cluster import decode
from app.cluster.admit.environment import sharing_container
from app.cluster.admit.parts import CONTAINERS, items, spec_of
from app.cluster.admit.shape import scheduler_of
from app.cluster.decode.pods import PREEMPTIBILITY, PREEMPTIBILITY_LABEL
from app.cluster.decode.reading import Fields, Reading
from app.cluster.decode.sharing import CONTAINER_ANNOTATION, DEVICES_ANNOTATION, asks_for_part, sharing
from app.model.names import QueueName
from app.model.pod import Pod
from app.model.quantity import shown
from app.model.queue import Queue
from app.model.seam import RawObject

NAMES_SHOWN = 5
"""Containers that a sentence names."""

MAX_CONTAINERS = 256
MAX_VARIABLES = 4096
"""Of one container: nobody needs more, and looking through what fills a pod of 1.5 MB would hold everybody else up."""


class GpuSharing(StrEnum):
    """Whether parts of devices can be had."""

    OFF = "off"
    ON = "on"


def excess(raw: RawObject) -> str:
    """Return what there is too much of in a pod; empty when it may be looked at closely."""
    for kind in CONTAINERS:
        containers = items(spec_of(raw), kind)
        if len(containers) > MAX_CONTAINERS:
            return f"spec.{kind} has {len(containers)} items; write at most {MAX_CONTAINERS}"
        most = max((len(items(one, "env")) for one in containers), default=0)
        if most > MAX_VARIABLES:
            return f"a container has {most} environment variables; write at most {MAX_VARIABLES}"
    return ""


def problem(raw: RawObject, *, profiles: frozenset[str], gpu_sharing: GpuSharing) -> str:
    """Return what is wrong with a pod that is managed; nothing is with any other, and nothing when it is empty."""
    if scheduler_of(raw) not in profiles:
        return ""
    if found := excess(raw):
        return found
    pod = decode.pod(raw, profiles=profiles)
    return _sharing_problem(raw, pod, gpu_sharing) or pod.problem


def oddities(raw: RawObject, *, profiles: frozenset[str], queues: Mapping[QueueName, Queue]) -> Iterator[str]:
    """Say what keeps a new managed pod waiting, or does not mean what its owner may think."""
    if scheduler_of(raw) not in profiles:
        return
    pod = decode.pod(raw, profiles=profiles)
    queue = queues.get(pod.queue)
    if queue is None:
        yield f"queue {shown(pod.queue)} does not exist: the pod waits until it does"
    elif queue.problem:
        yield f"queue {shown(pod.queue)} takes no pods: {queue.problem}"
    labels = Reading().mapping(raw["metadata"], "labels")
    value = labels.get(PREEMPTIBILITY_LABEL)
    if value and value not in PREEMPTIBILITY:
        label = f"label {PREEMPTIBILITY_LABEL} is {shown(value)} and counts as not set"
        yield f"{label}; write {' or '.join(PREEMPTIBILITY)}"


def _sharing_problem(raw: RawObject, pod: Pod, gpu_sharing: GpuSharing) -> str:
    reading = Reading()
    annotations = reading.mapping(raw["metadata"], "annotations")
    if gpu_sharing is GpuSharing.OFF and (asks_for_part(annotations) or DEVICES_ANNOTATION in annotations):
        name = f"{pod.namespace}/{pod.name}"
        attempt = f"attempting to create a pod {name} with gpu sharing request, while GPU sharing is disabled"
        return f"{attempt}; ask for whole GPUs with nvidia.com/gpu, without its annotations"
    sharing(reading, annotations, whole_gpu_milli=pod.request.gpu_milli)
    if not reading.problem and asks_for_part(annotations) and sharing_container(raw) is None:
        return _no_such_container(raw, annotations)
    return reading.problem


def _no_such_container(raw: RawObject, annotations: Fields) -> str:
    spec, reading = Reading().mapping(raw, "spec"), Reading()
    names = [shown(one.get("name")) for kind in CONTAINERS for one in reading.mappings(spec, kind)]
    wanted = f"annotation {CONTAINER_ANNOTATION} is {shown(annotations.get(CONTAINER_ANNOTATION))}"
    return f"{wanted}, and the pod has no such container; write one of {', '.join(names[:NAMES_SHOWN])}"
