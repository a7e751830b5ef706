"""Simulates admission for pods that request a fraction of a GPU: it adds the gate and the device variables."""

from collections.abc import Mapping

from app.model import marks
from app.model.seam import RawObject

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"

VARIABLES: Mapping[str, str] = {
    "NVIDIA_VISIBLE_DEVICES": marks.DEVICES_ANNOTATION,
    "GPU_PORTION": marks.PORTION_ANNOTATION,
    "GPU_MEMORY_MIB": marks.MEMORY_ANNOTATION,
}
"""Environment variables of the first container, and the annotation that each of them shows."""


def admitted(pod: RawObject) -> RawObject:
    """Return the pod as it is stored."""
    if not pod["metadata"].get("annotations", {}).keys() & {FRACTION, MEMORY}:
        return pod
    first, *others = pod["spec"]["containers"]
    env = [_shown(name, annotation) for name, annotation in VARIABLES.items()]
    return pod | {
        "spec": pod["spec"] | {"schedulingGates": [{"name": marks.GATE}], "containers": [first | {"env": env}, *others]}
    }


def submitted(pod: RawObject) -> RawObject:
    """Return the pod as its owner wrote it, before admission and binding."""
    metadata = {name: pod["metadata"][name] for name in ("name", "namespace", "labels")}
    annotations = pod["metadata"].get("annotations", {})
    metadata["annotations"] = {name: annotations[name] for name in annotations if not name.startswith(marks.PREFIX)}
    spec = {name: value for name, value in pod["spec"].items() if name not in ("nodeName", "schedulingGates")}
    spec["containers"] = [
        {name: value for name, value in container.items() if name != "env"} for container in spec["containers"]
    ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _shown(name: str, annotation: str) -> RawObject:
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
