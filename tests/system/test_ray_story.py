"""Training and inference of Ray on the same GPUs: which runs when, and how many evictions it takes.

A head requests no GPU, so GPUs are counted by workers. Inference is not preemptible: its queue deserves its requests.
"""

from collections.abc import Iterator

import pytest

from tests.system.api import RUN_FOR, Api, Object, pod, queue
from tests.system.bed import Bed
from tests.system.forms import Deployed
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S
from tests.system.workloads import submitted as made
from tests.system.workloads.cluster import WorkloadCluster, workload_cluster
from tests.system.workloads.kinds import RAY_CLUSTER, RAY_JOB, RAY_SERVICE

TRAIN, INFERENCE = {"priorityClassName": "train"}, {"priorityClassName": "inference"}
POD, HEAD = made.template(), made.template(gpus=0)


@pytest.fixture
def cluster(leeboard_with_operators: Deployed, bed: Bed, api: Api) -> Iterator[WorkloadCluster]:
    """A cluster without nodes and queues."""
    assert leeboard_with_operators.bed is bed
    assert leeboard_with_operators.api is api
    with workload_cluster(leeboard_with_operators) as cluster:
        yield cluster


def ray(*, minimum: int, replicas: int | None = None) -> Object:
    """Build a head and this number of workers."""
    return made.ray_spec(POD, minimum=minimum, replicas=replicas, head=HEAD)


def wait_for_ray(cluster: WorkloadCluster, **workers: int) -> None:
    """Wait until exactly this many pods of each name run; the pod that submits a RayJob's program does not count."""
    eventually(
        lambda: {name: members(cluster, name) for name in workers},
        until=lambda seen: seen == workers,
        within_s=WITHIN_S,
        what=f"pods of Ray run: {workers}",
    )


def members(cluster: WorkloadCluster, name: str) -> int:
    """Return how many pods of a RayCluster run and are not terminating, including its head."""
    return sum("-head" in pod or "-worker-" in pod for pod in cluster.running(f"{name}-"))


def two_queues(cluster: WorkloadCluster, *, a: int, b: int) -> None:
    """Create queues `a` and `b`, which deserve this number of GPUs."""
    cluster.api.create_all(
        [queue("both"), queue("a", parent="both", deserved=a), queue("b", parent="both", deserved=b)]
    )


@pytest.mark.parametrize("queues", ["one queue", "two queues"])
def test_training_is_evicted_for_inference_as_a_gang_and_returns_by_itself(
    cluster: WorkloadCluster, queues: str
) -> None:
    cluster.add_nodes(1, gpus=8)
    two_queues(cluster, a=4, b=4)
    inference_queue = "a" if queues == "one queue" else "b"
    cluster.submit(made.ray_job("train", ray(minimum=8), queue="a", labels=TRAIN))
    wait_for_ray(cluster, train=9)

    cluster.submit(made.ray_service("serve", ray(minimum=4), queue=inference_queue, labels=INFERENCE))

    wait_for_ray(cluster, serve=5, train=0)
    # Pods that are created and deleted cause new plans: training still lacks four GPUs.
    for name in ("first", "second"):
        cluster.run(name, 1, queue="b")
        cluster.delete(f"{name}-0")
    assert len(cluster.evicted_of("train-")) == 9
    assert (members(cluster, "serve"), members(cluster, "train")) == (5, 0)
    assert gpus_held(cluster, by="train-", at_first_bind_of="serve-") <= 4
    cluster.withdraw(RAY_SERVICE, "serve")
    cluster.wait_until_gone("serve-")
    wait_for_ray(cluster, train=9)
    assert len(cluster.evicted_of("train-")) == 9


def gpus_held(cluster: WorkloadCluster, *, by: str, at_first_bind_of: str) -> int:
    """Return how many GPUs the pods of one name held when the first of another was bound."""
    holding: dict[str, int] = {}
    for sight in cluster.observer.history():
        if sight.name.startswith(at_first_bind_of) and sight.node:
            break
        if sight.name.startswith(by):
            holding[sight.uid] = sight.gpus if sight.holds else 0
    return sum(holding.values())


def test_training_above_its_minimum_loses_only_what_inference_requests(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=8)
    two_queues(cluster, a=8, b=0)
    cluster.submit(made.ray_job("train", ray(minimum=4, replicas=8), queue="a", labels=TRAIN))
    wait_for_ray(cluster, train=9)

    cluster.submit(made.ray_service("serve", ray(minimum=3), queue="a", labels=INFERENCE))

    wait_for_ray(cluster, serve=4, train=6)
    cluster.search_again("a", times=2)
    assert len(cluster.evicted_of("train-")) == 3
    cluster.withdraw(RAY_SERVICE, "serve")
    cluster.wait_until_gone("serve-")
    wait_for_ray(cluster, train=9)
    assert len(cluster.evicted_of("train-")) == 3


# -- autoscaling


def scale(cluster: WorkloadCluster, replicas: int, *leaving: str) -> None:
    """Set the size of a RayCluster with a minimum of two workers, as its autoscaler does."""
    (group,) = ray(minimum=2, replicas=replicas)["workerGroupSpecs"]
    group["scaleStrategy"] = {"workersToDelete": list(leaving)}
    cluster.change(RAY_CLUSTER, "elastic", {"workerGroupSpecs": [group]})


def test_workers_above_the_minimum_start_and_stop_with_free_capacity(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    two_queues(cluster, a=2, b=4)
    cluster.submit(made.ray_cluster("elastic", ray(minimum=2), queue="a", labels=TRAIN))
    wait_for_ray(cluster, elastic=3)

    scale(cluster, 6)
    wait_for_ray(cluster, elastic=5)
    cluster.add_nodes(1, gpus=2)
    wait_for_ray(cluster, elastic=7)
    assert cluster.evicted() == []

    # Another queue reclaims its share one by one; only the minimum is left then.
    for number in range(1, 5):
        cluster.api.create(pod(f"other-{number}", queue="b"))
        cluster.wait_until_run("other-", number)
        wait_for_ray(cluster, elastic=7 - number)
        assert len(cluster.evicted_of("elastic-")) == number

    cluster.delete(*cluster.running("other-"))
    wait_for_ray(cluster, elastic=7)
    assert len(cluster.evicted_of("elastic-")) == 4


def test_workers_removed_by_the_autoscaler_leave_room_for_other_pods(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    two_queues(cluster, a=4, b=4)
    cluster.submit(made.ray_cluster("elastic", ray(minimum=2, replicas=4), queue="a", labels=TRAIN))
    wait_for_ray(cluster, elastic=5)
    cluster.api.create_all(pod(f"later-{number}", queue="a") for number in range(2))
    cluster.wait_until_refused(2, "NoNodeFits")

    scale(cluster, 2, "elastic-workers-worker-0", "elastic-workers-worker-1")

    cluster.wait_until_run("later-", 2)
    wait_for_ray(cluster, elastic=3)
    assert sorted(cluster.running("elastic-workers")) == ["elastic-workers-worker-2", "elastic-workers-worker-3"]


def test_minimum_of_a_ray_cluster_starts_as_a_whole_or_not_at_all(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    two_queues(cluster, a=0, b=4)
    cluster.submit(made.ray_cluster("elastic", ray(minimum=2, replicas=3), queue="a", labels=TRAIN))
    wait_for_ray(cluster, elastic=4)

    cluster.api.create_all(pod(f"other-{number}", queue="b") for number in range(2))
    cluster.wait_until_run("other-", 2)
    wait_for_ray(cluster, elastic=3)
    assert len(cluster.evicted_of("elastic-")) == 1

    cluster.api.create(pod("other-2", queue="b"))
    cluster.wait_until_run("other-", 3)
    wait_for_ray(cluster, elastic=0)
    assert len(cluster.evicted_of("elastic-")) == 4


def test_finished_ray_job_returns_its_gpus(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    two_queues(cluster, a=4, b=4)
    job = made.ray_job("train", ray(minimum=4), queue="a", labels=TRAIN)
    submitter = {"metadata": {"annotations": {RUN_FOR: "100ms"}}, "spec": made.SUBMITS}
    job["spec"] |= {"shutdownAfterJobFinishes": True, "submitterPodTemplate": submitter}

    cluster.submit(job)

    path = f"/apis/ray.io/v1/namespaces/default/{RAY_JOB.plural}/train"
    done = eventually(
        lambda: cluster.api.get(path).get("status", {}),
        until=lambda status: status.get("jobDeploymentStatus") == "Complete",
        within_s=WITHIN_S,
        what="the RayJob is done",
    )
    assert done["jobStatus"] == "SUCCEEDED"
    cluster.wait_until_gone(done["rayClusterName"])
    cluster.api.create(pod("later", gpus=4, queue="a"))
    cluster.wait_until_run("later", 1)
