"""Builders: owners of pods as their API servers store them, and the pods of these owners."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.cluster import decode
from app.grouping import Chain
from app.model.names import QueueName
from app.model.owner import Grouping, Kind, Origin, Owner, OwnerRef
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from tests import given

Texts = Mapping[str, str]
Raw = dict[str, Any]

NOBODYS: Texts = {}
QUEUE = "kai.scheduler/queue"


def owner(
    kind: str, name: str = "train", *, labels: Texts = NOBODYS, annotations: Texts = NOBODYS, **fields: Any
) -> Owner:
    """Build an object, whose kind is written like `batch/v1 Job`; `fields` are its `spec` and `status`."""
    return Owner(
        ref=OwnerRef(kind_of(kind), name, f"uid-{name}"),
        namespace="default",
        labels=labels,
        annotations=annotations,
        fields=fields,
        created_at=7.0,
    )


def kind_of(text: str) -> Kind:
    """Read a kind that is written like `batch/v1 Job`."""
    api_version, _, name = text.partition(" ")
    return Kind.of(api_version, name)


def pod(
    name: str = "train-0",
    *,
    labels: Texts = NOBODYS,
    annotations: Texts = NOBODYS,
    by: Owner | None = None,
    **more: Any,
) -> Pod:
    """Build a pod of the default queue with the fields that grouping reads."""
    origin = Origin(by.ref if by else None, labels, annotations)
    queue = QueueName(labels.get(QUEUE, "default-queue"))
    return given.pod(name, queue=queue, origin=origin, created_at=9.0, **more)


def chain(*owners: Owner, known: Iterable[Owner] = (), siblings: Iterable[Pod] = ()) -> Chain:
    """Build a chain from the pod's own owner up, in a namespace in which `known` exist too."""
    objects = {(one.ref.kind, one.ref.name): one for one in known}
    others = tuple(siblings)
    return Chain(owners=owners, find=lambda kind, name: objects.get((kind, name)), siblings=lambda: others)


def read(grouping: Grouping | None) -> GroupSpec:
    """Return a PodGroup as it is read from the object that it would be written into."""
    assert grouping is not None
    metadata = {"name": grouping.name, "namespace": "default", "uid": "uid"}
    return decode.pod_group({"metadata": metadata, "spec": grouping.spec})


def job(name: str = "train", **more: Any) -> Owner:
    """Build a Job of two pods at a time."""
    return owner("batch/v1 Job", name, **({"spec": {"parallelism": 2, "completions": 2, "suspend": False}} | more))


def jobset(*templates: Raw, order: str | None = None, **more: Any) -> Owner:
    """Build a JobSet of these replicated Jobs, in this order of starting."""
    spec: Raw = {"replicatedJobs": list(templates), "suspend": False}
    if order is not None:
        spec["startupPolicy"] = {"startupPolicyOrder": order}
    return owner("jobset.x-k8s.io/v1alpha2 JobSet", **({"spec": spec} | more))


def replicated(name: str, *, replicas: Any = 1, **job_spec: Any) -> Raw:
    """Build one template of a JobSet."""
    return {"name": name, "replicas": replicas, "template": {"spec": {**job_spec, "template": {"spec": {}}}}}


def kubeflow(kind: str, field: str, *, api: str = "kubeflow.org/v1", more: Raw | None = None, **roles: Any) -> Owner:
    """Build a training job with this number of replicas of each role; a role may be a whole replica spec."""
    specs = {
        role: {"replicas": one, "template": {}} if not isinstance(one, dict) else one for role, one in roles.items()
    }
    spec: Raw = {"runPolicy": {"suspend": False}, field: specs, **(more or {})}
    return owner(f"{api} {kind}", spec=spec)


def pytorch(*, more: Raw | None = None, **roles: Any) -> Owner:
    """Build a PyTorchJob."""
    return kubeflow("PyTorchJob", "pytorchReplicaSpecs", more=more, **roles)


def worker(index: int | str = 0, role: str = "worker", annotations: Texts = NOBODYS) -> Pod:
    """Build a pod of a training job."""
    labels = {
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
        "training.kubeflow.org/job-role": role,
    }
    return pod(f"train-{role}-{index}", labels=labels, annotations=annotations)


def ray_cluster(*groups: Raw, name: str = "train", head: Texts = NOBODYS, **more: Any) -> Owner:
    """Build a RayCluster of these groups of workers."""
    spec = {"headGroupSpec": {"template": {"metadata": {"annotations": dict(head)}}}, "workerGroupSpecs": list(groups)}
    return owner("ray.io/v1 RayCluster", name, **({"spec": spec} | more))


def ray_group(
    name: str = "gpu", *, replicas: Any = 2, least: Any = 0, annotations: Texts = NOBODYS, **more: Any
) -> Raw:
    """Build a group of workers of a RayCluster."""
    template = {"metadata": {"annotations": dict(annotations)}}
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": least,
        "maxReplicas": 9,
        "template": template,
    } | more


def ray_pod(group: str = "headgroup") -> Pod:
    """Build a pod of a RayCluster."""
    return pod(f"ray-{group}", labels={"ray.io/group": group, "ray.io/cluster": "train"})


def lws(size: Any = 4, *, policy: str | None = None, segments: Raw | None = None, **more: Any) -> Owner:
    """Build a LeaderWorkerSet whose replicas have this number of pods."""
    template: Raw = {"size": size, "workerTemplate": {"metadata": {"annotations": dict(more.pop("workers", {}))}}}
    if segments is not None:
        template["subGroupPolicy"] = segments
    spec: Raw = {"replicas": 2, "leaderWorkerTemplate": template}
    if policy is not None:
        spec["startupPolicy"] = policy
    return owner("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", spec=spec, **more)


def lws_pod(index: int | str = 0, *, group: str = "0", annotations: Texts = NOBODYS) -> Pod:
    """Build a pod of a LeaderWorkerSet."""
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/group-index": group, f"{prefix}/worker-index": str(index)}
    return pod(f"train-{group}-{index}", labels=labels, annotations=annotations)


def pod_gang(
    *groups: Raw, name: str = "gang", labels: Texts = NOBODYS, annotations: Texts = NOBODYS, **spec: Any
) -> Owner:
    """Build a PodGang of these groups of pods."""
    kind = "scheduler.grove.io/v1alpha1 PodGang"
    return owner(kind, name, labels=labels, annotations=annotations, spec={"podgroups": list(groups), **spec})


def clique(name: str, least: Any = 1, *pods: str, required: str = "") -> Raw:
    """Build one group of a PodGang."""
    references = [{"namespace": "default", "name": one} for one in pods]
    raw: Raw = {"name": name, "minReplicas": least, "podReferences": references}
    return raw | ({"topologyConstraint": {"packConstraint": {"required": required}}} if required else {})
