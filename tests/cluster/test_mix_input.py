"""How little the pods of one queue can change the typical mix, by each measure by which it is used."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from app.cluster.state import mix_input, pod_arrivals
from app.cluster.state.cache import ClusterCache
from app.model.mix import TypicalMix, TypicalPod, competing
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Pod, Sharing
from app.model.podgroup import GroupSpec
from app.model.queue import Entitlement
from app.model.resources import Resources
from app.scheduling.placement.expected_use import UNIT, expected_use
from tests import given

NODES, HONEST = 100, 400
CPU_PER_GPU = 8000
JUNK = QueueName("junk")
ONE_GPU = TypicalPod(1024, 0, 1, 1000)


def cluster(*queues: str) -> ClusterCache:
    """Build a cluster with four pods of the queue `q` on each node but the last, which is idle."""
    cache = ClusterCache()
    for number in range(NODES + 1):
        cache.apply_node(given.node(f"n{number:03}", device_memory_mib=1000))
    for name in ("q", "junk", *queues):
        cache.apply_queue(given.queue(name))
    run(cache, (plain(f"p{number}", number) for number in range(HONEST)))
    return cache


@pytest.fixture(autouse=True)
def counts_are_halved_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_arrivals, "MOST_COUNTED", 1000)


def plain(name: str, number: int, **more: object) -> Pod:
    pod = given.pod(name, **{"gpus": 1, "cpu": 1, **more})  # type: ignore[arg-type]
    return replace(pod, node=NodeName(f"n{number % NODES:03}"))


def run(cache: ClusterCache, pods: Iterable[Pod]) -> None:
    for pod in pods:
        cache.apply_pod(pod)


def run_and_end(cache: ClusterCache, pods: Iterable[Pod]) -> None:
    for pod in pods:
        cache.apply_pod(pod)
        cache.delete_pod(pod.uid)


def learnt(cache: ClusterCache) -> TypicalMix:
    return cache.arrivals.freeze(cache.snapshot()).mix()


def parts(mix: TypicalMix, *, of: Iterable[TypicalPod]) -> tuple[float, float, float, float]:
    """Return the part of these kinds in the pods, in what nodes are offered, in the GPUs, and by much CPU."""
    chosen, all_, some = set(of), [0.0] * 4, [0.0] * 4
    for kind, count, room in zip(mix.pods, mix.counts, mix.rooms, strict=True):
        more = max(kind.cpu_milli / (kind.gpu_milli * CPU_PER_GPU / 1000), 1.0)
        each = 1, 1 / competing(room, mix.gpu_nodes), kind.gpu_milli, kind.gpu_milli * more * more
        for index, weight in enumerate(each):
            all_[index] += count * weight
            some[index] += count * weight * (kind in chosen)
    first, second, third, fourth = (one / whole for one, whole in zip(some, all_, strict=True))
    return first, second, third, fourth


def junk_in(mix: TypicalMix) -> list[TypicalPod]:
    return [kind for kind in mix.pods if kind != ONE_GPU and kind.cpu_milli != 4000]


SHARE = 1 / (HONEST + 2)
"""The part of a queue that holds nothing: it counts as if it held one GPU."""


WAITING: tuple[dict[str, object], ...] = (
    {"gpus": 7},
    {"gpus": 8, "cpu": 64},
    {"gpus": 0, "cpu": 60, "sharing": Sharing(portion_ppm=1000)},
    {"gpus": 1, "cpu": 60},
)
SHAPES = "many GPUs, room on one node", "a whole node", "a thousandth of a GPU and much CPU", "much CPU"


@pytest.mark.parametrize("more", WAITING, ids=SHAPES)
@pytest.mark.parametrize("pods", [20, 2000])
def test_pods_that_wait_weigh_no_more_than_the_share_of_their_queue(more: dict[str, object], pods: int) -> None:
    cache = cluster()
    run(cache, (given.pod(f"j{number}", queue="junk", **more) for number in range(pods)))  # type: ignore[arg-type]

    mix = learnt(cache)

    assert max(parts(mix, of=junk_in(mix))) <= SHARE


def test_pods_that_use_no_gpu_give_their_queue_no_weight() -> None:
    cache = cluster()
    run(cache, (plain(f"c{number}", number, queue="junk", gpus=0, cpu=0) for number in range(2000)))
    run(cache, (given.pod(f"j{number}", queue="junk", gpus=7) for number in range(2000)))

    mix = learnt(cache)

    assert max(parts(mix, of=junk_in(mix))) <= SHARE


def test_pods_that_wait_in_many_shapes_weigh_no_more_together() -> None:
    cache = cluster()
    run(cache, (given.pod(f"j{number}", queue="junk", gpus=5 + number % 4, cpu=number % 64) for number in range(2000)))

    mix = learnt(cache)

    assert max(parts(mix, of=junk_in(mix))) <= SHARE
    assert ONE_GPU in mix.pods


@pytest.mark.parametrize("gpus", [0, 8])
def test_pods_that_start_and_end_at_once_weigh_no_more_than_four_times_the_share(gpus: int) -> None:
    cache = cluster()
    tiny = Sharing(portion_ppm=1000) if not gpus else None
    names = (f"j{number}" for number in range(3 * pod_arrivals.MOST_COUNTED))
    run_and_end(
        cache, (replace(plain(name, 0, queue="junk", gpus=gpus, sharing=tiny), node=NodeName("n100")) for name in names)
    )

    mix = learnt(cache)

    assert max(parts(mix, of=junk_in(mix))) <= 4 * SHARE


def test_pods_of_many_queues_that_start_and_end_at_once_weigh_no_more_together() -> None:
    names = [f"junk{number}" for number in range(20)]
    cache = cluster(*names)
    for name in names:
        run_and_end(cache, (plain(f"{name}-{number}", number, queue=name, gpus=4) for number in range(500)))

    mix = learnt(cache)

    assert max(parts(mix, of=junk_in(mix))) <= 4 * 20 / (HONEST + 21)


def test_tiny_pods_that_really_run_weigh_no_more_than_four_times_the_share_of_their_queue() -> None:
    cache = cluster()
    tiny = Sharing(portion_ppm=1000)
    pods = (plain(f"j{number}", number, queue="junk", gpus=0, cpu=0, sharing=tiny) for number in range(1000))
    run(cache, pods)

    mix = learnt(cache)

    assert cache.snapshot().usage[JUNK].allocated.gpu_milli == 1000
    assert max(parts(mix, of=junk_in(mix))) <= 4 * 2 / (HONEST + 3)


def test_the_only_queue_that_requests_memory_counts_in_full() -> None:
    cache = cluster()
    memory = Resources(gpu_milli=1000, memory_bytes=32 * given.GIB, pods=1)
    run(cache, (replace(plain(f"m{number}", number, queue="junk"), request=memory) for number in range(50)))

    mix = learnt(cache)

    assert dict(zip(mix.pods, mix.counts, strict=True))[TypicalPod(0, 32 * given.GIB, 1, 1000)] == 50 * mix_input.ONE


def test_the_only_queue_whose_pods_have_room_counts_in_full() -> None:
    cache = ClusterCache()
    for number in range(NODES):
        cache.apply_node(given.node(f"n{number:03}", device_memory_mib=1000))
    for name in ("large", "small"):
        cache.apply_queue(given.queue(name))
    run(cache, (plain(f"l{number}", number, queue="large", gpus=6) for number in range(NODES)))
    run(cache, (plain(f"s{number}", number, queue="small", gpus=1, cpu=2) for number in range(90)))

    mix = learnt(cache)

    assert dict(zip(mix.pods, mix.counts, strict=True))[TypicalPod(2048, 0, 1, 1000)] == 90 * mix_input.ONE


def test_a_queue_alone_has_the_whole_mix_whatever_its_pods_are() -> None:
    cache = cluster()
    run(cache, (plain(f"l{number}", number, gpus=4, cpu=8) for number in range(100)))
    mix = learnt(cache)

    counts = dict(zip(mix.pods, mix.counts, strict=True))
    assert counts[ONE_GPU] == HONEST * mix_input.ONE
    assert counts[TypicalPod(8192, 0, 4, 1000)] == 100 * mix_input.ONE


def test_pods_outside_every_queue_do_not_count() -> None:
    cache = cluster()
    run(cache, (plain(f"j{number}", number, queue="unknown", gpus=7) for number in range(2000)))
    run(cache, (given.pod(f"w{number}", queue="unknown", gpus=7) for number in range(2000)))

    assert not junk_in(learnt(cache))


def test_names_of_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_arrivals, "MOST_QUEUES", 10)
    cache = cluster()
    run(cache, (plain(f"j{number}", number, queue=f"unknown{number}") for number in range(100)))

    assert len(cache.arrivals._started) == 10
    # Queues that do not exist are forgotten when a mix is made.
    assert cache.arrivals.freeze(cache.snapshot()).started.keys() == cache.arrivals._started.keys() == {"q"}


def test_the_queue_that_a_pod_is_charged_to_counts_whatever_its_label_names() -> None:
    cache = cluster()
    cache.apply_group(GroupSpec(key=GroupKey("default", "gang"), queue=JUNK))
    run_and_end(cache, (plain(f"j{number}", number, gang="gang", queue="q", gpus=7) for number in range(500)))

    mix = learnt(cache)

    assert max(parts(mix, of=junk_in(mix))) <= 4 * SHARE


def test_many_shapes_of_one_queue_do_not_push_the_shapes_of_others_out_of_the_mix() -> None:
    cache = cluster()
    run_and_end(
        cache,
        (
            plain(f"j{number}", 0, queue="junk", gpus=1 + number % 8, cpu=2 + number % 60)
            for number in range(3 * pod_arrivals.MOST_COUNTED)
        ),
    )
    run(cache, (plain(f"rare{number}", number, gpus=2, cpu=3) for number in range(2)))

    mix = learnt(cache)

    assert {ONE_GPU, TypicalPod(3072, 0, 2, 1000)} <= set(mix.pods)
    assert max(parts(mix, of=set(junk_in(mix)) - {TypicalPod(3072, 0, 2, 1000)})) <= 4 * SHARE


@pytest.mark.parametrize("more", WAITING, ids=SHAPES)
def test_waiting_pods_of_another_queue_hardly_change_the_worth_of_nodes(more: dict[str, object]) -> None:
    before = expected_use(learnt(cluster()))
    cache = cluster()
    cache.apply_queue(replace(given.queue("junk"), gpu_milli=Entitlement(limit=0)))
    run(cache, (given.pod(f"j{number}", queue="junk", **more) for number in range(2000)))  # type: ignore[arg-type]
    after = expected_use(learnt(cache))

    assert before is not None
    assert after is not None
    for gpus in range(1, 9):
        assert after.whole_list[gpus] == pytest.approx(before.whole_list[gpus], rel=0.01)
        for cpu_milli in (0, 1000, 10_000, 60_000):
            short = [use.shortage(gpus * 1000, cpu_milli, 512 * given.GIB) for use in (before, after)]
            assert short[0] == pytest.approx(short[1], abs=0.03 * gpus * 1000 * UNIT)


def test_the_limit_holds_beside_all_that_other_queues_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_arrivals, "MOST_COUNTED", 10_000)
    cache = cluster()
    run(cache, (plain(f"r{number}", number, queue="junk", gpus=1, cpu=0) for number in range(96)))
    run_and_end(cache, (plain(f"j{number}", number, queue="junk", gpus=1, cpu=0) for number in range(5000)))

    mix = learnt(cache)

    limit = 4 * 97 / (HONEST + 98)
    assert limit - 0.01 < parts(mix, of=junk_in(mix))[0] < limit + 0.01
