"""On what terms a group's pods are charged: what its owner says, then the pod, then administrators."""

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


def test_the_queue_is_the_owners_then_the_pods_then_that_of_a_project_then_the_default() -> None:
    assert queue({QUEUE: "a"}, {QUEUE: "b"}) == "a"
    assert queue({"runai/queue": "a"}, {QUEUE: "b"}) == "a"
    assert queue({"project": "p"}, {QUEUE: "b"}) == "b"
    assert queue({"project": "p"}) == "p"
    assert queue({"project": "p"}, {"kai.scheduler/node-pool": "gold"}) == "p-gold"
    assert queue({}) == "default-queue"


def test_where_owners_projects_do_not_count_the_queue_is_the_owners_then_the_pods() -> None:
    strict = replace(NO_DEFAULTS, owners_project=False)

    def queue_of(of: Texts, labels: Texts = NOBODYS) -> object:
        return grouped(owned(of), labels, strict).spec["queue"]

    assert queue_of({QUEUE: "a", "project": "p"}, {QUEUE: "b"}) == "a"
    assert queue_of({"project": "p"}, {QUEUE: "b"}) == "b"
    assert queue_of({"project": "p"}, {"kai.scheduler/node-pool": "gold"}) == "default-queue"


def test_where_owners_projects_do_not_count_the_pods_own_still_does() -> None:
    strict = replace(NO_DEFAULTS, owners_project=False)
    pod = replace(objects.pod(labels={"project": "mine"}), queue=QueueName("mine"))

    found = group(pod, owned({"project": "theirs"}), strict)

    assert found is not None
    assert found.spec["queue"] == "mine"


def test_priority_classes_are_tried_from_the_owners_down_to_that_of_the_kind_each_once() -> None:
    of = chain(owner("apps/v1 Deployment", labels={CLASS: "own"}))

    assert grouped(of, priority_classes=("label", "spec")).priority_classes == ("own", "label", "spec", "inference")
    assert grouped(of, priority_classes=("inference", "own")).priority_classes == ("own", "inference")


def test_administrators_say_what_holds_for_a_kind_where_owners_and_pods_say_nothing() -> None:
    said = defaults_of(
        '[{"typeName": "StatefulSet", "group": "apps", "priorityName": "x", "preemptibility": "Preemptible"}]'
    )

    assert grouped(owned(), defaults=said).priority_classes == ("x", "train")
    assert grouped(owned(), defaults=said).spec["preemptibility"] == CAN_GO
    assert grouped(owned(), defaults=said, explicit_preemptible=False).spec["preemptibility"] == KEPT


def test_preemptibility_is_the_owners_then_the_pods_and_what_nobody_can_mean_is_skipped() -> None:
    label = "kai.scheduler/preemptibility"

    assert grouped(owned({label: KEPT}), explicit_preemptible=True).spec["preemptibility"] == KEPT
    assert grouped(owned({label: "maybe"}), explicit_preemptible=True).spec["preemptibility"] == CAN_GO
    assert "preemptibility" not in grouped(owned({label: "maybe"})).spec


def test_the_topology_is_what_annotations_of_the_owner_say() -> None:
    placed = grouped(owned(annotations={TOPOLOGY: "t", REQUIRED: "rack", PREFERRED: "host"}))
    root = read(placed).root

    assert root is not None
    assert root.topology == TopologyConstraint("t", required="rack", preferred="host")
    assert "topologyConstraint" not in grouped(owned(annotations={TOPOLOGY: "t"})).spec


def test_a_deployments_pods_are_each_alone_on_its_terms() -> None:
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


def test_a_shared_group_is_as_old_as_its_owner() -> None:
    assert grouped(owned()).created_at == 7.0


def test_the_object_has_the_labels_of_its_owner_and_those_annotations_that_mean_something_there() -> None:
    annotations = {TOPOLOGY: "t", "kubectl.kubernetes.io/last-applied-configuration": "{...}", "user": "ann"}
    found = grouped(owned({"app": "x"}, annotations), {"user": "bob", "other": "y"})

    whose = "name: train\nuid: uid-train\ngroup: apps\nversion: v1\nkind: StatefulSet\n"
    assert found.labels == {"app": "x", "user": "bob"}
    assert found.annotations == {TOPOLOGY: "t", "user": "ann", "kai.scheduler/top-owner-metadata": whose}
    assert grouped(owned({"user": "ann"}), {"user": "bob"}).labels == {"user": "ann"}


@each(ASCII, ASCII, st.sampled_from(["true", "12", "1e3", "no", "~", "a: b", "2026-01-31"]))
def test_whose_a_group_is_can_be_read_back_whatever_the_names(name: str, group_of: str, uid: str) -> None:
    ref = OwnerRef(Kind(group_of, "v1", "Job"), name, uid)

    whose = yaml.safe_load(top_owner(ref))

    assert whose == {"name": name, "uid": uid, "group": group_of, "version": "v1", "kind": "Job"}


def test_a_long_name_is_cut_to_what_an_object_may_be_called() -> None:
    name = group_name("a" * 199 + "." + "b" * 99, "u" * 36, "-group-3")

    assert name == f"pg-{'a' * 199}.{'b' * 5}-{'u' * 36}-group-3"
    assert len(name) == 253
    assert group_name("a" * 204 + ".b" * 9, "u" * 36, "-group-3") == f"pg-{'a' * 204}-{'u' * 36}-group-3"
