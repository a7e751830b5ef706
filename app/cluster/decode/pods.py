"""Reads a pod: its queue and PodGroup, its requests and constraints, and its status."""

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from sys import intern
from typing import NamedTuple

from app.cluster.decode.claims import claims_of
from app.cluster.decode.demand import request
from app.cluster.decode.durations import duration_ms
from app.cluster.decode.environment import shows_devices
from app.cluster.decode.excess import excess, trimmed
from app.cluster.decode.neighbours import neighbours
from app.cluster.decode.origin import NOTHING_KEPT, Keeps, origin
from app.cluster.decode.parts import CONTAINERS, fields, items
from app.cluster.decode.reading import HIGHEST_INT32, Fields, ObjectReading, identified, int32
from app.cluster.decode.said import said_of
from app.cluster.decode.sharing import FRACTION_ANNOTATION, MEMORY_ANNOTATION, bound, given, reserved, sharing
from app.cluster.decode.sparing import shared
from app.cluster.decode.whereabouts import constraint
from app.model import marks
from app.model.marks import BIND_MARKER, GATE, PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION
from app.model.names import NATIVE_API, NO_QUEUE, GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Pod, Sharing
from app.model.quantity import QuantityError, integer
from app.model.resources import Resources, Scalars

QUEUE_LABELS = ("kai.scheduler/queue", "runai/queue")
PROJECT_LABEL = "project"
NODE_POOL_LABEL = "kai.scheduler/node-pool"
DEFAULT_QUEUE = "default-queue"

PRIORITY_CLASS_LABEL = "priorityClassName"
PREEMPTIBILITY_LABEL = "kai.scheduler/preemptibility"
TASK_PRIORITY_LABEL = "kai.scheduler/task-priority"
SUBGROUP_LABEL = "kai.scheduler/subgroup-name"
POD_GROUP_ANNOTATION = "pod-group-name"
CHECKPOINT_ANNOTATION = "workload.leeboard.dev/checkpoint-interval"
"""A duration: the pod saves its work at least as often. Owners write it. So it does not use the prefix of Leeboard's
own annotations, which a policy protects.
"""

UNPREPARED = (
    "it requests a part of a GPU, but its container lacks the variables that Leeboard's admission webhook adds; create"
    " it again while the webhook runs"
)

PREEMPTIBILITY = {"preemptible": True, "non-preemptible": False}

DEFAULT_SCHEDULER = "default-scheduler"
NAMED = frozenset({"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"})
"""What is read of the metadata of a pod with excessive items, beside the labels and annotations that Leeboard uses."""

TERMINAL_PHASES = ("Succeeded", "Failed")

task_order = partial(integer, maximum=HIGHEST_INT32)


def is_terminal(raw: object) -> bool:
    """Return whether the pod has finished and holds nothing any more."""
    status = raw.get("status") if isinstance(raw, dict) else None
    return isinstance(status, dict) and status.get("phase") in TERMINAL_PHASES


def is_accepted(raw: object) -> bool:
    """Return whether a scheduler has bound the pod, or its kubelet has accepted it: both write the status.

    A node name alone is only the statement of the pod's author: unreadable fields of such a pod must not affect others.
    """
    status = raw.get("status") if isinstance(raw, dict) else None
    if not isinstance(status, dict):
        return status is not None
    conditions = status.get("conditions") or []
    return (
        status.get("phase") not in (None, "Pending")
        or status.get("startTime") is not None
        or not isinstance(conditions, list)
        or any(isinstance(one, dict) and _is_scheduled(one) for one in conditions)
    )


def _deadline_s(spec: Fields) -> float | None:
    deadline = spec.get("activeDeadlineSeconds")
    return float(deadline) if isinstance(deadline, int) and 0 < deadline < 1 << 31 else None


def _checkpoint_s(annotations: Fields) -> float:
    # Only a hint is lost with a value that cannot be read, so the pod is not refused; admission warns.
    try:
        return duration_ms(annotations[CHECKPOINT_ANNOTATION]) / 1000 if CHECKPOINT_ANNOTATION in annotations else inf
    except QuantityError:
        return inf


def _is_scheduled(condition: Fields) -> bool:
    return condition.get("type") == "PodScheduled" and condition.get("status") == "True"


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of an installation for reading pods."""

    is_offered: bool = True
    """Whether parts of GPUs are offered."""
    overhead_mib: int = 0
    """Memory reserved on a device for each pod in addition to its request."""
    namespace: str = "kai-resource-reservation"
    """Of the reservation pods."""
    marks_binds: bool = False
    """kube-scheduler sends bind requests only for the pods that have its marker; it binds all others by itself."""


USUAL_RULES = Rules()


class _Parts(NamedTuple):
    """A raw pod, taken apart."""

    reading: ObjectReading
    metadata: Fields
    labels: Fields
    annotations: Fields
    spec: Fields
    status: Fields


def pod(raw: object, *, profiles: frozenset[str], rules: Rules = USUAL_RULES, keeps: Keeps = NOTHING_KEPT) -> Pod:
    """Decode a pod; it is managed when its scheduler is one of `profiles`, bound or not.

    `keeps` states what grouping needs of the pod; a pod of which nothing is kept is grouped by its annotation alone.
    The caller looks up its priority, because it has the PriorityClasses. A pod with a problem is still charged with
    everything that could be read.
    """
    parts = _taken_apart(raw)
    reading, labels, spec = parts.reading, parts.labels, parts.spec
    namespace = intern(reading.text(parts.metadata, "namespace"))
    reserves = _reserves(parts, namespace, rules)
    node = _node(reading, spec, "nodeName")
    self_placed = node is not None and not is_accepted(raw)
    is_ours = (reading.text(spec, "schedulerName") or DEFAULT_SCHEDULER) in profiles
    managed = is_ours and not reserves and not self_placed
    uid = PodUid(parts.metadata["uid"])
    native = reading.name(reading.mapping(spec, "schedulingGroup"), "podGroupName")
    group = _group(reading.name(parts.annotations, POD_GROUP_ANNOTATION), native, namespace)
    near, kept = neighbours(spec, labels, namespace)
    asked, scalars = request(reading, spec, parts.status)
    said = said_of(reading, parts.status)
    references = reading.mappings(parts.metadata, "ownerReferences")
    controllers = [one for one in references if one.get("controller") is True]
    held, gated = _gates(spec)
    claim_names, lacks_claim = claims_of(spec, parts.status)
    unmarked = managed and rules.marks_binds and not _has_bind_marker(spec)
    # Before the binding, only admission can have written on a pod without the marker.
    is_stamped = managed and (unmarked or node is not None)
    bound_queue = _bound_queue(parts.annotations) if is_stamped else NO_QUEUE
    if bound_queue and node:
        part = _bound_part(parts, asked, scalars, rules)
    else:
        part = _part(parts, asked, scalars, rules) if managed and parts.annotations else None
    if part and unmarked and node is None:
        reading.doubt(UNPREPARED)
    # Before the binding, such an annotation is not from Leeboard.
    devices, device_uuids = given(parts.annotations) if part and node else ((), ())
    if managed and node and rules.is_offered and _hides_devices(parts.annotations):
        reading.miss(f"annotation {marks.GROUPS_ANNOTATION} cannot be read, so it is not known which GPUs it shares")
    return Pod(
        uid=uid,
        namespace=namespace,
        name=parts.metadata["name"],
        group=group or GroupKey(namespace, uid),
        names_group=group is not None,
        origin=origin(parts.metadata, keeps, native_group=native) if managed else None,
        bare=not controllers,
        stays=not managed and any(_stays(one) for one in controllers),
        queue=_queue(reading, labels, managed=managed),
        runs_at_most_s=_deadline_s(spec),
        checkpoint_s=_checkpoint_s(parts.annotations) if managed else inf,
        # The device of a reservation pod is charged as the shared device that it is.
        request=replace(asked, gpu_milli=0) if reserves else asked,
        sharing=part,
        scalars=scalars,
        constraint=constraint(reading, spec),
        labels=kept,
        near=near,
        spec_priority=reading.number("spec.priority", spec.get("priority"), int32),
        priority_classes=_priority_classes(reading, labels, spec),
        explicit_preemptible=PREEMPTIBILITY.get(reading.text(labels, PREEMPTIBILITY_LABEL)),
        started_preemptible=is_stamped and parts.annotations.get(PREEMPTIBLE_ANNOTATION) == "true",
        started_firm=bool(bound_queue and node) and parts.annotations.get(PREEMPTIBLE_ANNOTATION) == "false",
        bound_queue=bound_queue,
        task_priority=reading.number(f"label {TASK_PRIORITY_LABEL}", labels.get(TASK_PRIORITY_LABEL), task_order),
        subgroup=intern(reading.text(labels, SUBGROUP_LABEL)),
        created_at=reading.seconds(parts.metadata, "creationTimestamp"),
        managed=managed,
        binds_elsewhere=unmarked,
        node=node,
        self_placed=self_placed,
        devices=devices,
        device_uuids=reserved(parts.annotations) if reserves else device_uuids,
        reserves=reserves,
        nominated=_node(reading, parts.status, "nominatedNodeName"),
        held=held,
        gated=gated,
        claim_names=claim_names,
        lacks_claim="" if node else lacks_claim,
        deleting=parts.metadata.get("deletionTimestamp") is not None,
        said=said,
        problem=reading.problem,
        unread=reading.unread and node is not None and not self_placed,
    )


def _group(annotated: str, native: str, namespace: str) -> GroupKey | None:
    """Return the PodGroup that a pod names: KAI's annotation comes before `spec.schedulingGroup`."""
    if annotated:
        return GroupKey(namespace, annotated)
    return GroupKey(namespace, intern(native), NATIVE_API) if native else None


def _stays(controller: Fields) -> bool:
    """Whether a controller keeps this pod on its node as long as the node exists."""
    api_version, kind = controller.get("apiVersion"), controller.get("kind")
    return (kind == "DaemonSet" and api_version == "apps/v1") or (kind == "Node" and api_version == "v1")


def _taken_apart(raw: object) -> _Parts:
    fields, metadata = identified(raw)
    reading = ObjectReading()
    labels, annotations = reading.mapping(metadata, "labels"), reading.mapping(metadata, "annotations")
    spec, status = reading.mapping(fields, "spec"), reading.mapping(fields, "status")
    if too_much := excess(fields):
        reading.doubt(too_much)
        metadata = {key: value for key, value in metadata.items() if key in NAMED}
        spec = trimmed(spec)
    return _Parts(reading, metadata, labels, annotations, spec, status)


def _reserves(parts: _Parts, namespace: str, rules: Rules) -> str:
    """Return the shared device for which a pod holds a whole one; empty unless it is Leeboard's reservation pod."""
    labels = parts.labels
    if namespace != rules.namespace or labels.get(marks.MANAGED_BY_LABEL) != marks.MANAGED_BY:
        return ""
    return parts.reading.text(labels, marks.RESERVATION_GROUP_LABEL)


def _part(parts: _Parts, asked: Resources, scalars: Scalars, rules: Rules) -> Sharing | None:
    """Return the part of a device that a managed pod requests; None when it requests none, or cannot have it."""
    reading, annotations = parts.reading, parts.annotations
    # A separate reading: a running pod keeps its part of a device, whatever else of the pod cannot be read.
    own = ObjectReading()
    found = sharing(own, annotations, whole_gpu_milli=asked.gpu_milli, scalars=scalars)
    if own.problem:
        reading.doubt(own.problem)
    if found is None:
        return None
    if not rules.is_offered:
        name = FRACTION_ANNOTATION if FRACTION_ANNOTATION in annotations else MEMORY_ANNOTATION
        reading.doubt(f"GPU sharing is disabled (annotation {name}); ask for whole GPUs with nvidia.com/gpu")
    elif not shows_devices(parts.spec, annotations):
        reading.doubt(UNPREPARED)
    return replace(found, overhead_mib=rules.overhead_mib) if rules.overhead_mib else found


def _bound_part(parts: _Parts, asked: Resources, scalars: Scalars, rules: Rules) -> Sharing | None:
    """Return the part of a device with which a pod was bound, whatever its owner has written on it since.

    A pod without shared devices has no part: an annotation for it can only be a later one. Where bind's annotations are
    damaged, which a policy prevents, the pod's own annotations count, as for a pod that an older release bound.
    """
    annotations = parts.annotations
    if marks.GROUPS_ANNOTATION not in annotations and marks.SHARE_ANNOTATION not in annotations:
        return None
    found = bound(annotations)
    if found is None:
        return _part(parts, asked, scalars, rules)
    return replace(found, overhead_mib=rules.overhead_mib) if rules.overhead_mib else found


def _hides_devices(annotations: Fields) -> bool:
    """Whether bind has written shared devices on a pod which cannot be read any more; policies keep owners from it."""
    return marks.GROUPS_ANNOTATION in annotations and not given(annotations)[0]


def _has_bind_marker(spec: Fields) -> bool:
    asked = (fields(one, "resources") for kind in CONTAINERS for one in items(spec, kind))
    return any(BIND_MARKER in fields(each, "requests") or BIND_MARKER in fields(each, "limits") for each in asked)


def _queue(reading: ObjectReading, labels: Fields, *, managed: bool) -> QueueName:
    for label in QUEUE_LABELS:
        if named := reading.name(labels, label):
            return QueueName(intern(named))
    if not managed:
        return NO_QUEUE
    project, node_pool = reading.name(labels, PROJECT_LABEL), reading.name(labels, NODE_POOL_LABEL)
    if project and node_pool:
        return QueueName(intern(f"{project}-{node_pool}"))
    return QueueName(intern(project or DEFAULT_QUEUE))


def _bound_queue(annotations: Fields) -> QueueName:
    """Return the queue that is recorded on the pod; a text that cannot be a name is not from Leeboard."""
    name = ObjectReading().name(annotations, QUEUE_ANNOTATION)
    return QueueName(intern(name)) if name else NO_QUEUE


def _priority_classes(reading: ObjectReading, labels: Fields, spec: Fields) -> tuple[str, ...]:
    return _shared((reading.text(labels, PRIORITY_CLASS_LABEL), reading.text(spec, "priorityClassName")))


@shared(256)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one value for equal ones: pods of a cluster name few classes."""
    return tuple(dict.fromkeys(name for name in names if name))


def _node(reading: ObjectReading, parent: Fields, key: str) -> NodeName | None:
    name = reading.text(parent, key)
    return NodeName(intern(name)) if name else None


def _gates(spec: Fields) -> tuple[bool, bool]:
    """Return whether Leeboard's gate is on the pod, and whether any other gate is; unreadable gates count as others."""
    gates = spec.get("schedulingGates")
    if not gates:
        return False, False
    if not isinstance(gates, list):
        return False, True
    ours = sum(isinstance(gate, dict) and gate.get("name") == GATE for gate in gates)
    return ours > 0, ours < len(gates)
