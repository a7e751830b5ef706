"""The changes that a new managed pod needs; none when it is right already.

No part of the pod is copied into a change: what its owner wrote is not touched, however large or deep it is.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from app.cluster.admit.parts import annotations_of, spec_of
from app.cluster.admit.patch import Changes, added, items_removed, pointer, removed
from app.cluster.decode.demand import GPU_RESOURCE
from app.cluster.decode.parts import CONTAINERS, fields, items
from app.cluster.decode.pods import DEFAULT_SCHEDULER, PRIORITY_CLASS_LABEL, QUEUE_LABELS
from app.cluster.decode.reading import Fields
from app.cluster.decode.sharing import MIG_PREFIX, asks_for_part
from app.model import marks
from app.model.names import QueueName
from app.model.seam import RawObject

MARKER_AMOUNT = "0"
"""kube-scheduler looks for the name alone. Its DRA plugin does not know which resources extenders ignore: where a class
stands for a resource of a pod, no node would fit for any amount above 0.
"""

PREEMPTIBLE = "true"


def is_placed(raw: RawObject) -> bool:
    """Return whether the pod has a node already, so that no scheduler handles it."""
    return bool(spec_of(raw).get("nodeName"))


def scheduler_of(raw: RawObject) -> str:
    """Return the scheduler name of the pod."""
    name = spec_of(raw).get("schedulerName")
    return name if isinstance(name, str) and name else DEFAULT_SCHEDULER


def names_queue(raw: RawObject) -> bool:
    """Return whether a label of the pod names a queue."""
    labels = fields(fields(raw, "metadata"), "labels")
    return any(isinstance(labels.get(label), str) and labels[label] for label in QUEUE_LABELS)


def labelled_class(raw: RawObject) -> str:
    """Return the priority class that the pod's label names, empty when it names none."""
    name = fields(fields(raw, "metadata"), "labels").get(PRIORITY_CLASS_LABEL)
    return name if isinstance(name, str) else ""


def has_foreign_gate(raw: RawObject) -> bool:
    """Return whether the pod has a gate other than Leeboard's."""
    return any(gate.get("name") != marks.GATE for gate in items(spec_of(raw), "schedulingGates"))


def needs_preparation(raw: RawObject) -> bool:
    """Return whether kube-scheduler has volumes or devices to prepare for the pod before it binds it."""
    spec = spec_of(raw)
    volumes = items(spec, "volumes")
    return bool(items(spec, "resourceClaims")) or any(
        "persistentVolumeClaim" in one or "ephemeral" in one for one in volumes
    )


def of_scheduler(raw: RawObject, name: str) -> RawObject:
    """Return the pod with this scheduler name."""
    return raw if scheduler_of(raw) == name else {**raw, "spec": {**spec_of(raw), "schedulerName": name}}


def of_class(raw: RawObject, name: str) -> RawObject:
    """Return the pod with this priority class."""
    return (
        raw
        if spec_of(raw).get("priorityClassName") == name
        else {**raw, "spec": {**spec_of(raw), "priorityClassName": name}}
    )


def scheduler(raw: RawObject, name: str) -> Changes:
    """Set this scheduler name."""
    if scheduler_of(raw) != name:
        yield added("/spec/schedulerName", name)


def held(raw: RawObject) -> Changes:
    """Add Leeboard's gate, beside other gates."""
    gates, ours = _gates(raw)
    if ours:
        return
    gate = {"name": marks.GATE}
    yield added("/spec/schedulingGates/-", gate) if gates else added("/spec/schedulingGates", [gate])


def released(raw: RawObject) -> Changes:
    """Remove Leeboard's gate from the pod; other gates stay."""
    gates, ours = _gates(raw)
    if ours and len(ours) == len(gates):
        yield removed("/spec/schedulingGates")
    else:
        yield from items_removed("/spec/schedulingGates", ours)


def priority(raw: RawObject, name: str) -> Changes:
    """Set this priority class, and remove the values that the API server derives from it: it refuses contradictions."""
    spec = spec_of(raw)
    if spec.get("priorityClassName") == name:
        return
    yield added("/spec/priorityClassName", name)
    for resolved in ("priority", "preemptionPolicy"):
        if resolved in spec:
            yield removed(pointer("spec", resolved))


def runtime(raw: RawObject, name: str) -> Changes:
    """Set this RuntimeClass on a pod that requests GPUs and names none; an empty name changes nothing."""
    if name and not spec_of(raw).get("runtimeClassName") and _asks_for_gpus(raw):
        yield added("/spec/runtimeClassName", name)


def markers(raw: RawObject, names: AbstractSet[str]) -> Changes:
    """Add requests for the extended resources by which kube-scheduler recognizes managed pods."""
    spec = spec_of(raw)
    # kube-scheduler would accept init containers too, but the admission policy looks for markers here.
    containers = items(spec, "containers")
    missing = [name for name in sorted(names) if not any(_asks_for(one, name) for one in containers)]
    if not missing or not containers:
        return
    resources, path = containers[0].get("resources"), pointer("spec", "containers", 0, "resources")
    amounts = dict.fromkeys(missing, MARKER_AMOUNT)
    if not isinstance(resources, dict):
        yield added(path, {"requests": amounts, "limits": amounts})
        return
    for kind in ("requests", "limits"):
        if not isinstance(resources.get(kind), dict):
            yield added(path + pointer(kind), amounts)
        else:
            yield from (added(path + pointer(kind, name), amount) for name, amount in amounts.items())


def unmarked(raw: RawObject, name: str) -> Changes:
    """Remove an extended resource by which kube-scheduler would recognize the pod."""
    for kind in CONTAINERS:
        for position, container in enumerate(items(spec_of(raw), kind)):
            resources = fields(container, "resources")
            for amounts in ("requests", "limits"):
                if name in fields(resources, amounts):
                    yield removed(pointer("spec", kind, position, "resources", amounts, name))


def stamped(raw: RawObject, queue: QueueName) -> Changes:
    """Record on a pod that it is preemptible and in this queue for its lifetime: Leeboard does not bind it later."""
    stamps = {marks.PREEMPTIBLE_ANNOTATION: PREEMPTIBLE, marks.QUEUE_ANNOTATION: str(queue)}
    annotations = fields(raw, "metadata").get("annotations")
    if not isinstance(annotations, dict):
        yield added("/metadata/annotations", stamps)
        return
    for name, value in stamps.items():
        if annotations.get(name) != value:
            yield added(pointer("metadata", "annotations", name), value)


def not_stamped(raw: RawObject) -> Changes:
    """Remove these records from a pod: they were copied from another pod, or are outdated."""
    for name in (marks.PREEMPTIBLE_ANNOTATION, marks.QUEUE_ANNOTATION):
        if name in annotations_of(raw):
            yield removed(pointer("metadata", "annotations", name))


def is_preemptible_for_good(raw: RawObject) -> bool:
    """Return whether that record is on the pod."""
    return annotations_of(raw).get(marks.PREEMPTIBLE_ANNOTATION) == PREEMPTIBLE


def asks_for(raw: RawObject, name: str) -> bool:
    """Return whether a container of the pod requests this resource."""
    return any(_asks_for(one, name) for kind in CONTAINERS for one in items(spec_of(raw), kind))


def _gates(raw: RawObject) -> tuple[Sequence[Fields], list[int]]:
    """Return all gates of the pod, and the positions of Leeboard's gate."""
    gates = items(spec_of(raw), "schedulingGates")
    return gates, [position for position, gate in enumerate(gates) if gate.get("name") == marks.GATE]


def _asks_for(container: Fields, name: str) -> bool:
    return name in _asked_for(container)


def _asks_for_gpus(raw: RawObject) -> bool:
    """Return whether a container of the pod gets whole GPUs, parts of them, or MIG profiles."""
    spec = spec_of(raw)
    return asks_for_part(annotations_of(raw)) or any(
        (name == GPU_RESOURCE or name.startswith(MIG_PREFIX)) and amount != "0"
        for kind in CONTAINERS
        for container in items(spec, kind)
        for name, amount in _asked_for(container).items()
    )


def _asked_for(container: Fields) -> Fields:
    """Return the amounts that a container requests; of an extended resource, request and limit are equal."""
    resources = fields(container, "resources")
    return {**fields(resources, "requests"), **fields(resources, "limits")}
