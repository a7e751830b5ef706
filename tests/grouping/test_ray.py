"""Ray: a head and its worker groups, whatever object has created the RayCluster."""

from typing import Any

import pytest

from app.grouping import group
from app.model.owner import Grouping, Owner
from app.model.pod import Pod
from tests.grouping import objects
from tests.grouping.objects import Raw, chain, owner, ray_cluster, ray_group, ray_pod, read

TOPOLOGY, LEVEL = "kai.scheduler/topology", "kai.scheduler/topology-required-placement"
CLUSTER = ray_cluster(ray_group(replicas=3), name="train-x")


def grouped(*owners: Owner, pod: Pod | None = None, known: tuple[Owner, ...] = ()) -> Grouping:
    found = group(pod or ray_pod(), chain(*owners, known=known))
    assert found is not None
    assert read(found).problem == ""
    return found


def parts(*groups: Raw) -> list[tuple[str, int]]:
    return [(one["name"], one["minMember"]) for one in grouped(ray_cluster(*groups)).spec["subGroups"]]


@pytest.mark.parametrize(
    ("of", "pods"),
    [
        (ray_group(replicas=3), 3),
        (ray_group(replicas=3, least=1), 1),
        (ray_group(replicas=3, least=2, numOfHosts=4), 8),
        (ray_group(replicas=3, numOfHosts=None), 3),
        (ray_group(replicas=None, least=2), 2),
        (ray_group(replicas=0, least=2), 2),
        (ray_group(replicas=5, maxReplicas=3), 3),
        (ray_group(replicas=5, least=4, maxReplicas=3, numOfHosts=2), 6),
        (ray_group(replicas=3, maxReplicas=2147483647), 3),
        (ray_group(replicas=3, maxReplicas="2"), 3),
    ],
)
def test_a_worker_group_needs_its_minimum_on_all_its_hosts(of: Raw, pods: int) -> None:
    assert parts(of) == [("headgroup", 1), ("gpu", pods)]


@pytest.mark.parametrize(
    "of", [ray_group(replicas=0), ray_group(suspend=True), ray_group(suspended=True), ray_group(replicas=None)]
)
def test_a_worker_group_with_a_minimum_of_zero_is_left_out(of: Raw) -> None:
    assert parts(of, ray_group("other", replicas=1)) == [("headgroup", 1), ("other", 1)]


def test_a_worker_group_without_replicas_is_left_out() -> None:
    assert parts(ray_group(replicas=2, maxReplicas=0)) == [("headgroup", 1)]


def test_workers_requested_by_an_autoscaler_beyond_the_minimum_start_one_by_one() -> None:
    groups = [ray_group(replicas=4), ray_group("kept", replicas=4, least=2), ray_group("idle", replicas=0)]
    of = ray_cluster(spec={"enableInTreeAutoscaling": True, "workerGroupSpecs": groups})

    root, more = read(grouped(of)).root, grouped(of, pod=ray_pod("gpu"))

    assert root is not None
    assert [(leaf.name, leaf.min_member) for leaf in root.leaves()] == [("headgroup", 1), ("gpu", 0), ("kept", 2)]
    assert (more.subgroup, more.spec["minMember"]) == ("gpu", 3)


@pytest.mark.parametrize("top", [(), (owner("ray.io/v1 RayJob", status={"rayClusterName": "train-x"}),)])
def test_the_redis_cleanup_pod_of_a_cluster_starts_alone(top: tuple[Owner, ...]) -> None:
    labels = {"ray.io/group": "headgroup", "ray.io/node-type": "redis-cleanup"}

    found = grouped(
        objects.job("cleanup"), CLUSTER, *top, pod=objects.pod("cleanup-1", labels=labels), known=(CLUSTER,)
    )

    assert (found.name, found.alone, found.spec["minMember"]) == ("pg-cleanup-1-uid-cleanup-1", True, 1)


def test_a_worker_group_without_a_name_is_named_by_its_index() -> None:
    assert parts(ray_group(), ray_group("", replicas=1)) == [("headgroup", 1), ("gpu", 2), ("worker-group-1", 1)]


def test_a_pod_is_in_the_worker_group_in_its_label_and_never_in_none() -> None:
    of = ray_cluster(ray_group(), ray_group("idle", replicas=0))
    met = [grouped(of, pod=pod).subgroup for pod in (ray_pod(), ray_pod("gpu"), ray_pod("idle"), objects.pod())]

    assert met == ["headgroup", "gpu", "gpu", "gpu"]


def test_each_worker_group_has_the_topology_of_its_template() -> None:
    near = {TOPOLOGY: "t", LEVEL: "rack"}
    found = grouped(ray_cluster(ray_group(annotations=near), head={TOPOLOGY: "t"}))

    assert found.spec["subGroups"] == [
        {"name": "headgroup", "minMember": 1},
        {"name": "gpu", "minMember": 2, "topologyConstraint": {"topology": "t", "requiredTopologyLevel": "rack"}},
    ]


def test_the_ray_label_of_the_priority_class_overrides_all_others() -> None:
    labels = {"ray.io/priority-class-name": "gold", "priorityClassName": "silver"}

    assert grouped(CLUSTER, owner("ray.io/v1 RayJob", labels=labels)).priority_classes == ("gold", "silver", "train")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("RayJob", {"rayClusterName": "other"}),
        (
            "RayService",
            {"activeServiceStatus": {"rayClusterName": "other"}, "pendingServiceStatus": {"rayClusterName": "train-x"}},
        ),
        ("RayService", {"pendingServiceStatus": {"rayClusterName": "other"}}),
        (
            "RayService",
            {"activeServiceStatus": {"rayClusterName": "gone"}, "pendingServiceStatus": {"rayClusterName": "other"}},
        ),
    ],
)
def test_the_cluster_named_in_the_status_counts(kind: str, status: Raw) -> None:
    other = ray_cluster(ray_group(replicas=7), name="other")

    found = grouped(CLUSTER, owner(f"ray.io/v1 {kind}", status=status), known=(other, CLUSTER))

    assert (found.name, found.spec["minMember"]) == ("pg-train-uid-train", 8)


@pytest.mark.parametrize("kind", ["RayJob", "RayService"])
@pytest.mark.parametrize("status", [{}, {"rayClusterName": "gone"}, {"activeServiceStatus": {"rayClusterName": ""}}])
def test_the_intermediate_cluster_counts_until_the_status_names_one(kind: str, status: Raw) -> None:
    assert grouped(CLUSTER, owner(f"ray.io/v1 {kind}", status=status)).spec["minMember"] == 4


def test_the_older_api_version_of_ray_finds_its_own_clusters() -> None:
    other = owner("ray.io/v1alpha1 RayCluster", "other", spec={"workerGroupSpecs": [ray_group(replicas=5)]})
    mine = owner("ray.io/v1alpha1 RayCluster", "mine", spec={})
    job = owner("ray.io/v1alpha1 RayJob", status={"rayClusterName": "other"})

    assert grouped(mine, job, known=(other,)).spec["minMember"] == 6


def test_the_submitter_pod_of_a_job_starts_alone_on_the_terms_of_the_job() -> None:
    labels = {"kai.scheduler/queue": "a", "ray.io/priority-class-name": "gold"}
    job = owner("ray.io/v1 RayJob", labels=labels, status={"rayClusterName": "train-x"})

    found = grouped(objects.job("submit"), job, pod=objects.pod("submit-1"), known=(CLUSTER,))

    assert (found.name, found.alone, found.priority_classes) == ("pg-submit-1-uid-submit-1", True, ("gold", "train"))
    assert found.spec == {"minMember": 1, "queue": "a"}


TWICE = "2 of its sub-groups are called 'gpu'; give each a name of its own"


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        ([ray_group(replicas=1, least=2)],
         "spec.workerGroupSpecs[0].minReplicas is 2 and replicas 1; write no fewer replicas"),
        ([ray_group(), ray_group()], TWICE),
        ([ray_group(annotations={LEVEL: "rack"})],
         "it names topology level 'rack' but no topology; write one into annotation kai.scheduler/topology"),
        ({}, "spec.workerGroupSpecs is not readable; write a list in which every item is a mapping"),
        ([ray_group(str(at)) for at in range(256)],
         "it has 257 sub-groups; divide it into at most 256, each of more pods"),
    ],
)  # fmt: skip
def test_an_unusable_cluster_is_reported(of: Any, wrong: str) -> None:
    assert grouped(ray_cluster(spec={"workerGroupSpecs": of})).problem == f"RayCluster train: {wrong}"


def test_a_pod_of_a_cluster_that_cannot_be_found_says_so() -> None:
    found = grouped(owner("ray.io/v1 RayJob", status={"rayClusterName": "gone"}))

    assert (
        found.problem
        == "RayJob train: the RayCluster of pod ray-headgroup cannot be found; wait for it, or delete the pod"
    )
