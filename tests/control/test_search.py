"""When victims are searched, and which actions can be turned off."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.control.cycle.search_loop import LOOK_AGAIN_S
from app.control.writers.evictor import RETRY, STALE
from app.model.decision import Plan
from app.model.memory import PlanMemory
from app.model.names import GroupKey, PodUid
from app.model.reason import Reason
from app.model.seam import KubeError, RawObject, RejectedError, Resource, UnavailableError
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.simulation import manifests
from tests.control.virtual import threads_take
from tests.control.wired import World, living, passes

URGENT = "build-preemptible"


# When it searches


class Counting:
    """Plans like the real planner, and counts."""

    def __init__(self) -> None:
        self.searches = 0
        self.unfinished = False

    def __call__(self, snapshot: Snapshot, policy: Policy, *, now: float, memory: PlanMemory) -> Plan:
        self.searches += 1
        return replace(plan(snapshot, policy, now=now, memory=memory), unfinished=self.unfinished)


@asynccontextmanager
async def searched_in_vain(*names: str) -> AsyncIterator[tuple[World, Counting, Sequence[RawObject]]]:
    """Run a cluster of one GPU, which is in use; a search of a second has found no victims for its pending pods."""
    counting = Counting()
    async with living("a", plan=counting) as world:
        threads_take(1.0)
        world.runs("one", "a")
        pods = [world.pod(name) for name in names]
        await passes(5)
        assert counting.searches == 1
        yield world, counting, pods


async def test_no_search_runs_without_pending_podgroups_or_without_changes() -> None:
    counting = Counting()
    async with living("a", plan=counting) as world:
        world.runs("one", "a")
        await passes(10)
        assert counting.searches == 0

        world.pod("waits")
        await passes(60)

        assert counting.searches == 1


@pytest.mark.parametrize("hopeless", [{"queue": "no-such-queue"}, {"gpus": 2}], ids=["queue", "too-large"])
async def test_no_search_runs_for_podgroups_that_no_victim_helps(hopeless: dict[str, Any]) -> None:
    counting = Counting()
    async with living("a", plan=counting) as world:
        world.runs("one", "a")
        world.pod("lost", **hopeless)
        await passes(10)

        assert counting.searches == 0


async def test_failed_searches_become_rare_in_a_full_cluster_until_another_podgroup_is_refused() -> None:
    async with searched_in_vain("waits") as (world, counting, _):
        for number in range(30):
            world.runs(f"other-{number}", "a", gpus=0)
            await passes(1)
        in_vain = counting.searches
        assert in_vain <= 3

        world.pod("urgent", priority_class=URGENT)
        await passes(4)

        assert counting.searches > in_vain
        assert world.cluster.evictions == ["one-0"]


async def test_podgroups_that_no_victim_helps_do_not_end_the_pause_after_a_failed_search() -> None:
    async with searched_in_vain("waits") as (world, counting, _):
        for number in range(30):
            world.pod(f"lost-{number}", queue="no-such-queue")
            await passes(1)

        assert counting.searches <= 3


async def test_the_deletion_of_a_pending_podgroup_starts_a_search_for_the_others() -> None:
    async with searched_in_vain("withdrawn", "waits") as (world, counting, (withdrawn, _)):
        world.delete(withdrawn)
        await passes(4)

        assert counting.searches == 2


async def test_no_pod_is_evicted_for_a_podgroup_with_free_room_in_a_plan_that_is_still_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.control.cycle.planning.FEW_GROUPS", 0)
    async with living("a") as world:
        world.runs("one", "a")
        await passes(1)
        threads_take(2.0)
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(3)
        assert world.reason(urgent) is Reason.NO_NODE_FITS

        world.nodes("b")
        await passes(5)

        assert (world.promised(urgent), world.cluster.evictions) == ("b", [])


async def test_a_long_failed_search_does_not_protect_pods_beyond_their_min_runtime() -> None:
    async with living("a", actions="preempt", preempt_min_runtime_s=20) as world:
        threads_take(4.0)
        victim = world.runs("victim", "a")
        world.patch(victim, status={"startTime": "1970-01-01T00:00:01Z"})
        await passes(1)
        world.pod("urgent", priority_class=URGENT)
        for number in range(28):
            world.runs(f"other-{number}", "a", gpus=0)
            await passes(1)

        assert world.cluster.evictions == ["victim-0"]


async def test_victims_are_evicted_for_a_pod_too_large_for_every_node_once_a_larger_node_exists() -> None:
    counting = Counting()
    async with living("a", plan=counting) as world:
        waits = world.pod("waits", gpus=2, priority_class=URGENT)
        await passes(10)
        assert counting.searches == 0

        world.runs("one", "b")
        world.cluster.create(Resource.NODES, manifests.node("b", gpus=2, cpu=64, labels={}))
        await passes(10)

        assert world.cluster.evictions == ["one-0"]
        assert world.held(waits) is not None


async def test_the_end_of_a_min_runtime_starts_a_search() -> None:
    counting = Counting()
    async with living("a", plan=counting, preempt_min_runtime_s=1.5 * LOOK_AGAIN_S, ageing_s=None) as world:
        victim = world.runs("victim", "a")
        world.patch(victim, status={"startTime": "1970-01-01T00:00:01Z"})
        world.pod("urgent", priority_class=URGENT)
        await passes(LOOK_AGAIN_S)
        assert (counting.searches, world.cluster.evictions) == (1, [])

        await passes(2 * LOOK_AGAIN_S)

        assert len(world.cluster.evictions) == 1


async def test_a_search_that_reached_its_budget_continues_without_a_change_and_is_counted_and_logged_once() -> None:
    counting = Counting()
    counting.unfinished = True
    async with living("a", plan=counting) as world:
        world.runs("one", "a")
        world.pod("waits")

        with capture_logs() as logs:
            await passes(5)

        assert world.count("plans_unfinished") == counting.searches > 1
        assert [line["event"] for line in logs] == ["plan budget reached"]


async def test_no_pod_is_evicted_for_a_podgroup_in_backoff() -> None:
    async with living("a") as world:
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(1)
        world.planning.attempts.dissolve(GroupKey("q", urgent["metadata"]["uid"]), "the binding was refused")
        world.runs("victim", "a")

        await passes(1.5)
        assert world.cluster.evictions == []
        await passes(3)
        assert world.cluster.evictions == ["victim-0"]


# What can be turned off


@pytest.mark.parametrize(
    ("action", "setting"), [("preempt", "preempt_min_runtime_s"), ("reclaim", "reclaim_min_runtime_s")]
)
async def test_a_pod_is_protected_until_its_min_runtime_has_passed(action: str, setting: str) -> None:
    settings: dict[str, Any] = {setting: 60, "actions": action}
    async with living("a", **settings) as world:
        world.queue("r", gpus=1)
        victim = world.runs("victim", "a")
        world.patch(victim, status={"startTime": "1970-01-01T00:00:01Z"})
        await passes(1)
        world.pod("urgent", priority_class=URGENT, queue="q" if action == "preempt" else "r")

        await passes(58)
        assert world.cluster.evictions == []
        await passes(2 * LOOK_AGAIN_S)

        assert world.cluster.evictions == ["victim-0"]


async def test_no_pod_is_preempted_where_preemption_is_off() -> None:
    async with living("a", actions="reclaim,consolidate") as world:
        world.runs("victim", "a")
        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(30)

        assert (world.cluster.evictions, world.reason(urgent)) == ([], Reason.NO_NODE_FITS)


@pytest.mark.parametrize(("ageing_s", "small_one_starts"), [(None, True), (30.0, False)])
async def test_a_gang_that_has_waited_long_is_not_starved_by_small_pods(
    ageing_s: float | None, *, small_one_starts: bool
) -> None:
    async with living("a", gpus=2, ageing_s=ageing_s) as world:
        running = world.runs("running", "a")
        gang = world.gang("gang", size=2)
        await passes(60)

        small = world.pod("small")
        world.patch(small, metadata={"creationTimestamp": "1970-01-01T00:01:00Z"})
        await passes(1)
        assert bool(world.promised(small)) is small_one_starts
        world.delete(running)
        await passes(2)

        assert all(map(world.promised, gang)) is not small_one_starts


async def test_no_search_runs_without_any_action() -> None:
    counting = Counting()
    async with living("a", plan=counting, actions="") as world:
        world.runs("victim", "a")
        world.pod("urgent", priority_class=URGENT)
        await passes(10)

        assert counting.searches == 0


@pytest.mark.parametrize(("actions", "evicted"), [("stalegangeviction", ["gang-0", "gang-1"]), ("preempt", [])])
async def test_a_stale_gang_is_evicted_after_its_grace_period_if_this_is_enabled(
    actions: str, evicted: list[str]
) -> None:
    async with living("a", gpus=3, actions=actions, stale_grace_s=30) as world:
        gang = world.gang("gang", size=3)
        for pod in gang:
            world.patch(pod, spec={"nodeName": "a"}, status={"phase": "Running"})
        await passes(5)
        world.delete(gang[2])

        await passes(25)
        assert world.cluster.evictions == []
        await passes(10)

        assert world.cluster.evictions == evicted
        assert world.cluster.told.count(("gang", STALE)) == bool(evicted)


@pytest.mark.parametrize("grace_s", [0, 5])
@pytest.mark.parametrize("errors", [[RejectedError("no")], [UnavailableError("503")] * (len([*RETRY.pauses()]) + 1)])
async def test_a_stale_gang_whose_eviction_fails_repeatedly_backs_off(
    grace_s: int, errors: Sequence[KubeError]
) -> None:
    async with living("a", gpus=3, stale_grace_s=grace_s) as world:
        gang = world.gang("gang", size=3)
        for pod in gang:
            world.patch(pod, spec={"nodeName": "a"}, status={"phase": "Running"})
        await passes(5)
        world.cluster.errors["evict"] += list(errors) * 1000
        world.delete(gang[2])
        await passes(60)
        early = len(world.cluster.evictions)
        await passes(600)
        late = len(world.cluster.evictions) - early

        # Both pods are retried after 2, 4, 8, 16, 32, 64 and then 120 s, beside the grace period.
        assert 0 < early <= 2 * len(errors) * 5
        assert 0 < late <= 2 * len(errors) * 7
        world.cluster.errors["evict"].clear()
        await passes(150)
        assert all(pod["metadata"].get("deletionTimestamp") for pod in world.cluster.objects(Resource.PODS))


# Messages about it


async def test_a_pod_that_a_search_saw_before_the_loop_did_gets_the_same_message() -> None:
    async with living("a") as world:
        world.runs("on-a", "a")
        pod = world.pod("late")
        await passes(5)
        group = world.cache.pods.get(PodUid(pod["metadata"]["uid"]))
        assert group is not None
        before = world.planning.refusals[group.group].sentence

        # As if the loop had noticed it after the search, on the same version of the cache.
        world.cache.groups.unsettled.note(group.group, waits=True)
        world.planning.plan_now()
        await passes(5)

        assert "; " in before
        assert world.planning.refusals[group.group].sentence == before
