"""Gangs that lose members are restarted whole or get a replacement; suspended gangs get neither."""

import pytest

from app.model.names import GroupKey, NodeName, QueueName
from app.model.question import Fits
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from app.settings import Settings
from app.simulation.cluster import Ref
from tests.control.jobs import job, pods_of, start, suspend, with_jobs
from tests.control.wired import World, living, passes

GANG = GroupKey("q", "gang")


def says(world: World, **spec: object) -> None:
    world.cluster.patch(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"), {"spec": spec})


async def running_gang(world: World, *nodes: str) -> list[RawObject]:
    """Let a gang run, one member a node."""
    gang = world.gang("gang", size=len(nodes))
    start(world, *zip(gang, nodes, strict=True))
    await passes(1)
    return gang


def lose_node(world: World, name: str, ready: str = "Unknown") -> None:
    conditions = [{"type": "Ready", "status": ready}]
    world.cluster.patch(Ref(resource=Resource.NODES, name=name), {"status": {"conditions": conditions}})


def asked(grace: str | None) -> dict[str, str]:
    return {} if grace is None else {"staleness_grace_period": grace}


def terminate(world: World, pod: RawObject) -> None:
    """Delete a pod that never ends: its kubelet does not answer."""
    world.patch(pod, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})


# Restarted whole, or one member replaced ----------------------------------------------------------------------------


@pytest.mark.parametrize(("grace", "before_s", "after_s"), [("5s", 4, 3), ("0s", 0, 2), ("90s", 70, 30)])
async def test_a_gang_with_a_failed_member_is_evicted_whole_after_its_own_grace_period(
    grace: str, before_s: float, after_s: float
) -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world, "a", "b")
        says(world, stalenessGracePeriod=grace)

        world.patch(first, status={"phase": "Failed"})
        await passes(before_s)
        assert world.cluster.evictions == []

        await passes(after_s)
        assert world.cluster.evictions == ["gang-1"]


async def test_a_gang_with_a_negative_grace_period_waits_for_the_replacement_of_the_lost_member() -> None:
    async with living("a", "b") as world:
        first, _ = await running_gang(world, "a", "b")
        says(world, stalenessGracePeriod="-1s")

        world.patch(first, status={"phase": "Failed"})
        await passes(1000)
        late = world.pod("late")
        again = world.pod("again", group="gang")
        await passes(2)

        assert world.cluster.evictions == []
        assert (world.promised(again), world.promised(late)) == ("a", None)


async def test_free_room_is_kept_for_a_gang_whose_member_is_replaced() -> None:
    async with living("a", "b", promise_ttl_s=20) as world:
        first, _ = await running_gang(world, "a", "b")
        says(world, stalenessGracePeriod="-1s")
        world.delete(first)
        again, late = world.pod("again", group="gang"), world.pod("late")
        await passes(50)

        answers = [await world.filter(pod, "a", "b") for pod in (late, again)]

        assert (isinstance(answers[0], Fits), answers[1]) == (False, Fits((NodeName("a"),)))


async def test_a_gang_that_succeeds_is_not_evicted_by_the_shortest_grace_while_its_results_are_read() -> None:
    async with living("a", "b", "c", stale_grace_s=0) as world:
        first, *_ = await running_gang(world, "a", "b", "c")
        world.cluster.takes_s["read_pod"] = 10

        world.patch(first, status={"phase": "Succeeded"})
        await passes(30)

        assert (world.cache.groups.progress.bound(GANG), world.cluster.evictions) == (3, [])


async def test_a_gang_with_finished_members_is_not_evicted_by_a_restart_with_the_shortest_grace() -> None:
    async with living("a", "b", stale_grace_s=1000) as world:
        first, _ = await running_gang(world, "a", "b")
        world.patch(first, status={"phase": "Succeeded"})
        await passes(1)
        world.cluster.takes_s["finished_pods"] = 20

        async with living(cluster=world.cluster, stale_grace_s=0) as restarted:
            await passes(30)

            assert (restarted.cache.groups.progress.bound(GANG), world.cluster.evictions) == (2, [])


# A node is lost -----------------------------------------------------------------------------------------------------


async def test_a_pod_whose_reserved_node_is_lost_gets_another_at_once_and_loses_the_nomination() -> None:
    async with living("a") as world:
        pod = world.pod("pod")
        await passes(1)
        world.nodes("b")
        await passes(1)
        assert world.promised(pod) == "a"

        lose_node(world, "a")
        await passes(0.5)

        assert world.promised(pod) == "b"
        assert await world.filter(pod, "a", "b") == Fits((NodeName("b"),))


async def test_a_lost_node_gets_no_reservations_until_it_is_back() -> None:
    async with living("a") as world:
        lose_node(world, "a", "False")
        pod = world.pod("pod")
        await passes(30)
        assert (world.promised(pod), world.reason(pod)) == (None, Reason.NO_NODE_FITS)

        lose_node(world, "a", "True")
        await passes(1)

        assert world.promised(pod) == "a"


async def test_a_gang_starts_elsewhere_when_the_node_of_a_member_at_the_barrier_is_lost() -> None:
    async with living("a", "b") as world:
        gang = world.gang("gang", size=2)
        await passes(1)
        first = next(pod for pod in gang if world.promised(pod) == "a")
        standing = world.binding(first, "a")
        await passes(1)
        world.nodes("c")

        lose_node(world, "a")
        await passes(1)

        assert standing.done()
        assert (standing.result(), world.barrier.standing(GANG)) == (
            "the node is no longer reserved for the pod; kube-scheduler will try again",
            0,
        )
        assert sorted(filter(None, map(world.promised, gang))) == ["b", "c"]


async def test_a_whole_gang_is_restarted_while_the_pods_of_a_dead_node_never_end() -> None:
    async with living("a", "b") as world:
        world.cluster.patch(
            Ref(resource=Resource.QUEUES, name="q"), {"spec": {"resources": {"gpu": {"quota": 2, "limit": 2}}}}
        )
        first, second = await running_gang(world, "a", "b")
        lose_node(world, "a")
        terminate(world, first)
        again, more = world.pod("again", group="gang"), world.pod("more", group="gang")
        await passes(Settings().stale_grace_s + 5)
        assert world.cluster.evictions == ["gang-1"]

        world.delete(second)
        world.nodes("c")
        await passes(3)

        assert sorted(filter(None, map(world.promised, (again, more)))) == ["b", "c"]
        assert world.cache.charges.usage()[QueueName("q")].allocated.gpu_milli == 2000


# Grouped by owners --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("owners", "pods"), [("10s", None), (None, "10s"), ("10s", "-1s")])
async def test_the_gang_of_a_job_is_evicted_whole_after_the_grace_of_its_owner_or_else_of_its_pods(
    owners: str | None, pods: str | None
) -> None:
    async with living(cluster=with_jobs("a", "b")) as world:
        owner = job(world, batch_min_member=2, **asked(owners))
        first, second = pods_of(world, owner, "first", "second", **asked(pods))
        start(world, (first, "a"), (second, "b"))
        await passes(2)

        world.patch(first, status={"phase": "Failed"})
        await passes(8)
        assert world.cluster.evictions == []

        await passes(4)
        assert world.cluster.evictions == ["second-0"]


async def test_a_suspended_gang_is_not_stale_has_no_reservations_and_starts_whole_when_resumed() -> None:
    async with living(cluster=with_jobs("a", "b", "c"), stale_grace_s=0) as world:
        owner = job(world, batch_min_member=2)
        first, second = pods_of(world, owner, "first", "second")
        start(world, (first, "a"), (second, "b"))
        (third,) = pods_of(world, owner, "third")
        await passes(2)
        assert world.promised(third) == "c"

        suspend(world, owner, suspended=True)
        await passes(1)
        world.delete(first)
        await passes(30)
        assert (world.promised(third), world.reason(third)) == (None, None)
        assert [refusal and refusal.reason for _, refusal in world.inspect.waiting()] == [Reason.OWNER_SUSPENDED]
        assert world.cluster.evictions == []

        for pod in (second, third):
            world.delete(pod)
        suspend(world, owner, suspended=False)
        again = pods_of(world, owner, "fourth", "fifth")
        await passes(2)
        assert all(map(world.promised, again))


async def test_a_member_at_the_barrier_returns_unbound_when_its_owner_is_suspended() -> None:
    async with living(cluster=with_jobs("a", "b")) as world:
        owner = job(world, batch_min_member=2)
        first, second = pods_of(world, owner, "first", "second")
        await passes(2)
        standing = world.binding(first, world.promised(first) or "")
        await passes(1)

        suspend(world, owner, suspended=True)
        await passes(1)

        assert standing.done()
        assert (world.inspect.promises(), standing.result()) == (
            {},
            "the node is no longer reserved for the pod; kube-scheduler will try again",
        )
        assert not isinstance(await world.filter(second, "a", "b"), Fits)


async def test_a_single_pod_continues_if_its_owner_is_resumed_before_the_pod_is_deleted() -> None:
    async with living(cluster=with_jobs("a")) as world:
        owner = job(world)
        suspend(world, owner, suspended=True)
        (pod,) = pods_of(world, owner, "alone")
        await passes(2)
        assert world.promised(pod) is None

        suspend(world, owner, suspended=False)
        await passes(2)

        assert world.promised(pod) == "a"


async def test_an_unreadable_grace_period_of_the_gang_of_a_job_is_reported() -> None:
    async with living(cluster=with_jobs("a", "b")) as world:
        pods_of(world, job(world, batch_min_member=2, staleness_grace_period="soon"), "first", "second")
        await passes(2)

        ((_, refusal),) = world.inspect.waiting()
        assert refusal is not None
        assert refusal.reason is Reason.POD_GROUP_IS_INVALID
        assert refusal.sentence.startswith("annotation kai.scheduler/staleness-grace-period cannot be read: 'soon' is")
