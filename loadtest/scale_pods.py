"""Writes the pods of a cluster of any size, as heavy as real ones; what each is and has follows from its number.

Pods come in blocks of 200: a gang of 64, eight gangs of 8, 43 alone with a Job each, ten with half a GPU, 19 of another
scheduler. A block that runs fills its nodes to the last GPU.
"""

from dataclasses import dataclass
from functools import cache

import orjson

from app.cluster.admit.environment import from_annotation
from app.cluster.decode.environment import VARIABLES
from app.model.marks import DEVICES_ANNOTATION, GROUPS_ANNOTATION
from app.model.seam import RawObject
from app.simulation.manifests import GROUP_ANNOTATION, PROFILE, QUEUE_LABEL

GPUS = 8
BLOCK = 200
LARGE, SMALL, SMALL_GANGS, ALONE, HALVES = 64, 8, 8, 43, 10
TEAMS = 950
PENDING_GPUS_OF_LARGE = 4
"""What pods of large gangs ask for that wait: together more than is free, so that some are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A cluster: how many nodes it has, and how many blocks of pods run and wait."""

    nodes: int
    running: int
    pending: int
    gpus_of_large: int = 2
    """That each pod of a large gang has."""

    @property
    def pods(self) -> int:
        """All pods, those aside that reserve shared GPUs."""
        return BLOCK * (self.running + self.pending)

    @property
    def nodes_of_block(self) -> int:
        """Nodes that a block fills."""
        return (LARGE * self.gpus_of_large + SMALL * SMALL_GANGS + ALONE + HALVES // 2) // GPUS

    def __post_init__(self) -> None:
        if self.running * self.nodes_of_block > self.nodes:
            raise ValueError(f"{self.running} blocks fill {self.running * self.nodes_of_block} nodes, not {self.nodes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of which part of its block a pod is, and the GPU of the block with which it begins."""

    kind: str
    gang: int
    index: int
    gpu: int
    gpus: int


def part_of(size: Size, position: int) -> Part:
    """Take a position in a block apart."""
    gpu = size.gpus_of_large * LARGE
    if position < LARGE:
        each = size.gpus_of_large
        return Part(kind="gang", gang=0, index=position, gpu=each * position, gpus=each)
    position -= LARGE
    if position < SMALL * SMALL_GANGS:
        return Part(kind="gang", gang=1 + position // SMALL, index=position % SMALL, gpu=gpu + position, gpus=1)
    position, gpu = position - SMALL * SMALL_GANGS, gpu + SMALL * SMALL_GANGS
    if position < ALONE:
        return Part(kind="alone", gang=0, index=position, gpu=gpu + position, gpus=1)
    position, gpu = position - ALONE, gpu + ALONE
    if position < HALVES:
        return Part(kind="half", gang=0, index=position, gpu=gpu + position // 2, gpus=0)
    return Part(kind="foreign", gang=0, index=position - HALVES, gpu=position - HALVES, gpus=0)


def pod(size: Size, number: int) -> bytes:
    """Write a pod: it runs when its block does."""
    block, position = divmod(number, BLOCK)
    part = part_of(size, position)
    is_running = block < size.running or part.kind == "foreign"
    is_large = part.kind == "gang" and part.gang == 0
    gpus = PENDING_GPUS_OF_LARGE if is_large and not is_running else part.gpus
    node_number = (block * size.nodes_of_block + part.gpu // GPUS) % size.nodes
    return written(
        f"{part.kind}-{block}-{part.gang}-{part.index}",
        team=team_of(block, part),
        kind=part.kind,
        gpus=gpus,
        node=node_number if is_running else None,
        gpu=part.gpu % GPUS,
        owner=f"job-{block}-{part.index}" if part.kind == "alone" else "",
        gang=f"gang-{block}-{part.gang}" if part.kind == "gang" else "",
    )


def team_of(block: int, part: Part) -> str:
    """Name the queue, and the namespace, of a part of a block: that of its gang, or of its Job."""
    if part.kind == "gang":
        return queue_name(block * (1 + SMALL_GANGS) + part.gang)
    return queue_name(block * ALONE + part.index)


def written(  # noqa: PLR0913 # what pods of this cluster differ in
    name: str,
    *,
    team: str,
    kind: str = "alone",
    gpus: int = 1,
    node: int | None = None,
    gpu: int = 0,
    owner: str = "",
    gang: str = "",
) -> bytes:
    """Write a pod; one with a node runs there, on the device `gpu` when it shares one."""
    return _template(kind, gpus, is_bound=node is not None, is_owned=bool(owner)) % {
        b"name": name.encode(),
        b"team": team.encode(),
        b"node": node_name(node or 0).encode(),
        b"owner": owner.encode(),
        b"gang": gang.encode(),
        b"group": f"shared-{node}-{gpu}".encode(),
        b"device": device(node or 0, gpu).encode(),
    }


def device(node: int, gpu: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"


@cache
def _template(kind: str, gpus: int, *, is_bound: bool, is_owned: bool) -> bytes:
    raw = _heavy(gpus)
    metadata, spec, status = raw["metadata"], raw["spec"], raw["status"]
    if kind == "gang":
        metadata["annotations"][GROUP_ANNOTATION] = "%(gang)b"
    if kind == "foreign":
        spec["schedulerName"] = "default-scheduler"
        metadata["labels"] = {"app": "web"}
    if kind == "half":
        metadata["annotations"]["gpu-fraction"] = "0.5"
        spec["containers"][0]["env"][:0] = [from_annotation(name, note) for name, note in VARIABLES.items()]
        if is_bound:
            metadata["annotations"] |= {DEVICES_ANNOTATION: "%(device)b", GROUPS_ANNOTATION: "%(group)b"}
    if is_owned:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "%(owner)b", "uid": "%(owner)b-uid"}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    if is_bound:
        spec["nodeName"] = "%(node)b"
        raw["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:10Z", **status}
    else:
        raw["status"] = {"phase": "Pending"}
    return orjson.dumps(raw)


def _heavy(gpus: int) -> RawObject:
    """Return a pod as heavy as real pods. Leeboard does not read most of it."""
    amounts = {"cpu": "4", "memory": "32Gi", **({"nvidia.com/gpu": f"{gpus}"} if gpus else {})}
    mount = {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    container = {
        "name": "main",
        "image": "registry.example/team/train@sha256:5c9f",
        "env": [{"name": f"SETTING_{each}", "value": f"value {each} of %(name)b"} for each in range(20)],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [mount, {"name": "data", "mountPath": "/data"}],
        "imagePullPolicy": "Always",
    }
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    conditions = [
        {"type": each, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for each in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": "%(name)b",
            "namespace": "%(team)b",
            "uid": "00000000-0000-4000-8000-%(name)b",
            "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {QUEUE_LABEL: "%(team)b", "priorityClassName": "train", "app": "train"},
            "annotations": {"example.com/revision": "7"},
            "managedFields": managed_fields(),
        },
        "spec": {
            "schedulerName": PROFILE,
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-%(name)b"}}, {"name": "token"}],
            "tolerations": tolerations,
            "priorityClassName": "train",
            "priority": 50,
        },
        "status": {"conditions": conditions, "podIPs": [{"ip": "10.64.0.1"}], "qosClass": "Guaranteed"},
    }


def managed_fields() -> list[RawObject]:
    """Write what the API server remembers of who wrote what: a good part of every object, and of no use to us."""
    parts: RawObject = {
        f"f:part-{each}": {"f:one": {}, "f:two": {}, "f:three": {".": {}, "f:four": {}}} for each in range(8)
    }
    return [{"manager": each, "operation": "Update", "fieldsV1": parts} for each in ("kubelet", "controller")]


def node_name(number: int) -> str:
    """Name a node."""
    return f"gpu-node-{number:05}.cluster.local"


def queue_name(number: int) -> str:
    """Name the queue of a piece of work."""
    return f"team-{number % TEAMS}"
