"""Two replicas, of which one decides: what becomes of pods when it goes, and that it never decides once more."""

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
from tests.system.pairs import Pair, allow_election, need_names
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
    number = next(_rounds)
    both = [Pair(bed, f"{name}-{number}") for name in ("one", "two")]
    for pair in both:
        pair.start()
    active, standby = eventually(partial(in_order, *both), within_s=40, what="one is active, the other stands by")
    yield active, standby
    for pair in both:
        pair.forget()


def in_order(one: Pair, other: Pair) -> tuple[Pair, ...]:
    """Return the one that decides, then the one that stands by; nothing while that is not so."""
    failing = one.failing(), other.failing()
    if failing == (set(), {"active"}):
        return one, other
    return (other, one) if failing == ({"active"}, set()) else ()


def nodes(api: Api, number: int, *, gpus: int) -> dict[str, int]:
    """Create nodes under names that no other test uses; return their GPUs."""
    made = [gpu_node(f"standby-{next(_rounds):03}", gpus=gpus) for _ in range(number)]
    api.create_all(made)
    return {node["metadata"]["name"]: gpus for node in made}


def bound(pods: Sequence[Sight], prefix: str) -> int:
    return sum(one.counts for one in pods if one.name.startswith(prefix))


def all_bound(pods: Sequence[Sight], prefix: str, number: int) -> bool:
    return bound(pods, prefix) == number


def wait_for_next_second() -> None:
    """Return when whatever is created from now on is younger: the API server tells ages in whole seconds."""
    this_second = int(time.time())
    eventually(lambda: int(time.time()) > this_second, within_s=2.0, what="the next second")


def settle(observer: Observer, rules: Rules) -> None:
    """Wait until no pod is lost, and see that nothing was broken meanwhile."""
    eventually(lambda: lost(observer.history(), rules), until=lambda found: not found, within_s=30, what="all is told")
    assert breaches(observer.history(), rules, until_s=time.monotonic()) == []


def kill(pair: Pair) -> None:
    pair.kill()


def stop(pair: Pair) -> None:
    """End both programs at the same time, as the kubelet does with containers that have no order."""
    pair.send(signal.SIGTERM)
    pair.await_end()


def longest_in_part(observer: Observer, rules: Rules) -> float:
    stretches = partial_stretches(observer.history(), rules.min_members, until_s=time.monotonic())
    return max((one.lasted_s for one in stretches), default=0.0)



@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("how", ["stop", "kill", "killboth"])
def test_x(api, bed, pairs, how, turn):
    active, standby = pairs
    rules = Rules(gpus=nodes(api, 5, gpus=6), min_members={"crew": CREW})
    with Observer(bed) as observer:
        if how == "killboth":
            api.create_all([*gang("crew", size=CREW, queue=QUEUE), *(pod(f"single-{index}", queue=QUEUE) for index in range(20))])
        else:
            api.create_all(gang("crew", size=CREW, queue=QUEUE))
        observer.wait_for(partial(bound, prefix="crew"), within_s=30, what="the first member is bound")
        if how == "stop":
            active.send(signal.SIGSTOP)
        else:
            active.kill()
        print("stopped with", bound(observer.present(), "crew"))
        if how != "killboth":
            api.create_all(pod(f"single-{index}", queue=QUEUE) for index in range(20))
        standby.wait_until_active()
        if how == "stop":
            active.send(signal.SIGCONT)
            active.await_end_of_scheduler()
        try:
            observer.wait_for(partial(all_bound, prefix="crew", number=CREW), within_s=15, what="crew is bound whole")
            observer.wait_for(partial(all_bound, prefix="single", number=10), within_s=15, what="the rest is full")
        finally:
            import json, pathlib
            d = pathlib.Path(f"/tmp/w/j/{how}-{turn}"); d.mkdir(parents=True, exist_ok=True)
            (d/"pods.json").write_text(json.dumps(api.get("/api/v1/pods"), indent=1, default=str))
            (d/"standby.log").write_text(standby.log()); (d/"active.log").write_text(active.log())
            (d/"history").write_text("\n".join(map(repr, observer.history())))
            print({p: bound(observer.present(), p) for p in ("crew","single")}, f"{longest_in_part(observer, rules):.2f}")
