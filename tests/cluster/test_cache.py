"""The cache: events of the watches and our reservations, as one state whose sums are always correct."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.cluster.ledger.charge import Load
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod, SchedulerMessage
from app.model.podgroup import GroupSpec
from app.model.priority import PriorityClass
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import CPU, GPU, NOTHING, Resources
from app.model.snapshot import Usage
from tests import given

N1, N2 = NodeName("n1"), NodeName("n2")
NODES, QUEUES = (given.node("n1"), given.node("n2")), (given.queue("q"), given.queue("r"))
P, A, B = given.pod("p", gpus=2), given.pod("a", gang="g"), given.pod("b", gang="g", queue="r")
G = GroupKey("default", "g")
SPEC = GroupSpec(key=G, uid="u", min_member=2)
ASIDE = Refusal(reason=Reason.BACKING_OFF, sentence="It backs off.")


def cache(*shown: Node | Queue | GroupSpec | PriorityClass | Pod) -> ClusterCache:
    """Build a cache with two nodes, two queues, and these objects, whose groups a plan has considered."""
    found = ClusterCache()
    for one in (*NODES, *QUEUES, *shown):
        show(found, one)
    found.groups.unsettled.considered(found.groups.waiting(), found.changes.version)
    return found


def show(found: ClusterCache, one: Node | Queue | GroupSpec | PriorityClass | Pod) -> None:
    match one:
        case Node():
            found.apply_node(one)
        case Queue():
            found.apply_queue(one)
        case GroupSpec():
            found.apply_group(one)
        case PriorityClass():
            found.apply_class(one)
        case Pod():
            found.apply_pod(one)


def promised(found: ClusterCache, pod: Pod = P, node: NodeName = N1) -> ClusterCache:
    found.promises.make(pod.uid, node, expires_at=60.0)
    return found


def binding(found: ClusterCache, pod: Pod = P, node: NodeName = N1) -> ClusterCache:
    promised(found, pod, node).reservations.binding(pod.uid)
    return found


def gpus(count: int, pods: int = 1) -> Resources:
    return Resources(cpu_milli=pods * 1000, gpu_milli=count * 1000, pods=pods)


def free(found: ClusterCache) -> list[int]:
    return [int(amount) // 1000 for amount in found.snapshot().free[GPU]]


def usage(found: ClusterCache, queue: str = "q") -> Usage:
    return found.snapshot().usage.get(QueueName(queue), Usage())


def state(found: ClusterCache, pod: Pod = P) -> ReservationState | None:
    held = found.reservations.get(pod.uid)
    return held.state if held else None


def refusal(found: ClusterCache, key: GroupKey = P.group) -> Reason | None:
    group = found.groups.waiting()[key]
    return group.refusal.reason if group.refusal else None


# Reservations -------------------------------------------------------------------------------------------------------


def test_a_reservation_uses_the_same_resources_as_a_binding_and_the_binding_changes_no_sum() -> None:
    found = promised(cache(P))
    before, relief = found.snapshot(), found.changes.relief
    assert (free(found), usage(found)) == ([6, 8], Usage(allocated=gpus(2), requested=gpus(2)))

    found.apply_pod(replace(P, node=N1))

    after = found.snapshot()
    assert np.array_equal(after.free, before.free)
    assert (after.usage, after.groups, state(found), found.changes.relief) == (before.usage, {}, None, relief)


def test_a_reservation_that_is_replaced_or_ends_releases_capacity() -> None:
    found = promised(cache(P))
    reliefs = [found.changes.relief]

    promised(found, P, N2)
    reliefs.append(found.changes.relief)
    assert free(found) == [8, 6]

    found.promises.drop(P.uid)
    reliefs.append(found.changes.relief)
    assert (free(found), list(found.groups.waiting())) == ([8, 8], [P.group])
    assert reliefs == sorted(set(reliefs))


def test_a_moved_reservation_releases_capacity_if_a_pod_may_have_been_refused_meanwhile() -> None:
    found = promised(cache(P))
    relief = found.changes.relief

    found.promises.move(P.uid, N2, expires_at=60.0)
    assert (free(found), found.changes.relief) == ([8, 6], relief)

    found.changes.note_refusals()
    found.promises.move(P.uid, N1, expires_at=60.0)
    assert (free(found), found.changes.relief > relief) == ([6, 8], True)


def test_a_pod_that_others_bound_elsewhere_holds_only_what_it_got() -> None:
    found = binding(cache(P))
    relief = found.changes.relief

    found.apply_pod(replace(P, node=N2))

    assert (free(found), state(found), found.changes.relief > relief) == ([8, 6], None, True)


def test_a_deleted_pod_holds_nothing() -> None:
    found = binding(cache(P))
    relief = found.changes.relief

    found.delete_pod(P.uid)
    found.delete_pod(P.uid)

    assert (free(found), usage(found), state(found), found.changes.relief > relief) == ([8, 8], Usage(), None, True)
    assert (found.pods.get(P.uid), list(found.pods.all()), dict(found.groups.waiting())) == (None, [], {})


@pytest.mark.parametrize(
    "change", [replace(P, deleting=True), replace(P, group=G, names_group=True)], ids=["deleted", "moved"]
)
def test_a_reservation_ends_when_its_pod_changes_but_a_binding_waits_for_the_watch(change: Pod) -> None:
    soft, firm = promised(cache(P)), binding(cache(P))

    soft.apply_pod(change)
    firm.apply_pod(change)

    assert (state(soft), free(soft)) == (None, [8, 8])
    assert (state(firm), free(firm)) == (ReservationState.BINDING, [6, 8])


def test_a_deleted_node_ends_its_reservations_but_neither_bindings_nor_bound_pods() -> None:
    others = [given.pod(name) for name in ("binding", "bound", "elsewhere")]
    found = promised(promised(binding(cache(P, *others), others[0])), others[2], N2)
    found.apply_pod(replace(others[1], node=N1))

    found.delete_node(N1)

    assert [state(found, pod) for pod in (P, others[0], others[2])] == [
        None,
        ReservationState.BINDING,
        ReservationState.PROMISED,
    ]
    assert usage(found).allocated == gpus(3, pods=3)
    found.apply_node(NODES[0])
    assert free(found) == [6, 7]


# What the watches show ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "repeat",
    [
        lambda found: show(found, replace(NODES[0])),
        lambda found: show(found, replace(QUEUES[0])),
        lambda found: show(found, replace(P)),
        lambda found: show(found, replace(SPEC)),
        lambda found: found.delete_node(NodeName("gone")),
        lambda found: found.delete_queue(QueueName("gone")),
        lambda found: found.delete_group(GroupKey("default", "gone")),
        lambda found: found.delete_class("gone"),
        lambda found: found.delete_pod(PodUid("gone")),
        lambda found: found.findings.accept(P.uid),
        lambda found: found.findings.readmit(G),
        lambda found: found.findings.refuse_only(P.uid, frozenset()),
        lambda found: found.findings.refuse_node(PodUid("gone"), N1),
    ],
)
def test_an_event_without_a_change_changes_nothing(repeat: Callable[[ClusterCache], None]) -> None:
    found = cache(P, SPEC)
    before = found.changes.version, found.changes.relief

    repeat(found)

    assert (found.changes.version, found.changes.relief, dict(found.groups.unsettled)) == (*before, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda found: show(found, replace(NODES[0], labels={"zone": "east"})),
        lambda found: show(found, given.node("n3")),
        lambda found: show(found, given.queue("q", limit=4)),
        lambda found: found.delete_node(N1),
        lambda found: found.delete_queue(QueueName("q")),
        lambda found: show(found, PriorityClass(name="train", value=7)),
        lambda found: show(found, SPEC),
        lambda found: found.delete_pod(PodUid("uid-foreign")),
    ],
)
def test_events_that_may_let_a_pod_run_count_as_released_capacity(change: Callable[[ClusterCache], None]) -> None:
    found = cache(P, given.pod("foreign", managed=False, node=N1))
    version, relief = found.changes.version, found.changes.relief

    change(found)

    assert (found.changes.version > version, found.changes.relief > relief) == (True, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.findings.accept(P.uid),
        lambda found: found.findings.readmit(G),
        lambda found: found.groups.set_aside(P.group, ASIDE),
        lambda found: found.groups.progress.count_success(G, A.uid),
        lambda found: found.groups.unsettled.add(G),
    ],
)
def test_every_event_and_every_decision_makes_a_new_version(change: Callable[[ClusterCache], None]) -> None:
    found = promised(cache(SPEC, A, B, P))
    found.apply_pod(replace(P, said=SchedulerMessage(by_scheduler=True)))
    found.groups.set_aside(G, ASIDE)
    version = found.changes.version

    change(found)

    assert found.changes.version > version


def test_new_pods_and_pending_pods_release_no_capacity() -> None:
    found = cache(P)
    relief = found.changes.relief

    found.apply_pod(A)
    found.apply_pod(replace(P, queue=QueueName("r")))
    found.delete_pod(P.uid)

    assert found.changes.relief == relief


def test_pods_of_other_schedulers_reduce_the_capacity_or_are_charged_to_the_queue_they_name() -> None:
    foreign = given.pod("f", gpus=3, managed=False, queue="", node=N1)
    paying = given.pod("g", gpus=1, managed=False, queue="q", node=N2)
    found = cache(foreign, paying, given.pod("h", managed=False))

    snapshot = found.snapshot()

    assert snapshot.total == snapshot.nodes.capacity - gpus(3)
    assert (free(found), usage(found), snapshot.groups) == ([5, 7], Usage(allocated=gpus(1), requested=gpus(1)), {})


def test_pods_of_other_schedulers_on_unschedulable_nodes_do_not_reduce_the_capacity_of_the_rest() -> None:
    found = cache(given.node("n1", ready=False), given.pod("f", gpus=3, managed=False, queue="", node=N1))

    assert found.snapshot().total == NODES[1].allocatable


def test_the_queue_tree_is_checked_whenever_a_queue_changes() -> None:
    found = cache(given.queue("q", "p"))
    assert found.queues.tree()[QueueName("q")].problem

    found.apply_queue(given.queue("p"))
    assert not found.queues.tree()[QueueName("q")].problem

    found.delete_queue(QueueName("p"))
    assert found.queues.tree()[QueueName("q")].problem


# Terms --------------------------------------------------------------------------------------------------------------


def test_the_charges_of_pods_move_with_the_queue_of_their_podgroup() -> None:
    found = binding(cache(SPEC, A, B), A)
    assert usage(found) == Usage(allocated=gpus(1), requested=gpus(2, pods=2))

    found.apply_group(replace(SPEC, queue=QueueName("r")))
    assert (usage(found), usage(found, "r").allocated) == (Usage(), gpus(1))

    found.delete_group(G)
    assert (usage(found), usage(found, "r")) == (Usage(allocated=gpus(1), requested=gpus(2, pods=2)), Usage())


def test_a_podgroup_that_changes_its_queue_loses_the_reservations_of_its_pods() -> None:
    found = promised(cache(SPEC, A, B), A)

    found.apply_group(replace(SPEC, queue=QueueName("r")))

    assert (usage(found), usage(found, "r")) == (Usage(), Usage(requested=gpus(2, pods=2)))
    assert set(found.drain_changes().bereft) == {A.uid}


def test_remaining_pods_are_charged_again_when_the_pod_that_set_their_terms_is_deleted() -> None:
    found = binding(cache(SPEC, A, B), B)
    relief = found.changes.relief

    found.delete_pod(A.uid)

    assert (usage(found), usage(found, "r").allocated, found.changes.relief > relief) == (Usage(), gpus(1), True)


def test_remaining_pods_are_charged_again_when_the_pod_that_set_their_terms_changes() -> None:
    found = binding(cache(SPEC, A, B), B)

    found.apply_pod(replace(A, queue=QueueName("s")))
    assert (usage(found, "s"), usage(found)) == (Usage(allocated=gpus(1), requested=gpus(2, pods=2)), Usage())

    found.apply_pod(replace(A, group=P.group, names_group=False))
    assert (usage(found, "r").allocated, usage(found)) == (gpus(1), Usage(requested=gpus(1)))


def test_a_priority_class_decides_which_pods_are_non_preemptible_and_an_unreadable_one_keeps_its_effect() -> None:
    found = binding(cache(PriorityClass(name="gold", value=100), replace(P, priority_classes=("gold",))))
    assert usage(found).allocated_non_preemptible == gpus(2)

    found.apply_class(PriorityClass(name="gold", value=100, problem="its value is no number"))
    assert usage(found).allocated_non_preemptible == gpus(2)

    found.apply_class(PriorityClass(name="gold", value=200))
    assert usage(found).allocated_non_preemptible == gpus(2)

    found.delete_class("gold")
    assert usage(found).allocated_non_preemptible == NOTHING

    found.apply_class(PriorityClass(name="gold", value=100, problem="its value is no number"))
    assert usage(found).allocated_non_preemptible == NOTHING


def started(pod: Pod) -> Pod:
    return replace(pod, node=N1, started_preemptible=True)


def test_a_podgroup_started_as_preemptible_stays_so_until_all_its_pods_are_gone() -> None:
    firm = replace(SPEC, preemptible=False)
    found = cache(SPEC, started(A), replace(B, node=N2, queue=A.queue))

    found.delete_group(G)
    found.apply_group(firm)
    assert (found.snapshot().running[G].preemptible, usage(found).allocated_non_preemptible) == (True, NOTHING)

    found.delete_pod(A.uid)
    assert (found.snapshot().running[G].preemptible, usage(found).allocated_non_preemptible) == (False, gpus(1))


def test_a_podgroup_started_as_preemptible_stays_so_whatever_its_labels() -> None:
    found = cache(started(P))

    found.apply_pod(replace(started(P), explicit_preemptible=False, priority_classes=("inference",)))

    assert (found.snapshot().running[P.group].preemptible, usage(found).allocated_non_preemptible) == (True, NOTHING)


def test_a_podgroup_started_as_non_preemptible_is_preemptible_as_soon_as_its_spec_says_so() -> None:
    found = cache(replace(SPEC, preemptible=False), replace(A, node=N1))
    assert usage(found).allocated_non_preemptible == gpus(1)

    found.apply_group(replace(SPEC, preemptible=True))

    assert (found.snapshot().running[G].preemptible, usage(found).allocated_non_preemptible) == (True, NOTHING)


def test_pods_are_charged_again_when_a_pod_started_as_preemptible_joins_them() -> None:
    found = cache(replace(SPEC, preemptible=False), replace(A, node=N1))

    found.apply_pod(replace(started(B), queue=A.queue))
    assert usage(found).allocated_non_preemptible == NOTHING

    found.delete_pod(B.uid)
    found.apply_pod(started(P))
    assert usage(found).allocated_non_preemptible == gpus(1)
    found.apply_pod(replace(started(P), group=G, names_group=True))
    assert usage(found).allocated_non_preemptible == NOTHING


def test_the_reservation_of_a_preemptible_pod_ends_when_it_is_made_non_preemptible() -> None:
    found = promised(cache(P))

    found.apply_pod(replace(P, explicit_preemptible=False))

    assert (state(found), usage(found).allocated, set(found.drain_changes().bereft)) == (None, NOTHING, {P.uid})


# Conditions of kube-scheduler ---------------------------------------------------------------------------------------


def test_a_refusal_after_our_answer_ends_the_reservation_and_blocks_the_pod_until_it_is_accepted() -> None:
    found = promised(cache(P))

    found.apply_pod(replace(P, said=SchedulerMessage(by_scheduler=True)))
    assert (state(found), refusal(found)) == (None, Reason.REFUSED_BY_SCHEDULER)

    found.findings.accept(P.uid)
    assert refusal(found) is None


def test_a_message_of_kube_scheduler_about_a_pending_pod_makes_no_new_plan() -> None:
    found = considered(cache(P))

    found.apply_pod(replace(P, said=SchedulerMessage(by_us=True)))
    found.groups.waiting()

    assert (dict(found.groups.unsettled), [pod.said.by_us for pod in found.pods.all()]) == ({}, [True])


@pytest.mark.parametrize("first", ["node", "words"])
def test_a_pod_that_kube_scheduler_accepts_on_fewer_nodes_is_planned_again_with_its_message(first: str) -> None:
    found, refused = (
        considered(cache(P)),
        replace(P, said=SchedulerMessage(by_scheduler=True, because="two are tainted")),
    )

    for step in ("node", "words") if first == "node" else ("words", "node"):
        considered(found)
        if step == "node":
            found.findings.refuse_node(P.uid, N1)
        else:
            found.apply_pod(refused)

    assert [pod.said.because for pod in found.groups.waiting()[P.group].pending] == ["two are tainted"]
    assert set(found.groups.unsettled) == {P.group}


def considered(found: ClusterCache) -> ClusterCache:
    """Let a plan consider all pending groups."""
    found.groups.unsettled.considered(list(found.groups.waiting()), found.changes.version)
    return found


def test_a_nomination_that_is_cleared_after_our_answer_is_a_refusal() -> None:
    refused = replace(P, said=SchedulerMessage(by_scheduler=True), nominated=N1)
    found = promised(cache(refused))

    found.apply_pod(replace(refused, created_at=1.0))
    assert state(found) is ReservationState.PROMISED

    found.apply_pod(replace(refused, nominated=None))
    assert (state(found), refusal(found)) == (None, Reason.REFUSED_BY_SCHEDULER)


@pytest.mark.parametrize("prepare", [lambda found: found, binding], ids=["nothing is promised", "it is being bound"])
def test_a_condition_is_no_refusal_without_an_answered_reservation(
    prepare: Callable[[ClusterCache], ClusterCache],
) -> None:
    found = prepare(cache(P))
    before = state(found)

    found.apply_pod(replace(P, said=SchedulerMessage(by_scheduler=True)))
    found.promises.drop(P.uid)

    assert (before, refusal(found)) == (state(prepare(cache(P))), None)


def test_pods_whose_reservation_the_watch_has_ended_are_reported_once() -> None:
    found = promised(promised(cache(P, A, replace(B, queue=A.queue)), A), B)
    promised(found)

    found.apply_pod(replace(P, said=SchedulerMessage(by_scheduler=True)))
    found.apply_pod(replace(A, group=P.group))
    found.promises.drop(B.uid)

    assert (set(found.drain_changes().bereft), set(found.drain_changes().bereft)) == ({P.uid, A.uid}, set())


def test_nodes_refused_for_a_pod_are_remembered_until_they_are_forgotten() -> None:
    found = cache(P, A)

    found.findings.refuse_node(P.uid, N1)
    found.findings.refuse_node(P.uid, N2)
    assert found.snapshot().refused == {P.uid: frozenset([N1, N2])}
    assert list(found.groups.unsettled) == [P.group]

    found.findings.refuse_only(P.uid, frozenset([N2]))
    assert found.snapshot().refused == {P.uid: frozenset([N2])}

    found.findings.refuse_node(A.uid, N1)
    found.findings.forget_refused_nodes()
    assert (found.snapshot().refused, set(found.groups.unsettled)) == ({}, {P.group, G})


def test_refused_nodes_of_a_pod_are_forgotten_with_the_pod() -> None:
    found = cache(P)
    found.findings.refuse_node(P.uid, N1)

    found.delete_pod(P.uid)

    assert found.snapshot().refused == {}


# Groups that take part ----------------------------------------------------------------------------------------------


def test_a_podgroup_in_backoff_is_readmitted_with_every_node() -> None:
    found = cache(SPEC, A, B)
    found.findings.refuse_node(A.uid, N1)

    found.groups.set_aside(G, ASIDE)
    assert refusal(found, G) is Reason.BACKING_OFF

    found.findings.readmit(G)
    assert (refusal(found, G), found.snapshot().refused) == (None, {})


def test_a_podgroup_is_unsettled_until_a_plan_as_new_as_its_change_considered_it() -> None:
    found = cache(P)
    version = found.changes.version
    found.apply_pod(replace(P, priority_classes=("build",)))
    assert list(found.groups.waiting()) == list(found.groups.unsettled) == [P.group]

    found.groups.unsettled.considered([P.group], version)
    assert list(found.groups.unsettled) == [P.group]

    found.groups.unsettled.considered([P.group, G], found.changes.version)
    assert found.groups.unsettled == {}

    found.groups.unsettled.add(P.group)
    assert list(found.groups.unsettled) == [P.group]


def test_a_podgroup_that_is_no_longer_pending_is_not_unsettled() -> None:
    found = cache()
    found.apply_pod(P)
    assert list(found.groups.waiting()) == list(found.groups.unsettled) == [P.group]

    found.apply_pod(replace(P, node=N1))

    assert (dict(found.groups.waiting()), dict(found.groups.unsettled)) == ({}, {})


def test_a_member_that_succeeded_still_counts_for_its_gang() -> None:
    found = cache(SPEC, A, B)

    found.delete_pod(A.uid)
    assert refusal(found, G) is Reason.MEMBERS_MISSING

    found.groups.progress.count_success(G, A.uid)
    assert refusal(found, G) is None


def test_a_podgroup_holds_the_resources_of_its_reservations_and_its_bound_pods() -> None:
    found = promised(cache(SPEC, A, B, given.pod("c", gang="g")), A)
    found.apply_pod(replace(B, node=N2))

    assert tuple(found.room.held_by(found.groups.pods(key)) for key in (G, P.group)) == (gpus(2, pods=2), NOTHING)


# Reading ------------------------------------------------------------------------------------------------------------


def test_a_schedulable_node_has_room_for_what_is_free_on_it() -> None:
    found = promised(cache(P, given.node("n2", ready=False)))

    asked = {name: found.room.is_free(NodeName(name), Load(gpus(6))) for name in ("n1", "n2", "gone")}

    assert asked == {"n1": True, "n2": False, "gone": False}
    assert not found.room.is_free(N1, Load(gpus(7)))


def test_an_overcommitted_node_has_room_for_what_it_still_has() -> None:
    found = promised(cache(given.node("n1", gpus=1), P))

    loads = Load(Resources(cpu_milli=1000)), Load(gpus(1))
    assert [found.room.is_free(N1, load) for load in loads] == [True, False]


def test_free_resources_can_be_read_before_the_first_snapshot() -> None:
    assert (cache().snapshots.free()[GPU] // 1000).tolist() == [8, 8]


def test_a_pod_with_only_our_gate_counts_for_its_fair_share() -> None:
    found = ClusterCache()
    found.apply_pod(replace(given.pod("p"), held=True))

    (usage,) = found.snapshot().usage.values()
    assert usage.requested.pods == 1


@pytest.mark.parametrize("change", [{"gated": True}, {"deleting": True}, {"problem": "unreadable"}])
def test_a_pod_that_cannot_use_a_share_does_not_count_for_one(change: dict[str, Any]) -> None:
    found = ClusterCache()
    found.apply_pod(replace(given.pod("p"), **change))

    assert found.snapshot().usage == {}


def test_the_podgroups_of_a_snapshot_do_not_change_later() -> None:
    found = cache(P)
    before = found.snapshot()

    found.apply_pod(A)
    found.delete_pod(P.uid)

    assert set(found.snapshot().groups) == set(found.groups.waiting()) == {A.group}
    assert set(before.groups) == {P.group}
    assert before.groups[P.group].pending == (P,)


def test_the_snapshot_shows_the_resources_of_pods_that_belong_to_their_nodes() -> None:
    agent = replace(given.pod("agent", gpus=0, cpu=2), managed=False, node=N1, stays=True, queue=QueueName(""))
    job = replace(given.pod("job", gpus=0, cpu=4), managed=False, node=N1, queue=QueueName(""))
    found = cache(agent, job)

    first = found.snapshot().residents
    show(found, P)
    again = found.snapshot().residents
    found.delete_pod(agent.uid)

    assert first is not None
    assert first[CPU].tolist() == [2000, 0]
    assert again is first
    assert found.snapshot().residents is not first
    assert not found.snapshots.residents().any()
