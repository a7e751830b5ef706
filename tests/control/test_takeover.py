"""Plans made by hand: what is applied together, what is dropped, and in which order."""

import asyncio
from dataclasses import replace

import pytest

from app.cluster.ledger.reservations import ReservationState
from app.control.cycle.batches import PlanBatch, deals
from app.control.cycle.planning import GATHER_S
from app.control.cycle.preemptions import RECONSIDERED_AFTER_S, FailedPreemption
from app.control.writers.evictor import WRITERS
from app.model.decision import Action, Eviction, Placement, Plan, Start
from app.model.names import GroupKey, NodeName, PodUid
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Quota
from tests.control.ready import Told
from tests.control.wired import World, living, passes


def key(pod: RawObject) -> GroupKey:
    metadata = pod["metadata"]
    return GroupKey(metadata["namespace"], metadata["annotations"].get("pod-group-name", metadata["uid"]))


def uid(pod: RawObject) -> PodUid:
    return PodUid(pod["metadata"]["uid"])


def start(*pods: RawObject, on: str = "a", waits: bool = True) -> Start:
    placements = tuple(Placement(uid(pod), NodeName(on)) for pod in pods)
    return Start(group=key(pods[0]), placements=placements, awaits_release=waits)


def eviction(pod: RawObject, beneficiary: RawObject | None, *, on: str = "a") -> Eviction:
    return Eviction(
        pod=uid(pod),
        group=key(pod),
        node=NodeName(on),
        action=Action.RECLAIM,
        beneficiary=key(beneficiary) if beneficiary else None,
    )


def take(world: World, *parts: Start | Eviction, late: bool = False) -> bool:
    """Apply a plan made of these parts, based on the current or an earlier state."""
    made = Plan(
        snapshot_version=world.cache.changes.version - late,
        starts=tuple(part for part in parts if isinstance(part, Start)),
        evictions=tuple(part for part in parts if isinstance(part, Eviction)),
    )
    return world.applier.take(made, ())


def states(world: World, *pods: RawObject) -> list[ReservationState | None]:
    held = [world.held(pod) for pod in pods]
    return [None if one is None else one.state for one in held]


async def contended(world: World, *, running: int, waiting: int) -> tuple[list[RawObject], list[RawObject]]:
    """Let some pods run on node a, and others be pending for which no pod would be evicted."""
    victims = [world.runs(f"victim-{number}", "a") for number in range(running)]
    waits = [world.pod(f"waits-{number}") for number in range(waiting)]
    await passes(1)
    assert not len(world.cache.reservations)
    return victims, waits


async def test_all_steps_for_one_podgroup_are_one_batch_and_each_stale_gang_is_one() -> None:
    async with living("a") as world:
        victims, (first, second) = await contended(world, running=2, waiting=2)
        free, held = start(first, waits=False), start(second)
        mine, nobodys = eviction(victims[0], second), eviction(victims[1], None)

        made = Plan(snapshot_version=0, starts=(free, held), evictions=(nobodys, mine))

        assert list(deals(made)) == [PlanBatch((), (nobodys,)), PlanBatch((free,)), PlanBatch((held,), (mine,))]


async def test_no_pod_is_evicted_for_a_podgroup_that_does_not_start() -> None:
    async with living("a") as world:
        (victim,), (waits,) = await contended(world, running=1, waiting=1)

        take(world, eviction(victim, waits))
        await passes(0.1)

        assert world.cluster.evictions == []


async def test_a_late_plan_may_count_on_room_that_an_earlier_batch_of_it_releases() -> None:
    async with living("a", gpus=2) as world:
        victims, (first, second) = await contended(world, running=2, waiting=2)

        whole = take(world, start(first), start(second), *(eviction(one, first) for one in victims), late=True)

        assert (whole, states(world, first, second)) == (True, [ReservationState.AWAITING] * 2)


async def test_a_late_batch_with_less_room_than_it_needs_is_dropped_as_a_whole() -> None:
    async with living("a", gpus=2) as world:
        victims, (first, second) = await contended(world, running=2, waiting=2)

        whole = take(world, start(first, second), eviction(victims[0], first), late=True)
        await passes(0.1)

        assert (whole, states(world, first, second), world.cluster.evictions) == (False, [None, None], [])


async def test_a_late_plan_does_not_start_more_than_a_limit_allows() -> None:
    async with living("a", "b", actions="") as world:
        world.cluster.create(Resource.QUEUES, manifests.queue("small", None, Quota(gpus=0, limit=1)))
        await passes(1)
        first = world.pod("first", queue="small")
        await passes(1)
        late = world.pod("late", queue="small")
        await passes(1)

        whole = take(world, start(late, on="b", waits=False), late=True)

        assert (whole, states(world, first, late)) == (False, [ReservationState.PROMISED, None])


async def test_victims_make_room_below_the_limit_too() -> None:
    async with living("a") as world:
        world.cluster.create(Resource.QUEUES, manifests.queue("small", None, Quota(gpus=0, limit=1)))
        victim = world.runs("victim", "a", queue="small")
        await passes(1)
        urgent = world.pod("urgent", queue="small")
        await passes(1)

        whole = take(world, start(urgent), eviction(victim, urgent), late=True)

        assert (whole, states(world, urgent)) == (True, [ReservationState.AWAITING])


async def test_a_podgroup_in_backoff_is_not_started_by_a_late_plan() -> None:
    async with living("a", "b") as world:
        waits = world.pod("waits")
        await passes(1)
        world.planning.attempts.dissolve(key(waits), "it failed")

        assert not take(world, start(waits, on="b", waits=False), late=True)


async def test_no_pod_is_evicted_for_room_on_a_node_that_was_cordoned_meanwhile() -> None:
    async with living("a") as world:
        (victim,), (waits,) = await contended(world, running=1, waiting=1)
        world.cluster.patch(Ref(resource=Resource.NODES, name="a"), {"spec": {"unschedulable": True}})
        await passes(1)

        assert not take(world, start(waits), eviction(victim, waits), late=True)


@pytest.mark.parametrize("change", ["completed", "no longer preemptible"])
async def test_a_victim_that_a_change_protects_meanwhile_is_not_evicted(change: str) -> None:
    async with living("a", gpus=2, actions="") as world:
        (lone, _), (waits,) = await contended(world, running=2, waiting=1)
        stale = eviction(lone, None)
        if change == "completed":
            made = replace(stale, action=Action.EVICT_STALE)
        else:
            world.patch(lone, metadata={"labels": {"kai.scheduler/preemptibility": "non-preemptible"}})
            await passes(1)
            made = replace(stale, beneficiary=key(waits))

        assert not take(world, made, start(waits), late=True)

        await passes(1)
        assert world.cluster.evictions == []


async def test_a_victim_that_is_just_being_bound_is_not_evicted() -> None:
    async with living("a") as world:
        bound, waits = world.pod("bound"), world.pod("waits")
        world.cluster.takes_s["bind"] = 10
        world.binding(bound, await world.choose(bound, "a"))
        await passes(1)

        whole = take(world, start(waits), eviction(bound, waits))

        assert (whole, states(world, bound, waits)) == (False, [ReservationState.BINDING, None])


async def test_after_a_dropped_batch_no_other_batch_counts_on_the_room_it_would_have_released() -> None:
    async with living("a", gpus=2, actions="") as world:
        bound, beside = world.pod("bound"), world.runs("beside", "a")
        world.cluster.takes_s["bind"] = 10
        world.binding(bound, await world.choose(bound, "a"))
        await passes(1)
        first, second = world.pod("first"), world.pod("second")
        await passes(1)

        whole = take(world, start(first), start(second), eviction(bound, first), eviction(beside, first))

        assert (whole, states(world, first, second)) == (False, [None, None])


async def test_room_of_terminating_pods_is_waited_for_without_evictions() -> None:
    async with living("a", actions="") as world:
        victim = world.runs("victim", "a")
        await passes(1)
        waits = world.pod("waits")
        await passes(1)

        world.patch(victim, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        await passes(1)
        assert states(world, waits) == [ReservationState.AWAITING]
        world.delete(victim)
        await passes(1)

        assert (states(world, waits), world.cluster.evictions) == ([ReservationState.PROMISED], [])


async def test_a_pod_that_waits_for_slow_terminating_pods_starts_where_room_is_free_sooner() -> None:
    async with living("a", "b") as world:
        leaving, running = world.runs("leaving", "a"), world.runs("running", "b")
        world.patch(leaving, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        await passes(1)
        waits = world.pod("waits")
        await passes(RECONSIDERED_AFTER_S)
        assert (states(world, waits), world.promised(waits)) == ([ReservationState.AWAITING], "a")

        world.delete(running)
        await passes(1)

        assert (states(world, waits), world.promised(waits)) == ([ReservationState.PROMISED], "b")


async def test_pods_of_one_start_are_reserved_when_there_is_room_for_all_of_them() -> None:
    async with living("a", gpus=2, actions="") as world:
        victims = [world.runs(f"victim-{number}", "a") for number in range(2)]
        await passes(1)
        gang = world.gang("gang", size=2)
        await passes(1)
        take(world, start(*gang), *(eviction(one, gang[0]) for one in victims))

        world.delete(victims[0])
        await passes(1)
        assert states(world, *gang) == [ReservationState.AWAITING] * 2
        assert world.cluster.nominations == []
        world.delete(victims[1])
        await passes(1)

        assert states(world, *gang) == [ReservationState.PROMISED] * 2
        assert sorted(world.cluster.nominations) == [("gang-0", "a"), ("gang-1", "a")]


async def test_a_plan_for_many_podgroups_is_applied_in_steps_each_of_which_sees_the_changes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.control.cycle.apply_plan.STEP", 2)
    async with living("a", gpus=6) as world:
        pods = [world.pod(f"waits-{number}") for number in range(6)]
        await passes(GATHER_S / 2)
        made = Plan(snapshot_version=world.cache.changes.version, starts=tuple(start(pod, waits=False) for pod in pods))

        taking = asyncio.create_task(world.applier.take_by_steps(made, (), readiness=Told()))
        await asyncio.sleep(0)
        assert states(world, *pods) == [*[ReservationState.PROMISED] * 2, *[None] * 4]
        world.planning.attempts.dissolve(key(pods[3]), "it failed")

        assert await taking is False
        assert states(world, *pods) == [*[ReservationState.PROMISED] * 3, None, *[ReservationState.PROMISED] * 2]


async def test_no_further_step_is_applied_once_the_replica_may_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.control.cycle.apply_plan.STEP", 2)
    async with living("a", gpus=4) as world:
        pods = [world.pod(f"waits-{number}") for number in range(4)]
        await passes(GATHER_S / 2)
        made = Plan(snapshot_version=world.cache.changes.version, starts=tuple(start(pod, waits=False) for pod in pods))

        assert await world.applier.take_by_steps(made, (), readiness=Told("the lease is lost")) is False
        assert states(world, *pods) == [*[ReservationState.PROMISED] * 2, *[None] * 2]


async def test_waiting_in_vain_is_reported_once_for_each_podgroup() -> None:
    async with living("a", gpus=2) as world:
        victims, (first, second) = await contended(world, running=2, waiting=2)
        take(world, start(first), start(second), eviction(victims[0], first), eviction(victims[1], second))

        world.unevictable.add(uid(victims[0]))

        error = "a pod that has to leave for it cannot be evicted"
        assert world.preemptions.review() == [FailedPreemption(key(first), error)]
        assert world.preemptions.review() == []


async def test_victims_of_one_batch_are_evicted_while_any_pod_of_the_batch_waits_for_them() -> None:
    size = WRITERS + 1
    async with living("a", gpus=size, actions="") as world:
        victims = [world.runs(f"victim-{number}", "a") for number in range(size)]
        await passes(1)
        gang = world.gang("gang", size=2, min_member=1)
        await passes(1)
        world.cluster.takes_s["mark_disrupted"] = 5
        take(world, start(gang[0]), start(gang[1]), *(eviction(one, gang[0]) for one in victims))

        world.delete(gang[1])
        await passes(20)

        assert len(world.cluster.evictions) == size


async def test_a_replica_that_becomes_a_standby_evicts_no_remaining_victims() -> None:
    size = WRITERS + 1
    async with living("a", gpus=size, actions="", scheduler_lease="ns/name", hostname="me") as world:
        world.cluster.holders["ns/name"] = "me_1"
        await passes(3)
        victims, (waits,) = await contended(world, running=size, waiting=1)
        world.cluster.takes_s["evict"] = 20
        take(world, start(waits), *(eviction(one, waits) for one in victims))
        await passes(1)

        world.cluster.holders["ns/name"] = "other_1"
        await passes(5)
        world.cluster.holders["ns/name"] = "me_1"
        await passes(60)

        assert f"victim-{WRITERS}-0" not in world.cluster.evictions


async def test_a_replica_that_becomes_a_standby_holds_no_reservations() -> None:
    async with living("a", scheduler_lease="ns/name", hostname="me") as world:
        world.cluster.holders["ns/name"] = "me_1"
        await passes(3)
        (victim,), (waits,) = await contended(world, running=1, waiting=1)
        take(world, start(waits), eviction(victim, waits))
        assert states(world, waits) == [ReservationState.AWAITING]

        world.cluster.holders["ns/name"] = "other_1"
        await passes(5)

        assert states(world, waits) == [None]
