"""Two replicas, of which one decides: what happens to pods when it is gone, and that it does not decide again."""

import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

import pytest

from tests.system.api import Api, gang, gpu_node, pod
from tests.system.bed import Bed
from tests.system.cluster import install
from tests.system.observer import Observer, Rules, Sight, breaches, lost, partial_stretches
from tests.system.pairs import Pair, allow_election, need_names, two_replicas
from tests.system.waiting import eventually

QUEUE = "default-queue"
CREW = 20
_rounds = count()


@pytest.fixture
def pairs(bed: Bed, api: Api) -> Iterator[tuple[Pair, Pair]]:
    """Run two replicas; the first is active."""
    need_names()
    install(api)
    allow_election(api)
    with two_replicas(bed, f"{next(_rounds)}") as both:
        yield both


def nodes(api: Api, number: int, *, gpus: int) -> dict[str, int]:
    """Create nodes with names that no other test uses; return their GPUs."""
    made = [gpu_node(f"standby-{next(_rounds):03}", gpus=gpus) for _ in range(number)]
    api.create_all(made)
    return {node["metadata"]["name"]: gpus for node in made}


def bound(pods: Sequence[Sight], prefix: str) -> int:
    return sum(one.counts for one in pods if one.name.startswith(prefix))


def all_bound(pods: Sequence[Sight], prefix: str, number: int) -> bool:
    return bound(pods, prefix) == number


def settle(observer: Observer, rules: Rules) -> None:
    """Wait until no pod is lost, and check that no rule was broken meanwhile."""
    eventually(lambda: lost(observer.history(), rules), until=lambda found: not found, within_s=30, what="all is told")
    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def test_one_of_two_replicas_decides_and_the_other_answers_nothing(api: Api, pairs: tuple[Pair, Pair]) -> None:
    active, standby = pairs
    (node,) = nodes(api, 1, gpus=2)

    api.create(pod("p", queue=QUEUE))
    api.wait_for_phase("Running", "p", within_s=20)
    asked = api.create(pod("asked", queue=QUEUE, spec={"schedulingGates": [{"name": "test/held"}]}))
    answer = standby.filter(asked, node)

    assert (active.failing(), standby.failing()) == (set(), {"active"})
    assert answer["Error"] == "Leeboard cannot answer now; its /readyz says why"
    assert not answer.get("NodeNames")
    assert not answer.get("FailedAndUnresolvableNodes")


def kill(pair: Pair) -> None:
    pair.kill()


def stop(pair: Pair) -> None:
    """End both programs at the same time, as the kubelet does with containers that have no order."""
    pair.send(signal.SIGTERM)
    pair.await_end()


@pytest.mark.parametrize("end", [kill, stop])
def test_the_other_replica_takes_over_during_the_start_of_a_gang(
    api: Api, bed: Bed, pairs: tuple[Pair, Pair], end: object
) -> None:
    active, standby = pairs
    rules = Rules(gpus=nodes(api, 5, gpus=6), min_members={"crew": CREW, "late": 5})

    with Observer(bed) as observer:
        api.create_all(gang("crew", size=CREW, queue=QUEUE))
        observer.wait_for(partial(bound, prefix="crew"), within_s=30, what="the first member is bound")
        ended_s = time.monotonic()
        assert callable(end)
        end(active)
        api.create_all([pod("single", queue=QUEUE), *gang("late", size=5, queue=QUEUE)])
        for prefix, number in (("crew", CREW), ("single", 1), ("late", 5)):
            observer.wait_for(
                partial(all_bound, prefix=prefix, number=number), within_s=40, what=f"{prefix} is bound whole"
            )
        print(f"  all bound {time.monotonic() - ended_s:.1f} s after the end")
        active.start()
        active.wait_until_standing_by()
        settle(observer, rules)
        print(f"  longest in part: {longest_in_part(observer, rules):.2f} s")

    assert standby.failing() == set()


def longest_in_part(observer: Observer, rules: Rules) -> float:
    stretches = partial_stretches(observer.history(), rules.min_members, until_s=time.monotonic())
    return max((one.lasted_s for one in stretches), default=0.0)


def test_a_replica_that_was_stopped_past_its_lease_does_not_decide(
    api: Api, bed: Bed, pairs: tuple[Pair, Pair]
) -> None:
    active, standby = pairs
    rules = Rules(gpus=nodes(api, 5, gpus=6), min_members={"crew": CREW})

    with Observer(bed) as observer:
        api.create_all(gang("crew", size=CREW, queue=QUEUE))
        observer.wait_for(partial(bound, prefix="crew"), within_s=30, what="the first member is bound")
        active.send(signal.SIGSTOP)
        stopped_with = bound(observer.present(), "crew")
        api.create_all(pod(f"single-{index}", queue=QUEUE) for index in range(20))
        standby.wait_until_active()
        active.send(signal.SIGCONT)
        active.await_end_of_scheduler()
        observer.wait_for(partial(all_bound, prefix="crew", number=CREW), within_s=40, what="crew is bound whole")
        observer.wait_for(partial(all_bound, prefix="single", number=10), within_s=40, what="the rest is full")
        active.start_scheduler()
        active.wait_until_standing_by()
        settle(observer, rules)
        print(f"  stopped with {stopped_with} bound; longest in part: {longest_in_part(observer, rules):.2f} s")

    assert standby.failing() == set()
    assert "replica is no longer active" in active.log()
