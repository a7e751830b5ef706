"""The variables that show the shared devices to their container, and whether a pod has these variables.

Bind writes annotations on the pod; the container's environment refers to them. `admit` adds these references.
"""

from collections.abc import Mapping

from app.cluster.decode.parts import CONTAINERS, fields, items
from app.cluster.decode.reading import Fields
from app.cluster.decode.sharing import CONTAINER_ANNOTATION, MPS_ANNOTATION, asks_for_part
from app.model.marks import DEVICES_ANNOTATION, MEMORY_ANNOTATION, MPS_MEMORY_ANNOTATION, PORTION_ANNOTATION

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

VARIABLES: Mapping[str, str] = {
    VISIBLE_DEVICES: DEVICES_ANNOTATION,
    "GPU_PORTION": PORTION_ANNOTATION,
    "GPU_MEMORY_MIB": MEMORY_ANNOTATION,
}
"""Variables, and the annotation that each shows."""

MPS_VARIABLES: Mapping[str, str] = {**VARIABLES, MPS_MEMORY_LIMIT: MPS_MEMORY_ANNOTATION}
"""The same for a pod that uses the devices through CUDA's MPS server."""


def variables(annotations: Fields) -> Mapping[str, str]:
    """Return the variables of the container that shares devices; none in a pod that requests no part."""
    if not asks_for_part(annotations):
        return {}
    # Without MPS, CUDA would only see a limit that nothing enforces.
    return MPS_VARIABLES if annotations.get(MPS_ANNOTATION) == "true" else VARIABLES


def sharing_container(spec: Fields, annotations: Fields) -> tuple[str, int] | None:
    """Return the position of the container that shares devices: the one that an annotation names, else the first."""
    wanted = annotations.get(CONTAINER_ANNOTATION)
    if not wanted:
        return ("containers", 0) if items(spec, "containers") else None
    for kind in CONTAINERS:
        for position, container in enumerate(items(spec, kind)):
            if container.get("name") == wanted:
                return kind, position
    return None


def shows_devices(spec: Fields, annotations: Fields) -> bool:
    """Return whether the container that shares devices will see those that bind gives it, and no others."""
    found = sharing_container(spec, annotations)
    if found is None:
        return False
    kind, position = found
    named = [one for one in items(items(spec, kind)[position], "env") if one.get("name") == VISIBLE_DEVICES]
    # The kubelet uses the last of several variables with one name.
    path = fields(fields(named[-1], "valueFrom"), "fieldRef").get("fieldPath") if named else None
    return bool(path == path_of(DEVICES_ANNOTATION))


def path_of(annotation: str) -> str:
    """Return how a field reference names an annotation."""
    return f"metadata.annotations['{annotation}']"
