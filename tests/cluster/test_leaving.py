"""Pods whose eviction is ordered count as terminating from that moment on, whatever the watch shows meanwhile."""

from dataclasses import replace

from app.cluster.state.cache import ClusterCache
from app.model.names import NodeName
from app.model.resources import GPU
from tests import given

N1 = NodeName("n1")
POD = replace(given.pod("p", gpus=2), node=N1)


def told() -> ClusterCache:
    """Build a cache in which a pod that runs on a node of 8 GPUs is marked for eviction."""
    cache = ClusterCache()
    cache.apply_node(given.node("n1"))
    cache.apply_queue(given.queue("q"))
    cache.apply_pod(POD)
    cache.mark_leaving(POD.uid)
    return cache


def room(cache: ClusterCache) -> tuple[int, int]:
    """Return how many GPUs are free, and how many are being released."""
    snapshot = cache.snapshot()
    releasing = 0 if snapshot.releasing is None else int(snapshot.releasing[GPU, 0])
    return int(snapshot.free[GPU, 0]) // 1000, releasing // 1000


def test_the_room_of_a_pod_marked_for_eviction_is_being_released_and_takes_no_pod_now() -> None:
    cache = told()

    assert room(cache) == (6, 2)
    assert dict(cache.snapshot().running) == {}


def test_a_watch_event_from_before_an_eviction_changes_nothing() -> None:
    cache = told()

    cache.apply_pod(replace(POD, task_priority=1))

    assert room(cache) == (6, 2)


def test_a_pod_whose_eviction_failed_runs_as_the_watch_shows_it() -> None:
    cache = told()
    later = replace(POD, task_priority=1)
    cache.apply_pod(later)

    cache.unmark_leaving(POD.uid)

    assert (room(cache), cache.pods.get(POD.uid)) == ((6, 0), later)


def test_a_pod_that_terminates_for_another_reason_still_does_after_its_eviction_failed() -> None:
    cache = told()
    cache.apply_pod(replace(POD, deleting=True))

    cache.unmark_leaving(POD.uid)

    assert room(cache) == (6, 2)


def test_the_eviction_mark_of_a_deleted_pod_is_forgotten() -> None:
    cache = told()

    cache.delete_pod(POD.uid)
    cache.unmark_leaving(POD.uid)

    assert (room(cache), cache.pods.get(POD.uid)) == ((8, 0), None)
