"""Reads Kubernetes' own PodGroups (`scheduling.k8s.io`), which name neither a queue nor sub-groups."""

from functools import partial

from app.cluster.decode.origin import owner_of
from app.cluster.decode.reading import Fields, ObjectReading, identified
from app.cluster.decode.subgroups import MAX_MEMBERS
from app.model.names import NATIVE_API, GroupKey
from app.model.podgroup import GroupSpec, PodSet, SubGroup, TopologyConstraint
from app.model.quantity import json_integer, shown

min_count = partial(json_integer, minimum=1, maximum=MAX_MEMBERS)

COMPOSED = "which composes several PodGroups; Leeboard starts only PodGroups that have no parent"
"""Ends the sentence about a PodGroup with a parent."""

SHARES_CLAIMS = (
    "spec.resourceClaims names claims for all its pods together, which Leeboard does not schedule; let each pod name"
    " claims of its own"
)


def native_pod_group(raw: object) -> GroupSpec:
    """Decode a native PodGroup; the labels of its pods and their owners state the queue."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec = reading.mapping(fields, "spec")
    minimum, class_name = _minimum(reading, spec), reading.name(spec, "priorityClassName")
    if parent := reading.name(spec, "parentCompositePodGroupName"):
        reading.doubt(f"it belongs to CompositePodGroup {shown(parent)}, {COMPOSED}")
    if spec.get("resourceClaims"):
        reading.doubt(SHARES_CLAIMS)
    return GroupSpec(
        key=GroupKey(reading.text(metadata, "namespace"), metadata["name"], NATIVE_API),
        uid=metadata["uid"],
        min_member=minimum,
        priority_classes=(class_name,) if class_name else (),
        created_at=reading.seconds(metadata, "creationTimestamp"),
        root=_root(reading, spec, minimum),
        evicted_whole=reading.mapping(spec, "disruptionMode").get("all") is not None,
        owner=owner_of(metadata),
        problem=reading.problem,
    )


def _minimum(reading: ObjectReading, spec: Fields) -> int:
    """Return the number of pods that start together: 1 unless the policy is `gang`."""
    policy = reading.mapping(spec, "schedulingPolicy")
    gang = reading.mapping(policy, "gang")
    if policy.get("gang") is None:
        if policy.get("basic") is None:
            reading.doubt("spec.schedulingPolicy has neither basic nor gang; write one of them")
        return 1
    return reading.number("spec.schedulingPolicy.gang.minCount", gang.get("minCount"), min_count, otherwise=1)


def _root(reading: ObjectReading, spec: Fields, minimum: int) -> SubGroup | None:
    """Return the tree with the required topology level; None when the pods may run anywhere."""
    stated = reading.mappings(reading.mapping(spec, "schedulingConstraints"), "topology")
    if len(stated) > 1:
        reading.doubt(f"spec.schedulingConstraints.topology has {len(stated)} items; write one")
    key = reading.text(stated[0], "key") if stated else ""
    if not key:
        return None
    return SubGroup(topology=TopologyConstraint("", required=key), pod_sets=(PodSet(min_member=minimum),))
