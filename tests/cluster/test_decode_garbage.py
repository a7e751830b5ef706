"""No content makes the decoder raise: it becomes a problem with a message, or the object has no identity."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster import decode
from tests.cluster.raw import PROFILES, Raw, container, metadata, native_group, pod_group, raw_pod

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "raw", [None, [], {}, {"metadata": 1}, {"metadata": {"name": "x"}}, {"metadata": {"uid": "x"}}]
)
def test_an_object_without_name_and_uid_cannot_be_decoded(raw: object) -> None:
    with pytest.raises(decode.DecodeError):
        decode.node(raw)


FULL_POD = raw_pod(
    container(cpu="1", gpu="1", limits={"memory": "1Gi", "x/y": "1"}),
    initContainers=[container("i", cpu="1") | {"restartPolicy": "Always"}],
    overhead={"cpu": "1"},
    resources={"requests": {"cpu": "1"}},
    nodeSelector={"a": "b"},
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}],
                        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
                    }
                ]
            }
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"kai.scheduler/queue": "q"}, "matchExpressions": []},
                    "namespaces": ["team"],
                    "topologyKey": "zone",
                }
            ]
        },
    },
    tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute"}],
    schedulingGates=[{"name": "g"}],
    schedulingGroup={"podGroupName": "g"},
    priority=1,
    priorityClassName="train",
    nodeName="n",
    meta={
        "labels": {"kai.scheduler/queue": "q", "priorityClassName": "p", "kai.scheduler/task-priority": "1"}
        | {"kai.scheduler/preemptibility": "preemptible", "kai.scheduler/subgroup-name": "s"},
        "annotations": {"pod-group-name": "g"},
        "deletionTimestamp": "1970-01-01T00:02:00Z",
    },
    status={
        "nominatedNodeName": "n",
        "startTime": "1970-01-01T00:01:50Z",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}],
        "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "1"}}],
    },
)
FULL_NODE = {
    "metadata": metadata(labels={"a": "b", "nvidia.com/gpu.memory": "81920"}),
    "spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}], "unschedulable": True},
    "status": {
        "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "1", "nvidia.com/gpu": "1", "x/y": "1"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
BLOCK = {"quota": 1, "limit": 2, "overQuotaWeight": 1}
FULL_QUEUE = {
    "metadata": metadata(),
    "spec": {
        "parentQueue": "p",
        "displayName": "d",
        "priority": 1,
        "preemptMinRuntime": "1h30m",
        "resources": {"gpu": BLOCK, "cpu": BLOCK},
    },
}
LEVEL = {"topology": "t", "requiredTopologyLevel": "rack", "preferredTopologyLevel": "host"}
FULL_GROUP = pod_group(
    minMember=2,
    queue="q",
    priorityClassName="p",
    preemptibility="preemptible",
    topologyConstraint=LEVEL,
    subGroups=[{"name": "a"}, {"name": "b", "parent": "a", "minMember": 2, "topologyConstraint": LEVEL}],
)
FULL_NATIVE_GROUP = native_group(
    schedulingPolicy={"gang": {"minCount": 2}},
    schedulingConstraints={"topology": [{"key": "rack"}]},
    disruptionMode={"all": {}},
    priorityClassName="p",
    workloadRef={"name": "w"},
)
COMPOSED_GROUP = native_group(
    schedulingPolicy={"basic": {}},
    disruptionMode={"single": {}},
    parentCompositePodGroupName="parent",
    resourceClaims=[{"name": "c", "resourceClaimName": "r"}],
)
FULL_TOPOLOGY = {"metadata": metadata(), "spec": {"levels": [{"nodeLabel": "zone"}, {"nodeLabel": "rack"}]}}


def decoded_pod(raw: Any) -> Any:
    return decode.seen_pod(raw, profiles=PROFILES)


@pytest.mark.parametrize(
    ("read", "whole"),
    [
        (decoded_pod, FULL_POD),
        (decode.node, FULL_NODE),
        (decode.queue, FULL_QUEUE),
        (decode.pod_group, FULL_GROUP),
        (decode.native_pod_group, FULL_NATIVE_GROUP),
        (decode.topology, FULL_TOPOLOGY),
        (decode.priority_class, {"metadata": metadata(), "value": 1}),
    ],
)
@given(data=st.data())
def test_any_json_in_any_field_is_decoded_or_is_a_problem_with_a_message(
    read: Callable[[object], Any], whole: Raw, data: st.DataObject
) -> None:
    assert read(whole).problem == ""
    raw = deepcopy(whole)
    path = data.draw(st.sampled_from(_paths(raw)))
    _put(raw, path, data.draw(JSON))

    try:
        problem = read(raw).problem
    except decode.DecodeError:
        assert path[0] == "metadata"
        assert path[1:] in ([], ["name"], ["uid"])
    else:
        assert not problem or (problem.isprintable() and " " in problem and len(problem) < 500)


@given(JSON)
def test_any_json_is_decoded_or_refused(raw: object) -> None:
    decode.is_terminal(raw)
    for read in (
        decoded_pod,
        decode.node,
        decode.queue,
        decode.pod_group,
        decode.native_pod_group,
        decode.topology,
        decode.priority_class,
    ):
        with pytest.raises(decode.DecodeError):
            read(raw)


def _paths(value: object, above: tuple[str | int, ...] = ()) -> list[list[str | int]]:
    """Return the path of every field, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in items for path in ([*above, key], *_paths(inner, (*above, key)))]


def _put(raw: Any, path: list[str | int], value: object) -> None:
    for key in path[:-1]:
        raw = raw[key]
    raw[path[-1]] = value


@pytest.mark.parametrize("phase", [{}, []])
def test_a_pod_whose_phase_is_no_text_is_charged_where_it_says_that_it_runs(phase: object) -> None:
    found = decoded_pod(raw_pod(container(cpu="1"), nodeName="n", status={"phase": phase, "conditions": []}))

    assert (found.pod.node, found.pod.self_placed) == ("n", False)
