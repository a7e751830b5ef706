"""All that reads raw objects, by kind; and objects to read: full ones, and random damage to them."""

import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from app.cluster import decode
from app.cluster.decode import scaling
from app.cluster.decode.excess import excess
from app.cluster.encode import status_fields
from app.cluster.encode.groups import says_the_same
from app.control.groups.grouped_pods import KEEPS
from app.control.informers.feed import key_of
from app.model.decision import Share
from app.model.seam import Resource
from app.recording.kind_fields import NO_PODS, NO_ROOM, NO_USAGE, NOBODYS_QUEUE
from app.simulation import manifests
from tests.cluster import raw as builders
from tests.cluster import test_decode_garbage as full
from tests.cluster.dra_objects import claim, claimable, device_class, gpu, partitioned, request, resource_slice

Raw = dict[str, Any]
Reader = Callable[[Any], object]
PROFILES = builders.PROFILES
RESERVATIONS = decode.Rules(namespace="team", overhead_mib=64, marks_binds=True)
QUEUE_STATUS = status_fields.queue_status(NOBODYS_QUEUE, Share(), [], now="2026-01-31T12:00:00Z", past=NO_USAGE)
GROUP_STATUS = status_fields.pod_group_status(NO_PODS, NO_ROOM, now="2026-01-31T12:00:00Z")
NATIVE_STATUS = status_fields.native_group_status(NO_ROOM, now="2026-01-31T12:00:00Z")
SPEC = full.FULL_GROUP["spec"]


def status_of(status: Raw) -> Reader:
    """Return what `report.status` finds out from a stored status: whether it writes, and with which times."""

    def read(raw: Any) -> object:
        decode.pod_group(raw)  # Learners see only what has a name.
        namespace, name, said = status_fields.stated(raw)
        metadata = raw.get("metadata")
        if isinstance(metadata, dict) and not isinstance(metadata.get("namespace"), str | None):
            namespace = ""  # It is read as the text of a value that no API server stores.
        is_same = status_fields.same({key: said.get(key) for key in status}, status)
        return namespace, name, is_same, status_fields.with_times_of(status, said)

    return read


def native_status(raw: Any) -> object:
    """Return what `report.status` finds out from the stored status of a native PodGroup."""
    decode.native_pod_group(raw)  # Learners see only what has a name.
    said = status_fields.native_stated(status_fields.stated(raw)[2])
    is_same = status_fields.same(said, NATIVE_STATUS)
    return is_same, status_fields.has_started(said), status_fields.with_times_of(NATIVE_STATUS, said)


def writer(raw: Any) -> object:
    """Return whether the writer of PodGroups finds its own spec."""
    spec = raw.get("spec")
    return says_the_same(spec if isinstance(spec, dict) else {}, {"spec": SPEC})


POD: tuple[Reader, ...] = (
    lambda raw: decode.seen_pod(raw, profiles=PROFILES),
    lambda raw: decode.seen_pod(raw, profiles=PROFILES, keeps=KEEPS),
    lambda raw: decode.seen_pod(raw, profiles=PROFILES, rules=RESERVATIONS, keeps=KEEPS),
    lambda raw: decode.seen_pod(raw, profiles=frozenset(), rules=RESERVATIONS),
    lambda raw: decode.asked_pod(raw, profiles=PROFILES, keeps=KEEPS),
    lambda raw: decode.least_pod(raw, profiles=PROFILES),
    lambda raw: decode.names_profile(raw, PROFILES),
    decode.bound_node,
    decode.nominated_node,
    decode.has_succeeded,
    decode.is_terminal,
    decode.is_ours,
    lambda raw: decode.end_of(raw) if decode.is_ours(raw) else "",
    scaling.scaling_pod,
    excess,
)
EVERY: tuple[Reader, ...] = (decode.identity, decode.namespace_of, decode.full_name, decode.version, decode.name_of)
READERS: Mapping[Resource, tuple[Reader, ...]] = {
    Resource.PODS: POD,
    Resource.NODES: (decode.node,),
    Resource.PRIORITY_CLASSES: (decode.priority_class,),
    Resource.QUEUES: (decode.queue, decode.tally, status_of(QUEUE_STATUS)),
    Resource.POD_GROUPS: (decode.pod_group, status_of(GROUP_STATUS), writer),
    Resource.NATIVE_POD_GROUPS: (decode.native_pod_group, native_status),
    Resource.TOPOLOGIES: (decode.topology,),
    Resource.GPU_NODES: (decode.gpu_node,),
    Resource.DEVICE_CLASSES: (decode.device_class,),
    Resource.RESOURCE_SLICES: (decode.resource_slice,),
    Resource.DEVICE_TAINT_RULES: (decode.device_taint_rule,),
    Resource.RESOURCE_CLAIMS: (decode.resource_claim,),
}


def readings(resource: Resource, raw: Any) -> list[object]:
    """Return what every reader makes of an object; an error counts by its type and text."""
    readers = (*READERS[resource], *EVERY, lambda one: key_of(resource, one))
    return [_outcome(read, raw) for read in readers]


def _outcome(read: Reader, raw: Any) -> object:
    try:
        return read(raw)
    except Exception as error:  # noqa: BLE001 # the reduced object must fail in the same way
        return type(error), str(error)


SHARING: Raw = builders.raw_pod(
    builders.container("a", cpu="1")
    | {
        "env": [
            {"name": "HOME", "value": "/"},
            {
                "name": "NVIDIA_VISIBLE_DEVICES",
                "valueFrom": {
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['leeboard.dev/devices']"}
                },
            },
        ]
    },
    builders.container("b", memory="1Gi", limits={"memory": "2Gi"}),
    nodeName="n",
    meta={
        "labels": {"runai-gpu-group": "g", "app.kubernetes.io/managed-by": "leeboard"},
        "annotations": {
            "gpu-fraction": "0.5",
            "gpu-fraction-num-devices": "2",
            "gpu-fraction-container-name": "a",
            "leeboard.dev/devices": "GPU-1,GPU-2",
            "leeboard.dev/device-groups": "g1,g2",
            "leeboard.dev/gpu-share": "0.50",
            "leeboard.dev/queue": "q",
            "leeboard.dev/preemptible": "false",
            "run.ai/reserve_for_gpu_index": "GPU-1",
        },
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
        ],
    },
    status={"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
)
CLAIMS: Raw = builders.raw_pod(
    builders.container(cpu="500m"),
    resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}],
    volumes=[{"name": "v", "secret": {"secretName": "s"}}],
    activeDeadlineSeconds=60,
    schedulingGroup={"podGroupName": "native"},
    resources={"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
    status={
        "resourceClaimStatuses": [{"name": "x"}],
        "allocatedResources": {"cpu": "1"},
        "resources": {"requests": {"cpu": "3"}},
        "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "1"}, "resources": {"limits": {}}}],
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "PodResizePending", "reason": "Infeasible"},
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no room."},
        ],
    },
)
LINKS = [{"uuid": "GPU-2", "nvlinks": 4, "ancestor": "Board"}]
GPU_NODE: Raw = {
    "metadata": builders.metadata(),
    "status": {
        "bootId": "b",
        "driverVersion": "570",
        "message": "m",
        "kubelet": {"answers": True, "reason": ""},
        "failures": [{"device": "d", "call": "c", "error": "e"}],
        "devices": [
            {
                "uuid": "GPU-1",
                "index": 0,
                "product": "H100",
                "memoryMiB": {"total": 81920, "used": 5, "foreign": 1},
                "health": "Unhealthy",
                "healthReason": "Xid 79",
                "numaNode": 0,
                "mig": {"enabled": True, "pending": False, "instances": [{"profile": "1g.10gb"}]},
                "pods": [{"namespace": "n", "name": "p", "uid": "u", "memoryMiB": 5}],
                "processes": [{"podUid": "u", "memoryMiB": 5}],
                "links": LINKS,
            },
            {"uuid": "GPU-2", "links": [{"uuid": "GPU-1", "nvlinks": 4, "ancestor": "Board"}]},
        ],
    },
}
_DEVICES, _COUNTERS = partitioned("gpu-0")
_TAINTED = gpu("gpu-1", taints=[{"key": "k", "effect": "NoExecute"}], nodeName="m", allowMultipleAllocations=True)
SLICE: Raw = resource_slice("n", [*_DEVICES, _TAINTED], counters=[_COUNTERS])
FLAT_SLICE: Raw = resource_slice("n", [{"name": "g", "basic": gpu("g")}])
CLAIM: Raw = claim(
    "c",
    request("gpu", "true", count=2, adminAccess=False, capacity={"requests": {"memory": "1Gi"}}),
    {"name": "first", "firstAvailable": [{"name": "a", "deviceClassName": "gpu", "count": 1, "selectors": []}]},
    owner="u",
    on="n",
    devices=["gpu-0"],
    labels={"kai.scheduler/queue": "q"},
    results={"adminAccess": True, "consumedCapacity": {"memory": "1Gi"}, "shareID": "s"},
)
CLAIM["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
CLAIM["spec"]["devices"]["constraints"] = [{"requests": ["r"], "matchAttribute": "d/model"}]
FLAT_CLAIM: Raw = claim(
    "f",
    {"name": "r", "deviceClassName": "gpu", "allocationMode": "All", "selectors": [{"cel": {"expression": "true"}}]},
)
FULL: Mapping[Resource, tuple[Raw, ...]] = {
    Resource.PODS: (
        full.FULL_POD,
        SHARING,
        CLAIMS,
        manifests.foreign_pod("p", node="n", gpus=1),
    ),
    Resource.NODES: (
        full.FULL_NODE,
        manifests.node("n", gpus=8, cpu=64, labels={"zone": "a"}),
    ),
    Resource.PRIORITY_CLASSES: (manifests.priority_class("train"), {"metadata": builders.metadata(), "value": 5}),
    Resource.QUEUES: (full.FULL_QUEUE | {"status": QUEUE_STATUS},),
    Resource.POD_GROUPS: (full.FULL_GROUP | {"status": GROUP_STATUS},),
    Resource.NATIVE_POD_GROUPS: (full.FULL_NATIVE_GROUP | {"status": NATIVE_STATUS}, full.COMPOSED_GROUP),
    Resource.TOPOLOGIES: (full.FULL_TOPOLOGY, manifests.topology("t", "zone", "rack")),
    Resource.GPU_NODES: (GPU_NODE,),
    Resource.DEVICE_CLASSES: (device_class("c", "device.driver == 'd'", extended="nvidia.com/gpu"),),
    Resource.RESOURCE_SLICES: (SLICE, FLAT_SLICE),
    Resource.DEVICE_TAINT_RULES: (claimable("n")[Resource.DEVICE_TAINT_RULES],),
    Resource.RESOURCE_CLAIMS: (CLAIM, FLAT_CLAIM),
}


JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1 << 63,
    "",
    "x",
    "9" * 300,
    "é\n" * 40,
    [],
    {},
    [1],
    ["a", {}],
    [{}] * 300,
    ["v"] * 300,
    [None] * 5000,
    {"k": "v"},
    {"k": {"k": []}},
    {f"k{number}": "v" for number in range(300)},
    {f"nvidia.com/k{number}": 1 for number in range(300)},
)


TEXTS = ("", "x", "9" * 300)
WORDS = ("lastTransitionTime", "transitionID", "uuid")
"""Fields that are copied or read as the text of any value: only texts can be stored there."""


def damaged(raw: Raw, seed: int, *, times: int = 3) -> Raw:
    """Return a copy with a few random values in random places: another value, more items, or a field less."""
    chance, copy = random.Random(seed), deepcopy(raw)
    for _ in range(chance.randint(1, times)):
        paths = [path for path in places(copy) if path]
        if not paths:
            break
        *path, last = chance.choice(paths)
        parent: Any = copy
        for key in path:
            parent = parent[key]
        match chance.randrange(4):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, list):
                parent.extend(deepcopy(parent[last]) for _ in range(chance.choice((1, 70, 300))))
            case _:
                parent[last] = deepcopy(chance.choice(TEXTS if last in WORDS or "resourceClaims" in path else JUNK))
    return copy


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:8]) if isinstance(value, list) else ()
    for key, one in list(inner)[:40]:
        yield from places(one, (*path, key))
