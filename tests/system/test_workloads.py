"""Workloads by kind: their pods run, the pods of a gang start together, and the PodGroup shows this."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.system.api import POD_GROUPS, Api, Object, queue
from tests.system.bed import Bed
from tests.system.forms import Deployed
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S
from tests.system.workloads import submitted as made
from tests.system.workloads.cluster import WorkloadCluster, workload_cluster
from tests.system.workloads.kinds import (
    DEPLOYMENT,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    MPI_JOB,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    RAY_SERVICE,
    STATEFUL_SET,
    Kind,
)

TEAM = "team"
POD = made.template()
RAY = made.ray_spec(POD, minimum=2)
Build = Callable[[], Object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A PodGroup that must exist: named after its owner, `x` unless another object is between them."""

    owner: Kind
    min_member: int
    suffix: str = ""
    of: str = "x"
    parts: tuple[tuple[str, int], ...] = ()
    """Its sub-groups and their minimum."""
    priority: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A kind whose pods start together."""

    build: Build
    pods: int
    groups: tuple[Group, ...]
    fit_at_first: int = 0
    """Pods that start although one GPU is missing for all."""


RAY_PARTS = (("headgroup", 1), ("workers", 2))
LWS_PARTS = (("leader", 1), ("workers", 2))
GANGS = {
    "RayCluster": Gang(
        build=partial(made.ray_cluster, "x", RAY, queue=TEAM),
        pods=3,
        groups=(Group(owner=RAY_CLUSTER, min_member=3, parts=RAY_PARTS),),
    ),
    "RayJob": Gang(
        build=partial(made.ray_job, "x", RAY, queue=TEAM),
        pods=3,
        groups=(Group(owner=RAY_JOB, min_member=3, parts=RAY_PARTS),),
    ),
    "RayService": Gang(
        build=partial(made.ray_service, "x", RAY, queue=TEAM),
        pods=3,
        groups=(Group(owner=RAY_SERVICE, min_member=3, parts=RAY_PARTS),),
    ),
    "PyTorchJob": Gang(
        build=partial(made.pytorch_job, "x", POD, workers=2, queue=TEAM),
        pods=3,
        groups=(Group(owner=PYTORCH_JOB, min_member=3, parts=(("master", 1), ("worker", 2))),),
    ),
    "MPIJob": Gang(
        build=partial(made.mpi_job, "x", POD, workers=2, queue=TEAM),
        pods=3,
        groups=(Group(owner=MPI_JOB, min_member=3),),
    ),
    "TrainJob": Gang(
        build=partial(made.train_job, "x", nodes=3, queue=TEAM),
        pods=3,
        groups=(Group(owner=JOB_SET, suffix="-node", min_member=3),),
    ),
    "JobSet in any order": Gang(
        build=partial(made.job_set, "x", POD, queue=TEAM, leader=1, worker=2),
        pods=3,
        groups=(Group(owner=JOB_SET, min_member=3),),
    ),
    "JobSet in order": Gang(
        build=partial(made.job_set, "x", POD, queue=TEAM, order="InOrder", leader=1, worker=2),
        pods=3,
        # A single pod needs no PodGroup.
        groups=(Group(owner=JOB_SET, suffix="-worker", min_member=2),),
        fit_at_first=1,
    ),
    "LeaderWorkerSet": Gang(
        build=partial(made.leader_worker_set, "x", POD, replicas=2, size=3, queue=TEAM),
        pods=6,
        groups=tuple(
            Group(owner=LEADER_WORKER_SET, suffix=f"-group-{index}", min_member=3, parts=LWS_PARTS)
            for index in range(2)
        ),
        fit_at_first=3,
    ),
}


@pytest.fixture
def cluster(leeboard_with_operators: Deployed, bed: Bed, api: Api) -> Iterator[WorkloadCluster]:
    """A cluster with one queue that deserves everything; no nodes yet."""
    assert leeboard_with_operators.bed is bed
    api.create(queue(TEAM, deserved=100))
    api.apply(made.training_runtime(POD))
    with workload_cluster(leeboard_with_operators) as cluster:
        yield cluster


# -- gangs


@pytest.mark.parametrize("kind", GANGS)
def test_gang_starts_whole_once_there_is_room_for_all_of_it(cluster: WorkloadCluster, kind: str) -> None:
    gang = GANGS[kind]
    cluster.add_nodes(1, gpus=gang.pods - 1)

    cluster.submit(gang.build())

    cluster.wait_until_run("x", gang.fit_at_first)
    cluster.wait_until_refused(gang.pods - gang.fit_at_first, "GangDoesNotFit")
    assert len(cluster.api.bound_pods()) == gang.fit_at_first
    cluster.add_nodes(1, gpus=1)
    eventually(cluster.on_gpus, until=lambda seen: seen == gang.pods, within_s=WITHIN_S, what="all run")
    wait_for_groups(cluster, gang.groups)
    assert cluster.evicted() == []


def wait_for_groups(cluster: WorkloadCluster, groups: tuple[Group, ...]) -> None:
    """Wait until exactly these PodGroups exist with exactly these contents."""
    expected = dict(told(cluster, group) for group in groups)
    eventually(
        lambda: {one["metadata"]["name"]: said(one) for one in cluster.api.items(POD_GROUPS)},
        until=lambda seen: seen == expected,
        within_s=WITHIN_S,
        what=f"the PodGroups are {expected}",
    )


def told(cluster: WorkloadCluster, group: Group) -> tuple[str, Object]:
    """Return the name of a PodGroup, and its expected contents."""
    owners = {one["metadata"]["name"]: one["metadata"]["uid"] for one in cluster.api.items(group.owner.path)}
    says = {
        "minMember": group.min_member,
        "queue": TEAM,
        "priorityClassName": group.priority,
        "subGroups": group.parts,
        "owners": [(group.owner.name, group.of)],
    }
    return f"pg-{group.of}-{owners.get(group.of)}{group.suffix}", says


def said(item: Object) -> Object:
    """Return the contents of a PodGroup, in the same form."""
    spec = item["spec"]
    return {
        **{field: spec.get(field) for field in ("minMember", "queue", "priorityClassName")},
        "subGroups": tuple((part["name"], part["minMember"]) for part in spec.get("subGroups", ())),
        "owners": [(one["kind"], one["name"]) for one in item["metadata"].get("ownerReferences", ())],
    }


# -- pods that need not start together


def test_pods_of_a_job_run_as_far_as_there_is_room_and_have_no_podgroup(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=1)

    cluster.submit(made.batch_job("x", POD, parallelism=2, queue=TEAM))

    cluster.wait_until_run("x", 1)
    cluster.add_nodes(1, gpus=1)
    cluster.wait_until_run("x", 2)
    assert cluster.api.items(POD_GROUPS) == []


def test_pods_of_a_deployment_run_as_inference_and_have_no_podgroup(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=1)

    cluster.submit(made.replicated(DEPLOYMENT, "x", POD, replicas=2, queue=TEAM))

    cluster.wait_until_run("x", 1)
    cluster.add_nodes(1, gpus=1)
    cluster.wait_until_run("x", 2)
    assert cluster.api.items(POD_GROUPS) == []


def test_inference_of_a_deployment_stays_within_the_deserved_share_of_its_queue(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.api.create(queue("small", deserved=1))

    cluster.submit(made.replicated(DEPLOYMENT, "x", POD, replicas=2, queue="small"))

    cluster.wait_until_run("x", 1)
    cluster.wait_until_refused(1, "NonPreemptibleOverQuota")


def test_pods_of_a_stateful_set_are_one_podgroup_of_which_any_may_run(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=1)

    cluster.submit(made.replicated(STATEFUL_SET, "x", POD, replicas=2, queue=TEAM))

    cluster.wait_until_run("x-0", 1)
    cluster.add_nodes(1, gpus=1)
    cluster.wait_until_run("x-", 2)
    wait_for_groups(cluster, (Group(owner=STATEFUL_SET, min_member=1),))


def test_pods_of_a_cron_job_are_grouped_by_the_job_that_was_started(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cron = cluster.submit(made.cron_job("nightly", POD, parallelism=2, queue=TEAM))

    cluster.submit(made.started_by_hand(cron, "x"))

    cluster.wait_until_run("x-", 2)
    wait_for_groups(cluster, (Group(owner=JOB, min_member=1),))
