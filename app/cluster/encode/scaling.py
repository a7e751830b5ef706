"""Writes what a cluster autoscaler reads: a ProvisioningRequest with its PodTemplates, or pods that stand for others.

Only the fields of a pod that determine its placement are copied: amounts, node selectors, affinity, tolerations,
spread. No image, command, environment or volume of a tenant is copied. Leeboard's additions to a pod are left out,
above all its gate and the extended resources that no node of an autoscaler has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.cluster.decode.demand import GPU_RESOURCE
from app.cluster.decode.parts import CONTAINERS, fields, items
from app.cluster.decode.reading import Fields
from app.model.marks import MANAGED_BY, MANAGED_BY_LABEL, PREFIX
from app.model.scaling import GROUP_ANNOTATION, REQUEST_LABEL, UNSCHEDULABLE, CapacityRequest, PodShape
from app.model.seam import RawObject

API_VERSION = "autoscaling.x-k8s.io/v1"
KIND = "ProvisioningRequest"

NOBODY = "leeboard-scaling"
"""The scheduler name of scaling pods. No scheduler has this name, so they never occupy the room that they request."""

USER = 65535
"""The user `nobody`, as in the pause image."""

KEPT = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "runtimeClassName", "overhead")
NEIGHBOURS = ("podAffinity", "podAntiAffinity")
AFFINITY_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderPods:
    """The common settings of all pods that stand for others."""

    image: str
    namespace: str = ""
    """Their namespace; empty for the namespace of the pods that they stand for."""


def template_name(request: str, number: int) -> str:
    """Return the name of one of the PodTemplates of a request."""
    return f"{request}-{number}"


def pod_template(ask: CapacityRequest, number: int, raw: RawObject, stand: PlaceholderPods) -> RawObject:
    """Return the PodTemplate of one shape, given a complete pod of this shape."""
    name = template_name(ask.name, number)
    template = _template(raw, ask.shapes[number], stand)
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": _metadata(ask, name), "template": template}


def provisioning_request(ask: CapacityRequest, provisioning_class: str) -> RawObject:
    """Return the ProvisioningRequest, which refers to the PodTemplates."""
    pod_sets = [
        {"podTemplateRef": {"name": template_name(ask.name, number)}, "count": shape.count}
        for number, shape in enumerate(ask.shapes)
    ]
    spec = {"provisioningClassName": provisioning_class, "podSets": pod_sets}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": _metadata(ask, ask.name), "spec": spec}


def scaling_pod(
    ask: CapacityRequest, number: int, shape: PodShape, raw: RawObject, stand: PlaceholderPods
) -> RawObject:
    """Return a pod that stands for others until there is room for them, given one complete pod of them."""
    template = _template(raw, shape, stand)
    labels = {**template["metadata"].get("labels", {}), MANAGED_BY_LABEL: MANAGED_BY, REQUEST_LABEL: ask.name}
    metadata = {"name": f"{ask.name}-{number}", "labels": labels, "annotations": {GROUP_ANNOTATION: repr(ask.key)}}
    spec = template["spec"] | {"schedulerName": NOBODY, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def unschedulable(ask: CapacityRequest, now: str) -> RawObject:
    """Return the status by which an autoscaler recognizes a pod that needs a node; `now` is RFC 3339."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": f"It stands for {_asked_for(ask)}, for which no node has room.",
        "lastTransitionTime": now,
    }
    return {"conditions": [condition]}


def _asked_for(ask: CapacityRequest) -> str:
    sample = ask.shapes[0].sample if ask.shapes else None
    if sample is None or sample.names_group:
        return f"pods of PodGroup {ask.key!r}"
    return f"pod {sample.namespace}/{sample.name}"


def _metadata(ask: CapacityRequest, name: str) -> RawObject:
    owner = {key: ask.owner[key] for key in ("apiVersion", "kind", "name", "uid")}
    return {
        "name": name,
        "labels": {MANAGED_BY_LABEL: MANAGED_BY},
        "annotations": {GROUP_ANNOTATION: repr(ask.key)},
        "ownerReferences": [owner],
    }


def _template(raw: RawObject, shape: PodShape, stand: PlaceholderPods) -> RawObject:
    spec, namespace = fields(raw, "spec"), shape.sample.namespace
    kept: RawObject = {key: spec[key] for key in KEPT if spec.get(key)}
    if isinstance(kept.get("affinity"), dict) and stand.namespace:
        kept["affinity"] = _from_elsewhere(kept["affinity"], [namespace, stand.namespace])
    for key in CONTAINERS:
        written = _containers(items(spec, key), shape.pods_each, key, stand.image)
        if written:
            kept[key] = written
    if shape.sample.sharing is not None and kept.get("containers"):
        kept["containers"][0]["resources"] = _with_gpus(kept["containers"][0], shape.sample.sharing.devices)
    return {"metadata": _labels(raw, kept), "spec": kept | _harmless()}


def _labels(raw: RawObject, kept: RawObject) -> RawObject:
    # The other fields do not affect where a pod may run, and often differ from pod to pod.
    affinity = kept.get("affinity")
    is_near = isinstance(affinity, dict) and any(affinity.get(key) for key in NEIGHBOURS)
    if not (is_near or kept.get("topologySpreadConstraints")):
        return {}
    labels = fields(fields(raw, "metadata"), "labels")
    return {"labels": {key: value for key, value in labels.items() if not key.startswith(PREFIX)}}


def _harmless() -> RawObject:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def _containers(containers: Sequence[Fields], times: int, kind: str, image: str) -> list[RawObject]:
    repeated = [container for _ in range(times) for container in containers]
    written = [_container(one, f"{kind[0]}{number}", image) for number, one in enumerate(repeated)]
    if kind == "initContainers":
        # A sidecar runs beside the others: its amounts are added to theirs.
        for one, container in zip(written, repeated, strict=True):
            one.update({"restartPolicy": "Always"} if container.get("restartPolicy") == "Always" else {})
    return written


def _container(container: Fields, name: str, image: str) -> RawObject:
    return {
        "name": name,
        "image": image,
        "resources": _resources(fields(container, "resources")),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _resources(resources: Fields) -> RawObject:
    amounts = {key: fields(resources, key) for key in ("requests", "limits")}
    return {key: _of_nodes(named) for key, named in amounts.items() if named}


def _of_nodes(amounts: Mapping[str, object]) -> RawObject:
    return {name: amount for name, amount in amounts.items() if not name.startswith(PREFIX)}


def _with_gpus(container: RawObject, devices: int) -> RawObject:
    """Request whole GPUs where pods request parts of them: no autoscaler supports parts."""
    resources, whole = container["resources"], {GPU_RESOURCE: str(devices)}
    return {key: {**resources.get(key, {}), **whole} for key in ("requests", "limits")}


def _from_elsewhere(affinity: RawObject, namespaces: list[str]) -> RawObject:
    """Extend terms without a namespace to the namespaces of the represented pods and of their scaling pods."""
    return affinity | {
        key: _terms_from_elsewhere(affinity[key], namespaces)
        for key in NEIGHBOURS
        if isinstance(affinity.get(key), dict)
    }


def _terms_from_elsewhere(near: RawObject, namespaces: list[str]) -> RawObject:
    result = dict(near)
    if near.get(AFFINITY_TERMS):
        result[AFFINITY_TERMS] = [_named(term, namespaces) for term in items(near, AFFINITY_TERMS)]
    if near.get(PREFERRED_TERMS):
        result[PREFERRED_TERMS] = [
            {**term, "podAffinityTerm": _named(fields(term, "podAffinityTerm"), namespaces)}
            for term in items(near, PREFERRED_TERMS)
        ]
    return result


def _named(term: Fields, namespaces: list[str]) -> RawObject:
    says = term.get("namespaces") or "namespaceSelector" in term
    return dict(term) if says else {**term, "namespaces": namespaces}
