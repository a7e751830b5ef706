"""Keeps the fields of a pod that `decode` and `admit` read.

Of labels and annotations, those stay that Leeboard or grouping reads. All labels stay only in a pod whose own affinity
selects it by them (`decode.neighbours`).
"""

from collections.abc import Mapping
from typing import Any

from app.cluster.decode.demand import UNBOUNDED
from app.cluster.decode.excess import MOST_VOLUMES
from app.cluster.decode.neighbours import MAX_LABELS, neighbours
from app.cluster.decode.parts import CONTAINERS
from app.cluster.decode.pods import (
    CHECKPOINT_ANNOTATION,
    NODE_POOL_LABEL,
    POD_GROUP_ANNOTATION,
    PREEMPTIBILITY_LABEL,
    PRIORITY_CLASS_LABEL,
    PROJECT_LABEL,
    QUEUE_LABELS,
    SUBGROUP_LABEL,
    TASK_PRIORITY_LABEL,
)
from app.cluster.decode.reading import MOST_ITEMS
from app.cluster.decode.said import LONGEST_READ
from app.cluster.decode.sharing import (
    CONTAINER_ANNOTATION,
    DEVICES_ANNOTATION,
    FRACTION_ANNOTATION,
    MEMORY_ANNOTATION,
    MPS_ANNOTATION,
)
from app.cluster.decode.whereabouts import MOST_VALUES, REQUIRED
from app.grouping import POD_ANNOTATIONS, POD_LABELS
from app.model import marks
from app.model.scaling import GROUP_ANNOTATION, REQUEST_LABEL
from app.model.seam import RawObject
from app.recording.container_fields import ALLOCATED, AMOUNTS, container, container_status, keep_variables, resources
from app.recording.whitelist import (
    MOST,
    Cut,
    chosen,
    entries,
    fields,
    first,
    items,
    picked,
    plain,
    presence,
    texts,
    truth,
)

LABELS = POD_LABELS | {
    *QUEUE_LABELS,
    PROJECT_LABEL,
    NODE_POOL_LABEL,
    PRIORITY_CLASS_LABEL,
    PREEMPTIBILITY_LABEL,
    TASK_PRIORITY_LABEL,
    SUBGROUP_LABEL,
    REQUEST_LABEL,
    marks.MANAGED_BY_LABEL,
    marks.RESERVATION_GROUP_LABEL,
}

ANNOTATIONS = POD_ANNOTATIONS | {
    POD_GROUP_ANNOTATION,
    CHECKPOINT_ANNOTATION,
    FRACTION_ANNOTATION,
    MEMORY_ANNOTATION,
    DEVICES_ANNOTATION,
    CONTAINER_ANNOTATION,
    MPS_ANNOTATION,
    GROUP_ANNOTATION,
    marks.DEVICES_ANNOTATION,
    marks.GROUPS_ANNOTATION,
    marks.SHARE_ANNOTATION,
    marks.PREEMPTIBLE_ANNOTATION,
    marks.QUEUE_ANNOTATION,
    marks.RESERVED_DEVICE_ANNOTATION,
}

STAMPS = texts("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generateName")
"""Of the metadata of every object."""

REFERENCES = items(fields(texts("apiVersion", "kind", "name", "uid", "controller")), MOST_ITEMS)

PREPARED = ("persistentVolumeClaim", "ephemeral")
"""Sources of volumes for which kube-scheduler prepares something; nothing of them is kept."""

NEARNESS = ("podAffinity", "podAntiAffinity")


def pod(raw: RawObject, *, spec: Mapping[str, Cut] | None = None) -> RawObject:
    """Reduce a pod; `spec` are the rules for its spec, by default those for a stored pod."""
    is_near = _is_near(raw)
    metadata, rules = (_NEAR_METADATA if is_near else _METADATA), SPEC if spec is None else spec
    kept: RawObject = {}
    for key, value in raw.items():
        if key == "metadata":
            kept[key] = metadata(value)
        elif key == "spec":
            kept[key] = _spec(value, {**rules, "affinity": _NEAR_AFFINITY} if is_near else rules)
        elif key == "status":
            kept[key] = _STATUS(value)
    keep_variables(raw, kept)
    _keep_end(raw, kept)
    return kept


def _spec(value: Any, rules: Mapping[str, Cut]) -> Any:
    if not isinstance(value, dict):
        return plain(value)
    kept = {key: rules[key](inner) for key, inner in value.items() if key in rules}
    if kept.get("volumes") == []:
        del kept["volumes"]
    return kept


def _is_near(raw: RawObject) -> bool:
    """Whether the pod's own affinity selects it by its labels."""
    spec, metadata = raw.get("spec"), raw.get("metadata")
    affinity = spec.get("affinity") if isinstance(spec, dict) else None
    if not affinity or not isinstance(spec, dict) or not isinstance(metadata, dict):
        return False
    labels, namespace = metadata.get("labels"), metadata.get("namespace")
    # `decode` reads the labels of a pod without labels as none, and so do its terms.
    found, _ = neighbours(
        spec, labels if isinstance(labels, dict) else {}, namespace if isinstance(namespace, str) else ""
    )
    return bool(found)


# Status -------------------------------------------------------------------------------------------------------------


def _message(value: Any) -> Any:
    return value[:LONGEST_READ] if isinstance(value, str) else plain(value)


_SCHEDULED = fields({"type": plain, "status": plain, "reason": plain})
_REFUSED = fields({"type": plain, "status": plain, "reason": plain, "message": _message})
_RESIZE = fields({"type": plain, "reason": plain})


def _condition(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind == "PodScheduled":
        return _REFUSED(value) if value.get("status") == "False" else _SCHEDULED(value)
    return _RESIZE(value) if kind == "PodResizePending" else {}


_STATUS = fields({"name": plain, "allocatedResources": AMOUNTS, "resources": fields({"requests": AMOUNTS})})

_STATUS = fields(
    {
        **texts("phase", "startTime", "nominatedNodeName"),
        **ALLOCATED,
        "conditions": picked(_condition, MOST_ITEMS),
        **dict.fromkeys(("containerStatuses", "initContainerStatuses"), picked(container_status, MOST_ITEMS)),
        "resourceClaimStatuses": items(fields({"name": plain}), UNBOUNDED),
    }
)


def _keep_end(raw: RawObject, kept: RawObject) -> None:
    """Keep why a reservation pod of Leeboard has ended."""
    metadata, status = kept.get("metadata"), raw.get("status")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    if not isinstance(labels, dict) or labels.get(marks.MANAGED_BY_LABEL) != marks.MANAGED_BY:
        return
    if isinstance(status, dict):
        kept["status"] |= {key: plain(status[key]) for key in ("reason", "message") if key in status}


# Where it may run ---------------------------------------------------------------------------------------------------


def _values(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_VALUES:
        return [""] * min(len(value), MOST)
    return [plain(one) for one in value] if isinstance(value, list) else plain(value)


_REQUIREMENTS = items(fields({"key": plain, "operator": plain, "values": _values}), MOST_ITEMS)
_TERM = fields({"matchExpressions": _REQUIREMENTS, "matchFields": _REQUIREMENTS})
_NODES = fields({REQUIRED: fields({"nodeSelectorTerms": items(_TERM, MOST_ITEMS)})})
_NEAR = fields(
    {
        "labelSelector": fields({"matchLabels": entries(most=MAX_LABELS), "matchExpressions": truth}),
        "topologyKey": plain,
        "namespaces": first(plain, 2),
        **dict.fromkeys(("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys"), presence),
    }
)


def _nothing(value: Any) -> Any:
    return {} if isinstance(value, dict) else None


def _affinity(term: Cut) -> Cut:
    near = fields({REQUIRED: items(term, MOST_ITEMS)})
    return fields({"nodeAffinity": _NODES, **dict.fromkeys(NEARNESS, near)})


# Terms for other pods are left to kube-scheduler: only how many there are is kept.
_FAR_AFFINITY = _affinity(_nothing)
_NEAR_AFFINITY = _affinity(_NEAR)


def _gate(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return {"name": marks.GATE} if value.get("name") == marks.GATE else {}


def _volume(value: Any) -> Any:
    return {key: None for key in PREPARED if key in value} if isinstance(value, dict) else None


SPEC: Mapping[str, Cut] = {
    **texts("nodeName", "schedulerName", "priority", "priorityClassName", "activeDeadlineSeconds"),
    **dict.fromkeys(CONTAINERS, items(container, UNBOUNDED)),
    "resources": resources,
    "overhead": AMOUNTS,
    "nodeSelector": entries(most=MOST_ITEMS),
    "affinity": _FAR_AFFINITY,
    "tolerations": items(fields(texts("key", "operator", "value", "effect")), MOST_ITEMS),
    "schedulingGates": items(_gate, MOST_ITEMS),
    "schedulingGroup": fields(texts("podGroupName")),
    "resourceClaims": items(fields(texts("name", "resourceClaimName", "resourceClaimTemplateName")), MOST_ITEMS),
    "volumes": picked(_nothing, MOST_VOLUMES),
}
"""The rules for the spec of a stored pod."""

ADMITTED: Mapping[str, Cut] = {
    **SPEC,
    **texts("runtimeClassName", "preemptionPolicy"),
    "volumes": picked(_volume, MOST_VOLUMES),
}
"""The rules for the spec of a pod that admission judges."""

_ANNOTATIONS = chosen(ANNOTATIONS.__contains__, most=MOST_ITEMS)
_METADATA = fields(
    {
        **STAMPS,
        "labels": chosen(LABELS.__contains__, most=MOST_ITEMS),
        "annotations": _ANNOTATIONS,
        "ownerReferences": REFERENCES,
    }
)
_NEAR_METADATA = fields({**STAMPS, "labels": entries(), "annotations": _ANNOTATIONS, "ownerReferences": REFERENCES})
