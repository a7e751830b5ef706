"""The checks of a late plan with GPU shares: everything that still holds is admitted, and nothing taken meanwhile."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.cluster.ledger.reservations import Reservation, ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.batches import PlanBatch, deals
from app.control.cycle.recheck import Recheck
from app.model.decision import Action, Eviction, Placement, Start
from app.model.device import GpuNode
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod, Sharing
from app.model.podgroup import GroupSpec
from app.scheduling.planner.planner import plan
from tests import given
from tests.cluster.sharing_given import MIB, device, reservation

PER_NODE = 3


def reserve(cache: ClusterCache, node: str, names: Sequence[str]) -> None:
    """Make the GPUs of these names ready on a node, as its first devices."""
    pods = [replace(reservation(f"r-{node}-{name}", name), node=NodeName(node)) for name in names]
    for pod in pods:
        cache.apply_pod(pod)
    idle = [device(f"{node}-idle-{number}") for number in range(PER_NODE - len(names))]
    held = [device(f"{node}-{name}", pod) for name, pod in zip(names, pods, strict=True)]
    told = GpuNode(name=NodeName(node), devices=(*held, *idle), kubelet_answers=True)
    cache.apply_gpu_node(told, heard_at=0.0)


def add_node(cache: ClusterCache, name: str, *, gpus: int = PER_NODE) -> None:
    cache.apply_node(given.node(name, gpus=gpus, device_memory_mib=MIB))


def runs(name: str, node: str, ppm: int, *names: str, queue: str = "poor") -> Pod:
    """Build a pod that shares GPUs of a node."""
    return given.pod(
        name,
        gpus=0,
        queue=queue,
        node=NodeName(node),
        sharing=Sharing(portion_ppm=ppm, devices=len(names)),
        devices=names,
        device_uuids=tuple(f"{node}-{each}" for each in names),
    )


def waits(name: str, ppm: int = 0, *, gpus: int = 0, devices: int = 1, queue: str = "rich") -> Pod:
    sharing = Sharing(portion_ppm=ppm, devices=devices) if ppm else None
    return given.pod(name, gpus=gpus, queue=queue, sharing=sharing, created_at=1.0)


# Never stricter than the planner

portions = st.sampled_from([100_000, 333_333, 500_000, 700_000])
bound = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from([("g",), ("h",), ("g", "h")]),
    portions,
    st.sampled_from(["rich", "poor"]),
    st.booleans(),
)
waiting = st.tuples(portions | st.just(0), st.integers(1, 2), st.sampled_from(["rich", "rich", "poor"]))


@for_all(
    st.lists(bound, max_size=5),
    st.integers(0, 3),
    st.lists(waiting, min_size=1, max_size=4),
    st.integers(0, 6),
)
@settings(max_examples=250, deadline=None)
def test_every_batch_of_a_plan_is_admitted_while_the_cluster_is_unchanged(
    sharers: list[tuple[str, tuple[str, ...], int, str, bool]],
    wholes: int,
    asking: list[tuple[int, int, str]],
    deserved: int,
) -> None:
    cache = ClusterCache()
    cache.apply_queue(given.queue("rich", deserved=deserved))
    cache.apply_queue(given.queue("poor"))
    for node in "ab":
        add_node(cache, node)
    left = dict.fromkeys(((node, name) for node in "ab" for name in "gh"), 1_000_000)
    for number, (node, names, ppm, queue, is_leaving) in enumerate(sharers):
        if all(left[node, name] >= ppm for name in names):
            left.update({(node, name): left[node, name] - ppm for name in names})
            pod = runs(f"runs-{number}", node, ppm, *names, queue=queue)
            cache.apply_pod(replace(pod, deleting=is_leaving))
    for node in "ab":
        used = sorted({name for pod in cache.pods.all() if pod.node == node for name in pod.devices})
        reserve(cache, node, used)
        for number in range(min(wholes, PER_NODE - len(used)) if node == "a" else 0):
            cache.apply_pod(given.pod(f"whole-{number}", queue="poor", node=NodeName("a")))
    for number, (ppm, devices, queue) in enumerate(asking):
        cache.apply_pod(waits(f"waits-{number}", ppm, gpus=0 if ppm else 1, devices=devices, queue=queue))

    made = plan(cache.snapshot())

    recheck, left_to_do = Recheck(cache), list(deals(made))
    while left_to_do:
        deal = left_to_do.pop(0)
        assert recheck.admits(deal) or is_dropped_on_purpose(cache, deal, left_to_do), deal
        carry_out(cache, deal)


def is_dropped_on_purpose(cache: ClusterCache, deal: PlanBatch, later: Sequence[PlanBatch]) -> bool:
    """Whether a batch needs what the plan counted on and a late one may not, of whole GPUs or of parts."""
    if deal.waits:
        # A victim that the batch counts on was chosen again, for a later group.
        return any(eviction.node in nodes_of(deal) for each in later for eviction in each.evictions)
    # Beside room that a pod waits for, nothing more is started until the next plan.
    return any(held.node in nodes_of(deal) for held in awaiting(cache))


def nodes_of(deal: PlanBatch) -> set[NodeName]:
    return {place.node for each in deal.starts for place in each.placements}


def awaiting(cache: ClusterCache) -> list[Reservation]:
    return [held for held in cache.reservations if held.state is ReservationState.AWAITING]


def carry_out(cache: ClusterCache, deal: PlanBatch) -> None:
    for eviction in deal.evictions:
        cache.mark_leaving(eviction.pod)
    hold = cache.promises.await_release if deal.waits else cache.promises.make
    for start in deal.starts:
        for place in start.placements:
            hold(place.pod, place.node, place.devices, expires_at=10.0)


# What was taken meanwhile is refused


def start(*pods: Pod, on: str = "a", devices: Sequence[str] = (), waits_for_room: bool = False) -> Start:
    """Build the start of a gang whose sharing pods get these devices."""
    places = tuple(Placement(pod.uid, NodeName(on), tuple(devices) if pod.sharing else ()) for pod in pods)
    return Start(group=pods[0].group, placements=places, awaits_release=waits_for_room)


def eviction(pod: Pod, beneficiary: Pod) -> Eviction:
    assert pod.node
    return Eviction(pod=pod.uid, group=pod.group, node=pod.node, action=Action.RECLAIM, beneficiary=beneficiary.group)


@pytest.fixture
def cache() -> ClusterCache:
    found = ClusterCache()
    found.apply_queue(given.queue("rich", deserved=8))
    found.apply_queue(given.queue("poor"))
    found.apply_group(GroupSpec(key=GroupKey("default", "crew"), min_member=2))
    add_node(found, "a", gpus=2)
    return found


def test_a_part_that_another_pod_has_taken_is_refused(cache: ClusterCache) -> None:
    pod, rival = waits("pod", 500_000), waits("rival", 200_000)
    for one in (runs("there", "a", 400_000, "g"), pod, rival):
        cache.apply_pod(one)
    reserve(cache, "a", ["g"])
    deal = PlanBatch((start(pod, devices=["g"]),))
    assert Recheck(cache).admits(deal)

    cache.promises.make(rival.uid, NodeName("a"), ("g",), expires_at=10.0)

    assert not Recheck(cache).admits(deal)


def test_a_gpu_that_is_being_closed_or_contested_by_now_is_refused(cache: ClusterCache) -> None:
    pod = waits("pod", 500_000)
    cache.apply_pod(pod)
    reserve(cache, "a", ["g"])
    deal = PlanBatch((start(pod, devices=["g"]),))
    assert Recheck(cache).admits(deal)

    cache.gpu_books.close(NodeName("a"), "g")
    assert not Recheck(cache).admits(deal)
    cache.gpu_books.reopen(NodeName("a"), "g")
    cache.apply_pod(runs("there", "a", 100_000, "g"))
    cache.delete_pod(PodUid("uid-r-a-g"))

    assert not Recheck(cache).admits(deal)


@pytest.mark.parametrize(("ppm", "fits"), [(500_000, True), (500_001, False)])
def test_two_parts_of_one_new_gpu_must_fit_on_it_together(cache: ClusterCache, ppm: int, *, fits: bool) -> None:
    pods = [given.pod(name, gpus=0, gang="crew", queue="rich", sharing=Sharing(portion_ppm=ppm)) for name in "xy"]
    for pod in pods:
        cache.apply_pod(pod)
    reserve(cache, "a", [])

    assert Recheck(cache).admits(PlanBatch((start(*pods, devices=["n"]),))) is fits


def test_a_whole_gpu_for_a_new_shared_one_that_another_pod_has_taken_is_refused(cache: ClusterCache) -> None:
    pod, wholes = waits("pod", 500_000), [waits(f"whole-{number}", gpus=1) for number in range(2)]
    for one in (pod, *wholes):
        cache.apply_pod(one)
    reserve(cache, "a", [])
    deal = PlanBatch((start(pod, devices=["n"]),))
    cache.promises.make(wholes[0].uid, NodeName("a"), expires_at=10.0)
    assert Recheck(cache).admits(deal)

    cache.promises.make(wholes[1].uid, NodeName("a"), expires_at=10.0)

    assert not Recheck(cache).admits(deal)


def test_the_part_that_victims_release_of_a_gpu_still_in_use_is_no_whole_gpu(cache: ClusterCache) -> None:
    crew = [
        given.pod("part", gpus=0, gang="crew", queue="rich", sharing=Sharing(portion_ppm=500_000)),
        given.pod("whole", gpus=1, gang="crew", queue="rich"),
    ]
    victim, rival = runs("victim", "a", 600_000, "g"), waits("rival", gpus=1)
    for one in (*crew, victim, rival):
        cache.apply_pod(one)
    reserve(cache, "a", ["g"])
    deal = PlanBatch((start(*crew, devices=["g"], waits_for_room=True),), (eviction(victim, crew[0]),))
    assert Recheck(cache).admits(deal)

    cache.promises.make(rival.uid, NodeName("a"), expires_at=10.0)

    assert not Recheck(cache).admits(deal)


def test_memory_of_a_large_gpu_is_charged_by_that_gpu(cache: ClusterCache) -> None:
    cache.apply_queue(given.queue("small", limit=1))
    cache.apply_node(given.node("b", gpus=2, device_memory_mib=4 * MIB))
    pods = [given.pod(name, gpus=0, queue="small", sharing=Sharing(memory_mib=500)) for name in "xyz"]
    for pod in pods:
        cache.apply_pod(pod)
    reserve(cache, "b", ["g"])
    recheck = Recheck(cache)

    # Half of the smallest GPU, by which a pod without a node is measured, and an eighth of these GPUs.
    assert [recheck.admits(PlanBatch((start(pod, on="b", devices=["g"]),))) for pod in pods] == [True] * 3


def test_a_pod_on_a_large_gpu_releases_what_it_was_charged(cache: ClusterCache) -> None:
    cache.apply_queue(given.queue("small", limit=1))
    cache.apply_node(given.node("b", gpus=2, device_memory_mib=4 * MIB))
    leaves, stays = (replace(runs(name, "b", 0, "g", queue="small"), sharing=Sharing(memory_mib=800)) for name in "xy")
    whole = waits("whole", gpus=1, queue="small")
    for pod in (leaves, stays, whole):
        cache.apply_pod(pod)
    reserve(cache, "b", ["g"])
    deal = PlanBatch((start(whole, on="b", waits_for_room=True),), (eviction(leaves, whole),))

    assert not Recheck(cache).admits(deal)
