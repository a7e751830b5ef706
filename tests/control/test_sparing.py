"""Plans with victims that disruption budgets protect: two pods on one node, and one of higher priority."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.control.cycle import disruption_budgets
from app.control.cycle.disruption_budgets import DRY_RUNS, GUARDED_S, Budgets
from app.control.writers.evictor import BUDGET_OVERRIDDEN
from app.model.decision import Action, Eviction, Plan
from app.model.memory import PlanMemory
from app.model.names import GroupKey, NodeName, PodUid
from app.model.seam import ForbiddenError, KubeError, NotFoundError, OutcomeUnknownError, RawObject, UnavailableError
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from tests.control.wired import World, living, passes

URGENT = "build-preemptible"


@asynccontextmanager
async def two_running(**more: Any) -> AsyncIterator[World]:
    """Yield a world in which the younger of two pods would be the victim."""
    async with living("a", gpus=2, **more) as world:
        for age, name in enumerate(("old", "young")):
            runs(world, name, created_at=age)
        await passes(1)
        yield world


def runs(world: World, name: str, *, created_at: int = 0, node: str = "a", **more: Any) -> RawObject:
    pod = world.runs(name, node, **more)
    world.patch(pod, metadata={"creationTimestamp": f"1970-01-01T00:00:{created_at:02}Z"})
    return pod


async def test_the_youngest_pod_is_the_victim_without_a_query_where_no_budget_protects_it() -> None:
    async with two_running() as world:
        world.pod("urgent", priority_class=URGENT)
        await passes(2)

        assert (world.cluster.evictions, world.cluster.asked) == (["young-0"], [])


async def test_a_protected_pod_is_spared_where_another_can_make_room() -> None:
    async with two_running() as world:
        world.cluster.guarded.add("young-0")

        world.pod("urgent", priority_class=URGENT)
        await passes(2)

        assert world.cluster.evictions == ["old-0"]
        assert world.count("disruption_budgets_overridden") == 0


async def test_protected_pods_beside_the_victim_are_spared_too() -> None:
    async with living("a", gpus=4) as world:
        for age, name in enumerate(("free", "first", "second", "third")):
            runs(world, name, created_at=age)
        world.cluster.guarded |= {"first-0", "second-0", "third-0"}
        await passes(1)

        world.pod("urgent", priority_class=URGENT)
        await passes(2)

        assert (world.cluster.evictions, world.cluster.asked[0]) == (["free-0"], "third-0")


async def test_a_protected_pod_is_evicted_with_an_event_where_no_other_can_make_room() -> None:
    async with two_running() as world:
        world.cluster.guarded |= {"old-0", "young-0"}

        world.pod("urgent", priority_class=URGENT)
        await passes(2)

        assert world.cluster.deletions == ["young-0"]
        assert ("young-0", BUDGET_OVERRIDDEN) in world.cluster.told
        assert world.count("disruption_budgets_overridden") == 1


async def test_a_whole_gang_is_spared_when_one_of_its_pods_is_protected() -> None:
    async with living("a", gpus=4) as world:
        runs(world, "old")
        runs(world, "older")
        for pod in world.gang("gang", size=2):
            world.patch(pod, spec={"nodeName": "a"}, metadata={"creationTimestamp": "1970-01-01T00:00:09Z"})
        world.cluster.guarded.add("gang-1")
        await passes(1)

        world.gang("urgent", size=2, priority_class=URGENT)
        await passes(2)

        assert sorted(world.cluster.evictions) == ["old-0", "older-0"]


async def test_a_pod_in_a_namespace_without_a_tight_budget_is_not_queried() -> None:
    async with living("a", gpus=2) as world:
        world.queue("r", gpus=1)
        world.queue("s", gpus=1)
        for name, queue in (("mine", "q"), ("guarded", "s")):
            runs(world, name, queue=queue)
        world.cluster.guarded.add("guarded-0")
        await passes(1)

        world.pod("claim", queue="r")
        await passes(2)

        assert (world.cluster.evictions, world.cluster.asked) == (["mine-0"], [])


@pytest.mark.parametrize("verb", ["tight_budgets", "may_evict"])
@pytest.mark.parametrize("error", [UnavailableError("503"), OutcomeUnknownError("500"), ForbiddenError("403")])
async def test_a_failed_query_protects_no_pod(verb: str, error: KubeError) -> None:
    async with two_running() as world:
        world.cluster.guarded.add("young-0")
        world.cluster.errors[verb].append(error)

        with capture_logs() as logs:
            world.pod("urgent", priority_class=URGENT)
            await passes(2)

        assert world.cluster.deletions == ["young-0"]
        assert logs[0] == {"event": "disruption budgets cannot be read", "log_level": "warning", "error": str(error)}


async def test_a_pod_deleted_meanwhile_protects_no_pod() -> None:
    async with two_running() as world:
        world.cluster.guarded.add("young-0")
        world.cluster.errors["may_evict"].append(NotFoundError("gone"))

        with capture_logs() as logs:
            world.pod("urgent", priority_class=URGENT)
            await passes(2)

        assert world.cluster.evictions == ["young-0"]
        assert "disruption budgets cannot be read" not in {line["event"] for line in logs}


async def test_nothing_is_evicted_when_another_replica_decides_by_the_time_of_the_answer() -> None:
    async with two_running(scheduler_lease="ns/name", hostname="me") as world:
        world.cluster.holders["ns/name"] = "me_1"
        await passes(10)
        world.cluster.takes_s["tight_budgets"] = 30

        urgent = world.pod("urgent", priority_class=URGENT)
        await passes(5)
        world.cluster.holders["ns/name"] = "other_1"
        await passes(60)

        assert (world.promised(urgent), world.count("evictions_failed")) == (None, 0)


# The component alone


def eviction(pod: RawObject, action: Action = Action.PREEMPT) -> Eviction:
    metadata = pod["metadata"]
    group = GroupKey("q", metadata["annotations"].get("pod-group-name", metadata["uid"]))
    return Eviction(pod=PodUid(metadata["uid"]), group=group, node=NodeName("a"), action=action)


async def test_a_protection_expires_and_is_queried_again() -> None:
    async with two_running() as world:
        known = Budgets(world.cache, world.cluster, clock=world.now)
        pod = runs(world, "guarded", gpus=0)
        world.cluster.guarded.add("guarded-0")
        await passes(1)

        answers = [await known.inquire([eviction(pod)]), await known.inquire([eviction(pod)])]
        assert (answers, known.guarded()) == ([True, False], frozenset({eviction(pod).group}))
        assert world.cluster.lists == 1
        await passes(GUARDED_S)

        assert known.guarded() == frozenset()
        assert await known.inquire([eviction(pod)])


async def test_nothing_is_queried_for_a_stale_gang_because_no_other_pod_could_be_evicted() -> None:
    async with two_running() as world:
        known = Budgets(world.cache, world.cluster, clock=world.now)
        pod = runs(world, "guarded", gpus=0)
        world.cluster.guarded.add("guarded-0")
        await passes(1)

        assert not await known.inquire([eviction(pod, Action.EVICT_STALE)])


async def test_one_protected_pod_spares_a_gang_and_other_gangs_are_queried_from_the_youngest() -> None:
    async with living("a") as world:
        known = Budgets(world.cache, world.cluster, clock=world.now)
        gang = world.gang("gang", size=2 * disruption_budgets.ASKERS, gpus=0)
        for pod in gang:
            world.patch(pod, spec={"nodeName": "a"})
        for age, name in enumerate(("old", "young")):
            runs(world, name, gpus=0, created_at=age)
        runs(world, "firm", gpus=0, priority_class="build")
        world.cluster.guarded |= {pod["metadata"]["name"] for pod in gang}
        await passes(1)

        assert await known.inquire(map(eviction, gang))

        assert world.cluster.asked == [f"gang-{number}" for number in range(disruption_budgets.ASKERS)] + [
            "young-0",
            "old-0",
        ]


@pytest.mark.parametrize("allowed", [True, False])
async def test_no_more_victims_are_queried_than_the_limit_of_a_search(*, allowed: bool) -> None:
    async with living("a") as world:
        known = Budgets(world.cache, world.cluster, clock=world.now)
        pods = [runs(world, f"p{number}", gpus=0) for number in range(DRY_RUNS + 20)]
        world.cluster.guarded |= {pod["metadata"]["name"] for pod in (pods[-1:] if allowed else pods)}
        await passes(1)

        await known.inquire(map(eviction, pods))

        assert len(world.cluster.asked) == DRY_RUNS


async def test_the_number_of_queries_is_limited_for_a_search_and_at_a_time() -> None:
    async with living("a") as world:
        known = Budgets(world.cache, world.cluster, clock=world.now)
        pods = [runs(world, f"p{number}", gpus=0) for number in range(DRY_RUNS + 20)]
        world.cluster.guarded |= {pod["metadata"]["name"] for pod in pods}
        world.cluster.takes_s["may_evict"] = 1
        await passes(1)
        began = world.now()

        assert await known.inquire([eviction(pods[0])])

        assert len(known.guarded()) == len(world.cluster.asked) == DRY_RUNS
        assert world.now() - began == pytest.approx(1 + DRY_RUNS / disruption_budgets.ASKERS, abs=1)


async def test_a_search_reads_the_budgets_once_and_plans_at_most_twice() -> None:
    plans: list[Snapshot] = []

    def counting(snapshot: Snapshot, policy: Policy, *, now: float, memory: PlanMemory) -> Plan:
        plans.append(snapshot)
        return plan(snapshot, policy, now=now, memory=memory)

    async with two_running(plan=counting) as world:
        world.cluster.guarded |= {"old-0", "young-0"}
        world.pod("urgent", priority_class=URGENT)
        await passes(1)

        assert [len(snapshot.guarded) for snapshot in plans] == [0, 2]
