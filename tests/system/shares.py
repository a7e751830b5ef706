"""The tests' own knowledge of pods with GPUs: their requests, and what their containers would see."""

import re
from collections.abc import Mapping
from fractions import Fraction

from tests.system.api import Object
from tests.system.machines import GPU

TERMINAL = ("Succeeded", "Failed")
RESERVATIONS = "kai-resource-reservation"
"""Namespace of the reservation pods, and their label `app`."""
GROUP_LABEL = "runai-gpu-group"
DEVICES = "leeboard.dev/devices"
GROUPS = "leeboard.dev/device-groups"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
FIELD = re.compile(r"metadata\.(annotations|labels)\['(.*)'\]")
MEMORY_STEP_MIB = 100


def key(pod: Object) -> str:
    """Return namespace/name."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def path_of_pod(pod: Object) -> str:
    """Return its path on the API server."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def annotations(pod: Object) -> Mapping[str, str]:
    """Return the pod's annotations."""
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return found


def node_of(pod: Object) -> str:
    """Return its node, or nothing."""
    return str(pod["spec"].get("nodeName", ""))


def is_over(pod: Object) -> bool:
    """Whether it has ended, in success or failure."""
    return pod["status"].get("phase") in TERMINAL


def is_reservation(pod: Object) -> bool:
    """Whether it is a reservation pod."""
    metadata = pod["metadata"]
    return (metadata["namespace"], metadata.get("labels", {}).get("app")) == (RESERVATIONS, RESERVATIONS)


def asks_for_part(pod: Object) -> bool:
    """Whether it requests GPU shares."""
    return "gpu-fraction" in annotations(pod) or "gpu-memory" in annotations(pod)


def whole_gpus(pod: Object) -> int:
    """Return how many whole devices the kubelet has to assign to it."""
    of = [
        [int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"].get(kind) or []]
        for kind in ("containers", "initContainers")
    ]
    return max(sum(of[0]), *of[1], 0)


def part(pod: Object, device_memory_mib: int) -> Fraction:
    """Return the reserved part of each of its devices, for this memory in the label of the node."""
    if "gpu-fraction" in annotations(pod):
        return Fraction(annotations(pod)["gpu-fraction"])
    counted = device_memory_mib - device_memory_mib % MEMORY_STEP_MIB
    return Fraction(int(annotations(pod)["gpu-memory"]), counted)


def number_of_devices(pod: Object) -> int:
    """Return of how many devices it requests a share."""
    return int(annotations(pod).get("gpu-fraction-num-devices", "1"))


def devices(pod: Object) -> tuple[str, ...]:
    """Return the UUIDs that bind wrote on a sharing pod."""
    return _listed(annotations(pod).get(DEVICES, ""))


def groups(pod: Object) -> tuple[str, ...]:
    """Return the names of the shared devices, as bind wrote them."""
    return _listed(annotations(pod).get(GROUPS, ""))


def sharing_container(pod: Object) -> str:
    """Return the name of the container that gets the device."""
    return annotations(pod).get("gpu-fraction-container-name") or str(pod["spec"]["containers"][0]["name"])


def environment(pod: Object, whole: tuple[str, ...] = ()) -> dict[str, dict[str, str]]:
    """Return the environment that each container would see; `whole` are the devices the kubelet assigned to the pod.

    As in a kubelet: a missing field is empty, and the variables of the pod come after those of the device plugin.
    """
    every = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    return {each["name"]: _given(each, whole) | _stated(pod, each) for each in every}


def _given(container: Object, whole: tuple[str, ...]) -> dict[str, str]:
    asked = container.get("resources", {}).get("limits", {}).get(GPU)
    return {VISIBLE: ",".join(whole)} if asked and whole else {}


def _stated(pod: Object, container: Object) -> dict[str, str]:
    return {one["name"]: _value(pod, one) for one in container.get("env") or []}


def _value(pod: Object, variable: Object) -> str:
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    field: str = variable["valueFrom"]["fieldRef"]["fieldPath"]
    keyed = FIELD.fullmatch(field)
    if keyed:
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    return str(pod["metadata"][field.removeprefix("metadata.")])


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
