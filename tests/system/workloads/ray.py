"""A stand-in for KubeRay: RayClusters with their pods, and the RayClusters of RayJobs and RayServices.

Names, labels and owners are those of KubeRay 1.5; the random part of its names is a hash here.
"""

import copy
from collections.abc import Iterator

from tests.system.api import RUN_FOR, Object
from tests.system.workloads.kinds import JOB, POD, RAY_CLUSTER, RAY_JOB, RAY_SERVICE, Kind
from tests.system.workloads.seen import TERMINAL, Seen, all_run, is_leaving, is_true, phase_of, pod_of, short_hash

HEAD_GROUP = "headgroup"
SUBMITTER: Object = {"containers": [{"name": "ray-job-submitter", "image": "none"}], "restartPolicy": "Never"}
TRAINS_FOR = "24h"
"""The run time of a RayJob's program if the submitter's template has none."""


def operate(seen: Seen) -> None:
    """Bring all objects of Ray one step further."""
    for job in seen.all(RAY_JOB):
        _operate_job(seen, job)
    for service in seen.all(RAY_SERVICE):
        _operate_service(seen, service)
    for cluster in seen.all(RAY_CLUSTER):
        _operate_cluster(seen, cluster)


# -- RayJob and RayService


def _operate_job(seen: Seen, job: Object) -> None:
    clusters, status = seen.owned(job, RAY_CLUSTER), job.get("status", {})
    if status.get("jobDeploymentStatus") in {"Complete", "Failed"}:
        if job["spec"].get("shutdownAfterJobFinishes"):
            _delete_all(seen, RAY_CLUSTER, clusters)
        return
    if job["spec"].get("suspend"):
        _delete_all(seen, RAY_CLUSTER, clusters)
        _delete_all(seen, JOB, seen.owned(job, JOB))
        seen.set_status(RAY_JOB, job, jobDeploymentStatus="Suspended", rayClusterName="")
        return
    name = _cluster_name(job)
    if status.get("rayClusterName") != name:
        # Written before the cluster exists, as KubeRay does: a reader of a pod can find its cluster.
        seen.set_status(RAY_JOB, job, jobDeploymentStatus="Initializing", rayClusterName=name)
        return
    if not clusters:
        seen.create(RAY_CLUSTER, _cluster_of(job, RAY_JOB), owner=job, owner_kind=RAY_JOB)
        return
    _submit(seen, job, clusters[0])


def _submit(seen: Seen, job: Object, cluster: Object) -> None:
    """Start the submitter once the cluster has been ready, and follow its state."""
    (submitter,) = seen.owned(job, JOB) or (None,)
    if submitter is None:
        if cluster.get("status", {}).get("state") == "ready":
            seen.create(JOB, _submitter_of(job), owner=job, owner_kind=RAY_JOB)
        return
    for condition, stage, result in (("Complete", "Complete", "SUCCEEDED"), ("Failed", "Failed", "FAILED")):
        if is_true(submitter, condition):
            seen.set_status(RAY_JOB, job, jobDeploymentStatus=stage, jobStatus=result)
            return
    seen.set_status(RAY_JOB, job, jobDeploymentStatus="Running", jobStatus="RUNNING")


def _submitter_of(job: Object) -> Object:
    """Build the Job that would send the program to the head; it is not managed unless its template says so."""
    made = JOB.named(job, job["metadata"]["name"], {"backoffLimit": 2})
    template = copy.deepcopy(job["spec"].get("submitterPodTemplate") or {"spec": SUBMITTER})
    annotations = {RUN_FOR: TRAINS_FOR, **template.get("metadata", {}).get("annotations", {})}
    template["metadata"] = {**template.get("metadata", {}), "annotations": annotations}
    made["spec"]["template"] = template
    return made


def _operate_service(seen: Seen, service: Object) -> None:
    status, name = service.get("status", {}), _cluster_name(service)
    told = [status.get(f"{stage}ServiceStatus", {}).get("rayClusterName") for stage in ("active", "pending")]
    if name not in told:
        seen.set_status(RAY_SERVICE, service, pendingServiceStatus={"rayClusterName": name})
        return
    (cluster,) = seen.owned(service, RAY_CLUSTER) or (None,)
    if cluster is None:
        seen.create(RAY_CLUSTER, _cluster_of(service, RAY_SERVICE), owner=service, owner_kind=RAY_SERVICE)
    elif told[0] != name and cluster.get("status", {}).get("state") == "ready":
        active, pending = {"rayClusterName": name}, {"rayClusterName": ""}
        seen.set_status(RAY_SERVICE, service, activeServiceStatus=active, pendingServiceStatus=pending)


def _cluster_name(owner: Object) -> str:
    metadata = owner["metadata"]
    return f"{metadata['name']}-{short_hash(metadata['uid'])}"


def _cluster_of(owner: Object, kind: Kind) -> Object:
    """Build the RayCluster of a RayJob or RayService, with the labels and annotations of that owner."""
    field = "rayClusterSpec" if kind is RAY_JOB else "rayClusterConfig"
    made, metadata = RAY_CLUSTER.named(owner, _cluster_name(owner), owner["spec"][field]), owner["metadata"]
    origin = {"ray.io/originated-from-cr-name": metadata["name"], "ray.io/originated-from-crd": kind.name}
    made["metadata"]["labels"] = {**metadata.get("labels", {}), **origin}
    made["metadata"]["annotations"] = metadata.get("annotations", {})
    return made


def _delete_all(seen: Seen, kind: Kind, items: list[Object]) -> None:
    for item in items:
        seen.delete(kind, item)


# -- RayCluster


def _operate_cluster(seen: Seen, cluster: Object) -> None:
    pods = seen.owned(cluster, POD)
    if cluster["spec"].get("suspend"):
        _delete_all(seen, POD, pods)
        seen.set_status(RAY_CLUSTER, cluster, state="suspended")
        return
    _restart_ended(seen, pods)
    _make_head(seen, cluster, pods)
    for group in _worker_groups(cluster):
        _make_workers(seen, cluster, group, [pod for pod in pods if _group_of(pod) == group["groupName"]])
    _tell_status(seen, cluster, pods)


def _restart_ended(seen: Seen, pods: list[Object]) -> None:
    """Delete the ended pods: others are created in their place."""
    _delete_all(seen, POD, [pod for pod in pods if phase_of(pod) in TERMINAL])


def _make_head(seen: Seen, cluster: Object, pods: list[Object]) -> None:
    if any(_group_of(pod) == HEAD_GROUP for pod in pods):
        return
    name, template = f"{cluster['metadata']['name']}-head", cluster["spec"]["headGroupSpec"]["template"]
    head = pod_of(cluster, template, name, labels=_labels(cluster, HEAD_GROUP, "head"))
    seen.create(POD, head, owner=cluster, owner_kind=RAY_CLUSTER)


def _make_workers(seen: Seen, cluster: Object, group: Object, pods: list[Object]) -> None:
    """Create the missing workers of the group, or delete those that it names, then the last ones."""
    staying = [pod for pod in pods if not is_leaving(pod) and phase_of(pod) not in TERMINAL]
    named = {*group.get("scaleStrategy", {}).get("workersToDelete", ())}
    leaving = [pod for pod in staying if pod["metadata"]["name"] in named]
    staying = [pod for pod in staying if pod not in leaving]
    lacking = wanted_workers(group) - len(staying)
    surplus = sorted(staying, key=_index_of)[lacking:] if lacking < 0 else []
    _delete_all(seen, POD, [*leaving, *surplus])
    taken = {_index_of(pod) for pod in pods}
    indices = (index for index in range(len(taken) + max(lacking, 0)) if index not in taken)
    for index, _ in zip(indices, range(lacking), strict=False):
        seen.create(POD, _worker(cluster, group, index), owner=cluster, owner_kind=RAY_CLUSTER)


def _worker(cluster: Object, group: Object, index: int) -> Object:
    name = f"{cluster['metadata']['name']}-{group['groupName']}-worker-{index}"
    labels = _labels(cluster, group["groupName"], "worker")
    return pod_of(cluster, group["template"], name, labels=labels)


def wanted_workers(group: Object) -> int:
    """Return how many pods a complete worker group has."""
    if group.get("suspend"):
        return 0
    replicas = max(group.get("replicas", 0), group.get("minReplicas", 0))
    wanted: int = min(replicas, group.get("maxReplicas", replicas)) * group.get("numOfHosts", 1)
    return wanted


def _tell_status(seen: Seen, cluster: Object, pods: list[Object]) -> None:
    groups = list(_worker_groups(cluster))
    wanted = sum(wanted_workers(group) for group in groups)
    running = [pod for pod in pods if not is_leaving(pod) and phase_of(pod) == "Running"]
    counts = {
        "desiredWorkerReplicas": wanted,
        "minWorkerReplicas": sum(group.get("minReplicas", 0) for group in groups),
        "maxWorkerReplicas": sum(group.get("maxReplicas", 0) for group in groups),
        "availableWorkerReplicas": sum(_group_of(pod) != HEAD_GROUP for pod in running),
    }
    # Once ready it stays so in KubeRay's status, whichever pods are deleted.
    if all_run(running, wanted + 1):
        counts["state"] = "ready"
    seen.set_status(RAY_CLUSTER, cluster, **counts)


def _worker_groups(cluster: Object) -> Iterator[Object]:
    yield from cluster["spec"].get("workerGroupSpecs") or ()


def _labels(cluster: Object, group: str, node_type: str) -> dict[str, str]:
    name = cluster["metadata"]["name"]
    return {
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": name,
        "ray.io/node-type": node_type,
        "ray.io/group": group,
        "ray.io/identifier": f"{name}-{node_type}",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }


def _group_of(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["ray.io/group"])


def _index_of(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])
