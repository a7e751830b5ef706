"""Workloads that are suspended, resumed or deleted at every stage, or end: what they hold, and what stays."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.system.api import PODS, Api, Object, queue
from tests.system.bed import Bed
from tests.system.forms import Deployed
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S
from tests.system.workloads import submitted as made
from tests.system.workloads.cluster import WorkloadCluster, workload_cluster
from tests.system.workloads.kinds import JOB, JOB_SET, PYTORCH_JOB, RAY_CLUSTER, RAY_JOB, Kind

TEAM = "team"
POD = made.template()
RAY = made.ray_spec(POD, minimum=2)
Build = Callable[[], Object]


@pytest.fixture
def cluster(leeboard_with_operators: Deployed, bed: Bed, api: Api) -> Iterator[WorkloadCluster]:
    """A cluster with one queue that deserves everything; no nodes yet."""
    assert leeboard_with_operators.bed is bed
    api.create(queue(TEAM, deserved=100))
    with workload_cluster(leeboard_with_operators) as cluster:
        yield cluster


# -- suspended and resumed

SUSPENDED: dict[str, tuple[Kind, Build, Object]] = {
    "Job": (JOB, partial(made.batch_job, "x", POD, parallelism=3, queue=TEAM), {"suspend": True}),
    "JobSet": (JOB_SET, partial(made.job_set, "x", POD, queue=TEAM, worker=3), {"suspend": True}),
    "RayCluster": (RAY_CLUSTER, partial(made.ray_cluster, "x", RAY, queue=TEAM), {"suspend": True}),
    "PyTorchJob": (
        PYTORCH_JOB,
        partial(made.pytorch_job, "x", POD, workers=2, queue=TEAM),
        {"runPolicy": {"suspend": True}},
    ),
}


@pytest.mark.parametrize("name", SUSPENDED)
def test_suspended_workload_holds_nothing_and_runs_whole_when_it_is_resumed(
    cluster: WorkloadCluster, name: str
) -> None:
    kind, build, suspended = SUSPENDED[name]
    item = build()
    cluster.add_nodes(1, gpus=3)

    cluster.submit({**item, "spec": {**item["spec"], **suspended}})
    cluster.submit(made.batch_job("other", POD, parallelism=3, queue=TEAM))
    cluster.wait_until_run("other-", 3)
    cluster.wait_until_no_group_waits()
    cluster.withdraw(JOB, "other")
    cluster.change(kind, "x", resumed(suspended))
    cluster.wait_until_run("x", 3)

    cluster.change(kind, "x", suspended)
    cluster.wait_until_run("x", 0)
    eventually(lambda: cluster.waiting_groups() == [], within_s=WITHIN_S, what="no group waits")
    cluster.change(kind, "x", resumed(suspended))
    cluster.wait_until_run("x", 3)


def resumed(suspended: Object) -> Object:
    return {key: resumed(value) if isinstance(value, dict) else False for key, value in suspended.items()}


# -- deleted at every stage

STAGES = ("submitted", "waiting", "starting", "running")
TOGETHER = ((RAY_JOB, "ray"), (PYTORCH_JOB, "pytorch"), (JOB_SET, "jobset"))


@pytest.mark.parametrize("stage", STAGES)
def test_deletion_at_every_stage_leaves_nothing_behind(cluster: WorkloadCluster, stage: str) -> None:
    (node,) = cluster.add_nodes(1, gpus=2 if stage == "waiting" else 9)
    cluster.submit(made.ray_job("ray", RAY, queue=TEAM))
    cluster.submit(made.pytorch_job("pytorch", POD, workers=2, queue=TEAM))
    cluster.submit(made.job_set("jobset", POD, queue=TEAM, worker=3))
    wait_for_stage(cluster, stage)

    for kind, name in TOGETHER:
        cluster.withdraw(kind, name)

    cluster.wait_until_nothing_is_left()
    # Nothing is reserved for them either.
    cluster.run("whole", 1, gpus=2 if stage == "waiting" else 9, queue=TEAM)
    assert cluster.running("whole") == {"whole-0": node}


def wait_for_stage(cluster: WorkloadCluster, stage: str) -> None:
    if stage == "waiting":
        cluster.wait_until_refused(9, "GangDoesNotFit")
    if stage == "starting":
        eventually(cluster.api.bound_pods, within_s=WITHIN_S, what="the first is bound", every_s=0.005)
    if stage == "running":
        eventually(lambda: cluster.on_gpus() == 9, within_s=WITHIN_S, what="all run")


def test_job_that_ends_leaves_its_pods_and_no_pending_podgroup(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    ends = {**POD, "metadata": {}}

    cluster.submit(made.job_set("x", ends, queue=TEAM, order="InOrder", first=1, second=1))

    eventually(
        lambda: [one["status"].get("phase") for one in cluster.api.items(PODS)],
        until=lambda phases: phases == ["Succeeded"] * 2,
        within_s=WITHIN_S,
        what="both Jobs end, one after the other",
    )
    cluster.wait_until_no_group_waits()
