"""Submitted objects: the smallest object of each kind that its real CRD accepts, for managed pods in one queue.

Only the owner names the queue, as users do. Every pod requests one GPU unless the template says otherwise.
"""

from collections.abc import Mapping

from tests.system.api import PROFILE, QUEUE_LABEL, RUN_FOR, Object, pod
from tests.system.workloads.kinds import (
    CRON_JOB,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    MPI_JOB,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    RAY_SERVICE,
    TRAIN_JOB,
    TRAINING_RUNTIME,
    Kind,
)

STAYS = {RUN_FOR: "1h"}
"""Pods of Jobs end after a second otherwise."""
SUBMITS: Object = {"restartPolicy": "Never", "containers": [{"name": "submitter", "image": "none"}]}
"""The pod that sends a RayJob's program to its cluster; the cluster's own scheduler places it."""
RUNTIME = "torch-distributed"


def template(*, gpus: int = 1, scheduler: str = PROFILE, **spec: object) -> Object:
    """Build a pod template whose pods run on; `spec` is merged over the rest."""
    made = pod("unnamed", gpus=gpus, scheduler=scheduler, spec=spec)
    return {"metadata": {"annotations": STAYS}, "spec": made["spec"]}


def owner(kind: Kind, name: str, spec: Object, *, queue: str, labels: Mapping[str, str] | None = None) -> Object:
    """Build an object that names its queue."""
    metadata = {"name": name, "namespace": "default", "labels": {QUEUE_LABEL: queue, **(labels or {})}}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


# -- Ray


def ray_spec(pods: Object, *, minimum: int, replicas: int | None = None, head: Object | None = None) -> Object:
    """Build the spec of a RayCluster: a head, and one group of workers with this minimum."""
    workers = {
        "groupName": "workers",
        "minReplicas": minimum,
        "replicas": minimum if replicas is None else replicas,
        "maxReplicas": 100,
        "rayStartParams": {},
        "template": pods,
    }
    return {
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": head or pods},
        "workerGroupSpecs": [workers],
    }


def ray_cluster(name: str, spec: Object, *, queue: str, labels: Mapping[str, str] | None = None) -> Object:
    """Build a RayCluster."""
    return owner(RAY_CLUSTER, name, spec, queue=queue, labels=labels)


def ray_job(name: str, spec: Object, *, queue: str, labels: Mapping[str, str] | None = None) -> Object:
    """Build a RayJob with a RayCluster of its own."""
    return owner(RAY_JOB, name, {"entrypoint": "train", "rayClusterSpec": spec}, queue=queue, labels=labels)


def ray_service(name: str, spec: Object, *, queue: str, labels: Mapping[str, str] | None = None) -> Object:
    """Build a RayService."""
    return owner(RAY_SERVICE, name, {"rayClusterConfig": spec}, queue=queue, labels=labels)


# -- Kubeflow


def pytorch_job(name: str, pods: Object, *, workers: int, queue: str, masters: int = 1, **spec: object) -> Object:
    """Build a PyTorchJob; `spec` may have an elasticPolicy."""
    types = {"Master": masters, "Worker": workers}
    return owner(PYTORCH_JOB, name, {"pytorchReplicaSpecs": _replicas(pods, types), **spec}, queue=queue)


def mpi_job(name: str, pods: Object, *, workers: int, queue: str) -> Object:
    """Build an MPIJob of the MPI operator."""
    return owner(MPI_JOB, name, {"mpiReplicaSpecs": _replicas(pods, {"Launcher": 1, "Worker": workers})}, queue=queue)


def _replicas(pods: Object, numbers: Mapping[str, int]) -> Object:
    named = _with_container(pods, "pytorch")
    spec = {"restartPolicy": "OnFailure", "template": named}
    return {name: {**spec, "replicas": number} for name, number in numbers.items() if number}


def training_runtime(pods: Object) -> Object:
    """Build the runtime that our TrainJobs name."""
    node = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": _with_container(pods, "node")},
        },
    }
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}}
    head = {"apiVersion": TRAINING_RUNTIME.api_version, "kind": TRAINING_RUNTIME.name, "metadata": {"name": RUNTIME}}
    return {**head, "spec": spec}


def train_job(name: str, *, nodes: int, queue: str) -> Object:
    """Build a TrainJob of that runtime."""
    return owner(TRAIN_JOB, name, {"runtimeRef": {"name": RUNTIME}, "trainer": {"numNodes": nodes}}, queue=queue)


def _with_container(pods: Object, name: str) -> Object:
    """Return a template whose container has the name that an operator expects."""
    (container,) = pods["spec"]["containers"]
    return {**pods, "spec": {**pods["spec"], "containers": [{**container, "name": name}]}}


# -- JobSet, LeaderWorkerSet and built-in kinds


def batch_job(name: str, pods: Object, *, parallelism: int, queue: str, **spec: object) -> Object:
    """Build a Job."""
    return owner(JOB, name, {**_job_spec(pods, parallelism), **spec}, queue=queue)


def job_set(name: str, pods: Object, *, queue: str, order: str = "AnyOrder", **parallelism: int) -> Object:
    """Build a JobSet with a Job for each name, of this number of pods."""
    jobs = [
        {"name": part, "replicas": 1, "template": {"spec": _job_spec(pods, number)}}
        for part, number in parallelism.items()
    ]
    spec = {"startupPolicy": {"startupPolicyOrder": order}, "replicatedJobs": jobs}
    return owner(JOB_SET, name, spec, queue=queue)


def leader_worker_set(name: str, pods: Object, *, replicas: int, size: int, queue: str) -> Object:
    """Build a LeaderWorkerSet of this number of groups."""
    groups = {"size": size, "workerTemplate": pods, "restartPolicy": "RecreateGroupOnPodRestart"}
    rollout = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0}}
    spec = {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",
        "leaderWorkerTemplate": groups,
        "rolloutStrategy": rollout,
    }
    return owner(LEADER_WORKER_SET, name, spec, queue=queue)


def replicated(kind: Kind, name: str, pods: Object, *, replicas: int, queue: str) -> Object:
    """Build a Deployment or a StatefulSet."""
    labelled = {**pods, "metadata": {**pods["metadata"], "labels": {"app": name}}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": labelled}
    return owner(kind, name, spec, queue=queue)


def cron_job(name: str, pods: Object, *, parallelism: int, queue: str) -> Object:
    """Build a CronJob that never starts by its schedule: a user starts it."""
    jobs = {"metadata": {"labels": {QUEUE_LABEL: queue}}, "spec": _job_spec(pods, parallelism)}
    spec = {"schedule": "0 0 31 2 *", "suspend": True, "jobTemplate": jobs}
    return owner(CRON_JOB, name, spec, queue=queue)


def started_by_hand(cron: Object, name: str) -> Object:
    """Build the Job of `kubectl create job --from=cronjob/...`."""
    made = owner(JOB, name, cron["spec"]["jobTemplate"]["spec"], queue=cron["metadata"]["labels"][QUEUE_LABEL])
    made["metadata"]["annotations"] = {"cronjob.kubernetes.io/instantiate": "manual"}
    named = {"apiVersion": CRON_JOB.api_version, "kind": CRON_JOB.name, "controller": True}
    metadata = {key: cron["metadata"][key] for key in ("name", "uid")}
    made["metadata"]["ownerReferences"] = [named | metadata]
    return made


def _job_spec(pods: Object, parallelism: int) -> Object:
    never = {**pods, "spec": {**pods["spec"], "restartPolicy": "Never"}}
    return {"parallelism": parallelism, "completions": parallelism, "backoffLimit": 100, "template": never}
