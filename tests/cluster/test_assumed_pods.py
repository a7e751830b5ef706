"""What a pod that admission let in is charged with, from the answer until the ledger charges the pod itself."""

import pytest

from app.cluster.ledger.assumed_pods import EXPIRES_AFTER_S, AssumedPods
from app.cluster.ledger.charge import Charge
from app.cluster.state.cache import ClusterCache
from app.model.names import NodeName, PodUid, QueueName
from app.model.resources import GPU, Resources
from tests import given

ORIGIN = ("team", "train-")
CHARGE = Charge(Resources(gpu_milli=1000), NodeName("a"), QueueName("default"))


def free_gpus(cache: ClusterCache, assumed: AssumedPods) -> int:
    return int(assumed.charged_on(cache.snapshot()).free[GPU].sum()) // 1000


def assuming(pods: int = 1) -> ClusterCache:
    cache = ClusterCache()
    cache.apply_node(given.node("a", gpus=4))
    for _ in range(pods):
        cache.assumed.add(ORIGIN, CHARGE, now=0.0)
    return cache


def test_an_assumed_pod_holds_its_node_and_pays_in_its_queue() -> None:
    cache = assuming(pods=2)

    charged = cache.assumed.charged_on(cache.snapshot())

    assert free_gpus(cache, cache.assumed) == 2
    assert charged.usage[QueueName("default")].allocated.gpu_milli == 2000


def test_the_planner_does_not_count_assumed_pods() -> None:
    assert assuming().snapshot().free[GPU].tolist() == [4000]


def test_an_assumed_pod_is_charged_once_from_its_reservation_on() -> None:
    cache = assuming()
    pod = given.pod("train-1", gpus=1)
    cache.assumed.show(ORIGIN, pod.uid)
    cache.apply_pod(pod)
    assert free_gpus(cache, cache.assumed) == 3

    cache.promises.make(pod.uid, NodeName("a"), expires_at=60.0)

    assert free_gpus(cache, cache.assumed) == 3
    assert cache.assumed.shown() == ()


def test_an_assumed_pod_that_is_deleted_gives_its_place_back_at_once() -> None:
    cache = assuming()
    pod = given.pod("train-1", gpus=1)
    cache.assumed.show(ORIGIN, pod.uid)
    cache.apply_pod(pod)

    cache.delete_pod(pod.uid)

    assert free_gpus(cache, cache.assumed) == 4


def test_a_pod_that_is_never_created_gives_its_place_back_in_time() -> None:
    cache = assuming()

    cache.assumed.expire(EXPIRES_AFTER_S)

    assert free_gpus(cache, cache.assumed) == 4


def test_a_pod_of_another_origin_ends_no_assumed_pod() -> None:
    cache = assuming()

    cache.assumed.show(("other", "train-"), PodUid("u"))
    cache.assumed.end(PodUid("u"))

    assert free_gpus(cache, cache.assumed) == 3


def test_a_pod_that_is_shown_twice_before_it_is_applied_is_one_assumed_pod() -> None:
    cache = assuming(pods=2)
    for _ in range(2):
        cache.assumed.show(ORIGIN, PodUid("train-1"))
    assert cache.assumed.shown() == (PodUid("train-1"),)

    cache.assumed.end(PodUid("train-1"))
    assert free_gpus(cache, cache.assumed) == 3

    cache.assumed.expire(EXPIRES_AFTER_S)
    assert free_gpus(cache, cache.assumed) == 4


@pytest.mark.parametrize("origin", [("team", "t" * 254), ("n" * 254, "train-")])
def test_a_pod_whose_name_or_namespace_cannot_exist_is_not_assumed(origin: tuple[str, str]) -> None:
    assert AssumedPods().has_room(ORIGIN)
    assert not AssumedPods().has_room(origin)
