"""Tests of the stand-in operators themselves, without Leeboard: real CRDs accept the objects, and pods are created."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.system.api import NODES, PODS, Api, Object, gpu_node
from tests.system.bed import Bed
from tests.system.waiting import eventually
from tests.system.workloads import crds
from tests.system.workloads import submitted as made
from tests.system.workloads.cluster import empty_workloads
from tests.system.workloads.kinds import (
    JOB_SET,
    LEADER_WORKER_SET,
    MPI_JOB,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    RAY_SERVICE,
    Kind,
)
from tests.system.workloads.operators import Operators

WITHIN_S = 30.0
RAY, KUBEFLOW, SETS = "ray.io", "training.kubeflow.org", "leaderworkerset.sigs.k8s.io"
POD = made.template(gpus=0, scheduler="default-scheduler")


@pytest.fixture(scope="module")
def operators(session_bed: Bed, session_api: Api) -> Iterator[Operators]:
    crds.install(session_api)
    with Operators(session_bed) as running:
        yield running


@pytest.fixture
def cluster(operators: Operators, bed: Bed, api: Api) -> Iterator[Api]:
    """A cluster whose pods the plain kube-scheduler places."""
    assert bed.children
    api.create(gpu_node("operators"))
    yield api
    operators.check()
    empty_workloads(api)
    api.empty(NODES)


def running(api: Api) -> dict[str, Object]:
    """Return the metadata of the pods that run and are not terminating, by name."""
    pods = [one for one in api.items(PODS) if "deletionTimestamp" not in one["metadata"]]
    return {one["metadata"]["name"]: one["metadata"] for one in pods if one["status"].get("phase") == "Running"}


def wait_for(api: Api, *names: str) -> dict[str, Object]:
    """Wait until exactly these pods run; return their metadata."""
    return eventually(
        partial(running, api),
        until=lambda seen: sorted(seen) == sorted(names),
        within_s=WITHIN_S,
        what=f"just {', '.join(names) or 'no pods'} run",
    )


def wait_for_number(api: Api, number: int) -> dict[str, Object]:
    return eventually(
        partial(running, api), until=lambda seen: len(seen) == number, within_s=WITHIN_S, what=f"{number} pods run"
    )


def delete_pod(api: Api, name: str) -> str:
    """Delete a pod; return its uid."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    uid = str(api.get(path)["metadata"]["uid"])
    api.delete(path)
    return uid


def wait_until_new(api: Api, name: str, uid: str) -> None:
    """Wait until another pod of this name runs."""
    eventually(
        lambda: running(api).get(name, {}).get("uid", uid),
        until=lambda seen: seen != uid,
        within_s=WITHIN_S,
        what=f"{name} is made anew",
    )


def set_spec(api: Api, kind: Kind, name: str, spec: Object) -> None:
    api.patch(f"/apis/{kind.api_version}/namespaces/default/{kind.plural}/{name}", {"spec": spec})


def owners_of(metadata: Object) -> list[tuple[str, str]]:
    return [(one["kind"], one["name"]) for one in metadata["ownerReferences"]]


def test_pytorch_job_creates_deleted_pods_again_in_the_stated_number(cluster: Api) -> None:
    cluster.create(made.pytorch_job("pt", POD, workers=2, queue="team"))

    pods = wait_for(cluster, "pt-master-0", "pt-worker-0", "pt-worker-1")
    assert owners_of(pods["pt-worker-1"]) == [("PyTorchJob", "pt")]
    assert {key: value for key, value in pods["pt-worker-1"]["labels"].items() if key.startswith(KUBEFLOW)} == {
        f"{KUBEFLOW}/job-name": "pt",
        f"{KUBEFLOW}/operator-name": "pytorchjob-controller",
        f"{KUBEFLOW}/replica-type": "worker",
        f"{KUBEFLOW}/replica-index": "1",
    }
    wait_until_new(cluster, "pt-worker-1", delete_pod(cluster, "pt-worker-1"))
    set_spec(cluster, PYTORCH_JOB, "pt", {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}})
    wait_for(cluster, "pt-master-0", "pt-worker-0")
    set_spec(cluster, PYTORCH_JOB, "pt", {"runPolicy": {"suspend": True}})
    wait_for(cluster)


def test_mpi_job_has_its_own_workers_and_a_job_as_launcher(cluster: Api) -> None:
    cluster.create(made.mpi_job("mpi", POD, workers=2, queue="team"))

    pods = wait_for_number(cluster, 3)
    assert sorted(owners_of(one)[0] for one in pods.values()) == [
        ("Job", "mpi-launcher"),
        ("MPIJob", "mpi"),
        ("MPIJob", "mpi"),
    ]
    set_spec(cluster, MPI_JOB, "mpi", {"runPolicy": {"suspend": True}})
    wait_for(cluster)
    set_spec(cluster, MPI_JOB, "mpi", {"runPolicy": {"suspend": False}})
    wait_for_number(cluster, 3)


def test_job_set_creates_its_jobs_in_order_and_suspends_them(cluster: Api) -> None:
    cluster.create(made.job_set("js", POD, queue="team", order="InOrder", leader=1, worker=2))

    pods = wait_for_number(cluster, 3).values()
    assert sorted(one["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] for one in pods) == [
        "leader",
        "worker",
        "worker",
    ]
    assert {owners_of(one)[0] for one in pods} == {("Job", "js-leader-0"), ("Job", "js-worker-0")}
    set_spec(cluster, JOB_SET, "js", {"suspend": True})
    wait_for(cluster)
    set_spec(cluster, JOB_SET, "js", {"suspend": False})
    wait_for_number(cluster, 3)


def test_train_job_uses_the_job_set_of_its_runtime(cluster: Api) -> None:
    cluster.apply(made.training_runtime(POD))
    cluster.create(made.train_job("tj", nodes=2, queue="team"))

    pods = wait_for_number(cluster, 2)
    (job_set,) = cluster.items(JOB_SET.path)
    assert {owners_of(one)[0] for one in pods.values()} == {("Job", "tj-node-0")}
    assert owners_of(job_set["metadata"]) == [("TrainJob", "tj")]


def test_leader_worker_set_labels_its_groups_and_restarts_them_whole(cluster: Api) -> None:
    cluster.create(made.leader_worker_set("lws", POD, replicas=2, size=2, queue="team"))

    names = ("lws-0", "lws-0-1", "lws-1", "lws-1-1")
    pods = wait_for(cluster, *names)
    labels = [[pods[name]["labels"][f"{SETS}/{part}"] for part in ("group-index", "worker-index")] for name in names]
    assert labels == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
    assert [owners_of(pods[name]) for name in names[:2]] == [[("StatefulSet", "lws")], [("StatefulSet", "lws-0")]]
    uid = delete_pod(cluster, "lws-0-1")
    wait_until_new(cluster, "lws-0", pods["lws-0"]["uid"])
    wait_until_new(cluster, "lws-0-1", uid)
    assert wait_for(cluster, *names)["lws-1"]["uid"] == pods["lws-1"]["uid"]
    set_spec(cluster, LEADER_WORKER_SET, "lws", {"replicas": 1})
    wait_for(cluster, "lws-0", "lws-0-1")


def test_ray_cluster_has_a_head_and_as_many_workers_as_its_autoscaler_says(cluster: Api) -> None:
    spec = made.ray_spec(POD, minimum=1, replicas=3)
    cluster.create(made.ray_cluster("rc", spec, queue="team"))

    pods = wait_for(cluster, "rc-head", *(f"rc-workers-worker-{index}" for index in range(3)))
    assert {key: value for key, value in pods["rc-head"]["labels"].items() if key.startswith(RAY)} == {
        f"{RAY}/is-ray-node": "yes",
        f"{RAY}/cluster": "rc",
        f"{RAY}/node-type": "head",
        f"{RAY}/group": "headgroup",
        f"{RAY}/identifier": "rc-head",
    }
    (group,) = spec["workerGroupSpecs"]
    strategy = {"workersToDelete": ["rc-workers-worker-1"]}
    set_spec(cluster, RAY_CLUSTER, "rc", {"workerGroupSpecs": [group | {"replicas": 2, "scaleStrategy": strategy}]})
    wait_for(cluster, "rc-head", "rc-workers-worker-0", "rc-workers-worker-2")
    set_spec(cluster, RAY_CLUSTER, "rc", {"suspend": True})
    wait_for(cluster)


@pytest.mark.parametrize(("kind", "build"), [(RAY_JOB, made.ray_job), (RAY_SERVICE, made.ray_service)])
def test_ray_job_and_service_name_their_cluster_and_delete_it_with_themselves(
    cluster: Api, kind: Kind, build: partial[Object]
) -> None:
    cluster.create(build("ray", made.ray_spec(POD, minimum=1), queue="team", labels={"priorityClassName": "train"}))

    eventually(
        lambda: [one["metadata"]["labels"].get("ray.io/node-type") for one in cluster.items(PODS)],
        until=lambda types: {"head", "worker"} <= {*types},
        within_s=WITHIN_S,
        what="head and worker are made",
    )
    (ray_cluster,) = cluster.items(RAY_CLUSTER.path)
    assert owners_of(ray_cluster["metadata"]) == [(kind.name, "ray")]
    assert ray_cluster["metadata"]["labels"]["priorityClassName"] == "train"
    eventually(
        lambda: str(cluster.get(f"/apis/ray.io/v1/namespaces/default/{kind.plural}/ray").get("status", {})),
        until=lambda status: ray_cluster["metadata"]["name"] in status,
        within_s=WITHIN_S,
        what="its status names the cluster",
    )
    cluster.delete(f"/apis/ray.io/v1/namespaces/default/{kind.plural}/ray")
    eventually(lambda: cluster.items(PODS), until=lambda pods: not pods, within_s=60, what="all of it is gone")


def test_crd_is_stored_without_descriptions_and_keeps_a_field_named_description() -> None:
    fields = {"description": {"type": "string", "description": "what it is for"}, "size": {"type": "integer"}}
    schema = {"description": "a kind", "properties": fields, "anyOf": [{"required": ["size"], "description": "or"}]}

    assert crds.without_descriptions(schema) == {
        "properties": {"description": {"type": "string"}, "size": {"type": "integer"}},
        "anyOf": [{"required": ["size"]}],
    }
