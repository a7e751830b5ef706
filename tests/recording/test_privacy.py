"""Nothing that Leeboard does not read is left in a reduced object: no command, environment, Secret or unknown field."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import orjson
import pytest

from app.model.admission import AdmissionQuestion, Operation
from app.model.seam import Resource
from app.recording.owner_fields import READ
from app.recording.reduce import reduced, reduced_question, reduced_review, reduced_sample
from tests.recording.owners import OWNERS, path_of
from tests.recording.readers import FULL, Raw

MARK = "marked-secret"
PODS = FULL[Resource.PODS]
CHOSEN_KEYS = frozenset(
    ("labels", "requests", "limits", "overhead", "allocatable", "capacity", "allocatedResources", "nodeSelector")
) | {"matchLabels", "attributes", "counters", "consumedCapacity"}
"""Mappings whose keys are names that their author chooses, and all of which may be read."""

ENVIRONMENT = [
    {"name": "PASSWORD", "value": MARK},
    {"name": MARK, "valueFrom": {"secretKeyRef": {"name": MARK, "key": MARK}}},
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": MARK},
]
CONTAINER = {
    "image": MARK,
    "command": [MARK],
    "args": ["--password", MARK],
    "env": ENVIRONMENT,
    "envFrom": [{"secretRef": {"name": MARK}}],
    "volumeMounts": [{"name": MARK, "mountPath": MARK}],
    "lifecycle": {"preStop": {"exec": {"command": [MARK]}}},
    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": MARK}]}},
    "securityContext": {"seLinuxOptions": {"user": MARK}},
}
VOLUMES = [{"name": MARK, "secret": {"secretName": MARK}}, {"name": MARK, "persistentVolumeClaim": {"claimName": MARK}}]
FIELD = {"deep": [{"data": {MARK: MARK}}, MARK]}


def marked(raw: Raw) -> Raw:
    """Return the object with the mark in every place that is not read."""
    copy = deepcopy(raw)
    for parent, key in list(mappings(copy, "")):
        is_container = key in {"containers", "initContainers"}
        if is_container:
            parent.update(CONTAINER | {"env": ENVIRONMENT + parent.get("env", [])})
        if key == "annotations":
            parent["kubectl.kubernetes.io/last-applied-configuration"] = MARK
            parent["example.com/" + MARK] = MARK
        elif key not in CHOSEN_KEYS and not key.endswith("ReplicaSpecs"):
            parent.update({MARK: FIELD, "stringData": FIELD, "data": MARK})
    copy["metadata"] |= {
        "managedFields": [{"manager": MARK, "fieldsV1": {MARK: {}}}],
        "annotations": copy["metadata"].get("annotations", {}) | {"example.com/token": MARK},
        "finalizers": [MARK],
    }
    if isinstance(copy.get("spec"), dict):
        copy["spec"] |= {"volumes": VOLUMES, "hostAliases": [{"hostnames": [MARK]}], "serviceAccountName": MARK}
    return copy


def mappings(value: Any, key: str) -> Iterator[tuple[Raw, str]]:
    if isinstance(value, dict):
        yield value, key
        for name, inner in value.items():
            yield from mappings(inner, name)
    for inner in value if isinstance(value, list) else ():
        yield from mappings(inner, key)


def assert_unmarked(kept: object) -> None:
    assert MARK.encode() not in orjson.dumps(kept)


@pytest.mark.parametrize("resource", Resource, ids=repr)
def test_no_unread_content_of_a_watched_object_is_left(resource: Resource) -> None:
    for raw in FULL[resource]:
        assert_unmarked(reduced(resource.value, marked(raw)))


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind[1])
def test_no_unread_content_of_an_owner_is_left(kind: tuple[str, str]) -> None:
    for raw in OWNERS[kind]:
        assert_unmarked(reduced(path_of(kind), marked(raw)))


@pytest.mark.parametrize("path", ["apis/example.com/v1/anythings", "apis/apps/v1/deployments", "api/v1/secrets"])
def test_nothing_but_metadata_of_another_kind_is_left(path: str) -> None:
    raw = marked({"metadata": {"name": "n", "uid": "u"}, "spec": {"template": {"spec": {"containers": [{}]}}}})

    assert reduced(path, raw | {"data": {"k": MARK}}) == {"metadata": {"name": "n", "uid": "u", "annotations": {}}}


@pytest.mark.parametrize("raw", PODS)
def test_no_unread_content_of_a_question_is_left(raw: Raw) -> None:
    assert_unmarked(reduced_question(marked(raw)))


@pytest.mark.parametrize("raw", PODS)
def test_no_container_content_of_a_sample_is_left(raw: Raw) -> None:
    wrong = deepcopy(raw)
    for container in wrong["spec"]["containers"]:
        container.update(CONTAINER)
    wrong["spec"] |= {"volumes": VOLUMES, "serviceAccountName": MARK}
    wrong["metadata"] |= {"annotations": {"example.com/token": MARK}, "managedFields": [{"manager": MARK}]}

    assert_unmarked(reduced_sample(wrong))


@pytest.mark.parametrize(
    ("group", "kind", "resource"),
    [
        ("", "Pod", Resource.PODS),
        ("", "Secret", Resource.PODS),
        ("scheduling.run.ai", "Queue", Resource.QUEUES),
        ("scheduling.run.ai", "PodGroup", Resource.POD_GROUPS),
        ("kai.scheduler", "Topology", Resource.TOPOLOGIES),
    ],
)
def test_no_unread_content_of_a_review_is_left(group: str, kind: str, resource: Resource) -> None:
    for raw in FULL[resource]:
        question = AdmissionQuestion(
            group=group,
            kind=kind,
            namespace="team",
            name="it",
            operation=Operation.UPDATE,
            object=marked(raw),
            old=marked(raw),
            user=MARK,
        )
        assert_unmarked(reduced_review(question))
