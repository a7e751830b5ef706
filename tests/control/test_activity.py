from typing import Any

from app.control.activity import LOOK_EVERY_S, TRUSTED_FOR_S
from app.control.extender import UNREADY
from app.model.names import NodeName
from app.model.question import Failed, Fits
from app.model.seam import UnavailableError
from tests.control.wired import World, living, passes

LEASE = "leeboard/leeboard-scheduler"
BESIDE_US: dict[str, Any] = {"scheduler_lease": LEASE, "hostname": "pod-a"}


def active(world: World) -> bool:
    return next(check.passed for check in world.inspect.readiness() if check.name == "active")


async def test_the_only_replica_is_active() -> None:
    async with living("a") as world:
        assert active(world)


async def test_a_replica_is_active_while_the_kube_scheduler_beside_it_leads() -> None:
    async with living("a", **BESIDE_US) as world:
        assert not active(world)

        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(LOOK_EVERY_S + 1)

        assert active(world)
        assert await world.filter(world.pod("p"), "a") == Fits((NodeName("a"),))


async def test_a_name_that_only_begins_like_ours_is_somebody_else() -> None:
    async with living("a", **BESIDE_US) as world:
        world.cluster.holders[LEASE] = "pod-a-2_5b5c"
        await passes(LOOK_EVERY_S + 1)

        assert not active(world)
        assert await world.filter(world.pod("p"), "a") == Failed(UNREADY)
        assert "pod-a-2_5b5c" in world.activity.failure()


async def test_a_replica_that_is_no_longer_active_keeps_no_promise_and_sends_gangs_away() -> None:
    async with living("a", "b", **BESIDE_US) as world:
        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(LOOK_EVERY_S + 1)
        gang = world.gang("gang", size=2)
        bind = world.binding(gang[0], await world.choose(gang[0], "a", "b"))

        world.cluster.holders[LEASE] = "pod-b_77aa"
        await passes(LOOK_EVERY_S + 3)

        assert "no longer active" in await bind
        assert [world.promised(pod) for pod in gang] == [None, None]
        assert world.bound() == {}


async def test_a_lease_that_cannot_be_read_for_a_moment_changes_nothing() -> None:
    async with living("a", **BESIDE_US) as world:
        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(LOOK_EVERY_S + 1)
        world.cluster.errors["lease_holder"].extend([UnavailableError("down")] * 3)

        await passes(LOOK_EVERY_S * 2)

        assert active(world)


async def test_a_replica_that_cannot_read_the_lease_for_long_writes_no_binding_any_more() -> None:
    async with living("a", **BESIDE_US) as world:
        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(LOOK_EVERY_S + 1)
        pod = world.pod("p")
        node = await world.choose(pod, "a")
        world.cluster.errors["lease_holder"].extend([UnavailableError("down")] * 20)
        world.cluster.errors["bind"].extend([UnavailableError("down", retry_after_s=TRUSTED_FOR_S + 2)])

        bind = world.binding(pod, node)
        await passes(TRUSTED_FOR_S + 4)

        assert await bind == "this replica is no longer active"
        assert world.bound() == {}
