from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from app.cluster import decode
from app.cluster.decode import Keeps
from app.model.owner import Kind, Origin, Owner, OwnerRef

KEEPS = Keeps(frozenset({"role"}), frozenset({"size"}))
JOB = Kind("batch", "v1", "Job")
OTHER = {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "1"}
CONTROLLER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "2", "controller": True}


def origin(**metadata: Any) -> Origin | None:
    raw = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", **metadata}, "spec": {"schedulerName": "ours"}}
    return decode.pod(raw, profiles=frozenset({"ours"}), keeps=KEEPS).origin


def test_the_owner_of_a_pod_is_its_controller_with_the_fields_that_grouping_reads() -> None:
    found = origin(
        ownerReferences=[OTHER, CONTROLLER],
        labels={"role": "worker", "app": "x"},
        annotations={"size": "2", "note": "long"},
    )

    assert found == Origin(OwnerRef(JOB, "train", "2"), {"role": "worker"}, {"size": "2"})


def test_the_owner_of_a_pod_without_controller_is_its_first_owner_reference() -> None:
    found = origin(ownerReferences=[OTHER])

    assert found == Origin(OwnerRef(Kind("", "v1", "Other"), "o", "1"))


def test_a_pod_without_owner_and_grouping_fields_has_no_origin() -> None:
    assert origin(labels={"app": "x"}) is None


def test_pods_of_one_template_share_their_origin() -> None:
    template: dict[str, Any] = {"ownerReferences": [CONTROLLER], "labels": {"role": "worker"}}

    assert origin(**template) is origin(**template)


@pytest.mark.parametrize(
    "references",
    [7, "x", {}, [7], [{}], [{**CONTROLLER, "uid": 7}], [{**CONTROLLER, "name": ""}], [None, CONTROLLER]],
)
def test_invalid_owner_references_are_ignored(references: object) -> None:
    assert origin(ownerReferences=references) is None


@pytest.mark.parametrize(
    "key", ["leaderworkerset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/exclusive-topology"]
)
def test_annotations_by_which_operators_hold_back_pods_of_an_owner_are_kept(key: str) -> None:
    raw = {"metadata": {"name": "train", "namespace": "ns", "uid": "2", "annotations": {key: "rack", "other": "x"}}}

    assert decode.owner(raw, kind=JOB).annotations == {key: "rack"}


def test_container_specs_of_an_owner_are_not_kept() -> None:
    template = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"image": "x"}], "volumes": []}}
    raw = {
        "metadata": {
            "name": "train",
            "namespace": "ns",
            "uid": "2",
            "labels": {"user": "me", "bad": 7},
            "annotations": {"kai.scheduler/topology": "t", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "ownerReferences": [OTHER],
            "creationTimestamp": "1970-01-01T00:01:40Z",
            "managedFields": [{}],
        },
        "spec": {"groups": [{"template": template}]},
        "status": {"phase": "on"},
    }

    assert decode.owner(raw, kind=JOB) == Owner(
        ref=OwnerRef(JOB, "train", "2"),
        namespace="ns",
        labels={"user": "me"},
        annotations={"kai.scheduler/topology": "t"},
        owner=OwnerRef(Kind("", "v1", "Other"), "o", "1"),
        fields={
            "spec": {"groups": [{"template": {"metadata": {"annotations": {"a": "b"}}, "spec": {}}}]},
            "status": {"phase": "on"},
        },
        created_at=100.0,
    )


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@examples(json, json, json, json)
def test_every_owner_is_readable_however_odd(labels: object, references: object, spec: object, created: object) -> None:
    metadata = {"name": "n", "uid": "u", "labels": labels, "ownerReferences": references, "creationTimestamp": created}

    assert decode.owner({"metadata": metadata, "spec": spec}, kind=JOB).ref == OwnerRef(JOB, "n", "u")


def test_an_owner_with_endless_nesting_is_cut() -> None:
    spec: dict[str, Any] = {}
    for _ in range(500):
        spec = {"more": spec}

    text = repr(decode.owner({"metadata": {"name": "n", "uid": "u"}, "spec": spec}, kind=JOB).fields)

    assert text.count("more") < 20
