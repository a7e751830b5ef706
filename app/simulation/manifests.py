"""The objects of the simulated cluster, as a person would write them in YAML."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.seam import RawObject

PROFILE = "kai-scheduler"
RACK_LABEL = "topology.leeboard.dev/rack"
NVLINK_LABEL = "nvidia.com/gpu.clique"
HOSTNAME_LABEL = "kubernetes.io/hostname"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"
RUNTIME_ANNOTATION = "simulation.leeboard.dev/runtime-s"
GROUP_ANNOTATION = "pod-group-name"
QUEUE_LABEL = "kai.scheduler/queue"
UNLIMITED = -1
""""No limit" in a Queue object. Only these manifests use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The GPU quota of a queue."""

    gpus: int
    weight: int = 1
    limit: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The common properties of the pods of one job."""

    name: str
    queue: str
    gpus: int = 0
    cpu: int = 2
    runtime_s: int = 60
    priority_class: str = "train"
    group: str = ""
    native_group: str = ""
    """The native PodGroup that the pods name."""
    part: Mapping[str, str] = field(default_factory=dict)
    """Annotations that request a fraction of a GPU."""
    domain: Mapping[str, str] = field(default_factory=dict)
    """The topology constraint of its PodGroup."""
    node_selector: Mapping[str, str] = field(default_factory=dict)


PRIORITIES = {
    "train": 50,
    "build-preemptible": 75,
    "build": 100,
    "inference": 125,
    "leeboard-reservation": 1_000_000_000,
}


def node(name: str, *, gpus: int, cpu: int, labels: Mapping[str, str]) -> RawObject:
    """Build a Ready node with `gpus` whole GPUs."""
    amounts = {"cpu": str(cpu), "memory": "512Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME_LABEL: name} | dict(labels)},
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def queue(name: str, parent: str | None, quota: Quota) -> RawObject:
    """Build a queue that divides GPUs and does not limit CPU and memory."""
    free = {"quota": UNLIMITED, "overQuotaWeight": 1, "limit": UNLIMITED}
    gpu = {"quota": quota.gpus, "overQuotaWeight": quota.weight, "limit": quota.limit}
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": ({"parentQueue": parent} if parent else {}) | {"resources": {"gpu": gpu, "cpu": free, "memory": free}},
    }


def topology(name: str, *levels: str) -> RawObject:
    """Build a Topology with the labels of its levels, the widest first."""
    return {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": [{"nodeLabel": level} for level in levels]},
    }


def priority_class(name: str) -> RawObject:
    """Build one of KAI's priority classes, or that of reservation pods."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": PRIORITIES[name],
    }


def pod_group(job: Job, *, min_member: int) -> RawObject:
    """Build the PodGroup named by the job's `group`."""
    spec = {"minMember": min_member, "queue": job.queue, "priorityClassName": job.priority_class}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": job.group, "namespace": job.queue},
        "spec": spec | ({"topologyConstraint": dict(job.domain)} if job.domain else {}),
    }


def native_pod_group(job: Job, *, min_count: int | None) -> RawObject:
    """Build the native PodGroup named by the job's `native_group`; without `min_count` its pods start one by one."""
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": job.native_group, "namespace": job.queue},
        "spec": {"schedulingPolicy": {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}},
    }


def pod(job: Job, *, member: int = 0) -> RawObject:
    """Build a pending pod of the job, with its priority resolved as admission does it."""
    annotations = {RUNTIME_ANNOTATION: str(job.runtime_s)} | ({GROUP_ANNOTATION: job.group} if job.group else {})
    annotations |= job.part
    requests = {"cpu": str(job.cpu), "memory": "4Gi"} | ({"nvidia.com/gpu": str(job.gpus)} if job.gpus else {})
    container = {"name": "main", "image": "work", "resources": {"requests": requests, "limits": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-{member}",
            "namespace": job.queue,
            "labels": {QUEUE_LABEL: job.queue, "priorityClassName": job.priority_class},
            "annotations": annotations,
        },
        "spec": {
            "schedulerName": PROFILE,
            "priorityClassName": job.priority_class,
            "priority": PRIORITIES[job.priority_class],
            "containers": [container],
        }
        | ({"nodeSelector": dict(job.node_selector)} if job.node_selector else {})
        | ({"schedulingGroup": {"podGroupName": job.native_group}} if job.native_group else {}),
        "status": {"phase": "Pending"},
    }


def foreign_pod(name: str, *, node: str, gpus: int) -> RawObject:
    """Build a running pod of another scheduler, which never ends."""
    container = {"name": "main", "image": "work", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "lab", "labels": {}, "annotations": {}},
        "spec": {"schedulerName": "default-scheduler", "nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }
