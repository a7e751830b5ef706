"""Which owner decides about a pod: the topmost, or the one below it, or none."""

from dataclasses import replace

import pytest

from app.grouping import POD_ANNOTATIONS, POD_LABELS, Chain, first_link, group
from app.model.owner import Kind, Origin, Owner, OwnerRef
from app.model.pod import Pod
from tests.grouping import objects
from tests.grouping.objects import chain, owner

SKIP = {"kai.scheduler/skip-podgrouper": "true"}
SPARK = {"spark-app-name": "pi", "spark-app-selector": "spark-77"}
DRIVER = objects.pod("driver", labels=SPARK)


def names(pod: Pod, of: Chain) -> tuple[str, OwnerRef | None] | None:
    found = group(pod, of)
    return (found.name, found.owner) if found else None


def test_a_pod_without_an_owner_needs_no_podgroup() -> None:
    assert group(objects.pod(labels={"kai.scheduler/queue": "a"}), Chain()) is None


def test_the_driver_and_the_executors_of_a_spark_application_are_one_podgroup() -> None:
    ref = OwnerRef(Kind("", "v1", "Pod"), "driver", "uid-driver")
    of_executor = chain(replace(owner("v1 Pod", "driver", labels=SPARK), ref=ref))

    assert names(DRIVER, Chain()) == ("spark-77", ref)
    assert names(objects.pod("executor", labels=SPARK), of_executor) == ("spark-77", ref)


@pytest.mark.parametrize("without", SPARK)
def test_half_of_the_spark_labels_make_no_spark_pod(without: str) -> None:
    assert group(objects.pod(labels={key: text for key, text in SPARK.items() if key != without}), Chain()) is None


def test_pods_created_by_a_pod_are_one_podgroup() -> None:
    maker = owner("v1 Pod", "maker")

    assert names(objects.pod(), chain(maker)) == ("pg-maker-uid-maker", maker.ref)


def test_pods_with_the_opt_out_are_not_grouped() -> None:
    job = objects.job()

    assert group(objects.pod(annotations=SKIP), chain(job)) is None
    assert group(objects.pod(), chain(job, owner("example.com/v1 Top", annotations=SKIP))) is None
    assert group(objects.pod(annotations={"kai.scheduler/skip-podgrouper": "false"}), chain(job)) is not None


def test_the_topmost_owner_decides_for_unknown_kinds() -> None:
    top = owner("example.com/v1 Top", "top")

    assert names(objects.pod(), chain(objects.job(), top)) == ("pg-top-uid-top", top.ref)


def test_an_owner_that_defers_to_the_one_below_adds_the_terms_that_only_it_has() -> None:
    below = owner("apps/v1 StatefulSet", labels={"app": "x"}, annotations={"kai.scheduler/topology": "t"})
    labels = {"app": "y", "kai.scheduler/queue": "a", "priorityClassName": "p"}
    annotations = {"kai.scheduler/topology": "other", "kai.scheduler/topology-required-placement": "rack"}
    top = owner("argoproj.io/v1alpha1 Workflow", "top", labels=labels, annotations=annotations)

    found = group(objects.pod(), chain(below, top))

    assert found is not None
    near = {"topology": "t", "requiredTopologyLevel": "rack"}
    assert (found.name, found.labels) == ("pg-train-uid-train", {**labels, "app": "x"})
    assert found.spec == {"minMember": 1, "queue": "a", "topologyConstraint": near}
    assert found.priority_classes == ("p", "train")


def test_two_owners_that_defer_may_be_above_each_other() -> None:
    tops = owner("trainer.kubeflow.org/v1alpha1 TrainJob", "a"), owner("run.ai/v1 TrainingWorkload", "b")
    below = owner("apps/v1 StatefulSet")

    assert names(objects.pod(), chain(below, *tops)) == ("pg-train-uid-train", below.ref)


def test_a_pod_directly_below_a_deferring_owner_is_single_with_its_own_terms_first() -> None:
    labels = {"kai.scheduler/queue": "a", "priorityClassName": "p", "user": "ann"}
    top = owner("argoproj.io/v1alpha1 Workflow", labels=labels)
    pod = objects.pod(labels={"priorityClassName": "mine"}, priority_classes=("mine", "spec"))

    found = group(pod, chain(top))

    assert found is not None
    assert (found.name, found.alone, found.owner) == ("pg-train-0-uid-train-0", True, None)
    assert (found.spec, found.priority_classes) == ({"minMember": 1, "queue": "a"}, ("mine", "spec", "train"))


def test_a_spark_pod_of_a_workflow_is_still_grouped_as_spark() -> None:
    found = names(DRIVER, chain(owner("argoproj.io/v1alpha1 Workflow")))

    assert found == ("spark-77", OwnerRef(Kind("", "v1", "Pod"), "driver", "uid-driver"))


@pytest.mark.parametrize("label", ["scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io"])
def test_a_podgroup_of_scheduler_plugins_named_by_a_pod_is_its_first_owner(label: str) -> None:
    named = OwnerRef(Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup"), "mine")

    assert first_link(objects.pod(labels={label: "mine"}, by=objects.job())) == named


def test_any_other_pod_starts_at_its_owner() -> None:
    job = objects.job()

    assert first_link(objects.pod(by=job)) == job.ref
    assert first_link(objects.pod(by=job, labels={"scheduling.x-k8s.io/pod-group": ""})) == job.ref
    assert first_link(objects.pod()) is None
    assert first_link(replace(objects.pod(), origin=None)) is None


def test_a_named_podgroup_is_used_as_it_is_whatever_owns_it() -> None:
    mine = owner("scheduling.x-k8s.io/v1alpha1 PodGroup", "mine", spec={"minMember": 5})

    found = group(objects.pod(), chain(mine, owner("example.com/v1 Top", "top")))

    assert found is not None
    assert (found.name, found.owner, found.spec["minMember"], found.asked_for) == (
        "pg-mine-uid-mine",
        mine.ref,
        5,
        True,
    )


SUSPENDED = [
    (objects.job(spec={"suspend": True}), "Job train is suspended (spec.suspend is true)"),
    (objects.jobset(order="AnyOrder", spec={"suspend": True}), "JobSet train is suspended (spec.suspend is true)"),
    (objects.ray_cluster(spec={"suspend": True}), "RayCluster train is suspended (spec.suspend is true)"),
    (owner("ray.io/v1 RayJob", spec={"suspend": True}), "RayJob train is suspended (spec.suspend is true)"),
    *(
        (owner(f"kubeflow.org/v1 {kind}", spec={"runPolicy": {"suspend": True}}),
         f"{kind} train is suspended (spec.runPolicy.suspend is true)")
        for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "JAXJob")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("of", "sentence"), SUSPENDED)
def test_a_suspended_owner_says_how_to_resume_it(of: Owner, sentence: str) -> None:
    found = group(objects.pod(), chain(of))

    assert found is not None
    assert found.suspended == f"{sentence}; set it to false to go on."


def test_of_several_suspended_owners_the_topmost_is_named() -> None:
    top = owner("trainer.kubeflow.org/v1alpha1 TrainJob", "top", spec={"suspend": True})

    found = group(objects.pod(), chain(objects.job(spec={"suspend": True}), objects.jobset(), top))

    assert found is not None
    assert found.suspended == "TrainJob top is suspended (spec.suspend is true); set it to false to go on."


@pytest.mark.parametrize("value", [False, None, "true", 1])
def test_only_the_value_true_suspends(value: object) -> None:
    found = group(objects.pod(), chain(objects.job(spec={"suspend": value})))

    assert found is not None
    assert found.suspended == ""


def test_fields_of_a_pod_that_grouping_reads_are_kept() -> None:
    asked: set[str] = set()

    class Noted(dict[str, str]):
        def get(self, key: str, default: str = "") -> str:  # type: ignore[override] # a fake that is asked for texts only
            asked.add(key)
            return default

    for kind in ("grove.io/v1 PodClique", "ray.io/v1 RayJob", "serving.knative.dev/v1 Service"):
        origin = Origin(None, Noted(), Noted())
        group(replace(objects.pod(), origin=origin), chain(owner(kind, labels={"project": "p"})))
    for of in (objects.jobset(), objects.lws(policy="LeaderReady"), objects.pytorch(Master=1, Worker=2)):
        origin = Origin(None, Noted(), Noted())
        group(replace(objects.pod(), origin=origin), chain(of))

    assert asked <= POD_LABELS | POD_ANNOTATIONS
    assert {"ray.io/group", "grove.io/podgang", "leaderworkerset.sigs.k8s.io/size", "user"} <= asked
