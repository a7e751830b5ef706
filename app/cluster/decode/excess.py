"""Limits what is read of a pod: a list or mapping with too many items makes the pod unreadable.

The lengths are checked before anything else, so a pod of 1.5 MB costs no more than a small one. Admission refuses such
a pod with the same message. A stored pod like this stays pending; if it runs, its containers are charged.
"""

from collections.abc import Mapping

from app.cluster.decode.parts import CONTAINERS, fields
from app.cluster.decode.reading import MOST_ITEMS, Fields
from app.cluster.decode.whereabouts import MOST_REQUIREMENTS, MOST_VALUES, REQUIRED

MOST_VARIABLES = 4096
"""Of the environment of one container."""

REQUIREMENTS = ("matchExpressions", "matchFields")

MOST_VOLUMES = 1024

MOST_STATED = 4096
"""Of all containers together, in requests and limits: 16 for each of the allowed number of containers."""

CHARGED = ("nodeName", "schedulerName", "schedulingGroup", "containers", "initContainers", "overhead", "resources")
"""The fields of the spec that are read of a pod with excessive items: enough to charge the pod where it runs."""

LISTS = (list, dict)

IN_METADATA = dict.fromkeys(("labels", "annotations", "ownerReferences"), MOST_ITEMS)

IN_SPEC = {
    **dict.fromkeys((*CONTAINERS, "nodeSelector", "tolerations", "schedulingGates", "resourceClaims"), MOST_ITEMS),
    "overhead": MOST_ITEMS,
    "volumes": MOST_VOLUMES,
}

IN_RESOURCES = {"requests": MOST_ITEMS, "limits": MOST_ITEMS}


def excess(raw: Fields) -> str:
    """Return what a pod has too much of, as a sentence for its owner; empty when the pod may be read."""
    metadata, spec = fields(raw, "metadata"), fields(raw, "spec")
    found = _over(metadata, IN_METADATA, "metadata") or _over(spec, IN_SPEC, "spec")
    return found or _of_containers(spec) or (_of_affinity(spec) if spec.get("affinity") else "")


def trimmed(spec: Fields) -> Fields:
    """Return the part of a pod with excessive items that is read; its containers count once it has a node."""
    kept = CHARGED if spec.get("nodeName") else ("schedulerName", "schedulingGroup")
    return {key: spec[key] for key in kept if key in spec}


def _over(parent: object, bounds: Mapping[str, int], where: str) -> str:
    for key, value in parent.items() if isinstance(parent, dict) else ():
        # This check runs for every pod, and for most pods it is the only cost.
        if key in bounds and isinstance(value, LISTS) and len(value) > bounds[key]:
            return _sentence(f"{where}.{key}", len(value), bounds[key])
    return ""


def _of_containers(spec: Fields) -> str:
    amounts = 0
    for kind in CONTAINERS:
        for container in _items(spec, kind):
            if not isinstance(container, dict):
                continue
            variables = container.get("env")
            if isinstance(variables, list) and len(variables) > MOST_VARIABLES:
                return f"a container has {len(variables)} environment variables; write at most {MOST_VARIABLES}"
            resources = container.get("resources")
            if not resources or not isinstance(resources, dict):
                continue
            if found := _over(resources, IN_RESOURCES, f"a container of spec.{kind}: resources"):
                return found
            for stated in resources.values():
                amounts += len(stated) if isinstance(stated, dict) else 0
    return _sentence("requests and limits of all containers", amounts, MOST_STATED) if amounts > MOST_STATED else ""


def _of_affinity(spec: Fields) -> str:
    affinity = fields(spec, "affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        if found := _over(fields(affinity, kind), {REQUIRED: MOST_ITEMS}, f"spec.affinity.{kind}"):
            return found
    required, where = fields(fields(affinity, "nodeAffinity"), REQUIRED), "spec.affinity.nodeAffinity"
    if found := _over(required, {"nodeSelectorTerms": MOST_REQUIREMENTS}, where):
        return found
    lists = [_items(term, key) for term in _items(required, "nodeSelectorTerms") for key in REQUIREMENTS]
    number = len(fields(spec, "nodeSelector")) + sum(map(len, lists))
    if number > MOST_REQUIREMENTS:
        return _sentence(f"spec.nodeSelector together with {where}", number, MOST_REQUIREMENTS)
    values = sum(len(_items(requirement, "values")) for requirements in lists for requirement in requirements)
    return _sentence(f"values of {where}", values, MOST_VALUES) if values > MOST_VALUES else ""


def _sentence(what: str, number: int, most: int) -> str:
    return f"{what} has {number} items; write at most {most}"


def _items(parent: object, key: str) -> list[object]:
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, list) else []
