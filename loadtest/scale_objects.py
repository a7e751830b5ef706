"""Writes a cluster of any size as the API server would: pages of JSON, object by object, as heavy as real ones."""

from collections.abc import Callable, Mapping

import orjson

from app.cluster.gpus.reservation_pods import ReservationPodTerms, reservation_pod
from app.model.marks import RESERVED_DEVICE_ANNOTATION
from app.model.names import NodeName
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import PROFILE, Quota
from loadtest.scale_pods import (
    ALONE,
    GPUS,
    HALVES,
    LARGE,
    SMALL,
    SMALL_GANGS,
    TEAMS,
    Part,
    Size,
    device,
    managed_fields,
    node_name,
    part_of,
    pod,
    queue_name,
    team_of,
)

JOBS = "apis/batch/v1/jobs"
DEVICE_MIB = 81_920
DEPARTMENTS = 50

PAGE = 250
"""Objects of a page, as many as `kube` asks for."""

RESERVATIONS = "kai-resource-reservation"
RESERVATION_TERMS = ReservationPodTerms(image="pause", priority_class="leeboard-reservation", scheduler=PROFILE)

Stock = Mapping[str, tuple[int, Callable[[int], bytes]]]
"""How many objects are served at a path, and what writes the one of a number."""


def stock_of(size: Size) -> Stock:
    """Return all objects of a cluster; kinds that are not named here have none."""
    blocks = size.running + size.pending
    gangs = 1 + SMALL_GANGS
    shared = HALVES // 2
    return {
        Resource.NODES.value: (size.nodes, node),
        Resource.QUEUES.value: (DEPARTMENTS + TEAMS, queue),
        Resource.PRIORITY_CLASSES.value: (len(manifests.PRIORITIES), _priority_class),
        Resource.POD_GROUPS.value: (blocks * gangs, pod_group),
        Resource.GPU_NODES.value: (size.nodes, lambda number: gpu_node(size, number)),
        Resource.PODS.value: (
            size.pods + size.running * shared,
            lambda number: pod(size, number) if number < size.pods else reservation(size, number - size.pods),
        ),
        JOBS: (blocks * ALONE, job),
    }


def page(stock: Stock, path: str, start: int) -> bytes:
    """Write the objects at a path from a number on."""
    count, write = stock.get(path, (0, node))
    end = min(count, start + PAGE)
    more = f"{end}" if end < count else ""
    items = b",".join(map(write, range(start, end)))
    return b'{"metadata":{"resourceVersion":"9","continue":"%b"},"items":[%b]}' % (more.encode(), items)


def line(kind: str, raw: bytes) -> bytes:
    """Write one event of a watch."""
    return b'{"type":"%b","object":%b}' % (kind.encode(), raw)


# What there is --------------------------------------------------------------------------------------------------------


def node(number: int, *, beat: int = 0, taint: str = "") -> bytes:
    """Write a node of eight GPUs; `beat` is when its kubelet was heard."""
    labels = {manifests.RACK_LABEL: f"rack-{number // 32}", manifests.PRODUCT_LABEL: "H100", "zone": "a"}
    raw = manifests.node(node_name(number), gpus=GPUS, cpu=192, labels={**labels, manifests.MEMORY_LABEL: "81559"})
    beats = [
        {
            "type": each,
            "status": "False",
            "lastHeartbeatTime": f"{beat}",
            "reason": "KubeletHas",
            "message": "sufficient",
        }
        for each in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    raw["metadata"] |= {"uid": f"node-{number}", "resourceVersion": f"{beat + 1}", "managedFields": managed_fields()}
    raw["status"] |= {
        "conditions": [*beats, {"type": "Ready", "status": "True", "lastHeartbeatTime": f"{beat}"}],
        "images": [{"names": [f"registry.example/image-{each}@sha256:0"], "sizeBytes": each} for each in range(20)],
    }
    raw["spec"] = {"podCIDR": "10.0.0.0/24", "taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []}
    return orjson.dumps(raw)


def queue(number: int) -> bytes:
    """Write a department, or a team below one."""
    if number < DEPARTMENTS:
        return orjson.dumps(_versioned(manifests.queue(f"department-{number}", None, Quota(gpus=2000)), "q", number))
    team = number - DEPARTMENTS
    raw = manifests.queue(queue_name(team), f"department-{team % DEPARTMENTS}", Quota(gpus=100))
    return orjson.dumps(_versioned(raw, "q", number))


def _priority_class(number: int) -> bytes:
    return orjson.dumps(_versioned(manifests.priority_class(list(manifests.PRIORITIES)[number]), "class", number))


def _versioned(raw: RawObject, prefix: str, number: int) -> RawObject:
    return raw | {"metadata": raw["metadata"] | {"uid": f"{prefix}-{number}", "resourceVersion": "9"}}


def pod_group(number: int) -> bytes:
    """Write the PodGroup of a gang."""
    block, gang = divmod(number, 1 + SMALL_GANGS)
    team = queue_name(number)
    spec = {"minMember": SMALL if gang else LARGE, "queue": team, "priorityClassName": "train"}
    metadata = {"name": f"gang-{block}-{gang}", "namespace": team, "uid": f"pg-{number}", "resourceVersion": "9"}
    return orjson.dumps({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


def job(number: int) -> bytes:
    """Write what is read of the Job of a pod alone: metadata."""
    block, index = divmod(number, ALONE)
    name = f"job-{block}-{index}"
    metadata = {"name": name, "namespace": queue_name(number), "uid": f"{name}-uid", "resourceVersion": "9"}
    return orjson.dumps({"metadata": {**metadata, "labels": {"app": "train"}, "managedFields": managed_fields()}})


# Shared GPUs ----------------------------------------------------------------------------------------------------------


def _shared(size: Size, number: int) -> tuple[int, int]:
    """Return the node and the device of the shared GPU of this number."""
    block, index = divmod(number, HALVES // 2)
    gpu = size.nodes_of_block * GPUS - HALVES // 2 + index
    return block * size.nodes_of_block + gpu // GPUS, gpu % GPUS


def reservation(size: Size, number: int) -> bytes:
    """Write the pod that holds a shared GPU for those that share it."""
    node, gpu = _shared(size, number)
    name = f"gpu-reservation-{node}-{gpu}"
    raw = reservation_pod(
        NodeName(node_name(node)), f"shared-{node}-{gpu}", name, owner_uid=f"gn-{node}", terms=RESERVATION_TERMS
    )
    raw["metadata"] |= {"namespace": RESERVATIONS, "uid": f"{name}-uid", "resourceVersion": "9"}
    raw["metadata"]["annotations"] |= {RESERVED_DEVICE_ANNOTATION: device(node, gpu)}
    raw["spec"] |= {"nodeName": node_name(node)}
    return orjson.dumps(raw | {"status": {"phase": "Running"}})


def gpu_node(size: Size, number: int, *, used_mib: int = 0) -> bytes:
    """Write what the agent of a node tells of its eight GPUs, connected by NVSwitch."""
    uuids = [device(number, gpu) for gpu in range(GPUS)]
    devices = [
        {
            "uuid": uuid,
            "index": gpu,
            "product": "NVIDIA H100 80GB HBM3",
            "numaNode": gpu // 4,
            "memoryMiB": {"total": DEVICE_MIB, "used": used_mib, "foreign": 0},
            "health": "Healthy",
            "links": [
                {"uuid": one, "nvlinks": 18, "p2p": "NVLink", "ancestor": "Node"} for one in uuids if one != uuid
            ],
            "pods": _holder(size, number, gpu),
            "processes": [],
        }
        for gpu, uuid in enumerate(uuids)
    ]
    metadata = {"name": node_name(number), "uid": f"gn-{number}", "resourceVersion": "9"}
    status = {"driverVersion": "570.124.06", "kubelet": {"answers": True}, "devices": devices}
    return orjson.dumps({"metadata": metadata, "status": status})


def _holder(size: Size, number: int, gpu: int) -> list[RawObject]:
    """Return the pod that the kubelet has given a device to, if any has it."""
    block, local = divmod(number, size.nodes_of_block)
    if block >= size.running:
        return []
    taken, of_large = local * GPUS + gpu, LARGE * size.gpus_of_large
    if taken < of_large:
        return [_named(block, part_of(size, taken // size.gpus_of_large))]
    position = LARGE + taken - of_large
    if position < LARGE + SMALL * SMALL_GANGS + ALONE:
        return [_named(block, part_of(size, position))]
    return [{"namespace": RESERVATIONS, "name": f"gpu-reservation-{number}-{gpu}"}]


def _named(block: int, part: Part) -> RawObject:
    return {"namespace": team_of(block, part), "name": f"{part.kind}-{block}-{part.gang}-{part.index}"}
