"""LeaderWorkerSets: one PodGroup per replica, of a leader and its workers."""

from dataclasses import replace
from typing import Any

import pytest

from app.grouping import group
from app.model.owner import Grouping, Owner
from app.model.pod import Pod
from tests.grouping.objects import chain, lws, lws_pod, pod, read

TOPOLOGY = "kai.scheduler/topology"
LEVEL = "kai.scheduler/segment-topology-required-placement"
SEGMENT = "kai.scheduler/segment-size"
SIZE = "leaderworkerset.sigs.k8s.io/size"
EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
WITHOUT_LEADER = {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}
Part = tuple[str, str, int]


def grouped(of: Owner, pod: Pod | None = None, *siblings: Pod) -> Grouping:
    found = group(pod or lws_pod(), chain(of, siblings=siblings))
    assert found is not None
    assert read(found).problem == ""
    return found


def parts(found: Grouping) -> list[Part]:
    return [(one["name"], one.get("parent", ""), one["minMember"]) for one in found.spec.get("subGroups", [])]


def roles(of: Owner, size: int) -> list[str]:
    return [grouped(of, lws_pod(at)).subgroup for at in range(size)]


def test_a_replica_is_a_leader_and_its_workers() -> None:
    assert parts(grouped(lws(4))) == [("leader", "", 1), ("workers", "", 3)]
    assert roles(lws(4), 3) == ["leader", "workers", "workers"]


def test_a_replica_of_one_has_no_workers() -> None:
    assert parts(grouped(lws(1))) == parts(grouped(lws(None))) == [("leader", "", 1)]


def test_each_replica_has_a_podgroup_and_pods_that_name_none_share_one() -> None:
    names = [grouped(lws(), one).name for one in (lws_pod(group="0"), lws_pod(group="1"), pod())]

    assert names == ["pg-train-uid-train-group-0", "pg-train-uid-train-group-1", "pg-train-uid-train"]


def test_a_leader_that_must_be_ready_first_starts_before_there_are_workers() -> None:
    of, leader = lws(4, policy="LeaderReady"), lws_pod()

    assert parts(grouped(of, leader, leader)) == [("leader", "", 1)]
    assert parts(grouped(of, leader, leader, lws_pod(1, group="1"))) == [("leader", "", 1)]
    assert parts(grouped(of, leader, leader, lws_pod(1))) == [("leader", "", 1), ("workers", "", 3)]
    assert grouped(of, leader, replace(lws_pod(1), origin=None)).spec["minMember"] == 1


def test_terminating_workers_do_not_delay_a_new_leader() -> None:
    of, leader = lws(4, policy="LeaderReady"), lws_pod()

    assert parts(grouped(of, leader, leader, replace(lws_pod(1), deleting=True))) == [("leader", "", 1)]


def test_a_leader_starts_alone_if_its_workers_are_created_where_it_runs() -> None:
    of, leader = lws(4, annotations={EXCLUSIVE: "rack"}), lws_pod()

    assert parts(grouped(of, leader, leader)) == [("leader", "", 1)]
    assert parts(grouped(of, leader, leader, lws_pod(1))) == [("leader", "", 1), ("workers", "", 3)]


@pytest.mark.parametrize(
    ("segments", "of_leader"),
    [({"subGroupSize": 2}, [("segment-0", "", 2), ("leader", "segment-0", 1)]), (WITHOUT_LEADER, [("leader", "", 1)])],
)
def test_a_leader_whose_workers_are_created_where_it_runs_starts_alone_in_segments_too(
    segments: dict[str, Any], of_leader: list[Part]
) -> None:
    found = grouped(lws(5, policy="LeaderReady", segments=segments))

    assert (parts(found), found.subgroup, read(found).min_member) == (
        [(name, parent, 3 if name == "segment-0" else least) for name, parent, least in of_leader],
        "leader",
        1,
    )


def test_the_size_for_which_pods_were_created_counts_during_a_rollout() -> None:
    of, mine = lws(4, policy="LeaderReady"), lws_pod(1, annotations={SIZE: "6"})

    assert grouped(of, mine, mine).spec["minMember"] == 6
    assert grouped(lws(4), mine, mine).spec["minMember"] == 6


def test_segments_that_include_the_leader_are_filled_with_it() -> None:
    of = lws(6, segments={"subGroupSize": 3})

    assert parts(grouped(of)) == [
        ("segment-0", "", 3),
        ("leader", "segment-0", 1),
        ("workers", "segment-0", 2),
        ("segment-1", "", 3),
    ]
    assert roles(of, 6) == ["leader", "workers", "workers", "segment-1", "segment-1", "segment-1"]
    assert read(grouped(of)).min_member == 6


def test_a_leader_on_top_of_full_segments_makes_the_first_one_larger() -> None:
    of = lws(5, segments={"subGroupSize": 2})

    assert parts(grouped(of)) == [
        ("segment-0", "", 3),
        ("leader", "segment-0", 1),
        ("workers", "segment-0", 2),
        ("segment-1", "", 2),
    ]
    assert roles(of, 5) == ["leader", "workers", "workers", "segment-1", "segment-1"]
    assert read(grouped(of)).min_member == 5


def test_the_last_segment_has_the_rest() -> None:
    of = lws(6, segments={"subGroupSize": 4})

    assert parts(grouped(of))[1:] == [("leader", "segment-0", 1), ("workers", "segment-0", 3), ("segment-1", "", 2)]
    assert roles(of, 7) == ["leader", *["workers"] * 3, *["segment-1"] * 3]


def test_a_leader_may_be_outside_of_the_segments() -> None:
    of = lws(5, segments=WITHOUT_LEADER)

    assert parts(grouped(of)) == [("leader", "", 1), ("segment-0", "", 2), ("segment-1", "", 2)]
    assert roles(of, 5) == ["leader", "segment-0", "segment-0", "segment-1", "segment-1"]


@pytest.mark.parametrize("of", [lws(4, annotations={SEGMENT: "2"}), lws(4, workers={SEGMENT: "2"})])
def test_annotations_define_segments_too(of: Owner) -> None:
    assert [name for name, *_ in parts(grouped(of))] == ["segment-0", "leader", "workers", "segment-1"]


def test_every_segment_has_the_topology_of_the_template_of_the_workers() -> None:
    of = lws(4, segments={"subGroupSize": 2}, workers={LEVEL: "rack"}, annotations={TOPOLOGY: "t"})
    near = {"topology": "t", "requiredTopologyLevel": "rack"}

    placed = {one["name"]: one.get("topologyConstraint") for one in grouped(of).spec["subGroups"]}

    assert placed == {"segment-0": near, "leader": None, "workers": None, "segment-1": near}


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        (lws(4, policy="Never"), "spec.startupPolicy is not known; write LeaderCreated or LeaderReady"),
        (
            lws("4"),
            "spec.leaderWorkerTemplate.size cannot be read: '4' is not an integer; write a number from 1 to 100000",
        ),
        (
            lws(4, segments={"subGroupSize": 1}),
            "a segment of it has 1 pod and it has 4; write a segment size from 2 to 4",
        ),
        (
            lws(4, segments={"subGroupSize": 5}),
            "a segment of it has 5 pods and it has 4; write a segment size from 2 to 4",
        ),
        (
            lws(4, segments=WITHOUT_LEADER),
            "its 3 workers do not fill segments of 2; write a segment size that divides them",
        ),
    ],
)
def test_an_unusable_set_is_reported(of: Owner, wrong: str) -> None:
    found = grouped(of)

    assert (found.problem, found.name) == (f"LeaderWorkerSet train: {wrong}", "pg-train-uid-train-group-0")
