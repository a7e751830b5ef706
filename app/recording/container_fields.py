"""Keeps the fields of a pod's containers and of their statuses that `decode` and `admit` read.

Of a container's environment, the names of Leeboard's variables stay in the container that shares GPUs, with a reference
to Leeboard's annotation; never a value.
"""

from collections.abc import Mapping
from typing import Any

from app.cluster.decode.environment import MPS_VARIABLES, path_of, sharing_container
from app.cluster.decode.excess import IN_RESOURCES, MOST_VARIABLES
from app.cluster.decode.parts import items as readable
from app.cluster.decode.sharing import asks_for_part
from app.model.seam import RawObject
from app.recording.whitelist import OTHER, Cut, compared, entries, fields, padding, plain, sized

AMOUNTS = entries()
"""Keeps amounts of resources by name."""


def resources(value: Any) -> Any:
    """Keep requests and limits; of other mappings, how many entries they have together."""
    if not isinstance(value, dict):
        return plain(value)
    kept = {key: AMOUNTS(inner) for key, inner in value.items() if key in IN_RESOURCES}
    if len(kept) < len(value):
        # `excess` counts every mapping there.
        others = sum(len(inner) for key, inner in value.items() if key not in kept and isinstance(inner, dict))
        if others:
            kept[OTHER] = padding(others)
    return kept


REQUESTED: Mapping[str, Cut] = {"resources": resources, "restartPolicy": plain}
"""The rules for what a container requests."""

_CONTAINER = fields({"name": plain, **REQUESTED})


def container(value: Any) -> Any:
    """Keep the name and the requests of a container; of its environment, only the length of one that is too long."""
    kept = _CONTAINER(value)
    variables = value.get("env") if isinstance(value, dict) else None
    if isinstance(variables, list) and len(variables) > MOST_VARIABLES:
        kept["env"] = sized(variables)
    return kept


def keep_variables(raw: RawObject, kept: RawObject) -> None:
    """Keep Leeboard's variables of the container that shares GPUs, each at its position among the others."""
    metadata, spec = raw.get("metadata"), raw.get("spec")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict) or not asks_for_part(annotations) or not isinstance(spec, dict):
        return
    found = sharing_container(spec, annotations)
    if found is None:
        return
    kind, position = found
    variables = readable(spec, kind)[position].get("env")
    if isinstance(variables, list) and len(variables) <= MOST_VARIABLES:
        kept["spec"][kind][position]["env"] = [_variable(one) for one in variables]


def _variable(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return None
    name = entry.get("name")
    if not isinstance(name, str) or name not in MPS_VARIABLES:
        return {}
    path = path_of(MPS_VARIABLES[name])
    source = entry.get("valueFrom")
    reference = source.get("fieldRef") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not isinstance(reference, dict) or reference.get("fieldPath") != path:
        return {"name": name}
    right = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    plainly = {key: value for key, value in reference.items() if (key, value) != ("apiVersion", "v1")}
    is_right = {**entry, "valueFrom": {**source, "fieldRef": plainly}} == right
    return right if is_right else {**right, OTHER: None}


def container_status(value: Any) -> Any:
    """Keep what the kubelet has allocated to a container; nothing where it has not reported that."""
    if not isinstance(value, dict):
        return plain(value)
    if value.get("allocatedResources") is None and value.get("resources") is None:
        return {}
    return _CONTAINER_STATUS(value)


ALLOCATED: Mapping[str, Cut] = {"allocatedResources": AMOUNTS, "resources": compared({"requests": AMOUNTS})}
"""The rules for what the kubelet has allocated; of other fields, only whether there are any."""

_CONTAINER_STATUS = fields({"name": plain, **ALLOCATED})
