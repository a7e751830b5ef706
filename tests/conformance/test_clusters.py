"""The loader of scheduling cases: the snapshot has the values that KAI had when its session began."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.model.podgroup import PodGroup
from app.model.reason import Reason
from app.model.resources import GPU, UNLIMITED, Resources
from app.model.snapshot import PART, SharedDevice, Snapshot
from app.scheduling.queues.fairshare import fair_shares
from tests.conformance.clusters import Cluster
from tests.conformance.seats import Seat, initial, next_round
from tests.conformance.vectors import Case, resources, suites

SAMPLE = Path(__file__).parent / "data"
CASES = {case["id"]: case for suite in suites([SAMPLE]) for case in suite.cases if "cluster" in case}


def loaded(name: str) -> Snapshot:
    case = next(case for identity, case in CASES.items() if identity.endswith(name))
    return Cluster.of(case).snapshot(initial(case))


def the_group(snapshot: Snapshot, name: str) -> PodGroup:
    groups = (*snapshot.groups.values(), *snapshot.running.values())
    return next(group for group in groups if group.key.name == name)


def whole_gpus(snapshot: Snapshot, node: int) -> tuple[int, int]:
    """Idle and releasing, with the devices that only claims give, as KAI counts them."""
    claimable = sum(int(amounts[node]) for name, amounts in snapshot.scalars.items() if name.startswith("dra:"))
    releasing = 0 if snapshot.releasing is None else int(snapshot.releasing[GPU, node])
    return int(snapshot.free[GPU, node]) // 1000 + claimable, releasing // 1000


def in_kai_units(amounts: Resources) -> dict[str, float]:
    return {"cpu_milli": amounts.cpu_milli, "memory_bytes": amounts.memory_bytes, "gpu": amounts.gpu_milli / 1000}


def about(kai: Case, attribute: str) -> Any:
    """KAI adds doubles, so 0.4 three times is 1.2000000000000002."""
    return pytest.approx({resource: float(amounts[attribute]) for resource, amounts in kai.items()})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nodes_have_the_free_resources_that_kai_had(case: Case) -> None:
    snapshot = Cluster.of(case).snapshot(initial(case))

    for name, node in case["cluster"]["nodes"].items():
        at = snapshot.nodes.index[name]
        idle, releasing = node["initial"]["idle"], node["initial"]["releasing"]
        assert snapshot.free[:2, at].tolist() == [idle["cpu_milli"], idle["memory_bytes"]]
        assert whole_gpus(snapshot, at) == (idle["gpus"], releasing["gpus"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_queues_have_the_usage_requests_and_limits_that_kai_computed(case: Case) -> None:
    shares = fair_shares(Cluster.of(case).snapshot(initial(case)))

    for each in (*case["cluster"]["departments"], *case["cluster"]["queues"]):
        kai, ours = each["kai_initial"], shares[each["name"]]
        assert in_kai_units(ours.allocated) == about(kai, "allocated")
        assert in_kai_units(ours.allocated_non_preemptible) == about(kai, "allocated_non_preemptible")
        assert in_kai_units(ours.requested) == about(kai, "request")
        assert in_kai_units(ours.fair_share) == about(kai, "fair_share")


def test_the_divided_capacity_is_that_of_the_case() -> None:
    case = CASES["integration_allocate/TestDRAAllocation/1"]
    total = case["cluster"]["total_resources"]

    divided = Cluster.of(case).snapshot(initial(case)).total

    assert divided == resources({"cpu": total["cpu_milli"], "memory": total["memory_bytes"], "gpu": total["gpu"]})


def test_a_device_whose_holder_is_terminating_is_shared_until_it_is_gone() -> None:
    snapshot = loaded("TestHandleFractionalGPUAllocation/11")

    assert snapshot.shared == {"node0": (SharedDevice("0", free=0, releasing=50 * PART),)}


def test_a_device_opened_for_pending_pods_belongs_to_no_pod_yet() -> None:
    snapshot = loaded("TestHandleFractionalGPUAllocation/14")

    assert snapshot.shared == {"node1": (SharedDevice("1", free=0, releasing=50 * PART),)}


def test_devices_of_resource_slices_are_claimed_and_not_counted_as_whole_gpus() -> None:
    snapshot = loaded("TestDRAAllocation/1")

    assert snapshot.nodes.capacity.gpu_milli == 0
    assert {name: amounts.tolist() for name, amounts in snapshot.scalars.items()} == {"dra:nvidia.com/gpu": [1]}


def test_a_pod_that_requests_mig_by_annotation_never_starts() -> None:
    refusal = the_group(loaded("action_allocate/TestHandleMIGAllocation/4"), "pending_job-0").refusal

    assert refusal is not None
    assert refusal.reason is Reason.INVALID_REQUEST


def test_a_gang_that_lost_a_pod_is_stale_for_as_long_as_the_case_says() -> None:
    gang = the_group(loaded("TestStaleGangEviction/4"), "job-1")

    assert gang.stale_since == -61.0
    assert gang.owed == 1


def test_bound_pods_run_in_the_next_round_and_evicted_ones_are_pending_again() -> None:
    case = CASES["integration_reclaim/TestReclaimFractionalIntegrationTest/4"]
    names = list(initial(case))
    after = dict(zip(names, [Seat("Binding", "node0", ("a",)), Seat("Releasing", "node0")], strict=False))

    seats = next_round(case, after)

    assert list(seats.values()) == [Seat("Running", "node0", ("a",)), Seat("Pending")]


def test_a_deleted_pod_stays_releasing() -> None:
    case = CASES["integration_deletion/TestDeletionIntegrationTest/3"]
    seats = initial(case)

    assert next_round(case, seats)["releasing_job0-0"] == seats["releasing_job0-0"]


def test_a_podgroup_with_too_few_pods_is_refused() -> None:
    case = json.loads(json.dumps(CASES["action_allocate/TestHandleGangAllocation/5"], default=float))
    for job in case["cluster"]["jobs"]:
        job["sub_groups"]["pod_sets"][0]["min_available"] += 1

    waiting = Cluster.of(case).snapshot(initial(case)).groups

    assert [group.refusal and group.refusal.reason for group in waiting.values()] == [Reason.MEMBERS_MISSING]


def test_without_the_proportion_plugin_queues_have_no_limits() -> None:
    case = CASES["action_allocate/TestHandleGangAllocation/5"]
    without = case | {"config": case["config"] | {"plugins": [{"name": "gpupack"}]}}

    queues = Cluster.of(without).snapshot(initial(without)).queues.values()

    assert {each.entitlement(GPU).deserved for each in queues} == {UNLIMITED}
