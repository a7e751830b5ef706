"""The part of kube-scheduler's own filters that the simulation needs: cordon, taints, selector, resources."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

from app.model import marks
from app.model.seam import RawObject

Amounts = Counter[str]
"""Amounts in thousandths of each resource's unit, by resource name."""

GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

SUFFIXES = {"m": 1, "Ki": 1000 << 10, "Mi": 1000 << 20, "Gi": 1000 << 30, "": 1000}
POD_SLOT = {"pods": 1000}
MARKERS = frozenset({marks.ASK_MARKER, marks.BIND_MARKER})
"""Resources that kube-scheduler's configuration ignores (`ignoredByScheduler`): no node has them."""


@cache
def milli(quantity: str) -> int:
    """Return a quantity in thousandths of its unit. It knows only the suffixes that the simulation writes."""
    digits = quantity.rstrip("KMGim")
    return int(digits) * SUFFIXES[quantity[len(digits) :]]


def requests(pod: RawObject) -> Amounts:
    """Return the requests of the pod's containers and its pod slot, in thousandths."""
    total = Counter(POD_SLOT)
    for container in pod["spec"]["containers"]:
        asked = container.get("resources", {}).get("requests", {})
        total.update({name: milli(str(quantity)) for name, quantity in asked.items() if name not in MARKERS})
    return total


def barred(pod: RawObject, node: RawObject) -> list[str]:
    """Return kube-scheduler's reasons against this node, apart from free resources; empty when there is none."""
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    if not all(_tolerates(pod, taint) for taint in node["spec"].get("taints", ())):
        return ["node(s) had untolerated taint(s)"]
    selected = _selected(pod["spec"].get("nodeSelector", {}), node["metadata"].get("labels", {}))
    if not selected or not _is_named(pod, node["metadata"]["name"]):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def lacking(asked: Amounts, node: RawObject, used: Amounts) -> list[str]:
    """Return kube-scheduler's messages for resources that the node lacks; empty when the node has enough."""
    allocatable = node["status"]["allocatable"]
    short = (name for name in asked if used[name] + asked[name] > milli(allocatable.get(name, "0")))
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


def _tolerates(pod: RawObject, taint: Mapping[str, str]) -> bool:
    if taint["effect"] == "PreferNoSchedule":
        return True
    return any(_matches(toleration, taint) for toleration in pod["spec"].get("tolerations", ()))


def _matches(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _selected(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _is_named(pod: RawObject, node: str) -> bool:
    """Return whether required node affinity allows the node. It supports only node names, for reservation pods."""
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    if required is None:
        return True
    fields = (field for term in required["nodeSelectorTerms"] for field in term["matchFields"])
    return any(field["key"] == "metadata.name" and node in field["values"] for field in fields)
