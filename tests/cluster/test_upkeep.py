"""What a shared GPU needs, row by row of the table of failures: a reservation pod, one less, or evictions."""

import pytest

from app.cluster.gpus.reservation_pods import reservation_name
from app.cluster.gpus.upkeep import Dismiss, Free, Need, Reserve
from app.model.device import Device, Health
from app.model.names import PodUid
from app.model.sentence import EVERYTHING, told
from tests import given
from tests.cluster.sharing_given import A, device, needed, part, report, reservation

R, R1, STRANGER = reservation("r"), reservation("r1"), given.pod("stranger", node=A)
RUNS = part("p", uuids=["u1"])
WAITS = part("p")


def dismissed(found: list[Need]) -> dict[PodUid, str]:
    assert all(isinstance(each, Dismiss) for each in found)
    return {each.pod: each.message for each in found if isinstance(each, Dismiss)}


# No pod has a share of it


def test_a_reservation_pod_is_kept_while_a_pod_may_still_use_it() -> None:
    assert needed(R) == []


def test_a_reservation_pod_is_removed_when_no_pod_can_use_it() -> None:
    assert needed(R, R1, is_over=True) == [Free(A, R), Free(A, R1)]


def test_a_terminating_reservation_pod_is_not_removed_again() -> None:
    assert needed(reservation(deleting=True), is_over=True) == []


# A pod waits for it


def test_a_reservation_pod_is_created_once_the_room_for_it_is_free() -> None:
    assert needed(WAITS) == []
    assert needed(WAITS, is_wanted=True) == [Reserve(A, "g")]


def test_a_reservation_pod_is_not_created_twice() -> None:
    assert needed(WAITS, R, agent=report(device("u1")), is_wanted=True) == []


def test_a_reservation_pod_is_created_again_while_the_old_one_terminates() -> None:
    assert needed(WAITS, reservation(deleting=True), is_wanted=True) == [Reserve(A, "g")]


def test_of_two_reservation_pods_before_any_pod_runs_the_one_with_a_device_stays() -> None:
    assert needed(WAITS, R, R1, agent=report(device("u1", R1))) == [Free(A, R)]
    assert needed(WAITS, R, R1, agent=report(device("u1"))) == []


# Pods run on it without a problem


def test_nothing_is_needed_while_all_sources_agree() -> None:
    assert needed(RUNS, R, agent=report(device("u1", R))) == []


def test_reservation_pods_with_wrong_devices_are_removed_once_the_right_device_is_held() -> None:
    assert needed(RUNS, R, R1, agent=report(device("u1", R1), device("u2", R))) == [Free(A, R)]


# The agent is silent


def test_no_pod_of_a_silent_node_is_evicted() -> None:
    assert needed(RUNS, R) == []


def test_lost_reservation_pods_of_a_silent_node_are_created_again() -> None:
    assert needed(RUNS) == [Reserve(A, "g")]
    assert needed(RUNS, agent=report(kubelet_answers=False)) == [Reserve(A, "g")]


# Its reservation pod is gone


def test_a_lost_reservation_pod_is_created_again_while_its_device_is_idle() -> None:
    assert needed(RUNS, agent=report(device("u1"))) == [Reserve(A, "g")]


@pytest.mark.parametrize("number", [0, 1])
def test_an_old_report_about_a_deleted_reservation_pod_evicts_no_pod(number: int) -> None:
    old = reservation(reservation_name(A, "g", number))

    assert needed(RUNS, agent=report(device("u1", old))) == []
    assert needed(RUNS, agent=report(device("u1", old), device("u2"))) == [Reserve(A, "g")]


def test_no_reservation_pod_is_created_without_an_idle_healthy_device() -> None:
    taken, broken = device("u2", STRANGER), device("u3", health=Health.UNHEALTHY)

    assert needed(RUNS, R, agent=report(device("u1", STRANGER), taken, broken)) != [Reserve(A, "g")]


def test_the_next_reservation_pod_waits_for_the_device_of_the_last() -> None:
    assert needed(RUNS, R, agent=report(device("u1"), device("u2"))) == []


# The reservation pod got another device


def test_another_reservation_pod_is_tried_while_the_first_keeps_its_device() -> None:
    assert needed(RUNS, R, agent=report(device("u1"), device("u2", R))) == [Reserve(A, "g")]


def test_pods_are_evicted_from_a_device_that_another_pod_has_by_now() -> None:
    found = dismissed(needed(RUNS, R, agent=report(device("u1", STRANGER), device("u2", R))))

    assert {pod: told(why, EVERYTHING) for pod, why in found.items()} == {
        RUNS.pod: "was given GPU u1, which pod default/stranger has now"
    }


def test_pods_are_evicted_from_a_device_that_reserves_another_shared_gpu() -> None:
    other = reservation(reservation_name(A, "h"), "h")

    assert list(dismissed(needed(RUNS, other, agent=report(device("u1", other))))) == [RUNS.pod]


@pytest.mark.parametrize("there", [(), (device("u9"),), (device("u9", R),)])
def test_pods_are_evicted_when_their_device_is_gone(there: tuple[Device, ...]) -> None:
    found = dismissed(needed(RUNS, R, agent=report(*there)))

    assert found == {RUNS.pod: "was given GPU u1, which node a no longer has"}


@pytest.mark.parametrize("state", [{"health": Health.UNHEALTHY}, {"is_mig": True}])
def test_pods_are_evicted_from_a_device_that_can_never_be_reserved_again(state: dict[str, object]) -> None:
    assert list(dismissed(needed(RUNS, agent=report(device("u1", **state), device("u2"))))) == [RUNS.pod]


def test_a_device_that_becomes_unhealthy_while_it_is_reserved_keeps_its_pods() -> None:
    assert needed(RUNS, R, agent=report(device("u1", R, health=Health.UNHEALTHY))) == []


def test_a_pending_pod_beside_pods_that_must_be_evicted_is_not_evicted() -> None:
    waits = part("waits", mib=100)

    assert list(dismissed(needed(RUNS, waits, R, agent=report()))) == [RUNS.pod]


def test_of_pods_with_different_devices_those_off_the_reserved_device_are_evicted() -> None:
    other = part("other", uuids=["u2"], mib=100)

    found = dismissed(needed(RUNS, other, R, agent=report(device("u1", R), device("u2"))))

    assert found == {other.pod: "shares GPU u1, and was given u2"}


def test_a_pod_of_two_gpus_is_evicted_when_it_has_lost_one_of_them() -> None:
    pair = part("pair", "g", "h", uuids=["u1", "u2"])
    agent = report(device("u1", R), device("u2", STRANGER))

    assert needed(pair, R, agent=agent) == []
    assert list(dismissed(needed(pair, R, agent=agent, group="h"))) == [pair.pod]
