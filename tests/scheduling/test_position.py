from dataclasses import replace

import pytest

from app.model.explanation import Position
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.sentence import Name
from app.model.snapshot import Snapshot
from app.scheduling.explain.position import FIRST, MOST_COUNTED, MOST_LINED_UP, MOST_QUEUES, position
from app.scheduling.policy import Policy
from tests.given import group, node, placed, pod, queue, snapshot


def waiting(count: int, *, queue: str = "q", priority: int = 50) -> list[PodGroup]:
    """Build single pods, the oldest first."""
    return [
        group(pod(f"{queue}{number:05}", queue=queue), created_at=float(number), priority=priority)
        for number in range(count)
    ]


def world(*groups: PodGroup, queues: tuple[Queue, ...] = (queue("q"),)) -> Snapshot:
    return snapshot([node("a")], queues, groups)


def test_podgroups_ahead_in_the_queue_are_counted_and_the_first_is_named() -> None:
    groups = waiting(8)

    found = position(world(*groups), groups[6].key)

    assert found == Position(ahead_in_queue=6, first=tuple(Name("default", f"q{n:05}") for n in range(FIRST)), ahead=6)


def test_the_first_podgroup_has_none_ahead() -> None:
    groups = waiting(2)

    assert position(world(*groups), groups[0].key) == Position(ahead_in_queue=0, first=(), ahead=0)


def test_other_queues_count_for_the_position_among_all() -> None:
    mine, others = waiting(2), waiting(3, queue="r")
    queues = (queue("q"), replace(queue("r"), priority=200))

    found = position(world(*mine, *others, queues=queues), mine[1].key)

    assert found == Position(ahead_in_queue=1, first=(Name("default", "q00000"),), ahead=4)


def test_a_partially_started_gang_is_first_whatever_its_priority() -> None:
    first, *_ = waiting(1, priority=100)
    begun = group(pod("p", gang="begun"), min_member=2, running=[placed(pod("o", gang="begun"), "a")])

    found = position(world(first, begun), first.key)

    assert found == Position(ahead_in_queue=1, first=(Name("default", "begun"),), ahead=1)


def partially_bound_beside_a_deserved_share() -> tuple[PodGroup, PodGroup, Snapshot]:
    first = group(pod("first", queue="r"))
    torn = group(pod("p", gang="torn"), min_member=2, running=[placed(pod("o", gang="torn"), "a")], torn_since=0.0)
    return first, torn, world(first, torn, queues=(queue("q"), queue("r", deserved=8)))


def test_a_partially_started_gang_is_not_before_a_queue_below_its_deserved_share() -> None:
    first, torn, snapshot = partially_bound_beside_a_deserved_share()

    assert position(snapshot, torn.key) == Position(ahead_in_queue=0, first=(), ahead=1)
    assert position(snapshot, first.key) == Position(ahead_in_queue=0, first=(), ahead=0)


def test_a_gang_that_was_partially_started_long_ago_is_not_first() -> None:
    first, torn, snapshot = partially_bound_beside_a_deserved_share()
    nobody_deserves = replace(
        snapshot, queues={name: replace(queue(name), priority=200 if name == "r" else 100) for name in snapshot.queues}
    )

    found = [
        (mine and mine.ahead, theirs and theirs.ahead)
        for now in (10.0, 100.0)
        for mine, theirs in [[position(nobody_deserves, each.key, now=now) for each in (torn, first)]]
    ]

    assert found == [(0, 1), (1, 0)]


def test_podgroups_that_borrow_are_after_those_within_their_fair_share() -> None:
    large = group(pod("large", gpus=8, queue="q"))
    small = group(pod("small", queue="q"), created_at=1.0)
    other = group(pod("other", gpus=4, queue="r"), created_at=2.0)
    snapshot = world(large, small, other, queues=(queue("q"), queue("r")))

    found = {each.key: position(snapshot, each.key) for each in (large, small, other)}

    assert found[large.key] == Position(ahead_in_queue=1, first=(Name("default", "small"),), ahead=2)
    assert [each and each.ahead for each in (found[small.key], found[other.key])] == [1, 0]
    in_turn = position(snapshot, large.key, Policy(borrow_last=False))
    assert in_turn is not None
    assert in_turn.ahead_in_queue == 0


def test_a_podgroup_that_can_never_start_has_no_position_and_is_ahead_of_none() -> None:
    one, other = waiting(2)
    hopeless = replace(one, refusal=Refusal(reason=Reason.MEMBERS_MISSING, sentence="Waiting for 2 pods."))

    assert position(world(hopeless, other), hopeless.key) is None
    assert position(world(hopeless, other), other.key) == Position(ahead_in_queue=0, first=(), ahead=0)


@pytest.mark.parametrize("queues", [(), (queue("q"), queue("below", "q")), (queue("q", "gone"),)])
def test_podgroups_in_a_queue_that_takes_no_pods_have_no_position(queues: tuple[Queue, ...]) -> None:
    groups = waiting(1)

    assert position(world(*groups, queues=queues), groups[0].key) is None


def test_a_podgroup_that_is_not_pending_has_no_position() -> None:
    assert position(world(*waiting(1)), group(pod("other")).key) is None


@pytest.mark.parametrize("too_many", ["turns", "queues"])
def test_with_many_pending_podgroups_the_position_among_all_is_a_lower_bound(too_many: str) -> None:
    groups = waiting(MOST_COUNTED + 10 if too_many == "turns" else 3)
    more = MOST_QUEUES if too_many == "queues" else 0
    queues = (queue("q"), *(queue(f"r{number}") for number in range(more)))

    found = position(world(*groups, queues=queues), groups[-1].key)

    ahead = len(groups) - 1
    assert found is not None
    assert (found.ahead_in_queue, found.ahead, found.is_least) == (ahead, ahead, True)


def test_with_too_many_podgroups_for_a_question_only_the_position_in_the_queue_is_told() -> None:
    first, *others = waiting(MOST_LINED_UP)
    last = waiting(1, queue="r")[0]

    found = [
        position(world(*groups, queues=(queue("q"), queue("r"))), first.key)
        for groups in ((first, *others), (first, *others, last))
    ]

    assert [one and (one.ahead_in_queue, one.ahead, one.is_least) for one in found] == [(0, 0, False), (0, 0, True)]
