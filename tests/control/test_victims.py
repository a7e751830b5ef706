"""Plans with victims, applied: one node of one GPU, a pod that runs on it, and one of higher priority."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.cluster.ledger.reservations import ReservationState
from app.control.cycle.preemptions import WASTED_S
from app.control.cycle.search_loop import LOOK_AGAIN_S
from app.control.writers.bind_outcomes import BOUND
from app.model.decision import Plan
from app.model.memory import PlanMemory
from app.model.names import NodeName
from app.model.question import Fits, Refused
from app.model.reason import Reason
from app.model.seam import RawObject, RejectedError, Resource
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from tests.control.virtual import threads_take
from tests.control.wired import World, living, passes

URGENT = "build-preemptible"


@asynccontextmanager
async def contended(**settings: Any) -> AsyncIterator[tuple[World, RawObject, RawObject]]:
    """Yield a world in which a running pod has just been ordered to make room for a more urgent one."""
    async with living("a", **settings) as world:
        victim = world.runs("victim", "a")
        await passes(1)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)
        yield world, victim, urgent


def state(world: World, pod: RawObject) -> ReservationState | None:
    held = world.held(pod)
    return None if held is None else held.state


# From the victim to the start


async def test_a_victim_is_evicted_once_and_its_room_is_held_until_it_is_free() -> None:
    async with contended() as (world, victim, urgent):
        assert (world.cluster.evictions, state(world, urgent)) == (["victim-0"], ReservationState.AWAITING)
        assert await world.filter(urgent, "a") == Refused(Reason.WAITING_FOR_VICTIMS)
        assert "still have to leave the room" in await world.bind(urgent, "a")
        assert world.cluster.nominations == []

        world.delete(victim)
        await passes(1)

        assert world.cluster.nominations == [("urgent-0", "a")]
        assert await world.filter(urgent, "a") == Fits((NodeName("a"),))
        assert await world.bind(urgent, "a") == ""
        assert (world.bound(), world.cluster.evictions) == ({"urgent-0": "a"}, ["victim-0"])


async def test_slow_victims_are_waited_for_and_no_other_pod_is_evicted() -> None:
    async with living("a", "b") as world:
        victims = [world.runs("first", "a"), world.runs("second", "b")]
        await passes(1)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(300)
        assert len(world.cluster.evictions) == 1

        world.delete(next(pod for pod in victims if pod["metadata"]["name"] in world.cluster.evictions))
        await passes(1)

        assert (len(world.cluster.evictions), state(world, urgent)) == (1, ReservationState.PROMISED)


async def test_no_pod_is_evicted_twice_while_the_watch_is_late() -> None:
    async with contended() as (world, _, urgent):
        world.cluster.hide(Resource.PODS)
        for number in range(20):
            world.queue(f"change-{number}")
            await passes(1)

        assert (world.cluster.evictions, state(world, urgent)) == (["victim-0"], ReservationState.AWAITING)


async def test_a_pending_pod_says_that_its_room_is_being_released() -> None:
    async with contended() as (world, _, _urgent):
        known = world.inspect.pod("q", "urgent-0")

        assert known is not None
        assert (known.state, known.node) == ("Awaiting", "a")
        assert known.refusal is not None
        assert known.refusal.reason is Reason.WAITING_FOR_VICTIMS


async def test_the_room_of_a_victim_is_kept_from_pods_filtered_meanwhile() -> None:
    async with contended() as (world, victim, urgent):
        other = world.pod("other")
        await passes(1)
        world.delete(victim)

        await passes(1)

        assert (world.promised(urgent), world.promised(other)) == ("a", None)


async def test_a_queue_reclaims_its_share_from_a_pod_made_non_preemptible_after_its_start() -> None:
    async with living("a") as world:
        world.queue("owner", gpus=1)
        (borrower,) = world.gang("borrower", size=1)
        assert await world.bind(borrower, await world.choose(borrower, "a")) == BOUND
        world.make_firm("borrower")
        await passes(1)

        world.pod("mine", queue="owner")
        await passes(5)

        assert world.cluster.evictions == ["borrower-0"]


async def test_a_queue_reclaims_its_share_from_another() -> None:
    async with living("a", gpus=2) as world:
        world.queue("r", gpus=1)
        pods = [world.runs(name, "a") for name in ("first", "second")]
        await passes(1)

        mine = world.pod("mine", queue="r")
        await passes(2)

        (evicted,) = world.cluster.evictions
        world.delete(next(pod for pod in pods if pod["metadata"]["name"] == evicted))
        await passes(1)
        assert state(world, mine) is ReservationState.PROMISED
        assert world.count("pods_evicted", action="reclaim") == 1


@pytest.mark.parametrize("nodes", ["ab", "a"], ids=["on two nodes", "on one"])
async def test_a_gang_starts_when_all_its_victims_are_gone(nodes: str) -> None:
    async with living(*nodes, gpus=2 // len(nodes)) as world:
        victims = [world.runs("first", nodes[0]), world.runs("second", nodes[-1])]
        await passes(1)
        gang = world.gang("gang", size=2, priority_class=URGENT)
        await passes(2)
        assert sorted(world.cluster.evictions) == ["first-0", "second-0"]

        world.delete(victims[0])
        await passes(1)
        assert [state(world, pod) for pod in gang] == [ReservationState.AWAITING] * 2
        world.delete(victims[1])
        await passes(1)

        assert [state(world, pod) for pod in gang] == [ReservationState.PROMISED] * 2


async def test_a_restart_while_victims_terminate_evicts_no_other_pod() -> None:
    async with living("a", "b") as world:
        for name, node in (("first", "a"), ("second", "b")):
            world.runs(name, node)
        await passes(1)
        world.pod("urgent", priority_class=URGENT)
        await passes(2)
    assert len(world.cluster.evictions) == 1

    async with living(cluster=world.cluster) as after:
        await passes(20)

        (held,) = after.cache.reservations
        assert (held.state, len(after.cluster.evictions)) == (ReservationState.AWAITING, 1)


async def test_a_pod_with_a_reservation_that_does_not_run_makes_room_without_an_eviction() -> None:
    async with living("a") as world:
        early = world.pod("early")
        await passes(1)
        assert world.promised(early) == "a"

        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(3)

        assert (world.promised(early), world.promised(urgent)) == (None, "a")
        assert world.cluster.evictions == []


# Failures


async def test_a_pod_whose_victim_stays_loses_its_reservation_and_backs_off() -> None:
    async with living("a") as world:
        world.cluster.errors["evict"].append(RejectedError("admission denies it"))
        world.runs("victim", "a")
        await passes(1)
        urgent = world.pod("urgent", priority_class=URGENT)

        with capture_logs():
            await passes(1.5)

        assert (world.promised(urgent), world.reason(urgent)) == (None, Reason.BACKING_OFF)
        assert world.free_gpus() == {"a": 0}
        await passes(5)
        assert (world.cluster.evictions, state(world, urgent)) == (["victim-0"] * 2, ReservationState.AWAITING)


async def test_room_that_is_not_released_in_time_is_waited_for_again() -> None:
    async with contended(eviction_ttl_s=20) as (world, victim, urgent):
        await passes(19)
        assert world.reason(urgent) is Reason.BACKING_OFF

        await passes(10)
        world.delete(victim)
        await passes(1)

        assert (state(world, urgent), world.cluster.evictions) == (ReservationState.PROMISED, ["victim-0"])


async def test_a_pod_that_cannot_use_the_room_of_its_victims_backs_off() -> None:
    async with living("a", "b") as world:
        victims = {name: world.runs(name, node) for name, node in (("first", "a"), ("second", "b"))}
        await passes(1)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)
        (evicted,) = world.cluster.evictions
        world.delete(victims[evicted.removesuffix("-0")])
        await passes(1)

        world.nodes("elsewhere", gpus=0)
        await passes(1)
        await world.filter(urgent, "elsewhere", nominated=world.promised(urgent))
        await passes(WASTED_S - 5)

        assert (world.cluster.evictions, world.reason(urgent)) == ([evicted], Reason.BACKING_OFF)


async def test_a_scheduler_that_looked_a_moment_too_early_finds_the_room_when_it_looks_again() -> None:
    async with contended() as (world, victim, urgent):
        world.delete(victim)
        await passes(0.5)
        assert state(world, urgent) is ReservationState.PROMISED

        world.refuse(urgent)
        await passes(1)
        assert world.reason(urgent) is Reason.REFUSED_BY_SCHEDULER

        assert await world.filter(urgent, "a") == Fits((NodeName("a"),))


async def test_the_other_pods_of_a_gang_are_planned_again_when_one_is_deleted() -> None:
    async with living("a", "b") as world:
        for name, node in (("first", "a"), ("second", "b")):
            world.runs(name, node)
        await passes(1)
        gang = world.gang("gang", size=2, priority_class=URGENT)
        await passes(2)

        world.delete(gang[0])
        await passes(1)

        assert world.promised(gang[1]) is None
        assert world.reason(gang[1]) is Reason.MEMBERS_MISSING


async def test_a_plan_whose_victim_was_deleted_meanwhile_is_dropped() -> None:
    async with living("a") as world:
        victim = world.runs("victim", "a")
        await passes(1)
        threads_take(5)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)

        world.delete(victim)
        await passes(5)

        assert world.count("plans", outcome="stale") == 1
        assert (world.cluster.evictions, state(world, urgent)) == ([], ReservationState.PROMISED)


async def test_a_plan_for_a_pod_that_was_deleted_meanwhile_evicts_no_pod() -> None:
    async with living("a") as world:
        world.runs("victim", "a")
        await passes(1)
        threads_take(5)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)

        world.delete(urgent)
        await passes(20)

        assert world.cluster.evictions == []


async def test_a_plan_is_carried_out_although_something_else_has_changed() -> None:
    async with living("a", "b") as world:
        world.runs("victim", "a")
        world.runs("beside", "b", priority_class=URGENT)
        await passes(1)
        threads_take(5)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(2)

        world.queue("elsewhere")
        await passes(5)

        assert (world.cluster.evictions, state(world, urgent)) == (["victim-0"], ReservationState.AWAITING)


async def test_a_search_that_fails_ends_nothing_and_is_not_repeated_at_once() -> None:
    broken = True

    def fickle(snapshot: Snapshot, policy: Policy, *, now: float, memory: PlanMemory) -> Plan:
        if broken:
            raise ZeroDivisionError
        return plan(snapshot, policy, now=now, memory=memory)

    async with living("a", plan=fickle) as world:
        world.runs("victim", "a")
        world.pod("urgent", priority_class=URGENT)
        with capture_logs():
            await passes(LOOK_AGAIN_S)
        assert 1 <= world.count("plans", outcome="error") <= 2

        broken = False
        await passes(2 * LOOK_AGAIN_S)

        assert world.cluster.evictions == ["victim-0"]
