"""The checks of a late plan: the extended resources of nodes, and nodes that have shrunk."""

import pytest

from app.cluster.state.cache import ClusterCache
from app.control.cycle.batches import PlanBatch
from app.control.cycle.recheck import Recheck
from app.model.decision import Action, Eviction, Placement, Start
from app.model.names import NodeName
from app.model.pod import Pod
from tests import given

SLICE = "nvidia.com/mig-3g.40gb"
A = NodeName("a")


def sliced(name: str, slices: int, **more: object) -> Pod:
    return given.pod(name, gpus=0, scalars=((SLICE, slices),), **more)  # type: ignore[arg-type] # free-form by design


def start(pod: Pod, *, waits: bool) -> Start:
    return Start(group=pod.group, placements=(Placement(pod.uid, A),), awaits_release=waits)


def eviction(pod: Pod, beneficiary: Pod) -> Eviction:
    return Eviction(pod=pod.uid, group=pod.group, node=A, action=Action.PREEMPT, beneficiary=beneficiary.group)


@pytest.fixture
def cache() -> ClusterCache:
    """A node with two GPUs and two slices of others."""
    found = ClusterCache()
    found.apply_queue(given.queue("q", deserved=8))
    found.apply_node(given.node("a", gpus=2, scalars=((SLICE, 2),)))
    return found


def test_a_slice_that_another_pod_has_reserved_is_not_reserved_again(cache: ClusterCache) -> None:
    pod, rival = sliced("pod", 2), sliced("rival", 1)
    for one in (pod, rival):
        cache.apply_pod(one)
    deal = PlanBatch((start(pod, waits=False),))
    assert Recheck(cache).admits(deal)

    cache.promises.make(rival.uid, A, expires_at=10.0)

    assert not Recheck(cache).admits(deal)


def test_no_pod_is_evicted_for_slices_of_which_another_pod_has_reserved_the_rest(cache: ClusterCache) -> None:
    pod, rival, victim = sliced("pod", 2), sliced("rival", 1), sliced("victim", 1, node=A)
    for one in (pod, rival, victim):
        cache.apply_pod(one)
    deal = PlanBatch((start(pod, waits=True),), (eviction(victim, pod),))
    assert Recheck(cache).admits(deal)

    cache.promises.make(rival.uid, A, expires_at=10.0)

    assert not Recheck(cache).admits(deal)


def test_no_pod_is_evicted_where_a_gpu_is_lost_that_the_plan_counted(cache: ClusterCache) -> None:
    pod, victim, stays = given.pod("pod"), given.pod("victim", node=A), given.pod("stays", node=A)
    for one in (pod, victim, stays):
        cache.apply_pod(one)
    deal = PlanBatch((start(pod, waits=True),), (eviction(victim, pod),))
    assert Recheck(cache).admits(deal)

    cache.apply_node(given.node("a", gpus=1))

    assert not Recheck(cache).admits(deal)
