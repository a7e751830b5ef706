"""Training jobs and JobSets: how many of their pods start together, and in which sub-groups."""

from dataclasses import replace

import pytest

from app.grouping import group
from app.model.owner import Grouping, Owner
from app.model.pod import Pod
from tests.grouping import objects
from tests.grouping.objects import Raw, Texts, chain, pytorch, read, replicated, worker

SEGMENT = "kai.scheduler/segment-size"
TOPOLOGY = "kai.scheduler/topology"
LEVEL = "kai.scheduler/segment-topology-required-placement"
POLICY: Raw = {"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}}
ELASTIC: Raw = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}


def grouped(owner: Owner, pod: Pod | None = None, *siblings: Pod) -> Grouping:
    found = group(pod or worker(), chain(owner, siblings=siblings))
    assert found is not None
    assert read(found).problem == ""
    return found


def least(owner: Owner, *siblings: Pod) -> object:
    return grouped(owner, None, *siblings).spec["minMember"]


def parts(owner: Owner, pod: Pod | None = None) -> list[tuple[str, int]]:
    return [(one["name"], one["minMember"]) for one in grouped(owner, pod).spec.get("subGroups", [])]


def jobs(*templates: Raw, order: str = "AnyOrder") -> Owner:
    return objects.jobset(*templates, order=order)


@pytest.mark.parametrize(
    ("job", "pods"),
    [
        ({}, 1),
        ({"replicas": 3}, 3),
        ({"replicas": 2, "parallelism": 4}, 8),
        ({"replicas": 2, "parallelism": 4, "completions": 3}, 6),
        ({"replicas": 2, "parallelism": 4, "completions": 9}, 8),
        *(
            ({"replicas": 2, "parallelism": 2, "completions": 2, never: 0}, 0)
            for never in ("replicas", "parallelism", "completions")
        ),
    ],
)
def test_a_replicated_job_counts_the_pods_that_run_at_once(job: Raw, pods: int) -> None:
    assert least(jobs(replicated("w", **job), replicated("d"))) == pods + 1


def test_a_jobset_may_set_a_minimum_up_to_its_number_of_pods() -> None:
    of = replace(jobs(replicated("w", parallelism=4)), annotations={"kai.scheduler/batch-min-member": "2"})
    in_order = replace(objects.jobset(replicated("w", parallelism=4), replicated("d")), annotations=of.annotations)
    of_w, of_d = (objects.pod(labels={"jobset.sigs.k8s.io/replicatedjob-name": name}) for name in "wd")

    assert least(of) == 2
    assert [grouped(in_order, pod).spec["minMember"] for pod in (of_w, of_d)] == [2, 1]


@pytest.mark.parametrize("order", [None, "InOrder"])
def test_a_jobset_that_starts_in_order_has_one_podgroup_per_replicated_job(order: str | None) -> None:
    of = objects.jobset(replicated("w", replicas=4), replicated("d"), order=order)
    of_d, of_x = (objects.pod(labels={"jobset.sigs.k8s.io/replicatedjob-name": name}) for name in "dx")

    named = [(found.name, found.spec["minMember"]) for found in (grouped(of, of_d), grouped(of, of_x))]

    assert named == [("pg-train-uid-train-d", 1), ("pg-train-uid-train-x", 1)]


EXCLUSIVE, SELECTED = "alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector"


@pytest.mark.parametrize("where", ["JobSet", "template"])
def test_the_first_pods_of_jobs_with_their_own_topology_start_alone(where: str) -> None:
    job, mark = replicated("w", replicas=2, parallelism=4), {EXCLUSIVE: "rack"}
    job["template"]["metadata"] = {"annotations": mark if where == "template" else {}}
    of = replace(jobs(job), annotations=mark if where == "JobSet" else {})
    pods = [objects.pod(f"w-{at}", labels={"jobset.sigs.k8s.io/replicatedjob-name": "w"}) for at in range(3)]

    assert least(of, *pods[:2], objects.pod("other"), replace(pods[2], deleting=True)) == 2
    assert least(of, *pods) == 8
    assert least(replace(of, annotations={**of.annotations, SELECTED: "true"}), *pods[:2]) == 8


def test_a_jobset_whose_jobs_wait_for_others_is_never_one_gang() -> None:
    waiting = replicated("w") | {"dependsOn": [{"name": "d", "status": "Complete"}]}
    of_d = objects.pod(labels={"jobset.sigs.k8s.io/replicatedjob-name": "d"})

    assert grouped(jobs(replicated("d"), waiting), of_d).name == "pg-train-uid-train-d"


def test_an_explicit_minimum_overrides_the_number_of_replicas() -> None:
    assert least(objects.kubeflow("TFJob", "tfReplicaSpecs", more=POLICY, Worker=5)) == 2
    assert least(pytorch(more=POLICY | ELASTIC, Worker=5)) == 2
    assert least(pytorch(more=ELASTIC, Worker=5)) == 1


def test_a_launcher_that_waits_for_its_workers_counts_once_it_exists() -> None:
    late: Raw = {"launcherCreationPolicy": "WaitForWorkersReady"}
    of = objects.kubeflow("MPIJob", "mpiReplicaSpecs", more=late, Launcher=1, Worker=4)
    launcher = worker(role="launcher")

    assert least(of) == 4
    assert least(of, worker(), launcher) == 5
    assert least(of, worker(), replace(launcher, deleting=True)) == 4
    assert least(of, worker(), replace(launcher, origin=None)) == 4


def test_a_pytorch_job_is_a_master_and_workers() -> None:
    of = pytorch(Master=1, Worker=2)

    assert parts(of) == [("master", 1), ("worker", 2)]
    assert (grouped(of, worker(role="master")).subgroup, grouped(of).subgroup) == ("master", "worker")


@pytest.mark.parametrize(
    ("job", "divided", "total"),
    [
        (pytorch(Worker=2), [("worker", 2)], 2),
        (pytorch(Master=1), [("master", 1)], 1),
        (pytorch(more=ELASTIC, Worker=2), [("worker", 1)], 1),
        (pytorch(more=POLICY, Master=1, Worker=5), [("master", 1), ("worker", 1)], 2),
    ],
)
def test_the_minimum_of_the_workers_is_that_of_the_job_without_the_master(
    job: Owner, divided: list[tuple[str, int]], total: int
) -> None:
    assert (parts(job), read(grouped(job)).min_member) == (divided, total)


def test_a_job_that_may_start_without_workers_has_no_sub_groups() -> None:
    found = grouped(pytorch(more=ELASTIC, Master=1, Worker=3))

    assert (found.spec, found.subgroup) == ({"minMember": 1, "queue": "default-queue"}, "")


def segmented(size: str, *, workers: int = 5, annotations: Texts = objects.NOBODYS) -> Owner:
    template = {"metadata": {"annotations": {SEGMENT: size, **annotations}}}
    return pytorch(Master=1, Worker={"replicas": workers, "template": template})


def test_workers_are_divided_into_segments_of_which_the_last_has_the_rest() -> None:
    of = segmented("2")

    assert parts(of) == [("master", 1), ("worker", 5), ("worker-0", 2), ("worker-1", 2), ("worker-2", 1)]
    assert [grouped(of, worker(at)).subgroup for at in range(6)] == [f"worker-{at}" for at in (0, 0, 1, 1, 2, 2)]
    assert grouped(of, worker(role="master")).subgroup == "master"
    assert read(grouped(of)).min_member == 6


def test_segments_require_no_more_workers_than_the_minimum_of_the_job() -> None:
    template = {"metadata": {"annotations": {SEGMENT: "2"}}}
    of = pytorch(more={"elasticPolicy": {"minReplicas": 4}}, Master=1, Worker={"replicas": 6, "template": template})

    assert parts(of)[2:] == [("worker-0", 2), ("worker-1", 1), ("worker-2", 0)]
    assert (read(grouped(of)).min_member, grouped(of, worker(5)).subgroup) == (4, "worker-2")


def test_the_topology_of_a_segment_is_set_by_its_template_then_its_pod_then_its_owner() -> None:
    of = segmented("4", annotations={LEVEL: "rack"})
    near = {"topology": "t", "requiredTopologyLevel": "rack"}

    bare = grouped(of).spec["subGroups"][2]
    by_owner = grouped(replace(of, annotations={TOPOLOGY: "t"})).spec["subGroups"][2]
    by_pod = grouped(of, worker(annotations={TOPOLOGY: "t", LEVEL: "ignored"})).spec["subGroups"][2]

    assert "topologyConstraint" not in bare
    assert (by_owner["topologyConstraint"], by_pod["topologyConstraint"]) == (near, near)


def test_the_annotation_of_a_pod_divides_the_workers_where_the_template_has_none() -> None:
    assert parts(pytorch(Worker=2), worker(annotations={SEGMENT: "1"})) == [
        ("worker", 2),
        ("worker-0", 1),
        ("worker-1", 1),
    ]


@pytest.mark.parametrize(
    ("of", "pod", "wrong"),
    [
        (segmented("two"), worker(), "annotation kai.scheduler/segment-size cannot be read: 'two' is not an integer"),
        (segmented("0"), worker(), "annotation kai.scheduler/segment-size cannot be read: 0 is out of range"),
        (segmented("2"), worker("x"), "label training.kubeflow.org/replica-index of pod train-worker-x cannot be read"),
        (segmented("1", workers=400), worker(), "it has 402 sub-groups; divide it into at most 256, each of more pods"),
    ],
)
def test_impossible_segments_are_reported(of: Owner, pod: Pod, wrong: str) -> None:
    assert grouped(of, pod).problem.startswith(f"PyTorchJob train: {wrong}")
