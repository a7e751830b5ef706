"""Objects of `resource.k8s.io` as drivers, users and kube-scheduler write them."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from app.model.seam import Resource

Raw = dict[str, Any]

DRIVER = "gpu.example.com"
A100, H100 = "Example A100", "Example H100"
MIB = {A100: 81920, H100: 163840}

_uids = count(1)


def metadata(name: str, namespace: str = "", **more: Any) -> Raw:
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, "uid": f"uid-{name}-{next(_uids)}", **place, **more}


def gpu(name: str, product: str = A100, **more: Any) -> Raw:
    return {
        "name": name,
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": product},
            "uuid": {"string": f"GPU-{name}"},
            "driverVersion": {"version": "570.1.0"},
            "index": {"int": 3},
            "healthy": {"bool": True},
        },
        "capacity": {"memory": {"value": f"{MIB[product]}Mi"}},
        **more,
    }


def partitioned(name: str) -> tuple[list[Raw], Raw]:
    """Return a GPU with its seven smallest partitions, and its counters."""
    counters = {"memory": {"value": "80Gi"}, "slices": {"value": "7"}}
    devices = [gpu(name, consumesCounters=[{"counterSet": name, "counters": counters}])]
    for number in range(7):
        part = {"memory": {"value": "10Gi"}, "slices": {"value": "1"}}
        devices.append(
            {
                "name": f"{name}-mig-{number}",
                "attributes": {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}},
                "capacity": {"memory": {"value": "10Gi"}},
                "consumesCounters": [{"counterSet": name, "counters": part}],
            }
        )
    return devices, {"name": name, "counters": counters}


def resource_slice(node: str, devices: Sequence[Raw], *, driver: str = DRIVER, **pool: Any) -> Raw:
    counters = pool.pop("counters", None)
    name = pool.pop("named", f"{node}-{driver}")
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1, **pool},
        "devices": list(devices),
    }
    if counters is not None:
        spec["sharedCounters"] = list(counters)
    return {"metadata": metadata(name), "spec": spec}


def device_class(name: str, *expressions: str, extended: str = "") -> Raw:
    spec: Raw = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    if extended:
        spec["extendedResourceName"] = extended
    return {"metadata": metadata(name, creationTimestamp="2026-01-01T00:00:00Z"), "spec": spec}


def request(of_class: str, *expressions: str, name: str = "r", **more: Any) -> Raw:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"name": name, "exactly": {"deviceClassName": of_class, "selectors": selectors, **more}}


def owned_by(uid: str) -> list[Raw]:
    return [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}]


def claim(  # noqa: PLR0913 # what a claim may state
    name: str,
    *requests: Raw,
    owner: str = "",
    on: str = "",
    devices: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    results: Mapping[str, Any] | None = None,
) -> Raw:
    """Build a claim; `on` is the node of its allocated `devices`."""
    more: Raw = {"ownerReferences": owned_by(owner)} if owner else {}
    if labels:
        more["labels"] = dict(labels)
    made: Raw = {"metadata": metadata(name, namespace, **more), "spec": {"devices": {"requests": list(requests)}}}
    if on:
        field = {"key": "metadata.name", "operator": "In", "values": [on]}
        given = [
            {"request": "r", "driver": DRIVER, "pool": on, "device": device, **(results or {})} for device in devices
        ]
        made["status"] = {
            "allocation": {
                "devices": {"results": given},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            }
        }
    return made


def claimable(node: str) -> dict[Resource, Raw]:
    """Build GPUs of DRA, two of which a claim holds, and one of which is tainted."""
    devices = [gpu(f"gpu-{number}") for number in range(4)]
    tainted = gpu("gpu-4", taints=[{"key": "k", "effect": "NoSchedule"}])
    rule = {"deviceSelector": {"driver": DRIVER, "pool": node, "device": "gpu-3"}, "taint": {"effect": "NoSchedule"}}
    return {
        Resource.DEVICE_CLASSES: device_class("gpu.example.com", f"device.driver == '{DRIVER}'"),
        Resource.RESOURCE_SLICES: resource_slice(node, [*devices, tainted]),
        Resource.DEVICE_TAINT_RULES: {"metadata": metadata("r"), "spec": rule},
        Resource.RESOURCE_CLAIMS: claim("c", request("gpu.example.com", count=2), on=node, devices=["gpu-0", "gpu-1"]),
    }
