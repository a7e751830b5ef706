"""Reservation pods across restarts and changes of the active replica, and with writes that fail or may have failed."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from app.cluster.gpus.reservation_pods import ReservationPodTerms, reservation_pod
from app.cluster.gpus.shared_gpus import GpuState
from app.control.gpus.shared_gpus import IN_THE_WAY_S, LOOK_AGAIN_S
from app.control.leadership.leadership import Leadership
from app.model.marks import RESERVED_DEVICE_ANNOTATION
from app.model.names import GroupKey, NodeName
from app.model.seam import (
    ForbiddenError,
    KubeError,
    OutcomeUnknownError,
    RejectedError,
    Resource,
    UnavailableError,
)
from app.simulation.cluster import Ref
from tests.control.gpu_machines import (
    GRACE_S,
    RESERVATIONS,
    Machine,
    SharingCluster,
    devices,
    exists,
    gpu_is_free,
    machines,
    runs,
    sharer,
    stands,
    uid_of,
)
from tests.control.wired import World, furnished, passes

A = NodeName("a")
TERMS = ReservationPodTerms(image="pause", priority_class="", scheduler="default-scheduler")
Running = AbstractAsyncContextManager[tuple[World, list[Machine]]]


class Site:
    """A cluster of one machine that survives the Leeboards beside it."""

    def __init__(self, *, gpus: int = 1) -> None:
        self.cluster = SharingCluster()
        furnished("a", gpus=gpus, cluster=self.cluster)
        self.machine = Machine(self.cluster, "a", gpus=gpus)

    def leeboard(self, **settings: Any) -> Running:
        return machines(cluster=self.cluster, known=[self.machine], **settings)

    async def reserve_late(self, name: str) -> None:
        """Create a reservation pod that no pod waits for, and let kube-scheduler place it."""
        await self.cluster.create_pod(RESERVATIONS, reservation_pod(A, "late", name, owner_uid="", terms=TERMS))
        (created,) = [pod for pod in self.machine.reservations() if pod["metadata"]["name"] == name]
        self.cluster.patch(Ref.of(Resource.PODS, created), {"spec": {"nodeName": A}})

    def reservations(self) -> list[str]:
        return [pod["metadata"]["uid"] for pod in self.machine.reservations()]


# Restarts


async def test_a_kill_between_reservation_and_bind_continues_with_the_same_reservation_pod() -> None:
    site = Site(gpus=2)
    async with site.leeboard() as (world, (a,)):
        a.reports = False
        pod = sharer(world, "pod")
        await passes(2)
        (before,) = site.reservations()

    a.reports = True
    async with site.leeboard() as (world, _):
        assert await runs(world, pod) == ["GPU-a-0"]
        assert (site.reservations(), site.cluster.removed) == ([before], [])


async def test_the_assigned_gpus_are_known_after_a_kill_that_follows_bind() -> None:
    site = Site(gpus=2)
    async with site.leeboard() as (world, _):
        pair = sharer(world, "pair", "0.6", gpu_fraction_num_devices="2")
        given = await runs(world, pair)

    async with site.leeboard() as (world, (a,)):
        assert (stands(world), gpu_is_free(world, "a")) == ([GpuState.READY] * 2, 0)
        too_much, fits = sharer(world, "too-much", "0.5"), sharer(world, "fits", "0.4")
        await runs(world, fits)
        assert (world.held(too_much), devices(world, fits) in given[0].split(","), len(a.reservations())) == (
            None,
            True,
            2,
        )


async def test_a_reservation_pod_of_another_replica_without_a_pod_is_removed_after_a_minute() -> None:
    site = Site()
    async with site.leeboard() as (world, (a,)):
        a.reports = False
        pod = sharer(world, "pod")
        await passes(2)
    world.delete(pod)

    async with site.leeboard() as (world, _):
        await passes(GRACE_S - 5)
        assert (len(site.reservations()), gpu_is_free(world, "a")) == (1, 0)
        await passes(5 + LOOK_AGAIN_S + 1)

        assert (site.reservations(), gpu_is_free(world, "a")) == ([], 1)


async def test_a_whole_gpu_held_by_a_reservation_pod_without_a_pod_is_waited_for_and_assigned() -> None:
    site = Site()
    async with site.leeboard() as (world, (a,)):
        a.reports = False
        pod = sharer(world, "pod")
        await passes(2)
    world.delete(pod)
    a.reports = True

    async with site.leeboard() as (world, _):
        whole = world.pod("whole")
        await runs(world, whole, within_s=GRACE_S + 30)

        assert a.held_by(whole) == ["GPU-a-0"]


async def test_a_late_reservation_pod_of_another_replica_keeps_a_gpu_from_other_pods_for_seconds_only() -> None:
    site = Site()
    async with site.leeboard() as (world, (a,)):
        a.binds_reservations = False
        halves = [sharer(world, f"half-{number}") for number in range(2)]
        await passes(1)
        (ours,) = site.reservations()
        await site.reserve_late("late")
        a.binds_reservations = True

        await passes(IN_THE_WAY_S - 1)
        assert (a.holders["GPU-a-0"] != ours, len(site.reservations())) == (True, 2)
        assert await runs(world, *halves) == ["GPU-a-0"] * 2
        assert (site.reservations(), set(site.cluster.removed)) == ([ours], {"late"})


async def test_running_pods_keep_their_gpu_until_they_end_where_sharing_is_turned_off() -> None:
    site = Site()
    async with site.leeboard() as (world, _):
        pod = sharer(world, "pod")
        await runs(world, pod)

    async with site.leeboard(gpu_sharing=False) as (world, (a,)):
        late = sharer(world, "late", "0.2")
        whole = world.pod("whole")
        await passes(70)
        assert (world.held(late), world.held(whole), len(a.reservations())) == (None, None, 1)

        world.delete(pod)
        await runs(world, whole)

        assert (a.held_by(whole), a.reservations()) == (["GPU-a-0"], [])


# The active replica changes


def stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # A lease that expires takes 15 s of other events; here it expires at once.
    monkeypatch.setattr(Leadership, "failure", lambda _: "another replica is active")
    world.planning.poke()


async def test_a_replica_that_becomes_a_standby_stops_writing_and_continues_when_active_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    async with site.leeboard() as (world, _):
        with monkeypatch.context() as patch:
            stops(world, patch)
            pod = sharer(world, "pod")
            await passes(5)
            assert (site.cluster.created, world.held(pod)) == ([], None)
        world.planning.poke()

        assert await runs(world, pod) == ["GPU-a-0"]


async def test_a_gpu_that_was_about_to_be_removed_is_open_again_for_the_new_active_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    async with site.leeboard() as (world, _):
        pod = sharer(world, "pod")
        await runs(world, pod)
        site.cluster.errors["remove_pod"].extend([OutcomeUnknownError("connection lost")])
        world.delete(pod)
        await passes(0.5)
        assert stands(world) == [GpuState.CLOSING]

        with monkeypatch.context() as patch:
            stops(world, patch)
            await passes(3)

        assert stands(world) == [GpuState.READY]


# Writes


FAILURES = [
    ForbiddenError("not yet"),
    RejectedError("no"),
    UnavailableError("busy", retry_after_s=2.0),
    OutcomeUnknownError("connection lost"),
]


@pytest.mark.parametrize("error", FAILURES)
async def test_a_reservation_pod_that_cannot_be_written_is_tried_again(error: KubeError) -> None:
    async with machines("a") as (world, (a,)):
        world.cluster.errors["create_pod"].extend([error, error])

        assert await runs(world, sharer(world, "pod")) == ["GPU-a-0"]
        assert len(a.reservations()) == 1


async def test_a_reservation_pod_that_was_written_without_a_reply_is_not_written_twice() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        world.cluster.lost_replies["create_pod"] = 1

        assert await runs(world, sharer(world, "pod")) == ["GPU-a-0"]
        assert len(a.reservations()) == 1


async def test_a_reservation_pod_that_the_watch_does_not_show_yet_is_not_written_twice() -> None:
    async with machines("a", gpus=2) as (world, (a,)):
        world.cluster.takes_s["create_pod"] = 8.0

        assert await runs(world, sharer(world, "pod")) == ["GPU-a-0"]
        assert (len(a.reservations()), gpu_is_free(world, "a")) == (1, 1)


@pytest.mark.parametrize("error", FAILURES)
async def test_a_reservation_pod_that_cannot_be_removed_is_tried_again(error: KubeError) -> None:
    async with machines("a") as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)
        world.cluster.errors["remove_pod"].extend([error, error])

        world.delete(pod)
        await passes(20)

        assert (a.reservations(), gpu_is_free(world, "a")) == ([], 1)


async def test_no_pod_is_placed_on_a_gpu_that_may_have_been_removed() -> None:
    async with machines("a", gpus=1) as (world, (a,)):
        pod = sharer(world, "pod")
        await runs(world, pod)
        world.cluster.lost_replies["remove_pod"] = 1
        a.reports = False
        world.delete(pod)
        late = sharer(world, "late", "0.2")
        await passes(2)
        assert stands(world) == [GpuState.OPENING]
        a.reports = True

        assert await runs(world, late) == ["GPU-a-0"]
        assert (stands(world), exists(world, late), len(set(a.reserved))) == ([GpuState.READY], True, 2)


async def test_a_pod_created_before_the_last_is_deleted_keeps_the_gpu_open() -> None:
    async with machines("a") as (world, (a,)):
        first = sharer(world, "first")
        await runs(world, first)
        (before,) = (pod["metadata"]["uid"] for pod in a.reservations())
        second = sharer(world, "second")
        await passes(1)

        world.delete(first)

        assert await runs(world, second) == ["GPU-a-0"]
        assert [pod["metadata"]["uid"] for pod in a.reservations()] == [before]


async def test_a_pod_that_once_opened_a_gpu_opens_it_again_at_the_moment_when_it_is_removed() -> None:
    async with machines("a") as (world, (a,)):
        a.binds_reservations = False
        opener = sharer(world, "opener")
        await passes(1)
        (name,) = (gpu.name for gpu in world.cache.gpus.shared(A))
        a.binds_reservations = True
        joiner = sharer(world, "joiner")
        assert await runs(world, joiner) == ["GPU-a-0"]
        world.planning.attempts.dissolve(GroupKey("q", uid_of(opener)), "for the test", least_s=60.0)
        await passes(1)

        world.delete(joiner)
        gone_by = world.now() + 10
        while world.cache.gpus.find(A, name) is not None:
            assert world.now() < gone_by
            await passes(0.001)
        world.cache.findings.readmit(GroupKey("q", uid_of(opener)))
        plans = world.applier.taken
        await world.filter(opener, "a")

        assert world.cache.gpus.parts.of(uid_of(opener)).names == (name,)  # type: ignore[union-attr] # held
        assert await runs(world, opener) == ["GPU-a-0"]
        assert world.applier.taken - plans <= 5


@pytest.mark.parametrize("error", FAILURES)
async def test_the_device_of_a_reservation_pod_is_written_again_after_a_failure(error: KubeError) -> None:
    async with machines("a") as (world, (a,)):
        world.cluster.errors["annotate_pod"].append(error)
        await runs(world, sharer(world, "pod"))
        await passes(2 * LOOK_AGAIN_S + 1)

        (reservation,) = a.reservations()
        assert reservation["metadata"]["annotations"][RESERVED_DEVICE_ANNOTATION] == "GPU-a-0"


async def test_a_reservation_pod_names_its_device_as_the_tools_of_kai_read_it() -> None:
    async with machines("a") as (world, (a,)):
        await runs(world, sharer(world, "pod"))
        await passes(LOOK_AGAIN_S + 1)

        (reservation,) = a.reservations()
        assert reservation["metadata"]["annotations"][RESERVED_DEVICE_ANNOTATION] == "GPU-a-0"
        assert reservation["metadata"]["namespace"] == RESERVATIONS
