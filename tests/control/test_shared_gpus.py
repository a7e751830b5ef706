"""GPUs that pods share, from the reservation pod to the binding, and all failures between them."""

import pytest

from app.cluster.gpus.shared_gpus import GpuState
from app.cluster.ledger.reservations import ReservationState
from app.control.leadership.leadership import Leadership
from app.model.marks import GATE
from app.model.names import GroupKey
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import Job
from tests.control.gpu_machines import (
    GRACE_S,
    exists,
    gpu_is_free,
    machines,
    part,
    runs,
    sharer,
    stands,
)
from tests.control.wired import World, passes

# The usual way


async def test_a_gpu_is_opened_by_its_first_pod_joined_by_the_next_and_closed_by_the_last() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        first = sharer(world, "first")
        assert await runs(world, first) == ["GPU-a-0"]
        second = sharer(world, "second")
        assert await runs(world, second) == ["GPU-a-0"]
        assert (len(a.reservations()), gpu_is_free(world, "a")) == (1, 1)

        world.delete(first)
        await passes(1)
        assert len(a.reservations()) == 1
        world.delete(second)
        await passes(1)

        assert (a.reservations(), gpu_is_free(world, "a"), stands(world)) == ([], 2, [])


async def test_a_podgroup_shows_the_gpu_shares_that_its_pods_request_and_hold() -> None:
    async with machines("a") as (world, _):
        job = Job(name="gang", queue="q", group="gang")
        world.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=1))
        first, *_ = [sharer(world, f"w{number}", pod_group_name="gang") for number in range(3)]
        await runs(world, first)
        await passes(3)

        (group,) = world.cluster.objects(Resource.POD_GROUPS)
        numbers = group["status"]["resourcesStatus"]

        assert numbers["requested"]["nvidia.com/gpu"] == "1500m"
        assert numbers["allocated"]["nvidia.com/gpu"] == "1"


async def test_a_gated_pod_is_released_only_when_its_gpu_is_ready() -> None:
    async with machines("a") as (world, (a,)):
        a.reports = False
        pod = sharer(world, "pod", gates=[GATE])
        await passes(5)
        assert (world.cluster.releases, len(a.reservations())) == ([], 1)

        a.reports = True
        await passes(1)

        assert world.cluster.releases == ["pod-0"]
        assert await runs(world, pod) == ["GPU-a-0"]


async def test_pods_of_two_podgroups_share_a_gpu_that_is_opening() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        pods = [sharer(world, f"pod-{number}", "0.3") for number in range(3)]

        assert await runs(world, *pods) == ["GPU-a-0"] * 3
        assert len(a.reservations()) == 1


async def test_deleting_the_pod_that_opened_a_gpu_does_not_harm_pods_that_joined() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        a.reports = False
        opener = sharer(world, "opener")
        await passes(1)
        joiner = sharer(world, "joiner")
        await passes(1)
        world.delete(opener)
        a.reports = True

        assert await runs(world, joiner) == ["GPU-a-0"]
        assert len(a.reservations()) == 1


async def test_a_pod_gets_shares_of_two_gpus_in_the_order_of_their_names() -> None:
    async with machines("a", gpus=3) as (world, (a,)):
        await runs(world, sharer(world, "there", "0.5"))

        (found,) = await runs(world, sharer(world, "pair", "0.5", gpu_fraction_num_devices="2"))

        assert sorted(found.split(",")) == ["GPU-a-0", "GPU-a-1"]
        assert (len(a.reservations()), gpu_is_free(world, "a")) == (2, 1)


def crew(world: World, size: int, fraction: str) -> list[RawObject]:
    """Create a gang of GPU shares."""
    job = Job(name="crew", queue="q", group="crew")
    world.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=size))
    return [sharer(world, f"crew-{member}", fraction, pod_group_name="crew") for member in range(size)]


async def test_a_gang_with_gpu_shares_starts_when_all_its_gpus_are_ready() -> None:
    async with machines("a", "b", gpus=1) as (world, (_, b)):
        b.binds_reservations = False
        gang = crew(world, 4, "0.5")
        await passes(5)
        assert [world.held(pod).state for pod in gang] == [ReservationState.AWAITING] * 4  # type: ignore[union-attr] # held

        b.binds_reservations = True

        assert sorted(await runs(world, *gang)) == ["GPU-a-0", "GPU-a-0", "GPU-b-0", "GPU-b-0"]


async def test_a_gang_with_gpu_shares_that_does_not_fit_opens_no_gpu() -> None:
    async with machines("a", gpus=1) as (world, (a,)):
        gang = crew(world, 3, "0.5")
        await passes(5)

        assert ([world.held(pod) for pod in gang], a.reservations()) == ([None] * 3, [])


# With victims


def rich(world: World) -> None:
    """Let `q` deserve nothing and `rich` one GPU, so that it reclaims."""
    world.queue("rich", gpus=1)


def wants(world: World, name: str, fraction: str) -> RawObject:
    """Create a pod of queue `rich` that requests a GPU share."""
    return world.cluster.create(Resource.PODS, part(name, fraction, queue="rich"))


async def test_a_gpu_share_is_reclaimed_from_a_pod_on_the_same_gpu_that_stays_shared() -> None:
    async with machines("a") as (world, (a,)):
        rich(world)
        pods = [sharer(world, f"pod-{number}", "0.5") for number in range(2)]
        await runs(world, *pods)
        (kept,) = [pod["metadata"]["uid"] for pod in a.reservations()]

        claims = wants(world, "claims", "0.5")

        assert await runs(world, claims) == ["GPU-a-0"]
        assert [pod["metadata"]["uid"] for pod in a.reservations()] == [kept]
        assert sorted(exists(world, pod) for pod in pods) == [False, True]


async def test_a_gpu_share_is_reclaimed_from_a_whole_gpu() -> None:
    async with machines("a") as (world, (a,)):
        rich(world)
        whole = world.pod("whole")
        await runs(world, whole)

        assert await runs(world, wants(world, "claims", "0.5")) == ["GPU-a-0"]
        assert (exists(world, whole), len(a.reservations())) == (False, 1)


async def test_a_whole_gpu_is_reclaimed_from_all_pods_that_share_it() -> None:
    async with machines("a") as (world, (a,)):
        rich(world)
        pods = [sharer(world, f"pod-{number}", "0.5") for number in range(2)]
        await runs(world, *pods)

        claims = world.pod("claims", queue="rich")
        await runs(world, claims)

        assert (a.held_by(claims), a.reservations()) == (["GPU-a-0"], [])
        assert not any(exists(world, pod) for pod in pods)


async def test_memory_that_a_deleted_pod_still_seems_to_use_does_not_delay_other_pods_long() -> None:
    async with machines("a") as (world, (a,)):
        rich(world)
        pods = [sharer(world, f"pod-{number}", "0.5") for number in range(2)]
        await runs(world, *pods)
        a.states["GPU-a-0"] = {"memoryMiB": {"used": 79_000}}
        await passes(1)

        claims = wants(world, "claims", "0.3")
        await passes(5)
        a.states["GPU-a-0"] = {"memoryMiB": {"used": 39_000}}

        assert await runs(world, claims, within_s=10) == ["GPU-a-0"]


# No pod gets a GPU


async def test_a_pod_without_a_ready_gpu_in_time_backs_off_and_the_gpu_is_free_again() -> None:
    async with machines("a", device_ttl_s=10) as (world, (a,)):
        a.binds_reservations = False
        pod = sharer(world, "pod")
        await passes(11)
        assert "shared GPU was not ready in time" in backing_off(world, pod)

        world.delete(pod)
        await passes(GRACE_S + 10)

        assert (a.reservations(), gpu_is_free(world, "a")) == ([], 1)


def backing_off(world: World, pod: RawObject) -> str:
    refusal = world.planning.refusals.get(GroupKey("q", pod["metadata"]["uid"]))
    return refusal.sentence if refusal else ""


async def test_a_pod_without_a_ready_gpu_on_one_node_gets_one_on_another() -> None:
    async with machines("a", "b", device_ttl_s=10) as (world, (a, _)):
        a.binds_reservations = False

        assert await runs(world, sharer(world, "pod"), within_s=60) == ["GPU-b-0"]


async def test_other_pods_avoid_a_node_that_did_not_give_a_gpu_in_time_until_it_does() -> None:
    async with machines("a", "b", gpus=2, device_ttl_s=10) as (world, (a, _)):
        a.binds_reservations = False
        assert await runs(world, sharer(world, "first", "0.6")) == ["GPU-b-0"]

        assert await runs(world, sharer(world, "second", "0.6"), within_s=5) == ["GPU-b-1"]
        a.binds_reservations = True
        await passes(1)

        assert await runs(world, sharer(world, "third", "0.6")) == ["GPU-a-0"]


async def test_a_failed_reservation_pod_is_created_again_and_not_many_times_a_second() -> None:
    async with machines("a") as (world, (a,)):
        a.admits = False
        pod = sharer(world, "pod")
        await passes(20)
        assert 2 <= len(a.reserved) <= 10

        a.admits = True

        assert await runs(world, pod) == ["GPU-a-0"]


# Reservations that fail


async def test_a_gpu_made_ready_for_a_pod_that_is_deleted_before_its_binding_is_removed_after_a_while() -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod")
        await passes(2)
        assert (stands(world), world.promised(pod)) == ([GpuState.READY], "a")

        world.delete(pod)
        await passes(GRACE_S - 5)
        assert len(a.reservations()) == 1
        await passes(15)

        assert (a.reservations(), gpu_is_free(world, "a")) == ([], 1)


async def test_a_pod_created_before_that_removal_gets_the_prepared_gpu() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        pod = sharer(world, "pod")
        await passes(2)
        world.delete(pod)
        await passes(GRACE_S - 10)

        assert await runs(world, sharer(world, "next")) == ["GPU-a-0"]
        await passes(GRACE_S + 10)
        assert (len(a.reserved), len(a.reservations())) == (1, 1)


async def test_a_pod_that_others_bound_without_a_gpu_takes_none() -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod", gates=[GATE])
        await passes(2)
        world.patch(pod, spec={"nodeName": "a", "schedulingGates": None})
        await passes(GRACE_S + 10)

        assert (a.reservations(), gpu_is_free(world, "a")) == ([], 1)


async def test_nothing_is_planned_repeatedly_while_a_gpu_opens() -> None:
    async with machines("a") as (world, (a,)):
        a.binds_reservations = False
        pod = sharer(world, "pod")
        await passes(2)
        plans = world.applier.taken

        await passes(30)

        assert (world.held(pod) is not None, world.applier.taken - plans <= 2) == (True, True)


async def test_a_standby_remembers_no_deleted_reservation_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)
        with monkeypatch.context() as patch:
            # A lease that expires takes 15 s of other events; here it expires at once.
            patch.setattr(Leadership, "failure", lambda _: "another replica is active")
            world.delete(pod)
            world.delete(a.reservations()[0])
            await passes(2)

        assert world.cache.gpus.drain_changes().vanished == []
