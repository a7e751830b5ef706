"""The terms of a group's pods: those of its owner, then of the pod, then of the administrators."""

from dataclasses import replace
from typing import Any

import yaml
from hypothesis import given as each
from hypothesis import strategies as st

from app.grouping import NO_DEFAULTS, Chain, GroupingDefaults, defaults_of, group
from app.grouping.terms import group_name, top_owner
from app.model.names import QueueName
from app.model.owner import Grouping, Kind, OwnerRef
from app.model.podgroup import TopologyConstraint
from tests.grouping import objects
from tests.grouping.objects import NOBODYS, Texts, chain, owner, read

QUEUE, CLASS, TOPOLOGY = "kai.scheduler/queue", "priorityClassName", "kai.scheduler/topology"
REQUIRED, PREFERRED = f"{TOPOLOGY}-required-placement", f"{TOPOLOGY}-preferred-placement"
KEPT, CAN_GO = "non-preemptible", "preemptible"
NOT_SAID = defaults_of("")
ASCII = st.text(st.characters(max_codepoint=127), max_size=9)


def grouped(of: Chain, labels: Texts = NOBODYS, defaults: GroupingDefaults = NOT_SAID, **more: Any) -> Grouping:
    found = group(objects.pod(labels=labels, **more), of, defaults)
    assert found is not None
    return found


def owned(labels: Texts = NOBODYS, annotations: Texts = NOBODYS) -> Chain:
    return chain(owner("apps/v1 StatefulSet", labels=labels, annotations=annotations))


def queue(of: Texts, labels: Texts = NOBODYS, **more: Any) -> object:
    return grouped(owned(of), labels, **more).spec["queue"]


def test_the_queue_is_that_of_the_owner_then_the_pod_then_a_project_then_the_default() -> None:
    assert queue({QUEUE: "a"}, {QUEUE: "b"}) == "a"
    assert queue({"runai/queue": "a"}, {QUEUE: "b"}) == "a"
    assert queue({"project": "p"}, {QUEUE: "b"}) == "b"
    assert queue({"project": "p"}) == "p"
    assert queue({"project": "p"}, {"kai.scheduler/node-pool": "gold"}) == "p-gold"
    assert queue({}) == "default-queue"


def test_without_projects_of_owners_the_queue_is_that_of_the_owner_and_then_of_the_pod() -> None:
    strict = replace(NO_DEFAULTS, owners_project=False)

    def queue_of(of: Texts, labels: Texts = NOBODYS) -> object:
        return grouped(owned(of), labels, strict).spec["queue"]

    assert queue_of({QUEUE: "a", "project": "p"}, {QUEUE: "b"}) == "a"
    assert queue_of({"project": "p"}, {QUEUE: "b"}) == "b"
    assert queue_of({"project": "p"}, {"kai.scheduler/node-pool": "gold"}) == "default-queue"


def test_without_projects_of_owners_that_of_the_pod_still_counts() -> None:
    strict = replace(NO_DEFAULTS, owners_project=False)
    pod = replace(objects.pod(labels={"project": "mine"}), queue=QueueName("mine"))

    found = group(pod, owned({"project": "theirs"}), strict)

    assert found is not None
    assert found.spec["queue"] == "mine"


def test_each_priority_class_is_tried_once_from_the_owner_down_to_the_default_of_the_kind() -> None:
    of = chain(owner("apps/v1 Deployment", labels={CLASS: "own"}))

    assert grouped(of, priority_classes=("label", "spec")).priority_classes == ("own", "label", "spec", "inference")
    assert grouped(of, priority_classes=("inference", "own")).priority_classes == ("own", "inference")


def test_administrators_set_the_defaults_of_a_kind_where_owners_and_pods_set_nothing() -> None:
    said = defaults_of(
        '[{"typeName": "StatefulSet", "group": "apps", "priorityName": "x", "preemptibility": "Preemptible"}]'
    )

    assert grouped(owned(), defaults=said).priority_classes == ("x", "train")
    assert grouped(owned(), defaults=said).spec["preemptibility"] == CAN_GO
    assert grouped(owned(), defaults=said, explicit_preemptible=False).spec["preemptibility"] == KEPT


def test_preemptibility_is_that_of_the_owner_then_the_pod_and_impossible_values_are_skipped() -> None:
    label = "kai.scheduler/preemptibility"

    assert grouped(owned({label: KEPT}), explicit_preemptible=True).spec["preemptibility"] == KEPT
    assert grouped(owned({label: "maybe"}), explicit_preemptible=True).spec["preemptibility"] == CAN_GO
    assert "preemptibility" not in grouped(owned({label: "maybe"})).spec


def test_the_topology_is_that_of_the_annotations_of_the_owner() -> None:
    placed = grouped(owned(annotations={TOPOLOGY: "t", REQUIRED: "rack", PREFERRED: "host"}))
    root = read(placed).root

    assert root is not None
    assert root.topology == TopologyConstraint("t", required="rack", preferred="host")
    assert "topologyConstraint" not in grouped(owned(annotations={TOPOLOGY: "t"})).spec


def test_pods_of_a_deployment_are_single_pods_on_its_terms() -> None:
    annotations = {TOPOLOGY: "t", REQUIRED: "rack"}
    of = chain(owner("apps/v1 Deployment", labels={QUEUE: "a", CLASS: "own"}, annotations=annotations))

    found = grouped(of)

    near = {"topology": "t", "requiredTopologyLevel": "rack"}
    assert found.spec == {"minMember": 1, "queue": "a", "topologyConstraint": near}
    assert (found.alone, found.owner, found.created_at, found.priority_classes) == (
        True,
        None,
        9.0,
        ("own", "inference"),
    )


def test_a_shared_podgroup_is_as_old_as_its_owner() -> None:
    assert grouped(owned()).created_at == 7.0


def test_the_podgroup_has_the_labels_of_its_owner_and_the_annotations_with_a_meaning_there() -> None:
    annotations = {TOPOLOGY: "t", "kubectl.kubernetes.io/last-applied-configuration": "{...}", "user": "ann"}
    found = grouped(owned({"app": "x"}, annotations), {"user": "bob", "other": "y"})

    whose = "name: train\nuid: uid-train\ngroup: apps\nversion: v1\nkind: StatefulSet\n"
    assert found.labels == {"app": "x", "user": "bob"}
    assert found.annotations == {TOPOLOGY: "t", "user": "ann", "kai.scheduler/top-owner-metadata": whose}
    assert grouped(owned({"user": "ann"}), {"user": "bob"}).labels == {"user": "ann"}


@each(ASCII, ASCII, st.sampled_from(["true", "12", "1e3", "no", "~", "a: b", "2026-01-31"]))
def test_the_owner_of_a_podgroup_can_be_read_back_whatever_the_names(name: str, group_of: str, uid: str) -> None:
    ref = OwnerRef(Kind(group_of, "v1", "Job"), name, uid)

    whose = yaml.safe_load(top_owner(ref))

    assert whose == {"name": name, "uid": uid, "group": group_of, "version": "v1", "kind": "Job"}


def test_a_long_name_is_cut_to_the_length_of_an_object_name() -> None:
    name = group_name("a" * 199 + "." + "b" * 99, "u" * 36, "-group-3")

    assert name == f"pg-{'a' * 199}.{'b' * 5}-{'u' * 36}-group-3"
    assert len(name) == 253
    assert group_name("a" * 204 + ".b" * 9, "u" * 36, "-group-3") == f"pg-{'a' * 204}-{'u' * 36}-group-3"
