"""The decoder of Kubernetes' own PodGroups, and which group a pod names."""

import pytest

from app.cluster import decode
from app.cluster.groups.terms import merged
from app.model.names import NATIVE_API, GroupKey, QueueName
from app.model.podgroup import GroupSpec, PodSet, SubGroup, TopologyConstraint
from tests.cluster.raw import PROFILES, Raw, container, native_group, raw_pod
from tests.cluster.test_decode_garbage import COMPOSED_GROUP, FULL_NATIVE_GROUP

KEY = GroupKey("team", "it", NATIVE_API)


def named_group(*, annotation: str = "", native: object = None) -> GroupKey:
    annotations = {"pod-group-name": annotation} if annotation else {}
    spec = {} if native is None else {"schedulingGroup": {"podGroupName": native}}
    found = decode.pod(raw_pod(container(), meta={"annotations": annotations}, **spec), profiles=PROFILES)
    assert found.names_group == (found.group.name != found.uid)
    return found.group


def test_a_gang_is_read_with_its_minimum_topology_class_and_disruption_mode() -> None:
    found = decode.native_pod_group(FULL_NATIVE_GROUP)

    assert found.problem == ""
    assert (found.key.name, found.key.api, found.min_member) == ("it", NATIVE_API, 2)
    assert (found.priority_classes, found.evicted_whole, found.queue) == (("p",), True, None)
    constraint = TopologyConstraint("", required="rack")
    assert found.root == SubGroup(topology=constraint, pod_sets=(PodSet(min_member=2),))


@pytest.mark.parametrize("policy", [{"basic": {}}, {"basic": {}, "gang": None}])
def test_the_pods_of_a_basic_group_start_one_by_one(policy: Raw) -> None:
    found = decode.native_pod_group(native_group(schedulingPolicy=policy, disruptionMode={"single": {}}))

    assert (found.min_member, found.root, found.evicted_whole, found.problem) == (1, None, False, "")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "spec.schedulingPolicy has neither basic nor gang; write one of them"),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, "spec.schedulingPolicy.gang.minCount"),
        ({"schedulingPolicy": {"gang": {"minCount": "2"}}}, "spec.schedulingPolicy.gang.minCount"),
        ({"schedulingPolicy": "gang"}, "field schedulingPolicy is 'gang'"),
        (
            {
                "schedulingPolicy": {"basic": {}},
                "schedulingConstraints": {"topology": [{"key": "zone"}, {"key": "rack"}]},
            },
            "spec.schedulingConstraints.topology has 2 items; write one",
        ),
        ({"schedulingPolicy": {"basic": {}}, "resourceClaims": [{"name": "c"}]}, "spec.resourceClaims names claims"),
    ],
)
def test_what_cannot_be_used_is_a_problem_for_the_owner(spec: Raw, problem: str) -> None:
    assert decode.native_pod_group(native_group(**spec)).problem.startswith(problem)


def test_a_composed_group_is_refused_with_the_name_of_its_parent() -> None:
    found = decode.native_pod_group(COMPOSED_GROUP)

    assert found.problem == (
        "it belongs to CompositePodGroup 'parent', which composes several PodGroups; Leeboard starts only PodGroups"
        " that have no parent"
    )


def test_the_annotation_of_a_pod_comes_before_its_scheduling_group() -> None:
    assert named_group(native="g") == GroupKey("team", "g", NATIVE_API)
    assert named_group(native="g", annotation="kai") == GroupKey("team", "kai")
    assert named_group(annotation="g") == GroupKey("team", "g") != named_group(native="g")


@pytest.mark.parametrize("native", ["", 5, [], {"name": "g"}, "g" * 254])
def test_an_unreadable_scheduling_group_names_nothing(native: object) -> None:
    assert named_group(native=native).api == ""


def test_owners_state_the_terms_of_a_native_group_and_never_replace_its_object() -> None:
    stated = GroupSpec(key=KEY, uid="u", min_member=4, priority_classes=("high",))
    derived = GroupSpec(
        key=KEY, derived=True, queue=QueueName("q"), preemptible=False, priority_classes=("low",), problem="odd"
    )

    found = merged(stated, derived)
    assert found is not None
    assert (found.uid, found.min_member, found.queue, found.preemptible) == ("u", 4, "q", False)
    assert (found.priority_classes, found.problem) == (("high", "low"), "")
    assert merged(None, derived) is None


@pytest.mark.parametrize("key", [KEY, GroupKey("team", "it"), GroupKey("", "u")])
def test_a_key_is_read_back_from_its_text(key: GroupKey) -> None:
    assert GroupKey.parse(repr(key)) == key


def test_a_text_without_a_namespace_is_no_key() -> None:
    assert GroupKey.parse("it") is None
