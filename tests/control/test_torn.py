"""A partially bound gang while others want the same room: no other pod takes what its rest needs."""

from app.control.cycle.releases import ALWAYS_COMPLETE_BELOW
from app.model.names import GroupKey
from app.model.question import Fits, Refused
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from app.settings import Disruption
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Job
from tests.control.wired import World, lets_in, living, passes

KEPT_S = 60.0
"""For how long room is kept for the rest of a gang, by default."""

LEFT_OUT_S = 2.0
"""The backoff of a gang after its first failed attempt."""


def bound_in_part(world: World, *, size: int, node: str = "a", gpus: int = 1) -> list[RawObject]:
    """Create a gang whose first member was bound by a replica that is gone."""
    first, *rest = world.gang("gang", size=size, gpus=gpus)
    bind(world, first, node)
    return rest


def never_stale(world: World) -> None:
    """Let lost members of the gang be replaced, however long that takes."""
    ref = Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang")
    world.cluster.patch(ref, {"spec": {"stalenessGracePeriod": "-1s"}})


def bind(world: World, pod: RawObject, node: str) -> None:
    """Bind a pod as another replica does."""
    world.patch(pod, spec={"nodeName": node}, status={"phase": "Running"})


def crowd(world: World, *, gpus: int = 4) -> None:
    """Add a node full of pods beyond the share of another queue, which stay: without them the gang's rest would fit."""
    world.nodes("full", gpus=gpus)
    world.queue("firm")
    world.runs("there", "full", queue="firm", gpus=gpus, priority_class="build")


async def test_a_late_binding_by_another_replica_costs_the_gang_none_of_its_reservations() -> None:
    async with living("a", "b", gpus=2) as world:
        second, third = bound_in_part(world, size=3)
        await passes(1)
        pods = [world.pod("promised"), world.pod("waits")]
        await passes(1)
        late, early = (second, third) if world.promised(second) == "b" else (third, second)

        bind(world, late, "a")
        answers = [await world.filter(pod, "a", "b") for pod in reversed(pods)]
        await passes(1)

        assert world.promised(early) == "b"
        assert [world.promised(pod) for pod in pods] == ["b", None]
        assert not any(isinstance(answer, Fits) for answer in answers[:1])
        assert world.free_gpus() == {"a": 0, "b": 0}


async def test_after_a_late_binding_by_another_replica_a_single_pod_loses_its_reservation_before_a_member() -> None:
    async with living("a", gpus=3) as world:
        (second,) = bound_in_part(world, size=2)
        alone = world.pod("alone")
        await passes(1)
        late = world.pod("late")
        await passes(1)
        assert (world.promised(second), world.promised(alone), world.promised(late)) == ("a", "a", None)

        bind(world, late, "a")
        world.pod("asks")
        await passes(1)

        assert (world.promised(second), world.promised(alone)) == ("a", None)
        assert world.free_gpus() == {"a": 0}


async def test_a_single_pod_loses_its_reservation_to_a_gang_whose_member_has_lost_its_node() -> None:
    async with living("a", "b", "c") as world:
        (second,) = bound_in_part(world, size=2)
        await passes(1)
        alone = world.pod("alone")
        await passes(1)
        refused, other = world.promised(second), world.promised(alone)
        assert {refused, other} == {"b", "c"}

        await world.filter(second, nominated=refused)
        await passes(1)

        assert (world.promised(second), world.promised(alone)) == (other, refused)


async def test_a_single_pod_within_the_deserved_share_of_its_queue_keeps_its_reservation() -> None:
    async with living("a", "b", "c", actions=frozenset[Disruption]()) as world:
        world.queue("owed", gpus=1)
        (second,) = bound_in_part(world, size=2)
        await passes(1)
        alone = world.pod("alone", queue="owed")
        await passes(1)
        refused, other = world.promised(second), world.promised(alone)
        assert {refused, other} == {"b", "c"}

        await world.filter(second, nominated=refused)
        await passes(1)

        assert (world.promised(second), world.promised(alone)) == (None, other)


async def test_no_reservation_moves_to_room_that_is_kept_for_the_rest_of_a_gang() -> None:
    async with living("a", "kept", gpus=2) as world:
        crowd(world, gpus=10)
        bound_in_part(world, size=3, gpus=2)
        others = [f"full-{number}" for number in range(ALWAYS_COMPLETE_BELOW)]
        world.nodes("small")
        world.nodes(*others, gpus=0)
        await passes(1)
        alone = world.pod("alone")
        await passes(1)
        assert world.promised(alone) == "small"

        assert await world.filter(alone, "kept", *others) == Refused(Reason.DECIDING)
        await passes(1)

        assert world.promised(alone) == "small"
        assert world.cluster.nominations == [("alone-0", "small")]


async def test_room_for_a_part_of_the_rest_is_left_to_the_gang() -> None:
    async with living("a", "b") as world:
        crowd(world)
        rest = bound_in_part(world, size=3)
        await passes(1)
        single = world.pod("single")
        refused = await world.filter(single, "b")
        await passes(1)
        assert (isinstance(refused, Fits), world.promised(single)) == (False, None)

        world.nodes("c")
        await passes(1)

        assert sorted(filter(None, map(world.promised, rest))) == ["b", "c"]
        assert world.promised(single) is None


async def test_room_that_the_gang_cannot_use_is_given_to_other_pods() -> None:
    async with living("a", "b", gpus=4) as world:
        world.runs("there", "b", gpus=3)
        bound_in_part(world, size=2, gpus=4)
        await passes(1)
        single = world.pod("single")
        await passes(1)

        assert world.promised(single) == "b"


async def test_room_is_kept_at_most_a_minute_for_a_gang_that_may_never_be_stale() -> None:
    async with living("a", "b") as world:
        crowd(world)
        bound_in_part(world, size=3)
        never_stale(world)
        single = world.pod("single")
        await passes(KEPT_S - 5)
        assert world.promised(single) is None

        await passes(10)

        assert world.promised(single) == "b" or "single-0" in world.bound()
        assert world.cluster.evictions == []


async def test_a_restart_does_not_restart_the_time_for_which_room_is_kept() -> None:
    async with living("a", "b") as world:
        crowd(world)
        bound_in_part(world, size=3)
        never_stale(world)
        await passes(KEPT_S + 5)

        async with living(cluster=world.cluster) as restarted:
            single = restarted.pod("single")
            await passes(2)

            assert restarted.promised(single) == "b"


async def test_a_gang_in_backoff_finds_its_room_afterwards() -> None:
    async with living("a", "b") as world:
        (second,) = bound_in_part(world, size=2)
        await passes(1)
        world.planning.attempts.dissolve(
            GroupKey("q", "gang"), "kube-scheduler did not ask in time to bind all pods of the gang"
        )
        single = world.pod("single")
        assert not isinstance(await world.filter(single, "b"), Fits)
        await passes(LEFT_OUT_S + 1)

        assert (world.promised(second), world.promised(single)) == ("b", None)


async def test_room_is_free_for_other_pods_when_the_rest_of_the_gang_is_deleted() -> None:
    async with living("a", "b") as world:
        crowd(world)
        second, _ = bound_in_part(world, size=3)
        single = world.pod("single")
        await passes(1)
        assert world.promised(single) is None

        world.delete(second)
        await passes(1)

        assert world.promised(single) == "b"


async def test_a_gang_without_bound_members_keeps_nothing_from_other_pods() -> None:
    async with living("a", "b") as world:
        world.gang("gang", size=3)
        single = world.pod("single")
        await passes(1)

        assert world.promised(single) is not None


async def test_admission_passes_no_pod_to_room_that_the_rest_of_a_gang_needs() -> None:
    async with living("a", "b") as world:
        crowd(world)
        bound_in_part(world, size=3)
        await passes(1)

        assert not lets_in(world.fast_path, manifests.pod(Job(name="new", queue="q", gpus=1, cpu=0)))


async def test_a_partially_bound_gang_that_never_gets_its_room_releases_everything_in_the_end() -> None:
    async with living("a", "b") as world:
        crowd(world)
        bound_in_part(world, size=3)
        single = world.pod("single")
        await passes(70)

        assert world.promised(single) is not None or world.bound().get("single-0")
