"""The state of the GPUs of a node, from pods, reservation pods and the report of the agent."""

import pytest

from app.cluster.gpus.shared_gpus import NO_GPUS, GpuState, NodeGpus, Part, WholeHolder
from app.cluster.ledger.charge import Hold
from app.model.device import Health, Holder
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.snapshot import PART, SharedDevice
from tests import given
from tests.cluster.sharing_given import MIB, WHOLE, A, device, gpu, node, part, report, reservation

R, STRANGER = reservation("r"), given.pod("stranger", node=A)
RUNS, WAITS = part("p", uuids=["u1"]), part("w", hold=Hold.AWAITED)
ALL_IS_WELL = report(device("u1", R), device("u2"))

# How reliable it is


def test_a_node_without_agent_and_shares_has_nothing_to_report() -> None:
    assert node() == NO_GPUS


def test_a_gpu_is_opening_until_the_agent_reports_the_device_of_its_reservation_pod() -> None:
    found = [gpu(WAITS, agent=report(device("u1"))), gpu(WAITS, R, agent=report(device("u1")))]

    assert [(each.state, each.uuid) for each in found] == [(GpuState.OPENING, "")] * 2


def test_a_gpu_is_ready_when_the_agent_reports_the_device_of_its_reservation_pod() -> None:
    found = gpu(WAITS, R, agent=ALL_IS_WELL)

    assert (found.state, found.uuid, found.reservations, found.reason) == (GpuState.READY, "u1", (R,), "")


def test_the_kubelet_reports_no_uids_and_a_pod_of_the_same_name_with_another_uid_is_another_pod() -> None:
    nameless, namesake = (Holder(R.namespace, R.name, uid) for uid in ("", "uid-before"))

    found = [gpu(WAITS, R, agent=report(device("u1", holders=(one,)))) for one in (nameless, namesake)]

    assert [each.state for each in found] == [GpuState.READY, GpuState.OPENING]


def test_a_terminating_reservation_pod_reserves_nothing() -> None:
    leaving = reservation(deleting=True)

    found = [gpu(who, leaving, agent=report(device("u1", leaving))) for who in (WAITS, RUNS)]

    assert [each.state for each in found] == [GpuState.OPENING, GpuState.CONTESTED]


@pytest.mark.parametrize("agent", [ALL_IS_WELL, report(device("u1", R))])
def test_a_gpu_with_running_pods_is_ready_while_all_sources_agree(agent: object) -> None:
    found = gpu(RUNS, R, agent=agent)  # type: ignore[arg-type] # of two reports

    assert (found.state, found.uuid, found.is_bound, found.reason) == (GpuState.READY, "u1", True, "")


@pytest.mark.parametrize("agent", [None, report(device("u1", R), kubelet_answers=False)])
def test_a_gpu_that_no_source_confirms_is_unconfirmed_and_takes_no_new_pods(agent: object) -> None:
    running, waiting = gpu(RUNS, R, agent=agent), gpu(WAITS, R, agent=agent)  # type: ignore[arg-type] # as above

    assert (running.state, waiting.state) == (GpuState.UNCONFIRMED, GpuState.OPENING)
    assert (running.is_open, waiting.is_open) == (False, False)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        ((RUNS,), "its reservation pod is gone"),
        ((RUNS, reservation("r1")), "its reservation pod has no device"),
        ((part("p", uuids=["u2"]), R), "its reservation pod has u1, and its pods were given u2"),
        (
            (RUNS, part("q", uuids=["u2"], mib=100), R),
            "its reservation pod has u1, and its pods were given u1, u2",
        ),
    ],
)
def test_a_gpu_about_which_the_sources_disagree_is_contested(of: tuple[Part | Pod, ...], reason: str) -> None:
    found = gpu(*of, agent=ALL_IS_WELL)

    assert (found.state, found.reason, found.is_open) == (GpuState.CONTESTED, reason, False)


def test_of_several_reservation_pods_the_one_with_the_device_of_the_pods_counts() -> None:
    second = reservation("r1")

    found = gpu(RUNS, R, second, agent=report(device("u0", R), device("u1", second)))

    assert (found.state, found.uuid, len(found.reservations)) == (GpuState.READY, "u1", 2)


def test_no_pod_is_placed_on_a_gpu_whose_reservation_pod_is_being_removed() -> None:
    found = gpu(R, agent=ALL_IS_WELL, closing={"g"})

    assert (found.state, found.listed) == (GpuState.CLOSING, SharedDevice("g", -WHOLE))


def test_a_pod_that_turns_out_to_be_bound_keeps_a_gpu_open() -> None:
    assert gpu(RUNS, R, agent=ALL_IS_WELL, closing={"g"}).state is GpuState.READY


def test_a_gpu_with_only_a_terminating_reservation_pod_is_closing() -> None:
    assert gpu(reservation(deleting=True), agent=ALL_IS_WELL).state is GpuState.CLOSING


# Free amounts


def test_shares_are_counted_by_the_state_of_their_pods() -> None:
    leaves = part("l", uuids=["u1"], mib=300, hold=Hold.LEAVING)

    found = gpu(RUNS, leaves, R, agent=ALL_IS_WELL)

    assert found.listed == SharedDevice("g", 200 * PART, 300 * PART)
    assert (found.promised_mib, found.holders) == (800, (RUNS.pod, leaves.pod))


def test_more_than_a_whole_gpu_is_held_while_a_pod_waits_for_a_terminating_one() -> None:
    leaves = part("l", uuids=["u1"], mib=900, hold=Hold.LEAVING)

    assert gpu(WAITS, leaves, R, agent=ALL_IS_WELL).listed == SharedDevice("g", -400 * PART, 900 * PART)


def test_a_pod_of_two_gpus_holds_as_much_of_each() -> None:
    found = node(part("p", "g", "h", uuids=["u1", "u2"], mib=250), agent=ALL_IS_WELL)

    assert [(each.name, each.uuid, each.free) for each in found.shared] == [
        ("g", "u1", WHOLE - 250 * PART),
        ("h", "u2", WHOLE - 250 * PART),
    ]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"health": Health.UNHEALTHY, "health_reason": "XID 79"}, "is unhealthy: XID 79"),
        ({"health": Health.UNKNOWN}, "is of unknown health"),
        ({"used_mib": 651}, "651 MiB of it are used, 500 MiB are reserved"),
    ],
)
def test_a_problem_of_a_device_keeps_new_pods_off(state: dict[str, object], reason: str) -> None:
    found = gpu(RUNS, R, agent=report(device("u1", R, **state)), tolerance_mib=150)

    assert (found.state, found.reason, found.is_open) == (GpuState.READY, reason, False)


def test_a_small_overuse_is_tolerated() -> None:
    assert gpu(RUNS, R, agent=report(device("u1", R, used_mib=650)), tolerance_mib=150).is_open


# How the whole device is held


LEAVES = part("l", uuids=["u1"], hold=Hold.LEAVING)


@pytest.mark.parametrize(
    ("of", "hold"),
    [
        ((RUNS, R), Hold.KEPT),
        ((RUNS, LEAVES, R), Hold.KEPT),
        ((RUNS, WAITS, R), Hold.KEPT),
        ((LEAVES, R), Hold.LEAVING),
        ((LEAVES,), Hold.LEAVING),
        ((R,), Hold.LEAVING),
        ((WAITS,), Hold.AWAITED),
        ((WAITS, R), Hold.KEPT),
        ((WAITS, reservation(deleting=True)), Hold.KEPT),
        ((WAITS, LEAVES), Hold.AWAITED),
    ],
)
def test_a_device_is_held_once_by_the_pod_that_stays_on_it_longest(of: tuple[Part | Pod, ...], hold: Hold) -> None:
    assert node(*of, agent=ALL_IS_WELL).held == {hold: 1}


# Whole GPUs


def whole(*devices: object, offered: int = 2, of: tuple[Part | Pod, ...] = ()) -> NodeGpus:
    return node(*of, agent=report(*devices), offered=offered, tolerance_mib=100)  # type: ignore[arg-type] # devices


def test_idle_devices_are_healthy_and_held_by_no_pod() -> None:
    found = whole(device("u0"), device("u1", R), device("u2", STRANGER), device("u3", is_mig=True), device("u4"))

    assert found.idle == 0b10001


def test_a_device_assigned_to_pods_is_not_idle_whichever_pod_reserves_it() -> None:
    assert whole(device("u0"), device("u1"), of=(RUNS,)).idle == 0b01


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"health": Health.UNHEALTHY, "health_reason": "XID 79"}, "u0 is unhealthy: XID 79"),
        ({"foreign_mib": 101}, "u0 is used by processes that are in no pod, 101 MiB of it"),
    ],
)
def test_an_idle_device_with_a_problem_takes_no_pods(state: dict[str, object], sentence: str) -> None:
    found = whole(device("u0", **state), device("u1"))

    assert (found.blocked, found.reasons, found.idle) == (1, (sentence,), 0b10)


def test_a_device_that_the_device_plugin_has_removed_is_not_subtracted_twice() -> None:
    found = whole(device("u0", health=Health.UNHEALTHY), device("u1"), offered=1)

    assert (found.blocked, found.idle) == (0, 0b10)


SICK = device("u0", STRANGER, health=Health.UNHEALTHY), device("u1", STRANGER)


def holder(*, gpus: int = 2, hold: Hold = Hold.KEPT) -> WholeHolder:
    return WholeHolder(uid=STRANGER.uid, namespace=STRANGER.namespace, name=STRANGER.name, node=A, gpus=gpus, hold=hold)


def unusable(found: NodeGpus) -> tuple[int, dict[PodUid, int], int]:
    return found.blocked, dict(found.unusable), found.unusable_leaving


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        ([holder()], (0, {STRANGER.uid: 1}, 0)),
        ([holder(hold=Hold.LEAVING)], (0, {STRANGER.uid: 1}, 1)),
        ([holder(gpus=0, hold=Hold.LEAVING)], (0, {}, 0)),
        ([], (1, {}, 0)),
    ],
)
def test_an_unhealthy_device_in_use_does_not_become_free(
    holders: list[WholeHolder], expected: tuple[int, dict[PodUid, int], int]
) -> None:
    assert unusable(node(agent=report(*SICK), whole=holders)) == expected


def test_an_unhealthy_device_in_use_that_the_device_plugin_has_removed_is_not_subtracted_twice() -> None:
    assert unusable(node(agent=report(*SICK), offered=1, whole=[holder(hold=Hold.LEAVING)])) == (0, {}, 0)


def test_an_unhealthy_shared_gpu_does_not_become_free_with_its_last_pod() -> None:
    told = report(device("u1", R, health=Health.UNHEALTHY), device("u2"))

    found = [unusable(node(*of, agent=told)) for of in ((RUNS, R), (LEAVES, R), ())]

    assert found == [(0, {}, 0), (0, {}, 1), (1, {}, 0)]


def test_a_node_with_a_contested_gpu_gives_no_whole_gpus() -> None:
    found = whole(device("u0"), device("u1"), of=(RUNS,))

    assert (found.blocked, found.reasons) == (2, ("shared GPU g: its reservation pod is gone",))


# Released capacity


QUIET = node(RUNS, R, agent=ALL_IS_WELL)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (node(RUNS, agent=ALL_IS_WELL), QUIET),
        (QUIET, node(R, agent=ALL_IS_WELL)),
        (node(R, agent=ALL_IS_WELL), node(agent=ALL_IS_WELL)),
        (QUIET, node(part("p", uuids=["u1"], mib=400), R, agent=ALL_IS_WELL)),
        (QUIET, node(part("p", uuids=["u1"], hold=Hold.LEAVING), R, agent=ALL_IS_WELL)),
        (node(RUNS, R), QUIET),
        (node(R, agent=ALL_IS_WELL, closing={"g"}), node(R, agent=ALL_IS_WELL)),
        (whole(device("u0", foreign_mib=500), device("u1")), whole(device("u0"), device("u1"))),
    ],
)
def test_only_changes_that_may_let_a_pod_run_count_as_released_capacity(before: NodeGpus, after: NodeGpus) -> None:
    assert after.frees_more_than(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (QUIET, node(RUNS, WAITS, R, agent=ALL_IS_WELL)),
        (QUIET, node(RUNS, agent=ALL_IS_WELL)),
        (QUIET, node(RUNS, R)),
        (node(WAITS, agent=ALL_IS_WELL), node(WAITS, R, agent=ALL_IS_WELL)),
        (node(R, agent=ALL_IS_WELL), node(R, agent=ALL_IS_WELL, closing={"g"})),
        (QUIET, node(RUNS, R, agent=report(device("u1", R), device("u2"), device("u3")))),
    ],
)
def test_a_change_that_frees_nothing_releases_no_capacity(before: NodeGpus, after: NodeGpus) -> None:
    assert not after.frees_more_than(before)


def test_shares_of_unknown_size_never_count_as_free_room() -> None:
    found = gpu(part("p", mib=5 * MIB), agent=ALL_IS_WELL)

    assert found.free == -4 * WHOLE
