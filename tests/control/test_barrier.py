import asyncio
from collections.abc import Collection

import pytest

from app.control.writers.bind_outcomes import BOUND
from app.model.names import GroupKey, NodeName, PodUid
from app.model.podgroup import GroupSpec
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from app.simulation.cluster import Ref
from tests.control.wired import World, living, passes, ref

GANG = GroupKey("q", "gang")


async def placed(world: World, pods: list[RawObject]) -> list[tuple[RawObject, str]]:
    """Let kube-scheduler filter each pod; return each with its node."""
    names = world.free_gpus()
    return [(pod, await world.choose(pod, *names)) for pod in pods]


def standing(world: World, placed: list[tuple[RawObject, str]]) -> list[asyncio.Task[str]]:
    return [world.binding(pod, node) for pod, node in placed]


async def test_a_whole_gang_is_reserved_when_kube_scheduler_asks_for_its_first_member() -> None:
    async with living("a", "b") as world:
        gang = world.gang("gang", size=2)

        await world.choose(gang[0], "a", "b")

        assert {world.promised(pod) for pod in gang} == {"a", "b"}


async def test_no_member_is_bound_before_the_last_required_member_calls_bind() -> None:
    async with living("a", "b", "c") as world:
        first, second, third = await placed(world, world.gang("gang", size=3))
        binds = standing(world, [first, second])
        await passes(10)
        assert world.bound() == {}

        binds += standing(world, [third])

        assert await asyncio.gather(*binds) == [BOUND] * 3
        assert len(world.bound()) == 3


async def test_members_beyond_the_minimum_are_bound_as_soon_as_the_minimum_is() -> None:
    async with living("a", "b", "c") as world:
        first, second, third = await placed(world, world.gang("gang", size=3, min_member=2))
        await asyncio.gather(*standing(world, [first, second]))

        assert await world.bind(*third) == BOUND


async def test_the_barrier_waits_for_each_sub_group_separately() -> None:
    async with living("a", "b", "c") as world:
        gang = world.gang("gang", size=3, min_member=2)
        parts = [{"name": name, "minMember": 1} for name in ("leader", "worker")]
        group = Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang")
        world.cluster.patch(group, {"spec": {"subGroups": parts}})
        for pod, part in zip(gang, ("leader", "worker", "worker"), strict=True):
            world.patch(pod, metadata={"labels": {"kai.scheduler/subgroup-name": part}})
        await passes(1)
        leader, *workers = await placed(world, gang)

        binds = standing(world, workers)
        await passes(10)
        assert world.bound() == {}

        assert await world.bind(*leader) == BOUND
        assert await asyncio.gather(*binds) == [BOUND] * 2


async def test_members_whose_binding_is_being_written_count_for_the_barrier() -> None:
    async with living("a", "b", "c") as world:
        first, second, third = await placed(world, world.gang("gang", size=3, min_member=2))
        world.cluster.takes_s["bind"] = 5
        standing(world, [first, second])
        await passes(1)

        standing(world, [third])
        await passes(1)

        assert len(world.cluster.binds) == 3


async def test_a_member_that_no_longer_waits_in_bind_does_not_count() -> None:
    async with living("a", "b", "c") as world:
        two = (await placed(world, world.gang("gang", size=3)))[:2]
        stands = [asyncio.create_task(world.barrier.stand(GANG, ref(pod).uid, NodeName(node))) for pod, node in two]
        await passes(1)

        stands[0].cancel()
        await passes(1)

        assert world.barrier.standing(GANG) == 1
        stands[1].cancel()
        await passes(1)
        assert world.barrier.standing(GANG) == 0


async def test_members_that_succeeded_count_for_the_barrier() -> None:
    async with living("a", "b") as world:
        first, second = await placed(world, world.gang("gang", size=2))
        await asyncio.gather(*standing(world, [first, second]))
        world.patch(first[0], status={"phase": "Succeeded"})
        world.delete(second[0])
        await passes(1)
        again = world.pod("again", group="gang")

        assert await world.bind(again, await world.choose(again, "a", "b")) == BOUND


async def test_a_member_refused_by_the_filters_of_kube_scheduler_makes_the_gang_return_unbound() -> None:
    async with living("a", "b") as world:
        first, second = await placed(world, world.gang("gang", size=2))
        (bind,) = standing(world, [first])
        await passes(1)

        world.refuse(second[0])
        await passes(1)

        assert await bind == "the gang can no longer start as a whole"
        assert (world.bound(), world.cache.reservations.of_group(GANG)) == ({}, [])
        assert world.reason(first[0]) is Reason.REFUSED_BY_SCHEDULER


async def test_a_cleared_nomination_is_a_refusal_too() -> None:
    async with living("a", "b") as world:
        first, second = world.gang("gang", size=2)
        world.refuse(second, "0/2 nodes are available.")  # From a time when the cluster was full.
        await placed(world, [first])
        world.patch(second, status={"nominatedNodeName": world.promised(second)})
        bind = world.binding(first, world.promised(first) or "")
        await passes(1)

        world.refuse(second, "0/2 nodes are available.")
        await passes(1)

        assert await bind == "the gang can no longer start as a whole"
        assert world.bound() == {}


async def test_a_gang_that_is_not_complete_in_time_returns_unbound_and_backs_off() -> None:
    async with living("a", "b", gang_barrier_s=45) as world:
        first, second = await placed(world, world.gang("gang", size=2))
        (bind,) = standing(world, [first])

        await passes(45.1)

        assert await bind == "kube-scheduler did not ask in time to bind all pods of the gang"
        assert world.count("binds", outcome="gang_incomplete") == 1
        assert (world.promised(first[0]), world.promised(second[0])) == (None, None)
        assert world.reason(first[0]) is Reason.BACKING_OFF


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_gang_that_backed_off_is_tried_again_after_twice_the_time_each_time(tries: int) -> None:
    async with living("a", "b", "c", gang_barrier_s=5) as world:
        gang = world.gang("gang", size=3)
        for attempt in range(tries):
            await passes(2**attempt + 1.5)
            await asyncio.gather(*standing(world, (await placed(world, gang))[:2]))  # They time out together.

        await passes(2**tries - 0.5)
        assert world.promised(gang[0]) is None
        await passes(2)
        assert world.promised(gang[0]) is not None


async def test_a_member_whose_node_is_deleted_while_it_waits_in_bind_is_not_bound_there() -> None:
    async with living("a", "b") as world:
        first, second = await placed(world, world.gang("gang", size=2))
        (bind,) = standing(world, [first])
        await passes(1)
        world.nodes("c")

        world.delete_node(first[1])
        await passes(1)

        assert await bind == "the node is no longer reserved for the pod; kube-scheduler will try again"
        assert {world.promised(first[0]), world.promised(second[0])} == {"c", second[1]}
        assert world.bound() == {}


async def test_a_member_that_is_deleted_while_it_waits_in_bind_does_not_count() -> None:
    async with living("a", "b", "c", gang_barrier_s=5) as world:
        first, second, third = await placed(world, world.gang("gang", size=3))
        binds = standing(world, [first, second])
        await passes(1)

        world.delete(first[0])
        await passes(1)
        binds += standing(world, [third])

        assert BOUND not in await asyncio.gather(*binds)
        assert world.bound() == {}


async def test_a_lower_minimum_releases_members_that_already_wait_in_bind() -> None:
    async with living("a", "b", "c") as world:
        first, second, _ = await placed(world, world.gang("gang", size=3))
        binds = standing(world, [first, second])
        await passes(1)

        world.cluster.patch(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"), {"spec": {"minMember": 2}})

        assert await asyncio.gather(*binds) == [BOUND, BOUND]


async def test_a_member_that_may_be_bound_at_the_moment_of_its_timeout_is_bound() -> None:
    async with living("a", "b", gang_barrier_s=5) as world:
        first, _ = await placed(world, world.gang("gang", size=2))
        (bind,) = standing(world, [first])

        def open_gate() -> None:
            world.cache.apply_group(GroupSpec(key=GANG, min_member=1))
            world.barrier.review()

        asyncio.get_running_loop().call_at(world.now() + 5 - 1e-10, open_gate)

        assert await bind == BOUND
        assert world.bound() == {"gang-0": first[1]}


async def test_the_barrier_counts_members_only_when_the_last_may_be_there_or_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with living(*(f"n{number}" for number in range(20))) as world:
        members = await placed(world, world.gang("gang", size=20))
        looks: list[GroupKey] = []
        owes = world.cache.groups.progress.owes

        def counted(key: GroupKey, coming: Collection[PodUid] = ()) -> int:
            looks.append(key)
            return owes(key, coming)

        monkeypatch.setattr(world.cache.groups.progress, "owes", counted)
        stands = [world.barrier.stand(GANG, ref(pod).uid, NodeName(node)) for pod, node in members]
        tasks = [asyncio.create_task(stand) for stand in stands[:19]]
        await asyncio.sleep(0)
        for _ in range(5):
            world.barrier.review()
        assert len(looks) == 1

        world.cache.groups.touched.mark(GANG)
        world.barrier.review()
        assert len(looks) == 2

        assert await stands[19] == ""
        assert await asyncio.gather(*tasks) == [""] * 19
        assert len(looks) == 3


async def test_a_member_whose_reservation_ends_before_it_waits_in_bind_is_refused_at_once() -> None:
    async with living("a", "b") as world:
        (first, node), _ = await placed(world, world.gang("gang", size=2))
        world.cache.promises.drop(ref(first).uid)

        assert (
            await world.barrier.stand(GANG, ref(first).uid, NodeName(node))
            == "the node is no longer reserved for the pod; kube-scheduler will try again"
        )
        assert world.barrier.standing(GANG) == 0


async def test_a_single_pod_does_not_wait_at_the_barrier() -> None:
    async with living("a") as world:
        pod = world.pod("alone")

        assert await world.bind(pod, await world.choose(pod, "a")) == BOUND


async def test_a_service_that_stops_releases_all_waiting_members_unbound() -> None:
    async with living("a", "b") as world:
        (first, _) = await placed(world, world.gang("gang", size=2))
        (bind,) = standing(world, [first])
        await passes(1)
        assert world.barrier.standing(GANG) == 1

        world.barrier.fail_all("Leeboard is stopping")

        assert await bind == "Leeboard is stopping"
        assert (world.barrier.standing(GANG), world.bound()) == (0, {})


async def test_a_gang_whose_podgroup_is_deleted_is_not_partially_bound() -> None:
    async with living("a", "b", "c") as world:
        first, second, _ = await placed(world, world.gang("gang", size=3))
        binds = standing(world, [first, second])
        await passes(1)

        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"))
        await passes(1)

        assert BOUND not in await asyncio.gather(*binds)
        assert world.bound() == {}


async def test_a_member_that_just_timed_out_does_not_block_the_barrier_for_the_others() -> None:
    async with living("a", "b") as world:
        (first, node), (second, other) = await placed(world, world.gang("gang", size=2))
        late = asyncio.create_task(world.barrier.stand(GANG, ref(first).uid, NodeName(node)))
        await passes(1)

        late.cancel()  # its future is cancelled at once, but it leaves a step of the loop later
        assert await world.barrier.stand(GANG, ref(second).uid, NodeName(other)) == ""
