"""Reclaim: which group may reclaim, from which pods it is fair, and how full its queue may get."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.model.decision import Share
from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.resources import Resources
from app.model.snapshot import Usage
from app.scheduling.queues.accounts import Account, Quantities
from app.scheduling.queues.quota import QueueLedger
from app.scheduling.queues.reclaimable import Judgement, QueueEntitlement, guarantees_deserved, maintains_fair_share
from tests import given

TOP = [given.queue("top")]


def gpus(count: float) -> Quantities:
    return 0, 0, int(count * 1000)


def judgement(
    queues: list[Queue],
    *,
    fair: Mapping[str, float],
    held: Mapping[str, float],
    request: Quantities = (0, 0, 1000),
    preemptible: bool = True,
    **more: int,
) -> Judgement:
    """Judge for a group of the first queue; a queue that is not named holds nothing and has no fair share of GPUs."""
    usage = {QueueName(name): Usage(allocated=Resources(gpu_milli=gpus(count)[2])) for name, count in held.items()}
    shares = {
        each.name: Share(fair_share=Resources(cpu_milli=9, memory_bytes=9, gpu_milli=gpus(fair.get(each.name, 0))[2]))
        for each in queues
    }
    ledger = QueueLedger(replace(given.snapshot([], queues, []), usage=usage))
    group = PodGroup(key=GroupKey("default", "g"), queue=queues[0].name, preemptible=preemptible)
    return Judgement(ledger, shares, group, request, **more)


def taking(count: float, *, of: str, chunks: int = 1) -> dict[QueueName, list[Quantities]]:
    return {QueueName(of): [gpus(count)] * chunks}


def standing(*, deserved: int, fair: int, limit: int | None = None, held: int = 0) -> QueueEntitlement:
    account = Account(given.queue("a", deserved=deserved, limit=limit))
    account.allocated = list(gpus(held))
    return QueueEntitlement.of(account, gpus(fair))


def test_a_queue_may_reclaim_exactly_up_to_its_fair_share() -> None:
    queues = [given.queue("a")]

    assert judgement(queues, fair={"a": 2}, held={"a": 1}).may_begin()
    assert not judgement(queues, fair={"a": 2}, held={"a": 1.5}).may_begin()


def test_a_queue_above_its_share_in_a_resource_that_it_does_not_request_may_not_reclaim() -> None:
    over_cpu = judgement([given.queue("a")], fair={"a": 2}, held={}, request=(10, 0, 1000))

    assert not over_cpu.may_begin()


def test_a_non_preemptible_podgroup_must_also_stay_within_the_deserved_share_to_reclaim() -> None:
    poor, rich = [given.queue("a", deserved=0)], [given.queue("a", deserved=1)]

    assert not judgement(poor, fair={"a": 2}, held={}, preemptible=False).may_begin()
    assert judgement(rich, fair={"a": 2}, held={}, preemptible=False).may_begin()


def test_a_queue_that_does_not_exist_may_not_reclaim() -> None:
    lost = replace(given.queue("a", "nowhere"))

    assert not judgement([lost], fair={"a": 2}, held={}).may_begin()


def test_a_queue_keeps_the_larger_of_deserved_and_fair_share_up_to_its_limit() -> None:
    assert not maintains_fair_share(standing(deserved=3, fair=2), gpus(3))
    assert maintains_fair_share(standing(deserved=3, fair=2), gpus(3.1))
    assert maintains_fair_share(standing(deserved=3, fair=2, limit=1), gpus(1.5))


def test_a_deserved_share_may_be_reclaimed_from_a_queue_above_its_deserved_share_but_within_its_fair_share() -> None:
    rich = standing(deserved=2, fair=3)

    assert guarantees_deserved(standing(deserved=3, fair=3, held=2), rich, gpus(3), gpus(1))
    assert not guarantees_deserved(standing(deserved=2, fair=3, held=2), rich, gpus(3), gpus(1))
    assert not guarantees_deserved(standing(deserved=3, fair=3, held=2), rich, gpus(2), gpus(1))


def test_each_batch_of_victims_is_judged_after_the_earlier_batches() -> None:
    queues = [given.queue("a"), given.queue("b")]
    judge = judgement(queues, fair={"a": 2, "b": 2}, held={"b": 4})

    assert judge.reclaimable(taking(1, of="b", chunks=2))
    assert not judge.reclaimable(taking(1, of="b", chunks=3))


def test_queues_are_compared_below_their_common_ancestor() -> None:
    queues = [
        given.queue("a", "left"),
        given.queue("left"),
        given.queue("b", "right"),
        given.queue("c", "right"),
        given.queue("right"),
    ]
    shares = {"a": 2, "left": 2, "b": 1, "c": 2, "right": 3}

    within = judgement(queues, fair=shares, held={"b": 2, "c": 1})
    over = judgement(queues, fair=shares, held={"b": 2, "c": 2})

    assert not within.reclaimable(taking(1, of="b"))  # b is above its share, but right as a whole is not
    assert over.reclaimable(taking(1, of="c"))  # c is within its share, but right as a whole is above


def test_siblings_of_one_parent_are_compared_with_each_other() -> None:
    queues = [given.queue("a", "top"), given.queue("b", "top"), *TOP]

    assert judgement(queues, fair={"a": 1, "b": 1, "top": 2}, held={"b": 2}).reclaimable(taking(1, of="b"))


def test_several_queues_may_lose_pods_together() -> None:
    queues = [given.queue("a"), given.queue("b"), given.queue("c")]
    judge = judgement(queues, fair={"a": 2, "b": 1, "c": 1}, held={"b": 2, "c": 2}, request=gpus(2))

    assert judge.reclaimable(taking(1, of="b") | taking(1, of="c"))
    assert not judge.reclaimable(taking(1, of="b") | taking(1, of="c", chunks=2))


def test_a_queue_above_its_share_stays_less_saturated_than_the_queues_it_reclaims_from() -> None:
    queues = [given.queue("a", "p", deserved=2), given.queue("p"), given.queue("b", "q"), given.queue("q")]
    shares = {"a": 2, "p": 4, "b": 3, "q": 3}

    lower = judgement(queues, fair=shares, held={"p": 4, "b": 7})
    equal = judgement(queues, fair=shares, held={"p": 4, "b": 4.75})

    assert lower.reclaimable(taking(1, of="b"))  # 5/4 against 6/3
    assert not equal.reclaimable(taking(1, of="b"))  # 5/4 against 3.75/3


def test_an_overstated_saturation_refuses_what_was_just_fair() -> None:
    queues = [given.queue("a", "p"), given.queue("p"), given.queue("b")]
    shares, held = {"a": 2, "p": 4, "b": 3}, {"p": 4, "b": 7}

    assert judgement(queues, fair=shares, held=held, saturation_milli=1500).reclaimable(taking(1, of="b"))
    assert not judgement(queues, fair=shares, held=held, saturation_milli=1600).reclaimable(taking(1, of="b"))


def test_a_parent_without_a_share_reclaims_nothing_from_one_with_a_share() -> None:
    queues = [given.queue("a", "p"), given.queue("p"), given.queue("b")]

    assert not judgement(queues, fair={"a": 2, "p": 0, "b": 3}, held={"b": 7}).reclaimable(taking(1, of="b"))


def test_a_reclaim_without_victims_is_fair() -> None:
    assert judgement([given.queue("a")], fair={"a": 2}, held={"a": 5}).reclaimable({})


def test_pods_of_the_own_ancestors_are_not_reclaimed() -> None:
    queues = [given.queue("a", "top"), *TOP]

    assert not judgement(queues, fair={"a": 1, "top": 1}, held={"top": 3}).reclaimable(taking(1, of="top"))


@pytest.mark.parametrize("preemptible", [True, False])
def test_every_ancestor_must_deserve_what_a_non_preemptible_podgroup_requests(preemptible: bool) -> None:  # noqa: FBT001 # a table of two rows
    queues = [given.queue("a", "p", deserved=1), given.queue("p", deserved=0), given.queue("b")]
    judge = judgement(queues, fair={"a": 1, "p": 1, "b": 1}, held={"b": 2}, preemptible=preemptible)

    assert judge.reclaimable(taking(1, of="b")) is preemptible
