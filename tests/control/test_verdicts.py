from dataclasses import replace

import pytest

from app.control.report.messages import of_another_scheduler, state_of, why_group, why_pod
from app.control.report.pod_state import KnownPod
from app.model.explanation import GroupState, PodState
from app.model.names import GroupKey, NodeName
from app.model.pod import SchedulerMessage
from app.model.podgroup import GroupSpec
from app.model.reason import Reason, Refusal
from tests.given import pod

SPEC = GroupSpec(key=GroupKey("default", "gang"), min_member=2)
SUSPENDED = replace(SPEC, suspended="Job train is suspended")
REFUSAL = Refusal(reason=Reason.OVER_LIMIT, sentence="q may hold 8 GPUs and holds 8.")


@pytest.mark.parametrize(
    ("counts", "finished", "state"),
    [
        ({}, 0, GroupState.WAITING),
        ({}, 2, GroupState.FINISHED),
        ({"Held": 2}, 0, GroupState.WAITING),
        ({"Awaiting": 1, "Promised": 1}, 0, GroupState.WAITING),
        ({"Promised": 1, "Binding": 1}, 0, GroupState.STARTING),
        ({"Bound": 1, "Binding": 1}, 1, GroupState.PARTLY_RUNNING),
        ({"Bound": 2, "Held": 1}, 2, GroupState.PARTLY_RUNNING),
        ({"Bound": 2, "Releasing": 1}, 2, GroupState.RUNNING),
        ({"Releasing": 2}, 0, GroupState.ENDING),
    ],
)
def test_the_state_of_a_podgroup_follows_from_its_pods(
    counts: dict[str, int], finished: int, state: GroupState
) -> None:
    assert state_of(counts, SPEC, finished=finished) is state


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({}, GroupState.SUSPENDED),
        ({"Held": 2}, GroupState.SUSPENDED),
        ({"Releasing": 2}, GroupState.SUSPENDED),
        ({"Bound": 2}, GroupState.RUNNING),
    ],
)
def test_a_podgroup_of_a_suspended_owner_is_suspended_once_none_of_its_pods_runs(
    counts: dict[str, int], state: GroupState
) -> None:
    assert state_of(counts, SUSPENDED, finished=0) is state


@pytest.mark.parametrize(
    ("counts", "finished", "sentence"),
    [
        ({}, 2, "Its pods have finished."),
        ({"Bound": 1}, 1, "Its 1 pod is on 1 node."),
        ({"Releasing": 3}, 0, "Its 3 pods are being deleted."),
        ({"Held": 1}, 0, "q may hold 8 GPUs and holds 8."),
        ({"Bound": 1, "Held": 1}, 1, "q may hold 8 GPUs and holds 8."),
    ],
)
def test_a_podgroup_gives_the_reason_of_its_state(counts: dict[str, int], finished: int, sentence: str) -> None:
    state = state_of(counts, SPEC, finished=finished)

    assert why_group(state, REFUSAL, SPEC, counts=counts, nodes=1).sentence == sentence


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({}, "The gang is incomplete: none of its 2 pods exists; its owner has to create them."),
        ({"Held": 2}, "Leeboard has not decided about it yet."),
        ({"Promised": 2}, "Places are reserved for its 2 pods; kube-scheduler has not asked to bind them yet."),
        ({"Promised": 1}, "A place is reserved for its 1 pod; kube-scheduler has not asked to bind it yet."),
        # As their own messages say: kube-scheduler has called bind.
        ({"Binding": 2}, "Its 2 pods are being bound."),
        ({"Binding": 1, "Releasing": 1}, "1 of its 2 pods is being bound."),
        (
            {"Promised": 1, "Binding": 2},
            "Places are reserved for its 3 pods; kube-scheduler has not asked to bind 1 of them yet.",
        ),
        (
            {"Promised": 2, "Releasing": 1},
            "Places are reserved for 2 of its 3 pods; kube-scheduler has not asked to bind them yet.",
        ),
        ({"Bound": 1, "Binding": 1}, "1 of its pods is on its node, and the others are being bound."),
    ],
)
def test_a_podgroup_without_a_refusal_says_what_it_waits_for(counts: dict[str, int], sentence: str) -> None:
    state = state_of(counts, SPEC, finished=0)

    assert why_group(state, None, SPEC, counts=counts, nodes=1).sentence == sentence


def test_a_podgroup_that_cannot_use_its_reservations_says_why() -> None:
    stalled = Refusal(reason=Reason.BACKING_OFF, sentence="A policy forbids it; Leeboard is trying again.")
    promised = KnownPod(pod=pod("a"), state=PodState.PROMISED, node=NodeName("n"), refusal=stalled)

    said = [
        why_pod(promised, None, None, SPEC).sentence,
        why_group(GroupState.STARTING, stalled, SPEC, counts={"Promised": 2}, nodes=0).sentence,
    ]

    assert said == [stalled.sentence, stalled.sentence]


def test_a_reserved_pod_that_kube_scheduler_refused_before_gives_the_message_of_kube_scheduler() -> None:
    refused = replace(pod("a"), said=SchedulerMessage(by_scheduler=True, because="0/2 nodes are available: 2 x"))
    promised = (KnownPod(pod=each, state=PodState.PROMISED, node=NodeName("n")) for each in (pod("a"), refused))

    sentence = "Node n is reserved for it; kube-scheduler has not asked to bind it yet"
    assert [why_pod(one, None, None, SPEC).sentence for one in promised] == [
        f"{sentence}.",
        f"{sentence}; its last message was: 0/2 nodes are available: 2 x.",
    ]


def test_the_error_that_the_owner_must_correct_comes_before_the_decision() -> None:
    waiting = pod("a", gang="gang")
    broken, ungrouped = replace(waiting, problem="it is odd"), replace(waiting, ungrouped="its owner is looked up")
    invalid = Refusal(reason=Reason.INVALID_REQUEST, sentence="it is odd.")

    said = [
        why_pod(KnownPod(pod=broken, state=PodState.HELD, refusal=invalid), None, REFUSAL, SUSPENDED).sentence,
        why_pod(KnownPod(pod=ungrouped, state=PodState.HELD), None, REFUSAL, SUSPENDED).sentence,
        why_pod(KnownPod(pod=waiting, state=PodState.HELD), None, REFUSAL, SUSPENDED).sentence,
        why_pod(KnownPod(pod=waiting, state=PodState.HELD), None, REFUSAL, SPEC).sentence,
    ]

    assert said == ["it is odd.", "its owner is looked up.", "Job train is suspended.", REFUSAL.sentence]


def test_a_pod_without_a_refusal_is_gated_by_others_or_being_decided() -> None:
    gated, decided = (KnownPod(pod=pod("a", gated=is_gated), state=PodState.HELD) for is_gated in (True, False))

    assert why_pod(gated, None, None, None).sentence == (
        "It is held by a scheduling gate that is not Leeboard's; the controller that set the gate has to remove it."
    )
    assert why_pod(decided, None, None, None).reason == Reason.DECIDING


def test_a_pod_that_is_being_bound_or_deleted_before_it_ran_says_so() -> None:
    binding = KnownPod(pod=pod("a"), state=PodState.BINDING, node=NodeName("n"))
    deleted = KnownPod(pod=pod("a", deleting=True), state=PodState.RELEASING)

    assert [why_pod(one, None, None, None).sentence for one in (binding, deleted)] == [
        "It is being bound to node n.",
        "It is being deleted.",
    ]


def test_a_reservation_pod_shows_its_purpose() -> None:
    said = of_another_scheduler(pod("a", reserves="uid-b-0", managed=False), ["kai-scheduler"]).sentence

    assert said == "pod default/a is a reservation pod: it holds GPU uid-b-0 for the pods that share it"


def test_a_pod_without_a_reservation_does_not_show_the_room_of_another_pod_of_its_podgroup() -> None:
    waits = Refusal(reason=Reason.WAITING_FOR_VICTIMS, sentence="Its room on node n is held for it.")
    held = KnownPod(pod=pod("a", gang="gang"), state=PodState.HELD)

    assert why_pod(held, None, waits, SPEC).reason == Reason.DECIDING
