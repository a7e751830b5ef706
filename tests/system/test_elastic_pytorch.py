"""An elastic PyTorchJob starts at its minimum, grows with free GPUs, and loses one pod at a time."""

from collections.abc import Iterator

import pytest

from tests.system.api import POD_GROUPS, Api, Object, gang, pod, queue
from tests.system.bed import Bed
from tests.system.forms import Deployed
from tests.system.workloads import submitted as made
from tests.system.workloads.cluster import WorkloadCluster, workload_cluster
from tests.system.workloads.kinds import PYTORCH_JOB

POD = made.template()


@pytest.fixture
def cluster(leeboard_with_operators: Deployed, bed: Bed, api: Api) -> Iterator[WorkloadCluster]:
    """A cluster whose queue `a` deserves one GPU, and `b` four; no nodes yet."""
    assert leeboard_with_operators.bed is bed
    api.create_all([queue("both"), queue("a", parent="both", deserved=1), queue("b", parent="both", deserved=4)])
    with workload_cluster(leeboard_with_operators) as cluster:
        yield cluster


def elastic(*, minimum: int, workers: int) -> Object:
    """Build a PyTorchJob of workers only, with this minimum."""
    policy = {"minReplicas": minimum, "maxReplicas": 3, "rdzvBackend": "c10d"}
    return made.pytorch_job("x", POD, masters=0, workers=workers, queue="a", elasticPolicy=policy)


def test_elastic_job_starts_at_its_minimum_and_grows_and_shrinks_pod_by_pod(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=1)

    cluster.submit(elastic(minimum=1, workers=3))

    cluster.wait_until_run("x-worker-", 1)
    for number in (2, 3):
        cluster.add_nodes(1, gpus=1)
        cluster.wait_until_run("x-worker-", number)
    assert cluster.evicted() == []

    for number in (1, 2):
        cluster.api.create(pod(f"other-{number}", queue="b"))
        cluster.wait_until_run("other-", number)
        cluster.wait_until_run("x-worker-", 3 - number)
        assert len(cluster.evicted_of("x-")) == number
    cluster.api.create(pod("third", queue="b"))
    cluster.wait_for_why("third", "other queues hold no more than their fair share")
    assert len(cluster.running("x-worker-")) == 1
    cluster.delete("third")

    cluster.delete(*cluster.running("other-"))
    cluster.wait_until_run("x-worker-", 3)
    assert len(cluster.evicted_of("x-")) == 2


def test_elastic_job_starts_no_pod_where_its_minimum_does_not_fit(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=1)

    cluster.submit(elastic(minimum=2, workers=3))

    cluster.wait_until_refused(3, "GangDoesNotFit")
    assert cluster.api.bound_pods() == {}
    cluster.add_nodes(1, gpus=1)
    cluster.wait_until_run("x-worker-", 2)
    (group,) = cluster.api.items(POD_GROUPS)
    assert group["spec"]["minMember"] == 2


def test_autoscaler_changes_the_number_of_workers_of_an_elastic_job(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=3)
    cluster.submit(elastic(minimum=1, workers=1))
    cluster.wait_until_run("x-worker-", 1)

    for workers in (3, 2, 3):
        cluster.change(PYTORCH_JOB, "x", {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}})
        cluster.wait_until_run("x-worker-", workers)


def test_gang_of_another_queue_takes_only_the_workers_above_the_minimum(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=3)
    cluster.submit(elastic(minimum=1, workers=3))
    cluster.wait_until_run("x-worker-", 3)

    cluster.api.create_all(gang("other", size=2, queue="b"))

    cluster.wait_until_run("other-", 2)
    cluster.wait_until_run("x-worker-", 1)
    assert len(cluster.evicted_of("x-")) == 2
