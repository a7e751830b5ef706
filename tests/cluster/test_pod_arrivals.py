"""The typical mix of pods: what is learnt of those that start and wait. `test_mix_input` has its bounds."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from app.cluster.state import mix_input
from app.cluster.state import pod_arrivals as arrivals
from app.cluster.state.cache import ClusterCache
from app.model.mix import TypicalMix, TypicalPod
from app.model.names import NodeName, QueueName
from app.model.pod import Pod, Sharing
from tests import given

Q = QueueName("q")

ASSUMED = TypicalPod(4000, 32 * given.GIB, 1, 1000)
"""One GPU with half of what a node of 8 GPUs, 64 cores and 512 GiB has per GPU."""

TWO = TypicalPod(1024, 0, 2, 1000)
"""CPU and memory are rounded up."""


def cluster(*pods: Pod, nodes: int = 4) -> ClusterCache:
    cache = ClusterCache()
    for number in range(nodes):
        cache.apply_node(given.node(f"n{number}", device_memory_mib=1000))
    for name in ("q", "junk"):
        cache.apply_queue(given.queue(name))
    for pod in pods:
        cache.apply_pod(pod)
    return cache


def bound(number: int, *, gpus: int = 2, **more: object) -> Pod:
    return replace(given.pod(f"p{number}", gpus=gpus, **more), node=NodeName(f"n{number % 4}"))  # type: ignore[arg-type]


def learnt(cache: ClusterCache) -> TypicalMix:
    mix = cache.arrivals.learn(cache.snapshot())
    assert mix is not None
    return mix


def weights(cache: ClusterCache) -> dict[TypicalPod, float]:
    mix = learnt(cache)
    return {kind: count / 1024 for kind, count in zip(mix.pods, mix.counts, strict=True)}


def test_without_pods_a_pod_of_one_gpu_is_assumed() -> None:
    assert weights(cluster()) == {ASSUMED: 20}


def test_without_gpu_nodes_there_is_no_mix() -> None:
    cache = ClusterCache()
    cache.apply_node(given.node("n", gpus=0))

    assert cache.arrivals.learn(cache.snapshot()) is None


def test_started_and_waiting_pods_count() -> None:
    half = Sharing(portion_ppm=500_000)
    cache = cluster(bound(1), bound(2), given.pod("w", gpus=0, cpu=3, sharing=half))

    assert weights(cache) == {ASSUMED: 20, TWO: 2, TypicalPod(3072, 0, 1, 500): 1}


def test_a_pod_counts_once_however_often_it_changes() -> None:
    pod = bound(1)
    cache = cluster(replace(pod, node=None), pod, replace(pod, labels={"a": "b"}), replace(pod, deleting=True))

    assert weights(cache)[TWO] == 1


def test_pods_of_other_schedulers_do_not_count() -> None:
    assert weights(cluster(replace(bound(1), managed=False))) == {ASSUMED: 20}


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": 0, "cpu": 4},
        {"gpus": 0, "scalars": (("example.com/gpu", 1 << 40),)},
        {"gpus": 9},
        {"gpus": 1, "cpu": 65},
        {"gpus": 1, "queue": "unknown"},
    ],
    ids=["no GPU", "another resource", "larger than a node", "more CPU than a node", "no such queue"],
)
def test_waiting_pods_that_say_nothing_about_gpus_do_not_count(more: dict[str, Any]) -> None:
    pods = [given.pod(f"w{number}", **{**more, "queue": more.get("queue", "q")}) for number in range(100)]

    assert weights(cluster(*pods)) == {ASSUMED: 20}


def test_one_queue_with_many_groups_does_not_hide_the_waiting_pods_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix_input, "MOST_OF_QUEUE", 5)
    junk = [given.pod(f"j{number}", gpus=1, cpu=2, queue="junk") for number in range(100)]

    found = weights(cluster(*junk, given.pod("w", gpus=2)))

    assert found[TypicalPod(2048, 0, 1, 1000)] == 5
    assert found[TWO] == 1


def test_the_mix_is_made_again_when_gpu_nodes_join() -> None:
    cache = cluster(nodes=1)
    assert learnt(cache).rooms == (1,)

    cache.apply_node(given.node("n1"))

    assert learnt(cache).rooms == (2,)


def test_the_mix_is_made_again_after_a_tenth_more_pods_have_started() -> None:
    cache = cluster()
    made = [learnt(cache)]
    for number in range(400):
        cache.apply_pod(bound(number, gpus=1, cpu=0))
        if learnt(cache) is not made[-1]:
            made.append(learnt(cache))

    totals = [sum(mix.counts) // 1024 - 20 for mix in made]
    assert totals[:4] == [0, 20, 40, 60]
    assert all(after - before >= max(before // 10, 20) for before, after in pairwise(totals))
    assert len(made) < 25


def test_the_mix_does_not_depend_on_the_order_of_the_events() -> None:
    pods = [bound(number, gpus=number % 3, cpu=number % 5) for number in range(60)]
    shuffled = Random(1).sample(pods, len(pods))
    one, other = learnt(cluster(*pods)), learnt(cluster(*shuffled))

    assert (one.pods, one.counts, one.rooms) == (other.pods, other.counts, other.rooms)


def test_the_rooms_are_the_nodes_with_room_for_one_more() -> None:
    shared = bound(4, gpus=0, sharing=Sharing(portion_ppm=600_000))
    cache = cluster(*(bound(number, gpus=8) for number in (1, 2, 3)), bound(0, gpus=7), replace(shared, devices=("d",)))
    mix = learnt(cache)
    rooms = dict(zip(mix.pods, mix.rooms, strict=True))

    assert rooms[ASSUMED] == 0
    assert rooms[TypicalPod(1024, 0, 8, 1000)] == 0
    # 0.4 of the shared GPU is left: too little for another pod with 0.6.
    assert rooms[TypicalPod(1024, 0, 1, 600)] == 0


def start(started: arrivals.PodArrivals, pods: int, *, gpus: int) -> None:
    for number in range(pods):
        started.note_start(given.pod(f"{gpus}-{number}", gpus=gpus), Q, 1000)


def counted(started: arrivals.PodArrivals) -> dict[TypicalPod, int]:
    node = given.snapshot([given.node("n", cpu=4000)], [given.queue(Q)], [])
    mix = started.learn(node)
    assert mix is not None
    return dict(zip(mix.pods, mix.counts, strict=True))


def test_old_pods_count_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST_COUNTED", 100)
    started = arrivals.PodArrivals()
    start(started, 100, gpus=2)
    start(started, 500, gpus=3)

    found = counted(started)
    assert found[TWO] == 100 * 1024 // 64
    assert found[TypicalPod(1024, 0, 3, 1000)] == pytest.approx(100 * 1024, rel=0.05)


def test_many_rare_kinds_are_bounded_and_erase_no_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST_KINDS", 10)
    monkeypatch.setattr(mix_input, "MOST_KINDS", 10)
    started = arrivals.PodArrivals()
    start(started, 100, gpus=2)
    for number in range(3000):
        started.note_start(given.pod(f"junk{number}", gpus=3 + number % 6, cpu=number), Q, 1000)
        started.note_start(given.pod(f"free{number}", gpus=0, cpu=number), Q, 1000)

    found = counted(started)
    assert len(found) <= 10
    assert found[TWO] == 100 * 1024


def test_the_mix_is_made_again_as_often_after_a_million_pods() -> None:
    started, node = arrivals.PodArrivals(), given.snapshot([given.node("n")], [given.queue(Q)], [])
    pod = given.pod("p")
    for _ in range(50_000):
        started.note_start(pod, Q, 1000)
    before = started.learn(node)
    for _ in range(arrivals.MOST_COUNTED // 10):
        started.note_start(pod, Q, 1000)

    assert started.learn(node) is not before
