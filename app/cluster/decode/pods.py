"""Reads a pod: its place in queue and PodGroup, its wishes, and what has become of it."""

from dataclasses import dataclass
from functools import partial
from sys import intern

from app.cluster.decode.demand import request
from app.cluster.decode.neighbours import neighbours
from app.cluster.decode.reading import HIGHEST_INT32, Fields, Reading, identified, int32
from app.cluster.decode.whereabouts import constraint
from app.model.marks import GATE, PREEMPTIBLE_ANNOTATION
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.quantity import integer
from app.model.reason import PHRASE_MARK

QUEUE_LABELS = ("kai.scheduler/queue", "runai/queue")
PROJECT_LABEL = "project"
NODE_POOL_LABEL = "kai.scheduler/node-pool"
DEFAULT_QUEUE = "default-queue"
NO_QUEUE = QueueName("")
"""Of a pod that is not managed and names none: it is charged to nobody."""

PRIORITY_CLASS_LABEL = "priorityClassName"
PREEMPTIBILITY_LABEL = "kai.scheduler/preemptibility"
TASK_PRIORITY_LABEL = "kai.scheduler/task-priority"
SUBGROUP_LABEL = "kai.scheduler/subgroup-name"
POD_GROUP_ANNOTATION = "pod-group-name"
SHARING_ANNOTATIONS = ("gpu-fraction", "gpu-memory")

PREEMPTIBILITY = {"preemptible": True, "non-preemptible": False}

KNOWS_NO_NODE = "no nodes available to schedule pods"
"""kube-scheduler's message when its list of nodes is empty (`ErrNoNodesAvailable`)."""

DEFAULT_SCHEDULER = "default-scheduler"
TERMINAL_PHASES = ("Succeeded", "Failed")

task_order = partial(integer, maximum=HIGHEST_INT32)


def is_terminal(raw: object) -> bool:
    """Return whether the pod has finished and holds nothing any more."""
    status = raw.get("status") if isinstance(raw, dict) else None
    return isinstance(status, dict) and status.get("phase") in TERMINAL_PHASES


@dataclass(frozen=True, slots=True)
class _Parts:
    """A raw pod, taken apart."""

    reading: Reading
    metadata: Fields
    labels: Fields
    annotations: Fields
    spec: Fields
    status: Fields


def pod(raw: object, *, profiles: frozenset[str]) -> Pod:
    """Decode a pod; it is managed when its scheduler is one of `profiles`, be it bound already or not.

    Its priority is looked up by whoever knows the PriorityClasses. A pod with a problem is still charged what could be
    read.
    """
    parts = _taken_apart(raw)
    reading, labels, spec = parts.reading, parts.labels, parts.spec
    _refuse_sharing(parts)
    managed = (reading.text(spec, "schedulerName") or DEFAULT_SCHEDULER) in profiles
    namespace = intern(reading.text(parts.metadata, "namespace"))
    uid = PodUid(parts.metadata["uid"])
    group = reading.name(parts.annotations, POD_GROUP_ANNOTATION)
    near, kept = neighbours(spec, labels, namespace)
    asked, scalars = request(reading, spec, parts.status)
    by_scheduler, by_us = _refused(reading, parts.status)
    held, gated = _gates(spec)
    node = _node(reading, spec, "nodeName")
    return Pod(
        uid=uid,
        namespace=namespace,
        name=parts.metadata["name"],
        group=GroupKey(namespace, group or uid),
        names_group=bool(group),
        bare=not any(one.get("controller") is True for one in reading.mappings(parts.metadata, "ownerReferences")),
        queue=_queue(reading, labels, managed=managed),
        request=asked,
        scalars=scalars,
        constraint=constraint(reading, spec),
        labels=kept,
        near=near,
        spec_priority=reading.number("spec.priority", spec.get("priority"), int32),
        priority_class=intern(reading.text(labels, PRIORITY_CLASS_LABEL) or reading.text(spec, "priorityClassName")),
        explicit_preemptible=PREEMPTIBILITY.get(reading.text(labels, PREEMPTIBILITY_LABEL)),
        started_preemptible=node is not None and parts.annotations.get(PREEMPTIBLE_ANNOTATION) == "true",
        task_priority=reading.number(f"label {TASK_PRIORITY_LABEL}", labels.get(TASK_PRIORITY_LABEL), task_order),
        subgroup=intern(reading.text(labels, SUBGROUP_LABEL)),
        created_at=reading.seconds(parts.metadata, "creationTimestamp"),
        managed=managed,
        node=node,
        nominated=_node(reading, parts.status, "nominatedNodeName"),
        held=held,
        gated=gated,
        deleting=parts.metadata.get("deletionTimestamp") is not None,
        refused_by_scheduler=by_scheduler,
        refused_by_us=by_us,
        problem=reading.problem,
    )


def _taken_apart(raw: object) -> _Parts:
    fields, metadata = identified(raw)
    reading = Reading()
    return _Parts(
        reading,
        metadata,
        reading.mapping(metadata, "labels"),
        reading.mapping(metadata, "annotations"),
        reading.mapping(fields, "spec"),
        reading.mapping(fields, "status"),
    )


def _refuse_sharing(parts: _Parts) -> None:
    for annotation in SHARING_ANNOTATIONS:
        if annotation in parts.annotations:
            sharing = f"GPU sharing (annotation {annotation}) is not available yet"
            parts.reading.doubt(f"{sharing}; ask for whole GPUs with nvidia.com/gpu")


def _queue(reading: Reading, labels: Fields, *, managed: bool) -> QueueName:
    for label in QUEUE_LABELS:
        if named := reading.text(labels, label):
            return QueueName(intern(named))
    if not managed:
        return NO_QUEUE
    project, node_pool = reading.text(labels, PROJECT_LABEL), reading.text(labels, NODE_POOL_LABEL)
    if project and node_pool:
        return QueueName(intern(f"{project}-{node_pool}"))
    return QueueName(intern(project or DEFAULT_QUEUE))


def _node(reading: Reading, parent: Fields, key: str) -> NodeName | None:
    name = reading.text(parent, key)
    return NodeName(intern(name)) if name else None


def _gates(spec: Fields) -> tuple[bool, bool]:
    """Return whether our own gate is on the pod, and whether that of anybody else is; what is unreadable is theirs."""
    gates = spec.get("schedulingGates")
    if not gates:
        return False, False
    if not isinstance(gates, list):
        return False, True
    ours = sum(isinstance(gate, dict) and gate.get("name") == GATE for gate in gates)
    return ours > 0, ours < len(gates)


def _refused(reading: Reading, status: Fields) -> tuple[bool, bool]:
    """Return whether kube-scheduler has parked the pod, by its own filters or after our refusal."""
    for condition in reading.mappings(status, "conditions"):
        if condition.get("type") != "PodScheduled":
            continue
        parked = condition.get("status") == "False" and condition.get("reason") == "Unschedulable"
        message = reading.text(condition, "message")
        ours = PHRASE_MARK in message
        # A kube-scheduler that knows no node has judged none: it is behind us, after a restart of the API server say.
        judged = not message.startswith(KNOWS_NO_NODE)
        return parked and judged and not ours, parked and ours
    return False, False
