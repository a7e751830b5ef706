"""A stand-in DRA driver with NVIDIA's names: ResourceSlices of simulated nodes, classes, taints, and claims of users.

Nothing is prepared on a node: kwok simulates the kubelet, and kube-scheduler alone decides about devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.system.api import Api, Object
from tests.system.features import HAS_DEVICE_FEATURES, TAINT_RULES

VERSION = "resource.k8s.io/v1"
SLICES = f"/apis/{VERSION}/resourceslices"
CLASSES = f"/apis/{VERSION}/deviceclasses"
CLAIMS = f"/apis/{VERSION}/resourceclaims"
TEMPLATES = f"/apis/{VERSION}/resourceclaimtemplates"
DRIVER = "gpu.nvidia.com"
GPU_CLASS = "gpu.nvidia.com"
MIG_CLASS = "mig.nvidia.com"
EXTENDED_CLASS = "extended-gpu.nvidia.com"
GPU_RESOURCE = "nvidia.com/gpu"
ADMIN_NAMESPACE_LABEL = "resource.kubernetes.io/admin-access"
MOST_IN_A_SLICE = 64
"""The limit of the API server where a device has a taint or is a partition; 128 elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A model of GPU, and what its parts are cut from."""

    product: str
    memory_gib: int
    slices: int = 7


H100 = GpuModel(product="NVIDIA H100 80GB HBM3", memory_gib=80)
L40S = GpuModel(product="NVIDIA L40S", memory_gib=48, slices=0)


# -- devices of a node


def whole_gpus(node: str, count: int, model: GpuModel = H100) -> list[Object]:
    """Build the devices `gpu-0`, `gpu-1` and so on."""
    return [_device(f"gpu-{index}", node, model, "gpu", memory_gib=model.memory_gib) for index in range(count)]


def partitioned_gpu(node: str, index: int = 0, model: GpuModel = H100) -> tuple[list[Object], Object]:
    """Build a GPU that is given away whole, as two halves or in sevenths; return its devices and their counter set.

    The devices `gpu-0`, `gpu-0-3g-0`, `gpu-0-1g-0` and so on consume the counters `slices` and `memory` of one set.
    """
    eighth = model.memory_gib // 8
    sizes = [(f"gpu-{index}", "gpu", model.slices, 8)]
    sizes += [(f"gpu-{index}-3g-{part}", "mig", 3, 4) for part in range(2)]
    sizes += [(f"gpu-{index}-1g-{part}", "mig", 1, 1) for part in range(model.slices)]
    devices = []
    for name, kind, slices, eighths in sizes:
        counters = _counters(slices, eighths * eighth)
        device = _device(name, node, model, kind, memory_gib=eighths * eighth)
        if kind == "mig":
            device["attributes"]["profile"] = {"string": f"{slices}g.{eighths * eighth}gb"}
            device["attributes"]["parentUUID"] = {"string": _uuid(node, f"gpu-{index}")}
        devices.append(device | {"consumesCounters": [{"counterSet": f"gpu-{index}", "counters": counters}]})
    return devices, {"name": f"gpu-{index}", "counters": _counters(model.slices, 8 * eighth)}


def tainted(device: Object, *, key: str, effect: str = "NoSchedule", value: str = "") -> Object:
    """Add a taint of the driver to a device."""
    return device | {"taints": [*device.get("taints", []), {"key": key, "value": value, "effect": effect}]}


def shareable(device: Object) -> Object:
    """Let several claims take parts of a device's memory at once."""
    return device | {"allowMultipleAllocations": True}


# -- what the driver publishes


def resource_slices(  # noqa: PLR0913 - a builder: every argument has a default and tests name the one they mean
    node: str,
    devices: Sequence[Object],
    *,
    counter_sets: Sequence[Object] = (),
    generation: int = 1,
    per_slice: int = MOST_IN_A_SLICE,
    driver: str = DRIVER,
    pool: str | None = None,
) -> list[Object]:
    """Build all ResourceSlices of one generation of a node's pool; the counter sets have a slice of their own."""
    parts: list[Object] = [{"sharedCounters": list(counter_sets)}] if counter_sets else []
    parts += [{"devices": list(devices[at : at + per_slice])} for at in range(0, len(devices), per_slice)]
    name = pool or node
    described = {"name": name, "generation": generation, "resourceSliceCount": len(parts)}
    return [
        {
            "apiVersion": VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-{driver}-{generation}-{index}"},
            "spec": {"driver": driver, "nodeName": node, "pool": described} | part,
        }
        for index, part in enumerate(parts)
    ]


def publish(api: Api, slices: Iterable[Object]) -> None:
    """Create slices; then delete those of their pools that have an older generation, as a driver does."""
    published = api.create_all(slices)
    newest = {_pool_of(one): one["spec"]["pool"]["generation"] for one in published}
    for one in api.items(SLICES):
        if one["spec"]["pool"]["generation"] < newest.get(_pool_of(one), 0):
            api.delete(f"{SLICES}/{one['metadata']['name']}")


def device_class(name: str, *expressions: str, extended_resource: str | None = None) -> Object:
    """Build a DeviceClass of the devices for which every CEL expression is true."""
    spec: Object = {"selectors": [{"cel": {"expression": expression}} for expression in expressions]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def device_classes() -> list[Object]:
    """Build the classes that the driver installs: whole GPUs, partitions, and whole GPUs under `nvidia.com/gpu`."""
    of_driver = f"device.driver == '{DRIVER}'"
    gpus = f"device.attributes['{DRIVER}'].type == 'gpu'"
    classes = [
        device_class(GPU_CLASS, of_driver, gpus),
        device_class(MIG_CLASS, of_driver, f"device.attributes['{DRIVER}'].type == 'mig'"),
    ]
    if HAS_DEVICE_FEATURES:
        classes.append(device_class(EXTENDED_CLASS, of_driver, gpus, extended_resource=GPU_RESOURCE))
    return classes


def device_taint_rule(name: str, *, key: str, effect: str, pool: str, device: str | None = None) -> Object:
    """Build an administrator's taint of one device, or of all devices of a pool."""
    selector = {"driver": DRIVER, "pool": pool} | ({"device": device} if device else {})
    return {
        "apiVersion": TAINT_RULES.removeprefix("/apis/").rpartition("/")[0],
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {"deviceSelector": selector, "taint": {"key": key, "effect": effect}},
    }


# -- what users create


def device_request(
    class_name: str = GPU_CLASS, *selectors: str, name: str = "gpus", count: int | None = 1, **more: object
) -> Object:
    """Build a request for `count` devices, or for all devices if it is None; `selectors` are CEL expressions.

    `more` are other fields: `adminAccess=True`, `tolerations=[...]`, `capacity={"requests": {"memory": "20Gi"}}`.
    """
    amount = {"allocationMode": "ExactCount", "count": count} if count else {"allocationMode": "All"}
    chosen = {"selectors": [{"cel": {"expression": selector}} for selector in selectors]} if selectors else {}
    return {"name": name, "exactly": {"deviceClassName": class_name} | amount | chosen | more}


def resource_claim(
    name: str, *requests: Object, namespace: str = "default", labels: Mapping[str, str] | None = None
) -> Object:
    """Build a claim by hand; without a request it is for one GPU."""
    return {
        "apiVersion": VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {"devices": {"requests": list(requests) or [device_request()]}},
    }


def resource_claim_template(name: str, *requests: Object, namespace: str = "default") -> Object:
    """Build a template, of which each pod that names it gets a claim; without a request it is for one GPU."""
    claim = resource_claim(name, *requests, namespace=namespace)
    return claim | {"kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}


def with_claims(pod: Object, *, claims: Sequence[str] = (), templates: Sequence[str] = ()) -> Object:
    """Let a pod (made by `pod`) and its first container use claims and templates; its names for them are theirs."""
    used = [{"name": name, "resourceClaimName": name} for name in claims]
    used += [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    first, *others = pod["spec"]["containers"]
    resources = first["resources"] | {"claims": [{"name": one["name"]} for one in used]}
    spec = pod["spec"] | {"resourceClaims": used, "containers": [first | {"resources": resources}, *others]}
    return pod | {"spec": spec}


# -- what is read


def claim(api: Api, name: str, namespace: str = "default") -> Object | None:
    """Return a claim, or None if there is none of this name."""
    return api.find(f"/apis/{VERSION}/namespaces/{namespace}/resourceclaims/{name}")


def claim_names(pod: Object) -> dict[str, str]:
    """Return which claim was made for each template of a pod: the pod's name of it -> name of the claim."""
    statuses = pod["status"].get("resourceClaimStatuses", [])
    return {one["name"]: one["resourceClaimName"] for one in statuses if "resourceClaimName" in one}


def devices_of(claimed: Object) -> list[tuple[str, str]]:
    """Return the pool and the name of each device that a claim has."""
    allocation = claimed.get("status", {}).get("allocation") or {}
    return [(one["pool"], one["device"]) for one in allocation.get("devices", {}).get("results", [])]


def users_of(claimed: Object) -> list[str]:
    """Return the names of the pods for which a claim is reserved, in order."""
    return sorted(one["name"] for one in claimed.get("status", {}).get("reservedFor", []))


def _device(name: str, node: str, model: GpuModel, kind: str, *, memory_gib: int) -> Object:
    attributes = {
        "productName": {"string": model.product},
        "uuid": {"string": _uuid(node, name)},
        "type": {"string": kind},
        "driverVersion": {"version": "580.65.6"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": f"{memory_gib}Gi"}}}


def _uuid(node: str, name: str) -> str:
    return f"GPU-{node}-{name}"


def _counters(slices: int, memory_gib: int) -> Object:
    return {"slices": {"value": str(slices)}, "memory": {"value": f"{memory_gib}Gi"}}


def _pool_of(published: Object) -> tuple[str, str]:
    return published["spec"]["driver"], published["spec"]["pool"]["name"]
