"""Builds a PodGroup object from what owners state about a group, and compares it with an existing object."""

from app.model.names import GroupKey
from app.model.owner import Grouping
from app.model.seam import RawObject

OURS = ("minMember", "priorityClassName", "preemptibility", "subGroups", "topologyConstraint")
"""Fields of its spec that follow the owners; all others belong to their writers (KAI: the queue, back-off)."""


def pod_group(key: GroupKey, grouping: Grouping, *, class_name: str) -> RawObject:
    """Return the object for a group; `class_name` is empty when no class that it names exists."""
    metadata: RawObject = {"name": key.name, "namespace": key.namespace}
    if grouping.labels:
        metadata["labels"] = dict(grouping.labels)
    if grouping.annotations:
        metadata["annotations"] = dict(grouping.annotations)
    if grouping.owner is not None:
        of = grouping.owner
        reference = {"apiVersion": of.kind.api_version, "kind": of.kind.name, "name": of.name, "uid": of.uid}
        metadata["ownerReferences"] = [reference]
    spec = {**grouping.spec, **({"priorityClassName": class_name} if class_name else {})}
    return {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def amended(raw: RawObject) -> RawObject:
    """Return what is merged into the existing object: Leeboard's fields, with null for those without a value."""
    kept = {key: raw["metadata"][key] for key in ("labels", "annotations", "ownerReferences") if key in raw["metadata"]}
    return {"metadata": kept, "spec": {key: raw["spec"].get(key) for key in OURS}}


def says_the_same(spec: RawObject, raw: RawObject) -> bool:
    """Whether an object with this `spec` has all of Leeboard's values already."""
    return all((spec.get(key) or None) == (raw["spec"].get(key) or None) for key in OURS)
