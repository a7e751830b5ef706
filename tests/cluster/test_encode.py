"""The status of queues and PodGroups, as their owners read it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.cluster.encode import status_fields
from app.cluster.queues.usage import Tally
from app.model.decision import Share
from app.model.names import QueueName
from app.model.reason import Reason, Refusal, RefusingQueue
from app.model.resources import NOTHING, UNLIMITED, Resources
from app.model.snapshot import Usage
from tests import given

NOW, LATER = "2026-01-02T03:04:05Z", "2026-01-02T04:00:00Z"
ONE_GPU = Resources(cpu_milli=1500, memory_bytes=10**9, gpu_milli=1000, pods=1)
SAID_ONE_GPU = {"cpu": "1500m", "memory": "1000000000", "nvidia.com/gpu": "1"}
SAID_NOTHING = {"cpu": "0", "memory": "0", "nvidia.com/gpu": "0"}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}


@pytest.mark.parametrize(
    ("amounts", "texts"),
    [
        (NOTHING, SAID_NOTHING),
        (ONE_GPU, SAID_ONE_GPU),
        (Resources(cpu_milli=-1500, gpu_milli=500), {"cpu": "-1500m", "memory": "0", "nvidia.com/gpu": "500m"}),
        (Resources(cpu_milli=UNLIMITED, gpu_milli=2000), {"memory": "0", "nvidia.com/gpu": "2"}),
        (Resources(memory_bytes=UNLIMITED, gpu_milli=UNLIMITED), {"cpu": "0"}),
    ],
    ids=repr,
)
def test_amounts_are_quantities_and_unlimited_ones_are_left_out(amounts: Resources, texts: dict[str, str]) -> None:
    assert status_fields.amounts(amounts) == texts


def test_the_status_of_a_queue_shows_its_use_its_share_and_its_children() -> None:
    share = Share(
        deserved=Resources(cpu_milli=UNLIMITED, memory_bytes=UNLIMITED, gpu_milli=2000),
        fair_share=Resources(gpu_milli=3000),
        allocated=ONE_GPU,
        allocated_non_preemptible=NOTHING,
        requested=ONE_GPU + ONE_GPU,
    )

    assert status_fields.queue_status(given.queue("q"), share, [QueueName("c"), QueueName("b")], now=NOW) == {
        "childQueues": ["b", "c"],
        "conditions": [condition("Valid", "True", "Valid"), condition("OverQuota", "False", "WithinQuota")],
        "allocated": SAID_ONE_GPU,
        "allocatedNonPreemptible": SAID_NOTHING,
        "requested": {"cpu": "3", "memory": "2000000000", "nvidia.com/gpu": "2"},
        "deserved": {"nvidia.com/gpu": "2"},
        "fairShare": {"cpu": "0", "memory": "0", "nvidia.com/gpu": "3"},
    }


def test_the_status_of_an_invalid_queue_shows_the_reason_and_no_share() -> None:
    queue = replace(given.queue("q"), problem="its parent queue p does not exist")

    status = status_fields.queue_status(queue, Usage(), [], now=NOW)

    assert status.pop("conditions") == [condition("Valid", "False", "QueueIsInvalid", queue.problem)]
    assert status == {
        "childQueues": [],
        **dict.fromkeys(["allocated", "allocatedNonPreemptible", "requested", "deserved", "fairShare"], SAID_NOTHING),
    }


def test_the_status_of_a_queue_shows_past_usage_only_if_there_is_any() -> None:
    past = Tally(at_ms=0, used=(0, 0, 1_500_000), capacity=(64_000_000, 2000, 8_000_000))

    with_past, without = (
        status_fields.queue_status(given.queue("q"), Usage(), [], now=NOW, past=one) for one in (past, None)
    )

    assert with_past == without | {
        "usage": {
            "updated": "1970-01-01T00:00:00.000Z",
            "used": {"cpu": "0", "memory": "0", "nvidia.com/gpu": "1.5"},
            "capacity": {"cpu": "64", "memory": "2", "nvidia.com/gpu": "8"},
        }
    }


@pytest.mark.parametrize(
    ("allocated", "over"),
    [
        (Resources(gpu_milli=1000), condition("OverQuota", "False", "WithinQuota")),
        (Resources(gpu_milli=1001), condition("OverQuota", "True", "AllocatedOverQuota")),
        (Resources(memory_bytes=1), condition("OverQuota", "True", "AllocatedOverQuota")),
        (Resources(pods=1), condition("OverQuota", "False", "WithinQuota")),
    ],
    ids=repr,
)
def test_a_queue_is_over_quota_when_it_holds_more_of_any_resource_than_it_deserves(
    allocated: Resources, over: dict[str, str]
) -> None:
    share = Share(deserved=Resources(gpu_milli=1000), allocated=allocated)

    assert status_fields.queue_status(given.queue("q"), share, [], now=NOW)["conditions"][1] == over


STANDING = status_fields.GroupTotals(
    allocated=ONE_GPU, requested=ONE_GPU + ONE_GPU, non_preemptible=NOTHING, phase="Pending", running=1, pending=1
)


def test_the_status_of_a_podgroup_shows_what_it_holds_and_why_the_rest_is_pending() -> None:
    refusal = Refusal(reason=Reason.OVER_LIMIT, sentence="q is at its limit.", details={"queue": "q"})
    said = {"reason": "OverLimit", "message": "q is at its limit."}

    assert status_fields.pod_group_status(STANDING, refusal, now=NOW) == {
        "conditions": [
            condition("Valid", "True", "Valid"),
            condition("Scheduled", "False", "OverLimit", "q is at its limit."),
        ],
        "phase": "Pending",
        "running": 1,
        "pending": 1,
        "resourcesStatus": {
            "allocated": SAID_ONE_GPU,
            "allocatedNonPreemptible": SAID_NOTHING,
            "requested": {"cpu": "3", "memory": "2000000000", "nvidia.com/gpu": "2"},
        },
        "schedulingConditions": [
            {
                "type": "UnschedulableOnNodePool",
                "nodePool": "default",
                "status": "True",
                **said,
                "reasons": [said],
                "transitionID": NOW,
                "lastTransitionTime": NOW,
            }
        ],
    }


def test_a_podgroup_without_pending_pods_gives_no_reason() -> None:
    assert status_fields.pod_group_status(STANDING, None, now=NOW)["schedulingConditions"] == []


def test_the_status_of_a_podgroup_that_a_queue_refuses_has_the_numbers_of_the_queue_as_in_kai() -> None:
    queue = RefusingQueue(
        name=QueueName("q"),
        requested=ONE_GPU + ONE_GPU,
        deserved=Resources(cpu_milli=UNLIMITED, memory_bytes=UNLIMITED, gpu_milli=1000),
        allocated=ONE_GPU,
        allocated_non_preemptible=NOTHING,
        limit=Resources(cpu_milli=UNLIMITED, memory_bytes=UNLIMITED, gpu_milli=1500),
        asked=ONE_GPU,
        asked_non_preemptible=NOTHING,
    )
    refusal = Refusal(reason=Reason.OVER_LIMIT, sentence="q is at its limit.", queue=queue)

    (condition,) = status_fields.pod_group_status(STANDING, refusal, now=NOW)["schedulingConditions"]

    assert condition["reasons"] == [
        {
            "reason": "OverLimit",
            "message": "q is at its limit.",
            "details": {
                "queueDetails": {
                    "name": "q",
                    "queueRequestedResources": {"cpu": "3", "memory": "2000000000", "nvidia.com/gpu": "2"},
                    "queueDeservedResources": {"nvidia.com/gpu": "1"},
                    "queueAllocatedResources": SAID_ONE_GPU,
                    "queueAllocatedNonPreemptibleResources": SAID_NOTHING,
                    "queueResourceLimits": {"nvidia.com/gpu": "1500m"},
                    "podGroupRequestedResources": SAID_ONE_GPU,
                    "podGroupRequestedNonPreemptibleResources": SAID_NOTHING,
                }
            },
        }
    ]


def test_the_status_of_an_unusable_podgroup_shows_the_error() -> None:
    bad, good = (
        status_fields.pod_group_status(STANDING, None, problem=problem, now=NOW)["conditions"][0]
        for problem in ("spec.minMember is -1", "")
    )

    assert bad == condition("Valid", "False", "PodGroupIsInvalid", "spec.minMember is -1")
    assert good == condition("Valid", "True", "Valid")


def test_a_podgroup_is_scheduled_when_enough_pods_have_their_node() -> None:
    def scheduled(phase: str) -> object:
        return status_fields.pod_group_status(replace(STANDING, phase=phase), None, now=NOW)["conditions"][1]

    assert scheduled(status_fields.RUNNING) == condition("Scheduled", "True", "Scheduled")
    assert scheduled("Pending") == condition("Scheduled", "False", "Pending")


def test_a_running_podgroup_stays_scheduled_while_further_pods_wait() -> None:
    refusal = Refusal(reason=Reason.OVER_LIMIT, sentence="q is at its limit.")
    status = status_fields.pod_group_status(replace(STANDING, phase=status_fields.RUNNING), refusal, now=NOW)

    assert status["conditions"][1] == condition("Scheduled", "True", "Scheduled")
    assert status["schedulingConditions"]


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"metadata": {"namespace": "n", "name": "x"}, "status": {"a": 1}}, ("n", "x", {"a": 1})),
        ({"metadata": {"name": "x"}}, ("", "x", {})),
        ({"metadata": None, "status": []}, ("", "", {})),
        ({}, ("", "", {})),
    ],
    ids=repr,
)
def test_the_current_status_is_read_in_any_form(raw: dict[str, Any], read: tuple[Any, ...]) -> None:
    assert status_fields.stated(raw) == read


def test_statuses_are_equal_whatever_their_times() -> None:
    refusal = Refusal(reason=Reason.OVER_LIMIT, sentence="q is at its limit.")
    status = status_fields.pod_group_status(STANDING, refusal, now=NOW)

    assert status_fields.same(status, status_fields.pod_group_status(STANDING, refusal, now=LATER))
    assert not status_fields.same(status, status_fields.pod_group_status(STANDING, None, now=NOW))
    assert not status_fields.same(
        status, status_fields.pod_group_status(replace(STANDING, running=2), refusal, now=NOW)
    )


words = st.sampled_from(["type", "status", *sorted(status_fields.VOLATILE)])
anything = st.recursive(
    st.none() | st.sampled_from(["True", "1", 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@for_all(one=anything, other=anything)
@example(one={"a": [{"lastTransitionTime": NOW}]}, other={"a": [{"lastTransitionTime": LATER}]})
@example(one={"type": None}, other={"status": None})
@example(one=[1, 1], other=[1])
def test_statuses_are_compared_as_if_the_times_had_been_removed(one: object, other: object) -> None:
    assert status_fields.same(one, other) == (without_times(one) == without_times(other))


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in status_fields.VOLATILE}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def test_a_condition_keeps_the_time_of_its_last_transition() -> None:
    bad, worse, good = (
        status_fields.pod_group_status(STANDING, None, problem=problem, now=LATER) for problem in ("bad", "worse", "")
    )
    said = status_fields.pod_group_status(STANDING, None, problem="bad", now=NOW)

    times = [
        status_fields.with_times_of(status, said)["conditions"][0]["lastTransitionTime"]
        for status in (bad, worse, good)
    ]

    assert times == [NOW, NOW, LATER]
    assert status_fields.with_times_of(worse, said)["conditions"][0]["message"] == "worse"


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"conditions": None},
        {"conditions": ["?", {}]},
        {"other": [condition("Valid", "True", "Valid") | {"lastTransitionTime": LATER}]},
        {"conditions": [condition("Valid", "Unknown", "Valid") | {"lastTransitionTime": LATER}]},
        {"conditions": [condition("Value", "True", "Valid") | {"lastTransitionTime": LATER}]},
        {"conditions": [condition("Valid", "True", "Valued") | {"lastTransitionTime": LATER}]},
    ],
)
def test_times_are_taken_from_no_other_condition(said: dict[str, Any]) -> None:
    status = status_fields.queue_status(given.queue("q"), Usage(), [QueueName("c")], now=NOW)

    assert status_fields.with_times_of(status, said) == status
