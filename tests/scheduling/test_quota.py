"""Quota: limits and deserved shares, checked at every ancestor and charged during a plan."""

from dataclasses import replace

import pytest

from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.reason import Reason, RefusingQueue
from app.model.resources import GPU, NOTHING, UNLIMITED, Resources
from app.model.snapshot import Usage
from app.scheduling.queues.quota import QueueLedger
from tests import given

Q = QueueName("q")

TREE = [given.queue("p", limit=8), given.queue("a", "p", limit=6, deserved=4), given.queue("b", "p")]


def ledger(*queues: Queue, **held: Usage) -> QueueLedger:
    usage = {QueueName(name): each for name, each in held.items()}
    return QueueLedger(replace(given.snapshot([], queues or TREE, []), usage=usage))


def of(queue: str, *, preemptible: bool = True) -> PodGroup:
    return PodGroup(key=GroupKey("default", "g"), queue=QueueName(queue), preemptible=preemptible)


def gpus(count: float) -> Resources:
    return Resources(gpu_milli=int(count * 1000))


def test_a_queue_may_be_filled_to_its_limit() -> None:
    assert ledger().check(of("a"), gpus(6)) is None


def test_a_queue_refuses_what_exceeds_its_limit_with_the_numbers() -> None:
    held = Usage(allocated=gpus(4.5))

    refusal = ledger(a=held).check(of("a"), gpus(2))

    assert refusal is not None
    assert refusal.reason is Reason.OVER_LIMIT
    assert refusal.sentence == (
        "Queue a would exceed its limit of 6 GPUs: it holds 4.5 GPUs, and 2 GPUs are requested."
    )
    assert refusal.details == {"queue": "a", "resource": "GPUs", "limit": "6", "allocated": "4.5", "requested": "2"}


def test_the_usage_of_siblings_counts_against_the_limit_of_their_parent() -> None:
    refusal = ledger(b=Usage(allocated=gpus(5))).check(of("a"), gpus(4))

    assert refusal is not None
    assert refusal.details["queue"] == "p"


def test_a_resource_that_is_not_requested_is_not_checked() -> None:
    over = Usage(allocated=gpus(20))

    assert ledger(a=over).check(of("a"), Resources(cpu_milli=1000)) is None


def test_a_charge_counts_for_every_ancestor() -> None:
    book = ledger()

    book.charge(of("b"), gpus(5))

    assert book.check(of("a"), gpus(3)) is None
    assert book.check(of("a"), gpus(4)) is not None
    assert [each.allocated for each in book.ancestors(QueueName("b"))] == [[0, 0, 5000], [0, 0, 5000]]


def test_a_preemptible_podgroup_may_exceed_the_deserved_share_and_a_non_preemptible_one_may_not() -> None:
    queue = given.queue("q", deserved=4)

    refusal = ledger(queue).check(of("q", preemptible=False), gpus(5))

    assert ledger(queue).check(of("q"), gpus(5)) is None
    assert refusal is not None
    assert refusal.reason is Reason.NON_PREEMPTIBLE_OVER_QUOTA
    assert refusal.sentence == (
        "Non-preemptible workload is over quota. Workload requested 5 GPUs, but q quota is 4 GPUs, "
        "while 0 GPUs are already allocated for non-preemptible pods. Use a preemptible workload to go over quota."
    )


def test_only_non_preemptible_pods_count_against_the_deserved_share() -> None:
    book = ledger(given.queue("q", deserved=4))

    book.charge(of("q"), gpus(4))
    assert book.check(of("q", preemptible=False), gpus(4)) is None

    book.charge(of("q", preemptible=False), gpus(4))
    assert book.check(of("q", preemptible=False), gpus(1)) is not None


def test_a_non_preemptible_podgroup_stays_within_the_deserved_share_of_every_ancestor() -> None:
    book = ledger(given.queue("p", deserved=2), given.queue("a", "p", deserved=4))

    refusal = book.check(of("a", preemptible=False), gpus(3))

    assert refusal is not None
    assert refusal.details == {"queue": "p", "resource": "GPUs", "deserved": "2", "allocated": "0", "requested": "3"}


@pytest.mark.parametrize(
    ("queue", "request_", "numbers"),
    [
        (Queue(name=Q, cpu_milli=Entitlement(limit=1500)), Resources(cpu_milli=1600), ("CPU cores", "1.5", "1.6")),
        (
            Queue(name=Q, memory_bytes=Entitlement(limit=10**9)),
            Resources(memory_bytes=1_500_999_999),
            ("GB memory", "1", "1.5"),
        ),
        (Queue(name=Q, gpu_milli=Entitlement(limit=500)), Resources(gpu_milli=750), ("GPUs", "0.5", "0.75")),
    ],
)
def test_refusals_give_amounts_in_readable_units(
    queue: Queue, request_: Resources, numbers: tuple[str, str, str]
) -> None:
    refusal = ledger(queue).check(of("q"), request_)

    assert refusal is not None
    assert tuple(refusal.details[name] for name in ("resource", "limit", "requested")) == numbers


@pytest.mark.parametrize(
    ("queue", "reason", "sentence"),
    [
        ("nowhere", Reason.QUEUE_DOES_NOT_EXIST, "Queue nowhere does not exist; create it, or name another queue."),
        (
            "p",
            Reason.QUEUE_IS_NOT_A_LEAF,
            "Queue p takes no pods, because it has child queues; name a leaf queue below it (a, b).",
        ),
        ("bad", Reason.QUEUE_IS_INVALID, "Queue bad is not valid: its limit is negative."),
        ("c", Reason.QUEUE_IS_INVALID, "Queue c is not valid: its parent bad is not valid: its limit is negative."),
        ("orphan", Reason.QUEUE_IS_INVALID, "Queue orphan is not valid: its parent gone does not exist."),
        ("self", Reason.QUEUE_IS_INVALID, "Queue self is not valid: its parents form a circle through self."),
    ],
)
def test_only_valid_leaf_queues_take_pods(queue: str, reason: Reason, sentence: str) -> None:
    queues = [
        *TREE,
        replace(given.queue("bad"), problem="its limit is negative"),
        given.queue("c", "bad"),
        given.queue("orphan", "gone"),
        given.queue("self", "self"),
    ]

    refusal = ledger(*queues).check(of(queue), gpus(1))

    assert refusal is not None
    assert (refusal.reason, refusal.sentence) == (reason, sentence)


def test_the_usage_of_an_invalid_queue_counts_for_its_parent() -> None:
    bad = replace(given.queue("bad", "p"), problem="its limit is negative")

    refusal = ledger(*TREE, bad, bad=Usage(allocated=gpus(8))).check(of("a"), gpus(1))

    assert refusal is not None
    assert refusal.details["queue"] == "p"


def test_charges_of_a_copy_do_not_change_the_original_until_the_copy_is_adopted() -> None:
    origin, one = ledger(given.queue("q", deserved=4)), given.group(given.pod("p", queue="q"))
    twin = origin.copy()

    origin.charge(one, Resources(gpu_milli=1000))
    twin.charge(one, Resources(gpu_milli=3000))
    held = [each.accounts[one.queue].allocated[GPU] for each in (origin, twin)]
    origin.take_over(twin)

    assert held == [1000, 3000]
    assert origin.accounts[one.queue].allocated[GPU] == 3000


def test_a_refusal_has_the_numbers_of_the_refusing_queue_which_may_be_an_ancestor() -> None:
    held = Usage(allocated=gpus(5), allocated_non_preemptible=gpus(1), requested=gpus(7))

    over_limit = ledger(b=held).check(of("a"), gpus(4))
    over_quota = ledger(given.queue("q", deserved=4)).check(of("q", preemptible=False), gpus(5))

    ungoverned = Resources(cpu_milli=UNLIMITED, memory_bytes=UNLIMITED)
    assert [one.queue for one in (over_limit, over_quota) if one] == [
        RefusingQueue(
            name=QueueName("p"),
            requested=gpus(7),
            deserved=ungoverned,
            allocated=gpus(5),
            allocated_non_preemptible=gpus(1),
            limit=ungoverned + gpus(8),
            asked=gpus(4),
            asked_non_preemptible=NOTHING,
        ),
        RefusingQueue(
            name=Q,
            requested=NOTHING,
            deserved=ungoverned + gpus(4),
            allocated=NOTHING,
            allocated_non_preemptible=NOTHING,
            limit=ungoverned + Resources(gpu_milli=UNLIMITED),
            asked=gpus(5),
            asked_non_preemptible=gpus(5),
        ),
    ]


def test_pods_of_one_template_get_one_refusal_until_anything_is_charged() -> None:
    book = ledger()
    book.charge(of("a"), gpus(6))

    first, second = (book.check(of("a"), gpus(1)) for _ in range(2))
    book.charge(of("b"), gpus(1))
    third = book.check(of("b"), gpus(2))

    assert first is not None
    assert first is second
    assert third is not None
    assert (third.details["queue"], third.details["allocated"]) == ("p", "7")
