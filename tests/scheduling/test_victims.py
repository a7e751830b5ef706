"""The order in which pods are evicted."""

from typing import Any

from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.scheduling.preemption.victims import Safety, VictimCandidates, Victims
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.quota import QueueLedger
from tests import given

ONE_QUEUE = (given.queue("q"),)


def runs(name: str, pods: int = 1, *, queue: str = "q", least: int | None = None, **more: Any) -> PodGroup:
    """Build a PodGroup that runs with all its pods."""
    own = [given.placed(given.pod(f"{name}{index}", gang=name, queue=queue), "a") for index in range(pods)]
    return given.group(running=own, min_member=pods if least is None else least, **more)


def order(*groups: PodGroup, queues: tuple[Queue, ...] = ONE_QUEUE, **safe: Safety) -> list[str]:
    """Return the order of victims, batch by batch."""
    snapshot = given.snapshot([given.node("a", gpus=8)], queues, groups)
    victims = Victims(
        VictimCandidates(snapshot),
        {},
        lambda group: safe.get(group.key.name, Safety.NONE),
        ledger=QueueLedger(snapshot),
        shares=fair_shares(snapshot),
    )
    chunks = iter(victims.pop, None)
    return [" ".join(one.pod.name for one in chunk.placed) for chunk in chunks]


def test_the_lowest_priority_is_evicted_first_and_of_equals_the_youngest() -> None:
    groups = [runs("old", created_at=1.0), runs("young", created_at=2.0), runs("low", priority=-1)]

    assert order(*groups) == ["low0", "young0", "old0"]


def test_of_podgroups_that_differ_only_by_name_the_one_with_fewer_pods_is_evicted_first() -> None:
    assert order(runs("z", 3), runs("y", 3, least=2), runs("a")) == ["y2", "a0", "y0 y1", "z0 z1 z2"]


def test_an_elastic_podgroup_loses_its_spare_pods_one_by_one_and_then_all_others_together() -> None:
    assert order(runs("e", 4, least=2)) == ["e3", "e2", "e0 e1"]


def test_a_podgroup_that_is_evicted_whole_loses_all_its_pods_together_or_none() -> None:
    whole = runs("w", 4, least=2, evicted_whole=True)

    assert order(whole, runs("e", 2, least=1)) == ["e1", "w0 w1 w2 w3", "e0"]
    assert order(whole, w=Safety.MINIMUM) == []


def test_non_preemptible_pods_are_never_victims() -> None:
    assert order(runs("firm", preemptible=False), runs("soft")) == ["soft0"]


def test_the_queue_that_is_fuller_by_its_share_loses_pods_first_without_earlier_victims() -> None:
    queues = given.queue("p", deserved=4), given.queue("q", deserved=4)
    groups = [runs(f"p{number}", queue="p") for number in range(3)] + [runs(f"q{number}") for number in range(2)]

    assert order(*groups, queues=queues) == ["p20", "q10", "p10", "q00", "p00"]


def test_a_protected_podgroup_is_left_out_and_one_with_a_protected_minimum_loses_pods_beyond_it() -> None:
    groups = [runs("all", 2, least=1), runs("some", 3, least=2)]

    assert order(*groups, all=Safety.ALL, some=Safety.MINIMUM) == ["some2"]
