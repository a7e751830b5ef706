import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from app.cluster import decode
from app.model.names import GroupKey, NodeName
from app.model.seam import (
    Depth,
    ForbiddenError,
    KubeError,
    Listed,
    RawObject,
    Resource,
    UnavailableError,
    WatchEvent,
)
from app.settings import Settings
from app.simulation.cluster import Ref
from tests.control.jobs import JOBS, job, pods_of, start, with_jobs
from tests.control.wired import FickleCluster, World, living, passes, ref

T = TypeVar("T")
GANG = GroupKey("q", "gang")


async def running_gang(world: World) -> list[RawObject]:
    """Let a gang of two run on nodes a and b."""
    gang = world.gang("gang", size=2)
    for pod, node in zip(gang, ("a", "b"), strict=True):
        await world.cluster.bind(ref(pod), NodeName(node), {})
    await passes(1)
    return gang


def satisfied(world: World) -> int:
    return world.cache.groups.progress.bound(GANG)


@pytest.mark.parametrize(("phase", "count"), [("Succeeded", 2), ("Failed", 1)])
async def test_a_gang_counts_a_finished_member_only_if_it_succeeded(phase: str, count: int) -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)

        world.patch(first, status={"phase": phase})
        await passes(1)

        assert satisfied(world) == count


async def test_the_resources_of_a_finished_member_are_free_before_its_result_is_known() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)
        world.cluster.takes_s["read_pod"] = 10

        world.patch(first, status={"phase": "Succeeded"})
        await passes(1)
        assert (world.free_gpus()["a"], satisfied(world)) == (1, 1)

        await passes(10)
        assert satisfied(world) == 2


async def test_a_finished_member_is_read_again_while_the_api_server_is_unavailable() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)
        world.cluster.errors["read_pod"].append(UnavailableError("away", retry_after_s=5))

        world.patch(first, status={"phase": "Succeeded"})
        await passes(6)

        assert satisfied(world) == 2


async def test_a_gang_that_finishes_while_its_pods_are_unreadable_for_long_is_not_evicted() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)
        world.cluster.errors["read_pod"] += [ForbiddenError("not yet")] * 10

        world.patch(first, status={"phase": "Succeeded"})
        with capture_logs():
            await passes(Settings().stale_grace_s + 10)

        assert (satisfied(world), world.cluster.evictions) == (2, [])


async def test_the_result_of_a_member_whose_podgroup_is_deleted_is_not_read_for_ever() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)
        world.cluster.errors["read_pod"] += [ForbiddenError("not yet")] * 10
        world.patch(first, status={"phase": "Succeeded"})
        await passes(0.5)

        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"))
        with capture_logs():
            await passes(10)

        assert len(world.cluster.errors["read_pod"]) == 9


async def test_finished_pods_are_listed_as_soon_as_possible() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)
        world.patch(first, status={"phase": "Succeeded"})
        await passes(1)
        world.cluster.errors["finished_pods"] += [ForbiddenError("not yet")] * 10

        with capture_logs():
            async with living(cluster=world.cluster) as restarted:
                await passes(20)

                assert satisfied(restarted) == 2


async def test_a_finished_pod_that_makes_the_decoder_fail_affects_no_other_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living("a", "b") as world:
        first, second = await running_gang(world)
        for pod in (first, second):
            world.patch(pod, status={"phase": "Succeeded"})
        await passes(1)
        # No object is known that makes decoding a pod fail, so the failure is injected here.
        monkeypatch.setattr(decode, "pod", lambda *_, **__: 1 // 0)

        with capture_logs():
            async with living(cluster=world.cluster) as restarted:
                await passes(5)

                assert restarted.freshness.failure() == ""


async def test_a_member_that_finished_while_the_watch_was_lost_counts_too() -> None:
    async with living("a", "b") as world:
        first, second = await running_gang(world)
        world.cluster.hide(Resource.PODS)
        world.patch(first, status={"phase": "Succeeded"})

        await world.feed._take(Resource.PODS, Listed([world.feed._keep(Resource.PODS, second)]))
        await passes(1)

        assert satisfied(world) == 2


async def test_members_being_deleted_or_never_started_and_single_pods_are_not_read() -> None:
    async with living("a", "b") as world:
        deleted, _ = await running_gang(world)
        waiting, alone = world.gang("other", size=1)[0], world.pod("alone")
        world.patch(deleted, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        world.cluster.errors["read_pod"].append(KubeError("nobody asks"))

        for pod in (deleted, waiting, alone):
            world.delete(pod)
        await passes(1)

        assert len(world.cluster.errors["read_pod"]) == 1


async def test_a_member_that_succeeded_before_leeboard_started_counts() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)
        world.patch(first, status={"phase": "Succeeded"})
        await passes(1)
        world.cluster.errors["finished_pods"].append(UnavailableError("away"))

        async with living(cluster=world.cluster) as restarted:
            await passes(5)

            assert satisfied(restarted) == 2


# Grouped by their owners --------------------------------------------------------------------------------------------


def key_of(owner: RawObject) -> GroupKey:
    name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
    return GroupKey("q", f"pg-{name}-{uid}")


async def test_a_succeeded_member_of_the_gang_of_a_job_counts_and_no_other_is_evicted() -> None:
    async with living(cluster=with_jobs("a", "b"), stale_grace_s=5) as world:
        owner = job(world, batch_min_member=2)
        first, second = pods_of(world, owner, "first", "second")
        start(world, (first, "a"), (second, "b"))
        await passes(2)

        world.patch(first, status={"phase": "Succeeded"})
        await passes(30)

        assert (world.cache.groups.progress.bound(key_of(owner)), world.cluster.evictions) == (2, [])


async def test_a_member_of_a_job_that_succeeded_before_leeboard_started_counts_by_its_owner() -> None:
    cluster = with_jobs("a", "b")
    async with living(cluster=cluster) as world:
        owner = job(world, batch_min_member=2)
        first, second = pods_of(world, owner, "first", "second")
        start(world, (first, "a"), (second, "b"))
        world.patch(first, status={"phase": "Succeeded"})
        await passes(1)

    async with living(cluster=cluster, stale_grace_s=0) as restarted:
        await passes(30)

        assert (restarted.cache.groups.progress.bound(key_of(owner)), cluster.evictions) == (2, [])


class SlowOwners(FickleCluster):
    """Lists the owners of pods slowly if the test tells it to."""

    owners_take_s = 0.0

    async def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        await asyncio.sleep(self.owners_take_s)
        async for event in super().follow(path, keep, depth=depth):
            yield event


async def test_owners_of_finished_pods_are_not_read_before_the_owners_are_listed() -> None:
    cluster = SlowOwners()
    async with living(cluster=with_jobs("a", "b", cluster=cluster)) as world:
        owner = job(world, batch_min_member=2)
        first, second = pods_of(world, owner, "first", "second")
        start(world, (first, "a"), (second, "b"))
        world.patch(first, status={"phase": "Succeeded"})
        await passes(1)
    cluster.owners_take_s = 5

    async with living(cluster=cluster, stale_grace_s=0) as restarted:
        await passes(30)

        assert (restarted.cache.groups.progress.bound(key_of(owner)), cluster.evictions) == (2, [])


async def test_a_member_whose_job_is_deleted_counts_by_the_annotation_that_bind_wrote() -> None:
    cluster = with_jobs("a", "b")
    async with living(cluster=cluster) as world:
        owner = job(world, batch_min_member=2)
        gang = pods_of(world, owner, "first", "second")
        await passes(3)
        await asyncio.gather(*(world.bind(pod, world.promised(pod) or "") for pod in gang))
        await passes(1)
        cluster.delete(Ref.of(JOBS, owner))
        world.patch(gang[0], status={"phase": "Succeeded"})
        await passes(1)

    async with living(cluster=cluster, stale_grace_s=0) as restarted:
        await passes(30)

        assert (restarted.cache.groups.progress.bound(key_of(owner)), cluster.evictions) == (2, [])


async def test_the_result_of_a_deleted_member_is_read_once_and_its_gang_is_stale_then() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world)

        world.delete(first)
        await passes(Settings().stale_grace_s + 5)

        assert world.cluster.evictions == ["gang-1"]
