"""The cache about the near future: running pods, room being released, pods that wait for it, and broken gangs."""

from dataclasses import replace
from itertools import pairwise

import pytest

from app.cluster.ledger.charge import Load
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.device import GpuNode, Health
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Placed, Pod, SchedulerMessage
from app.model.podgroup import GroupSpec, PodSet, SubGroup
from app.model.resources import GPU, Resources
from app.model.snapshot import Snapshot, Usage
from app.model.topology import Topology
from tests import given
from tests.cluster.sharing_given import device

N1, N2 = NodeName("n1"), NodeName("n2")
A, B = given.pod("a", gang="g"), given.pod("b", gang="g")
SPEC = GroupSpec(key=A.group, uid="u", min_member=2)
P, OTHER, OLD = given.pod("p", gpus=2), given.pod("other", gpus=1), given.pod("old", gpus=8, node=N1)
LEAVING = replace(OLD, deleting=True)
MIG = "nvidia.com/mig-2g.10gb"


def cache(*pods: Pod, spec: GroupSpec = SPEC) -> ClusterCache:
    """Build a cache of two nodes of eight GPUs, one PodGroup, and these pods."""
    found = ClusterCache()
    for node in (given.node("n1"), given.node("n2")):
        found.apply_node(node)
    found.apply_group(spec)
    for pod in pods:
        found.apply_pod(pod)
    return found


def awaiting(found: ClusterCache, *pods: Pod) -> ClusterCache:
    for pod in pods:
        found.promises.await_release(pod.uid, N1, expires_at=60.0)
    return found


def state(found: ClusterCache, pod: Pod = P) -> ReservationState | None:
    held = found.reservations.get(pod.uid)
    return held.state if held else None


def gpus(count: int, pods: int = 1) -> Resources:
    return Resources(cpu_milli=pods * 1000, gpu_milli=count * 1000, pods=pods)


def free_and_releasing(seen: Snapshot) -> tuple[list[int], list[int] | None]:
    releasing = None if seen.releasing is None else (seen.releasing[GPU] // 1000).tolist()
    return (seen.free[GPU] // 1000).tolist(), releasing


def test_an_unhealthy_gpu_is_no_room_when_its_pod_leaves_although_no_new_report_has_arrived() -> None:
    found = cache(OLD)
    sick = [device(f"u{index}", OLD, **({} if index else {"health": Health.UNHEALTHY})) for index in range(8)]
    found.apply_gpu_node(GpuNode(name=N1, devices=tuple(sick), kubelet_answers=True), heard_at=0.0)
    seen = [free_and_releasing(found.snapshot())]

    found.apply_pod(LEAVING)
    seen.append(free_and_releasing(found.snapshot()))
    found.delete_pod(OLD.uid)
    seen.append(free_and_releasing(found.snapshot()))

    assert seen == [([0, 8], None), ([0, 8], [7, 0]), ([7, 8], None)]


def stale_since(found: ClusterCache, key: GroupKey = SPEC.key) -> float | None:
    since = found.snapshot().running[key].stale_since
    assert found.groups.stale_since() == ({} if since is None else {key: since})
    return since


# Running pods -------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_the_podgroups_with_nodes_and_which_of_them_have_pending_pods() -> None:
    found = cache(replace(A, node=N1), B, replace(P, node=N2), OTHER)
    found.promises.make(OTHER.uid, N2, expires_at=60.0)

    seen = found.snapshot()

    assert {key: group.placed for key, group in seen.running.items()} == {
        A.group: (Placed(pod=replace(A, node=N1), node=N1),),
        P.group: (Placed(pod=replace(P, node=N2), node=N2),),
        OTHER.group: (Placed(pod=OTHER, node=N2),),
    }
    assert (seen.groups, seen.running[A.group].pending) == ({A.group: seen.running[A.group]}, (B,))


def test_running_pods_of_a_snapshot_do_not_change_later() -> None:
    found = cache(replace(P, node=N1))
    before = found.snapshot()

    found.delete_pod(P.uid)

    assert (list(before.running), list(found.snapshot().running)) == ([P.group], [])


def test_a_podgroup_runs_since_its_first_pod_that_is_not_terminating() -> None:
    found = cache(spec=replace(SPEC, min_member=1))
    for pod, started_at in ((A, 30.0), (B, 20.0)):
        found.apply_pod(replace(pod, node=N1), started_at)
    version = found.changes.version
    found.apply_pod(replace(B, node=N1), 20.0)

    assert (found.changes.version, found.snapshot().running[A.group].started_at) == (version, 20.0)
    found.apply_pod(replace(B, node=N1, deleting=True))
    assert found.snapshot().running[A.group].started_at == 30.0
    found.delete_pod(B.uid)
    found.apply_pod(replace(B, node=N1))
    assert found.snapshot().running[A.group].started_at == 30.0


def test_a_pod_with_a_reservation_has_no_start_time() -> None:
    found = cache(P)
    found.promises.make(P.uid, N1, expires_at=60.0)

    assert found.snapshot().running[P.group].started_at is None


# Room being released ------------------------------------------------------------------------------------------------


def test_the_resources_of_a_terminating_pod_are_being_released_and_charged_until_it_is_gone() -> None:
    found = cache(OLD, P)
    relief = found.changes.relief
    assert free_and_releasing(found.snapshot()) == ([0, 8], None)

    found.apply_pod(LEAVING)
    seen = found.snapshot()
    assert (free_and_releasing(seen), found.changes.relief > relief) == (([0, 8], [8, 0]), True)
    assert (seen.usage[OLD.queue].allocated, OLD.group in seen.running) == (gpus(8), False)

    found.delete_pod(OLD.uid)
    assert free_and_releasing(found.snapshot()) == ([8, 8], None)


def test_terminating_pods_of_other_schedulers_release_their_resources_too() -> None:
    found = cache(replace(LEAVING, managed=False, queue=QueueName("")))

    assert free_and_releasing(found.snapshot()) == ([0, 8], [8, 0])


def test_released_resources_on_a_schedulable_node_are_room_for_later() -> None:
    found = cache(LEAVING, replace(P, node=N2))

    later = [found.room.is_free_later(node, Load(gpus(8))) for node in (N1, N2, NodeName("gone"))]
    assert later == [True, False, False]
    assert (found.room.is_free_later(N1, Load(gpus(9))), found.room.is_free(N1, Load(gpus(1)))) == (False, False)
    found.apply_node(given.node("n1", ready=False))
    assert not found.room.is_free_later(N1, Load(gpus(8)))


# Pods that wait for it ----------------------------------------------------------------------------------------------


def test_room_for_later_is_reserved_although_it_is_not_free_yet() -> None:
    found = awaiting(cache(LEAVING, P), P)

    seen = found.snapshot()

    assert (free_and_releasing(seen), state(found)) == (([-2, 8], [8, 0]), ReservationState.AWAITING)
    assert (seen.running[P.group].placed, dict(seen.groups)) == ((Placed(pod=P, node=N1),), {})
    assert (found.room.is_free_later(N1, Load(gpus(6))), found.room.is_free_later(N1, Load(gpus(7)))) == (True, False)


def test_a_waiting_reservation_has_room_when_the_other_pods_have_left_enough() -> None:
    half = replace(OLD, request=gpus(4))
    found = awaiting(cache(replace(half, deleting=True), replace(half, uid=B.uid, deleting=True), P), P)
    assert not found.room.suffices([P.uid])

    found.delete_pod(half.uid)
    assert found.room.suffices([P.uid])


def test_a_waiting_reservation_will_have_room_unless_a_victim_stays_or_another_pod_takes_it() -> None:
    found = awaiting(cache(LEAVING, P), P)
    assert (found.room.suffices([P.uid]), found.room.suffices_later([P.uid])) == (False, True)

    found.apply_pod(given.pod("stranger", gpus=7, node=N1))
    assert not found.room.suffices_later([P.uid])
    found.delete_pod(given.pod("stranger").uid)
    found.apply_pod(OLD)

    assert not found.room.suffices_later([P.uid])


def test_nodes_with_released_or_terminating_pods_are_reported_once() -> None:
    found = cache(OLD, P)
    assert found.drain_changes().relieved == {N1, N2}

    found.promises.make(P.uid, N2, expires_at=60.0)
    assert found.drain_changes().relieved == set()
    found.apply_pod(LEAVING)
    assert found.drain_changes().relieved == {N1}
    found.promises.drop(P.uid)

    assert (found.drain_changes().relieved, found.drain_changes().relieved) == ({N2}, set())


def test_waiting_reservations_on_one_node_do_not_block_each_other() -> None:
    found = awaiting(cache(LEAVING, replace(P, request=gpus(7)), OTHER), P, OTHER)
    found.delete_pod(OLD.uid)
    found.apply_pod(replace(A, node=N1))

    assert (found.room.suffices([P.uid]), found.room.suffices([OTHER.uid])) == (True, True)
    found.promises.fulfil(P.uid)
    assert (state(found), found.room.suffices([OTHER.uid])) == (ReservationState.PROMISED, False)


def test_pods_that_start_together_have_room_when_there_is_enough_for_all_at_once() -> None:
    both = [replace(one, scalars=((MIG, 1),)) for one in (P, OTHER)]
    found = awaiting(cache(LEAVING, *both), *both)
    found.delete_pod(OLD.uid)

    def fitting() -> list[bool]:
        return [found.room.suffices([one.uid for one in some]) for some in (both[:1], both[1:], both, [*both, A])]

    found.apply_node(given.node("n1", gpus=2, scalars=((MIG, 2),)))
    assert fitting() == [True, True, False, False]
    found.apply_node(given.node("n1", gpus=3, scalars=((MIG, 1),)))
    assert fitting() == [True, True, False, False]
    found.apply_node(given.node("n1", gpus=3, scalars=((MIG, 2),)))
    assert fitting() == [True, True, True, False]


@pytest.mark.parametrize("node", [given.node("n1", ready=False), None], ids=["not ready", "gone"])
def test_an_unschedulable_node_has_no_room_now(node: object) -> None:
    found = awaiting(cache(P), P)
    assert found.room.suffices([P.uid])

    found.delete_node(N1) if node is None else found.apply_node(given.node("n1", ready=False))

    assert not found.room.suffices([P.uid])


def test_a_reservation_that_waited_for_room_changes_no_sum_and_releases_no_capacity() -> None:
    found = awaiting(cache(P), P)
    before, relief = found.snapshot(), found.changes.relief

    found.promises.fulfil(P.uid)
    found.promises.fulfil(P.uid)
    found.promises.fulfil(OTHER.uid)

    after = found.snapshot()
    assert (free_and_releasing(after), after.usage) == (free_and_releasing(before), before.usage)
    assert (state(found), found.changes.relief) == (ReservationState.PROMISED, relief)


def test_the_refusal_of_a_pod_that_waits_for_room_means_nothing() -> None:
    found = awaiting(cache(LEAVING, P), P)

    found.apply_pod(replace(P, said=SchedulerMessage(by_scheduler=True)))

    assert (state(found), set(found.drain_changes().bereft)) == (ReservationState.AWAITING, set())


def test_a_waiting_reservation_ends_like_any_other() -> None:
    moved = replace(P, group=A.group, names_group=True)
    ends = [awaiting(cache(P), P) for _ in range(4)]

    ends[0].delete_node(N1)
    ends[1].apply_pod(replace(P, deleting=True))
    ends[2].apply_pod(moved)
    ends[3].apply_pod(replace(P, node=N2))

    assert [state(found) for found in ends] == [None] * 4
    assert (set(ends[2].drain_changes().bereft), ends[3].snapshot().usage[P.queue].allocated) == ({P.uid}, gpus(2))


# Extended resources, topologies, labels -----------------------------------------------------------------------------


def test_extended_resources_are_free_held_and_released_like_any_other() -> None:
    found = cache(replace(P, node=N1, scalars=((MIG, 2),)), replace(OTHER, node=N1, scalars=((MIG, 1), ("x/y", 1))))
    found.apply_node(given.node("n1", scalars=((MIG, 4),)))
    assert {name: amounts.tolist() for name, amounts in found.snapshot().scalars.items()} == {MIG: [1, 0]}

    found.apply_pod(replace(P, node=N1, scalars=((MIG, 2),), deleting=True))

    seen = found.snapshot()
    assert {name: amounts.tolist() for name, amounts in seen.releasing_scalars.items()} == {MIG: [2, 0]}
    assert seen.scalars[MIG].tolist() == [1, 0]


def test_a_pod_that_waits_for_an_extended_resource_has_room_when_it_is_free() -> None:
    holder = replace(OTHER, node=N1, scalars=((MIG, 1),), deleting=True)
    found = awaiting(cache(holder, replace(P, scalars=((MIG, 1),))), P)
    found.apply_node(given.node("n1", scalars=((MIG, 1),)))

    assert not found.room.suffices([P.uid])
    found.delete_pod(OTHER.uid)
    assert found.room.suffices([P.uid])


def test_a_mig_profile_is_charged_and_divided_as_its_gpus() -> None:
    found = cache(replace(P, node=N1, request=gpus(0), scalars=((MIG, 3),)))
    total = found.snapshot().total
    found.apply_node(given.node("n1", scalars=((MIG, 4),)))

    seen = found.snapshot()

    assert seen.usage[P.queue] == Usage(allocated=gpus(6), requested=gpus(6))
    assert seen.total - total == Resources(gpu_milli=8000)


def test_new_and_deleted_topologies_count_as_released_capacity() -> None:
    found, rack = cache(), Topology(name="t", levels=("rack",))
    reliefs = [found.changes.relief]
    for change in (rack, rack, None, None):
        found.topologies.apply(change) if change else found.topologies.delete("t")
        reliefs.append(found.changes.relief)
        assert dict(found.snapshot().topologies) == ({"t": change} if change else {})

    assert [after - before for before, after in pairwise(reliefs)] == [1, 0, 1, 0]


def test_labels_of_pods_outside_all_podgroups_are_in_the_snapshot() -> None:
    labels = {"app": "web"}
    ours, theirs = replace(P, labels=labels, node=N1), replace(OTHER, labels=labels, managed=False, node=N2)
    found = cache(ours, theirs, replace(A, labels=labels))
    assert found.snapshot().labelled == ((labels, N2),)

    found.apply_pod(replace(ours, deleting=True))
    assert found.snapshot().labelled == ((labels, N2), (labels, N1))

    found.apply_pod(replace(theirs, labels={"app": "other"}))
    found.delete_pod(ours.uid)
    assert found.snapshot().labelled == (({"app": "other"}, N2),)


# Broken gangs -------------------------------------------------------------------------------------------------------


def test_a_gang_that_lost_members_is_stale_from_the_next_clock_reading_until_it_is_complete() -> None:
    found = cache(*(replace(pod, node=N1) for pod in (A, B)))
    found.groups.age_stale(10.0)
    assert stale_since(found) is None

    found.delete_pod(B.uid)
    assert stale_since(found) is None
    for now in (20.0, 30.0):
        found.groups.age_stale(now)
        assert stale_since(found) == 20.0

    found.apply_pod(replace(B, node=N2))
    assert stale_since(found) is None
    found.apply_pod(replace(B, node=N2, deleting=True))
    found.groups.age_stale(40.0)
    assert stale_since(found) == 40.0


def test_a_gang_that_waits_for_a_new_member_is_stale_too_and_planned_again() -> None:
    found = cache(replace(A, node=N1), B)
    found.groups.unsettled.considered(found.groups.waiting(), found.changes.version)

    found.groups.age_stale(20.0)

    assert (stale_since(found), found.groups.waiting()[A.group].stale_since) == (20.0, 20.0)
    assert list(found.groups.unsettled) == [A.group]


@pytest.mark.parametrize("hold", ["make", "await_release"])
def test_a_gang_that_is_being_completed_is_not_stale(hold: str) -> None:
    found = cache(replace(A, node=N1), B, spec=replace(SPEC, min_member=3))

    getattr(found.promises, hold)(B.uid, N1, expires_at=60.0)
    found.groups.age_stale(20.0)
    assert stale_since(found) is None

    found.promises.drop(B.uid)
    found.groups.age_stale(30.0)
    assert stale_since(found) == 30.0


def test_a_gang_that_is_ending_unreadable_or_not_started_is_not_stale() -> None:
    ending, unreadable = cache(replace(A, node=N1)), cache(replace(A, node=N1), spec=replace(SPEC, problem="odd"))
    ending.groups.progress.count_success(A.group, B.uid)
    ending.apply_group(replace(SPEC, min_member=3))
    unbegun = cache(A, B)
    for found in (ending, unreadable, unbegun):
        found.groups.age_stale(20.0)

    assert (stale_since(ending), stale_since(unreadable), dict(unbegun.snapshot().running)) == (None, None, {})


def test_each_pod_set_must_have_its_minimum() -> None:
    root = SubGroup(pod_sets=(PodSet(name="x"), PodSet(name="y")))
    both = [replace(pod, node=N1, subgroup="x") for pod in (A, B)]
    found = cache(*both, spec=replace(SPEC, root=root))

    found.groups.age_stale(20.0)

    assert stale_since(found) == 20.0
