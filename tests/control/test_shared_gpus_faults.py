"""Shared GPUs whose reservation pod, device, agent or node has changed."""

import asyncio

import pytest

from app.cluster.gpus.shared_gpus import GpuState
from app.model.seam import RawObject, Resource, UnavailableError
from app.simulation import manifests
from tests.control.gpu_machines import Machine, exists, gpu_is_free, machines, runs, sharer, stands, uid_of
from tests.control.wired import World, passes

# The reservation pod has changed


async def test_a_deleted_reservation_pod_of_a_gpu_in_use_is_created_again() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)
        (before,) = a.reservations()

        world.delete(before)
        await passes(15)

        (after,) = a.reservations()
        assert (after["metadata"]["uid"] != before["metadata"]["uid"], a.held_by(after)) == (True, ["GPU-a-0"])
        assert (exists(world, pod), stands(world)) == (True, [GpuState.READY])


async def test_a_failed_reservation_pod_of_a_gpu_in_use_is_created_again() -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)

        a.fail(a.reservations()[0])
        await passes(15)

        assert (exists(world, pod), stands(world), len(a.reservations())) == (True, [GpuState.READY], 1)


async def test_reservation_pods_with_a_wrong_device_are_kept_until_one_gets_the_right_device() -> None:
    async with machines("a", gpus=8) as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)
        a.devices.reverse()

        world.delete(a.reservations()[0])
        await passes(90)

        (reservation,) = a.reservations()
        assert (exists(world, pod), a.held_by(reservation)) == (True, ["GPU-a-0"])
        assert gpu_is_free(world, "a") == 7


async def test_a_device_that_another_pod_has_by_now_is_left_to_it() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)
        a.binds_reservations = False
        world.delete(a.reservations()[0])
        await passes(1)
        thief = world.cluster.create(Resource.PODS, manifests.foreign_pod("thief", node="a", gpus=1))
        await passes(2)

        assert (a.held_by(thief), exists(world, pod)) == (["GPU-a-0"], False)
        a.both.clear()  # That is what another scheduler can do.


async def test_a_pod_bound_at_a_later_try_gets_the_device_that_its_gpu_has_by_then() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        world.cluster.errors["bind"].append(UnavailableError("busy", retry_after_s=15.0))
        binding = asyncio.create_task(runs(world, sharer(world, "pod")))
        await passes(3)
        assert (len(world.cluster.binds), a.held_by(a.reservations()[0])) == (1, ["GPU-a-0"])

        a.devices.reverse()
        world.delete(a.reservations()[0])

        assert (await binding, a.held_by(a.reservations()[0])) == (["GPU-a-1"], ["GPU-a-1"])


async def test_a_pod_is_not_bound_while_its_gpu_is_not_ready() -> None:
    async with machines("a") as (world, (a,)):
        world.cluster.errors["bind"].append(UnavailableError("busy", retry_after_s=15.0))
        pod = sharer(world, "pod")
        binding = asyncio.create_task(runs(world, pod))
        await passes(3)

        a.binds_reservations = False
        world.delete(a.reservations()[0])
        await passes(16)
        assert (len(world.cluster.binds), binding.done()) == (1, False)
        a.binds_reservations = True

        assert await binding == ["GPU-a-0"]


# The device or the node has changed


async def test_pods_of_a_removed_device_are_evicted() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)

        a.devices.remove("GPU-a-0")
        await passes(2)

        assert not exists(world, pod)
        assert world.cluster.marks == [("pod-0", "Pod q/pod-0 was given GPU GPU-a-0, which node a no longer has")]


async def test_pods_on_removed_devices_are_evicted_after_a_reboot_with_other_devices() -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)

        a.devices[:] = ["GPU-new"]
        a.fail(a.reservations()[0])
        await passes(20)

        assert not exists(world, pod)
        assert (a.reservations(), gpu_is_free(world, "a")) == ([], 1)
        assert await runs(world, sharer(world, "next")) == ["GPU-new"]


async def test_no_pod_is_evicted_and_none_starts_while_the_driver_cannot_be_read() -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod", "0.3")
        await runs(world, pod)

        a.status = {"message": "driver not loaded", "devices": []}
        await passes(30)
        late = sharer(world, "late", "0.3")
        await passes(30)
        assert (exists(world, pod), stands(world), world.held(late)) == (True, [GpuState.UNCONFIRMED], None)
        a.status = {}

        assert await runs(world, late) == ["GPU-a-0"]


async def test_pods_stay_and_none_starts_while_the_agent_is_silent() -> None:
    async with machines("a", agent_ttl_s=100) as (world, (a,)):
        pod = sharer(world, "pod", "0.3")
        await runs(world, pod)

        a.reports = False
        await passes(170)
        late = sharer(world, "late", "0.3")
        await passes(5)
        assert (exists(world, pod), stands(world), world.held(late)) == (True, [GpuState.UNCONFIRMED], None)
        a.reports = True
        await passes(61)

        assert await runs(world, late) == ["GPU-a-0"]


@pytest.mark.parametrize("state", [{"health": "Unhealthy"}, {"memoryMiB": {"foreign": 5_000}}])
async def test_an_unhealthy_device_takes_no_pods_until_it_is_healthy(state: RawObject) -> None:
    async with machines("a") as (world, (a,)):
        a.states["GPU-a-0"] = state
        await passes(1)
        whole, shared = world.pod("whole"), sharer(world, "shared")
        await passes(5)
        assert (world.held(whole), world.held(shared)) == (None, None)
        world.delete(whole)

        a.states.clear()

        assert await runs(world, shared) == ["GPU-a-0"]


async def test_a_pod_that_opened_a_gpu_that_is_unhealthy_by_now_gets_another_one() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        opener, joiner = (sharer(world, name) for name in ("opener", "joiner"))
        await passes(1)
        assert await runs(world, joiner) == ["GPU-a-0"]

        a.states["GPU-a-0"] = {"health": "Unhealthy"}
        await passes(1)
        world.planning.attempts.give_up(uid_of(opener))

        assert await runs(world, opener) == ["GPU-a-1"]


# Contested


async def contested(world: World, a: Machine) -> RawObject:
    """Let a pod run on a GPU without a reservation pod."""
    pod = sharer(world, "pod", "0.3")
    await runs(world, pod)
    a.binds_reservations = False
    world.delete(a.reservations()[0])
    await passes(1)
    assert stands(world) == [GpuState.CONTESTED]
    return pod


async def test_a_node_with_a_contested_gpu_takes_no_pods_until_the_sources_agree() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        await contested(world, a)
        whole, shared = world.pod("whole"), sharer(world, "shared")
        await passes(10)
        assert (world.held(whole), world.held(shared)) == (None, None)

        a.binds_reservations = True

        assert await runs(world, whole, shared) == ["", "GPU-a-0"]


async def test_reservations_on_a_contested_node_are_withdrawn() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        await runs(world, sharer(world, "pod", "0.3"))
        whole, shared = world.pod("whole"), sharer(world, "shared")
        await passes(1)
        assert [world.promised(pod) for pod in (whole, shared)] == ["a", "a"]

        a.binds_reservations = False
        world.delete(a.reservations()[0])
        await passes(1)

        assert [world.held(pod) for pod in (whole, shared)] == [None, None]


async def test_whole_gpus_beside_a_contested_one_are_reserved_again_while_the_agent_is_silent() -> None:
    async with machines("a", gpus=2, agent_ttl_s=100) as (world, (a,)):
        await contested(world, a)
        a.reports = False
        await passes(170)
        plans = world.applier.taken

        whole = world.pod("whole")
        await passes(10)

        assert (world.promised(whole), world.applier.taken - plans <= 3) == ("a", True)


async def test_nothing_is_planned_repeatedly_while_a_gpu_is_contested() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        await contested(world, a)
        world.pod("whole")
        sharer(world, "shared")
        await passes(5)
        plans = world.applier.taken

        await passes(30)

        assert world.applier.taken - plans <= 2
