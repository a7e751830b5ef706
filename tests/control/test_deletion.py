"""Deletion at every stage: nothing stays of a gang, whatever its stage was."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.cluster.ledger.reservations import ReservationState
from app.model.marks import GATE
from app.model.names import GroupKey, PodUid
from app.model.seam import RawObject, Resource
from app.simulation.cluster import Ref
from tests.control.jobs import JOBS, job, pods_of, with_jobs
from tests.control.wired import World, living, passes

GANG = GroupKey("q", "gang")
URGENT = "build-preemptible"
TERMINATING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}

Gang = list[RawObject]
Stage = Callable[[World], Awaitable[Gang]]
Deletion = Callable[[World, Gang], None]


def traces(world: World, *, besides: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return everything that is still known, except of the pods of these names."""
    pods = [pod for pod in world.cache.pods.all() if pod.name not in besides]
    groups = {pod.group for pod in world.cache.pods.all() if pod.name in besides}
    found = {
        "pods": pods,
        "groups": [key for key in list(world.cache.groups.keys()) if key not in groups],
        "objects": list(world.cache.groups.specs.all()),
        "promises": dict(world.inspect.promises()),
        "waiting": world.inspect.waiting(),
        "refusals": dict(world.planning.refusals),
        "unsettled": dict(world.cache.groups.unsettled),
        "stale": dict(world.cache.groups.stale_since()),
        "standing": world.barrier.standing(GANG),
        "usage": {} if besides else world.cache.charges.usage(),
    }
    return {what: value for what, value in found.items() if value}


# Stages -------------------------------------------------------------------------------------------------------------


async def held(world: World) -> Gang:
    for node in ("a", "b"):
        world.runs(f"there-{node}", node)
    gang = world.gang("gang", size=2, gates=[GATE])
    await passes(3)
    assert [refusal for _, refusal in world.inspect.waiting()] != []
    return gang


async def awaiting(world: World) -> Gang:
    for node in ("a", "b"):
        world.runs(f"there-{node}", node)
    await passes(1)
    gang = world.gang("gang", size=2, priority_class=URGENT)
    await passes(3)
    assert world.inspect.promises() == {ReservationState.AWAITING: 2}
    return gang


async def promised(world: World) -> Gang:
    gang = world.gang("gang", size=2)
    await passes(2)
    assert world.inspect.promises() == {ReservationState.PROMISED: 2}
    return gang


async def at_the_barrier(world: World) -> Gang:
    gang = await promised(world)
    world.binding(gang[0], world.promised(gang[0]) or "")
    await passes(1)
    assert world.barrier.standing(GANG) == 1
    return gang


async def being_bound(world: World) -> Gang:
    gang = await promised(world)
    world.cluster.takes_s["bind"] = 3
    for pod in gang:
        world.binding(pod, world.promised(pod) or "")
    await passes(1)
    assert world.inspect.promises() == {ReservationState.BINDING: 2}
    return gang


async def bound(world: World) -> Gang:
    gang = await promised(world)
    for pod in gang:
        world.binding(pod, world.promised(pod) or "")
    await passes(2)
    assert len(world.bound()) == 2
    return gang


async def terminating(world: World) -> Gang:
    gang = await bound(world)
    for pod in gang:
        world.patch(pod, metadata=TERMINATING)
    await passes(1)
    return gang


async def stale(world: World) -> Gang:
    gang = await bound(world)
    world.delete(gang[0])
    await passes(5)
    assert GANG in world.cache.groups.stale_since()
    return gang[1:]


async def set_aside(world: World) -> Gang:
    gang = await promised(world)
    world.planning.attempts.dissolve(GANG, "the test wants it so")
    await passes(0.1)
    return gang


# Deletions ----------------------------------------------------------------------------------------------------------


def delete_pods(world: World, gang: Gang) -> None:
    for pod in gang:
        world.delete(pod)


def delete_object(world: World) -> None:
    world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"))


def pods_first(world: World, gang: Gang) -> None:
    delete_pods(world, gang)
    delete_object(world)


def object_first(world: World, gang: Gang) -> None:
    delete_object(world)
    delete_pods(world, gang)


def pods_are_terminating_first(world: World, gang: Gang) -> None:
    for pod in gang:
        world.patch(pod, metadata=TERMINATING)
    object_first(world, gang)


STAGES = [held, awaiting, promised, at_the_barrier, being_bound, bound, terminating, stale, set_aside]


@pytest.mark.parametrize("deletion", [pods_first, object_first, pods_are_terminating_first])
@pytest.mark.parametrize("stage", STAGES)
async def test_nothing_is_left_of_a_gang_that_is_deleted_with_its_podgroup(stage: Stage, deletion: Deletion) -> None:
    async with living("a", "b") as world:
        gang = await stage(world)

        deletion(world, gang)
        await passes(10)

        others = frozenset({"there-a-0", "there-b-0"} & {pod.name for pod in world.cache.pods.all()})
        assert traces(world, besides=others) == {}
        assert world.free_gpus() == dict.fromkeys(("a", "b"), 0 if others else 1)


@pytest.mark.parametrize("stage", STAGES)
async def test_the_resources_of_a_gang_whose_pods_are_deleted_go_to_the_next_gang(stage: Stage) -> None:
    async with living("a", "b") as world:
        gang = await stage(world)

        delete_pods(world, gang)
        for name in ("there-a", "there-b"):
            victims = [pod for pod in world.cluster.objects(Resource.PODS) if pod["metadata"]["name"] == f"{name}-0"]
            delete_pods(world, victims)
        after = world.pod("after", gpus=1), world.pod("another", gpus=1)
        await passes(5)

        assert sorted(filter(None, map(world.promised, after))) == ["a", "b"]


@pytest.mark.parametrize("stage", [promised, at_the_barrier, bound])
async def test_pods_whose_podgroup_is_deleted_start_no_more_and_running_ones_continue(stage: Stage) -> None:
    async with living("a", "b") as world:
        gang = await stage(world)
        before = world.bound()

        delete_object(world)
        await passes(30)

        assert world.bound() == before
        assert [pod.group for pod in world.cache.pods.all()] == [GANG] * len(gang)
        assert world.inspect.promises() == {}


@pytest.mark.parametrize("stage", STAGES)
async def test_nothing_is_left_of_one_deleted_member(stage: Stage) -> None:
    async with living("a", "b") as world:
        gone, *_ = await stage(world)
        uid = PodUid(gone["metadata"]["uid"])

        world.delete(gone)
        await passes(10)

        assert (world.cache.pods.get(uid), world.cache.reservations.get(uid)) == (None, None)
        assert uid not in {pod.uid for group, _ in world.inspect.waiting() for pod in group.pending}


@pytest.mark.parametrize("node", ["a", "b"])
async def test_nothing_is_reserved_on_a_deleted_node(node: str) -> None:
    async with living("a", "b") as world:
        await promised(world)

        world.delete_node(node)
        await passes(3)

        assert world.inspect.promises() == {}


# Owners and namespaces ----------------------------------------------------------------------------------------------


def delete_owner(world: World, owner: RawObject) -> None:
    world.cluster.delete(Ref.of(JOBS, owner))


def delete_objects(world: World) -> None:
    """Delete the PodGroups that were written, as the garbage collector does."""
    for group in world.cluster.objects(Resource.POD_GROUPS):
        world.cluster.delete(Ref.of(Resource.POD_GROUPS, group))


@pytest.mark.parametrize("order", ["owner, objects, pods", "objects, pods, owner", "pods, owner, objects"])
@pytest.mark.parametrize("starts", [True, False])
async def test_nothing_is_left_of_a_job_that_is_deleted_or_deleted_with_its_namespace(
    order: str, *, starts: bool
) -> None:
    async with living(cluster=with_jobs("a", "b") if starts else with_jobs("a")) as world:
        owner = job(world, batch_min_member=2)
        gang = pods_of(world, owner, "first", "second")
        await passes(3)
        assert world.inspect.promises() == ({ReservationState.PROMISED: 2} if starts else {})
        steps = {
            "owner": lambda: delete_owner(world, owner),
            "objects": lambda: delete_objects(world),
            "pods": lambda: delete_pods(world, gang),
        }

        for step in order.split(", "):
            steps[step]()
            await passes(1)
        delete_objects(world)  # whatever was written in between: its owner is gone
        await passes(30)

        assert traces(world) == {}
        assert world.cluster.objects(Resource.POD_GROUPS) == []
        assert set(world.free_gpus().values()) == {1}
