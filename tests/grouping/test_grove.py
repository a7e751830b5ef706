"""Grove and Knative: the owner of the pods stands for another object, which defines the gang."""

from typing import Any

import pytest

from app.grouping import group
from app.model.owner import Grouping, Owner
from app.model.podgroup import PodSet, SubGroup, TopologyConstraint
from tests.grouping import objects
from tests.grouping.objects import Texts, chain, clique, owner, pod_gang, read

NAMED: Texts = {"grove.io/podgang": "gang"}
TOPOLOGY: Texts = {"grove.io/topology-name": "t"}
RACK, HOST = TopologyConstraint("t", required="rack"), TopologyConstraint("t", required="host")


def pack(level: str) -> dict[str, Any]:
    return {"packConstraint": {"required": level}}


def grouped(gang: Owner, labels: Texts = NAMED, top: Owner | None = None) -> Grouping:
    found = group(objects.pod(labels=labels), chain(top or owner("grove.io/v1alpha1 PodCliqueSet"), known=[gang]))
    assert found is not None
    assert read(found).problem == ""
    return found


def test_the_pod_gang_sets_the_sub_groups_and_the_topology_of_a_gang() -> None:
    configs = [
        {"name": "near", "podGroupNames": ["a", "b", "unknown"], "topologyConstraint": pack("rack")},
        {"name": "empty", "podGroupNames": []},
        {"name": "lost", "podGroupNames": ["unknown"]},
    ]
    gang = pod_gang(
        clique("a", 2, required="host"), clique("b"), clique("c", 3), annotations=TOPOLOGY,
        topologyConstraintGroupConfigs=configs, topologyConstraint=pack("zone"),
    )  # fmt: skip

    near = SubGroup(
        name="near", topology=RACK, pod_sets=(PodSet(name="a", min_member=2, topology=HOST), PodSet(name="b"))
    )
    root = SubGroup(
        topology=TopologyConstraint("t", required="zone"), groups=(near,), pod_sets=(PodSet(name="c", min_member=3),)
    )
    assert (read(grouped(gang)).root, grouped(gang).spec["minMember"]) == (root, 6)


def test_a_pod_is_in_the_sub_group_in_its_label_or_else_in_the_one_that_lists_it() -> None:
    gang = pod_gang(clique("a", 1, "other"), clique("b", 1, "train-0"))
    labels = [NAMED, {**NAMED, "grove.io/podclique": "a"}, {**NAMED, "grove.io/podclique": "unknown"}]

    assert [grouped(gang, one).subgroup for one in labels] == ["b", "a", "b"]
    assert grouped(pod_gang(clique("a", 1, "other"))).subgroup == ""


def test_a_reference_to_another_namespace_means_another_pod() -> None:
    gang = pod_gang({"name": "a", "minReplicas": 1, "podReferences": [{"namespace": "other", "name": "train-0"}]})

    assert grouped(gang).subgroup == ""


def test_the_priority_class_is_that_of_the_label_and_then_of_the_pod_gang() -> None:
    top = owner("grove.io/v1alpha1 PodCliqueSet", labels={"priorityClassName": "top"})
    gang = pod_gang(clique("a"), priorityClassName="spec")
    labelled = pod_gang(clique("a"), priorityClassName="spec", labels={"priorityClassName": "label"})

    assert grouped(gang).priority_classes == ("spec", "train")
    assert grouped(gang, top=top).priority_classes == ("top", "spec", "train")
    assert grouped(labelled, top=top).priority_classes == ("label", "spec", "train")


def test_labels_of_the_top_owner_apply_to_its_pod_gang_too() -> None:
    top = owner("grove.io/v1alpha1 PodCliqueSet", labels={"kai.scheduler/queue": "a"})

    assert grouped(pod_gang(clique("a")), top=top).spec["queue"] == "a"


@pytest.mark.parametrize(
    ("gang", "wrong"),
    [
        (pod_gang(clique("a", 0)), "spec.podgroups[0].minReplicas cannot be read: 0 is out of range"),
        (pod_gang(clique("a", None)), "spec.podgroups[0] has no minReplicas; write how many, 1 or more"),
        (pod_gang(clique("a"), clique("a")), "2 of its sub-groups are called 'a'; give each a name of its own"),
        (pod_gang(clique("a", required="rack")), "it names topology level 'rack' but no topology"),
        (pod_gang(clique("")), "1 of its sub-groups are called ''; give each a name of its own"),
    ],
)
def test_an_unusable_pod_gang_is_reported(gang: Owner, wrong: str) -> None:
    assert grouped(gang).problem.startswith(f"PodGang gang: {wrong}")


def test_pods_wait_for_a_pod_gang_that_does_not_exist_yet() -> None:
    found = grouped(pod_gang(name="other"))

    wrong = "PodGang 'gang' of pod train-0 does not exist; wait for the Grove operator to write it"
    assert (found.name, found.problem) == ("pg-train-uid-train", f"PodCliqueSet train: {wrong}")


SERVICE = owner("serving.knative.dev/v1 Service")
SCALE = "autoscaling.knative.dev/min-scale"


def revision(annotations: Texts) -> Owner:
    return owner("serving.knative.dev/v1 Revision", "llm-1", annotations=annotations)


@pytest.mark.parametrize(
    ("annotations", "least"),
    [({SCALE: "3"}, 3), ({"autoscaling.knative.dev/minScale": "2"}, 2), ({SCALE: "0"}, 1), ({SCALE: "x"}, 1), ({}, 1)],
)
def test_a_knative_revision_is_a_gang_of_its_minimum_of_pods(annotations: Texts, least: int) -> None:
    found = group(objects.pod(), chain(revision(annotations), SERVICE))

    assert found is not None
    assert (found.name, found.spec["minMember"], found.problem) == ("pg-llm-1-uid-llm-1", least, "")


def test_a_knative_revision_without_owner_references_is_found_by_the_label_of_the_pod() -> None:
    pod = objects.pod(labels={"serving.knative.dev/revision": "llm-1"})
    found, lost = group(pod, chain(SERVICE, known=[revision({SCALE: "3"})])), group(pod, chain(SERVICE))

    assert found is not None
    assert lost is not None
    assert (found.name, found.spec["minMember"]) == ("pg-llm-1-uid-llm-1", 3)
    assert (
        lost.problem == "Service train: Revision 'llm-1' of pod train-0 does not exist; wait for it, or delete the pod"
    )


def test_a_knative_revision_has_no_topology_constraint() -> None:
    near = {"kai.scheduler/topology": "t", "kai.scheduler/topology-required-placement": "rack"}

    found = group(objects.pod(), chain(revision(near), SERVICE))

    assert found is not None
    assert found.spec == {"minMember": 1, "queue": "default-queue"}
