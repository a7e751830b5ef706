import pytest
from structlog.testing import capture_logs

from app.control.writers.evictor import BUDGET_OVERRIDDEN, EVICTED, RETRY, STALE, WRITERS
from app.model.decision import Action, Eviction
from app.model.names import GroupKey, NodeName, PodUid
from app.model.seam import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    OutcomeUnknownError,
    RawObject,
    RejectedError,
    Resource,
    UnavailableError,
)
from app.simulation.cluster import Ref
from tests.control.wired import World, living, passes

PREEMPTED = "Pod q/victim-0 was evicted for workload q/urgent-0, which has a higher priority"


def eviction(pod: RawObject, *, action: Action = Action.PREEMPT, beneficiary: RawObject | None = None) -> Eviction:
    metadata = pod["metadata"]
    return Eviction(
        pod=PodUid(metadata["uid"]),
        group=GroupKey("q", metadata["annotations"].get("pod-group-name", metadata["uid"])),
        node=NodeName("a"),
        action=action,
        beneficiary=GroupKey("q", beneficiary["metadata"]["uid"]) if beneficiary else None,
    )


async def ordered(world: World, **more: object) -> RawObject:
    """Let a pod run, and order its eviction for another pod."""
    victim, urgent = world.runs("victim", "a"), world.pod("urgent", gpus=8)
    await passes(0.5)
    world.evictor.order([eviction(victim, beneficiary=urgent, **more)])  # type: ignore[arg-type] # free-form by design
    return victim


def is_leaving(world: World, pod: RawObject) -> bool:
    known = world.cache.pods.get(PodUid(pod["metadata"]["uid"]))
    return known is not None and known.deleting


async def test_a_victim_is_marked_evicted_counted_and_reported() -> None:
    async with living("a") as world:
        victim = await ordered(world)
        assert is_leaving(world, victim)
        await passes(1)

        assert world.cluster.marks == [("victim-0", PREEMPTED)]
        assert (world.cluster.evictions, world.cluster.deletions) == (["victim-0"], [])
        assert world.cluster.told == [("victim-0", EVICTED)]
        assert world.count("pods_evicted", action="preempt") == 1


async def test_a_victim_that_is_spared_and_chosen_again_is_reported_only_the_second_time() -> None:
    async with living("a") as world:
        victim, first, second = world.runs("victim", "a"), world.pod("first", gpus=8), world.pod("second", gpus=8)
        await passes(0.5)

        world.evictor.order([eviction(victim, beneficiary=first)])
        world.evictor.recall([PodUid(victim["metadata"]["uid"])])
        world.evictor.order([eviction(victim, beneficiary=second)])
        await passes(1)

        words = "Pod q/victim-0 was evicted for workload q/second-0, which has a higher priority"
        assert (world.cluster.evictions, world.cluster.marks) == (["victim-0"], [("victim-0", words)])


async def test_a_deleted_pod_of_a_gang_without_a_podgroup_is_reported_to_nothing_else() -> None:
    async with living("a", gpus=2) as world:
        pods = world.gang("gang", size=2)
        for pod in pods:
            world.patch(pod, spec={"nodeName": "a"})
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"))
        world.cluster.takes_s["evict"] = 1
        await passes(0.5)

        world.evictor.order([eviction(pods[0])])
        world.delete(pods[0])
        await passes(5)

        assert "gang-1" not in [name for name, _ in world.cluster.told]


async def test_a_pod_is_evicted_once_although_it_is_ordered_repeatedly() -> None:
    async with living("a") as world:
        victim = await ordered(world)
        world.evictor.order([eviction(victim)])
        await passes(1)
        world.evictor.order([eviction(victim)])
        await passes(1)

        assert world.cluster.evictions == ["victim-0"]


async def test_a_pod_evicted_outside_a_plan_is_evicted_once_and_counted_under_its_cause() -> None:
    async with living("a") as world:
        pod = world.runs("odd", "a")
        await passes(1)
        for _ in range(2):
            world.evictor.dismiss(PodUid(pod["metadata"]["uid"]), cause="because", message="it had to go")
            await passes(1)

        assert world.cluster.marks[0] == ("odd-0", "it had to go")
        assert (world.cluster.evictions, world.cluster.told) == (["odd-0"], [("odd-0", EVICTED)])
        assert world.count("pods_evicted", action="because") == 1


async def test_a_terminating_or_deleted_pod_is_not_evicted() -> None:
    async with living("a") as world:
        leaving, gone = world.runs("leaving", "a"), world.runs("gone", "a")
        world.patch(leaving, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        await passes(1)
        world.delete(gone)
        await passes(1)

        world.evictor.order([eviction(leaving), eviction(gone)])
        await passes(1)

        assert (world.cluster.marks, world.cluster.evictions) == ([], [])


async def test_a_budget_that_forbids_an_eviction_is_overridden_counted_and_reported() -> None:
    async with living("a") as world:
        world.cluster.guarded.add("victim-0")
        await ordered(world)
        await passes(1)

        assert (world.cluster.evictions, world.cluster.deletions) == (["victim-0"], ["victim-0"])
        assert world.cluster.told == [("victim-0", BUDGET_OVERRIDDEN), ("victim-0", EVICTED)]
        assert world.count("disruption_budgets_overridden") == 1


async def test_the_beneficiary_gets_the_room_before_anything_is_reported() -> None:
    size = 3 * WRITERS
    async with living("a", gpus=size) as world:
        world.cluster.takes_s["evict"] = world.cluster.takes_s["mark_disrupted"] = 1
        victims = [world.runs(f"victim-{number}", "a") for number in range(size)]
        await passes(0.5)

        world.evictor.order(map(eviction, victims))
        await passes(3.5)

        assert (len(world.cluster.evictions), world.count("pods_evicted", action="preempt")) == (size, size)
        assert world.cluster.told == []
        await passes(3)
        assert (len(world.cluster.marks), len(world.cluster.told)) == (size, size)


@pytest.mark.parametrize(("verb", "guarded"), [("evict", ()), ("mark_disrupted", ("victim-0",))])
@pytest.mark.parametrize("error", [UnavailableError("503"), OutcomeUnknownError("500"), ForbiddenError("403")])
async def test_a_failed_write_is_repeated_after_a_pause(verb: str, guarded: tuple[str, ...], error: KubeError) -> None:
    async with living("a") as world:
        world.cluster.guarded.update(guarded)
        world.cluster.errors[verb].extend([error] * len([*RETRY.pauses()]))
        await ordered(world)

        with capture_logs():
            await passes(sum(RETRY.pauses()) + 1)

        assert world.cluster.evictions[-1] == "victim-0"
        assert (world.count("pods_evicted", action="preempt"), world.count("evictions_failed")) == (1, 0)


async def test_an_eviction_whose_answer_was_lost_is_requested_again() -> None:
    async with living("a") as world:
        world.cluster.lost_replies["evict"] = 1
        await ordered(world)
        await passes(2)

        assert world.count("pods_evicted", action="preempt") == 1


async def test_a_pod_that_is_deleted_before_its_eviction_counts_as_evicted() -> None:
    async with living("a") as world:
        world.cluster.errors["evict"].append(NotFoundError("gone"))
        await ordered(world)
        await passes(1)

        assert world.count("evictions_failed") == 0


@pytest.mark.parametrize(
    ("error", "warned"),
    [(NotFoundError("gone"), []), (ForbiddenError("403"), ["condition of an evicted pod not written"])],
)
async def test_a_pod_that_is_deleted_at_once_causes_no_warning(error: KubeError, warned: list[str]) -> None:
    async with living("a") as world:
        world.cluster.takes_s["evict"] = 1
        await ordered(world)
        with capture_logs() as logs:
            await passes(0.5)
            world.cluster.errors["mark_disrupted"].append(error)
            await passes(1)

    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == warned


@pytest.mark.parametrize(
    "errors",
    [[RejectedError("admission denies it")], [UnavailableError("503")] * (len([*RETRY.pauses()]) + 1)],
    ids=["refused", "tried in vain"],
)
async def test_a_pod_that_cannot_be_evicted_counts_as_staying(errors: list[KubeError]) -> None:
    async with living("a") as world:
        world.cluster.errors["evict"].extend(errors)
        victim = await ordered(world)

        with capture_logs():
            await passes(sum(RETRY.pauses()) + 1)

        assert not is_leaving(world, victim)
        assert (world.count("evictions_failed"), world.free_gpus()) == (1, {"a": 0})


async def test_a_replica_that_is_no_longer_active_evicts_no_pod() -> None:
    async with living("a", scheduler_lease="ns/name", hostname="me") as world:
        victim = world.runs("victim", "a")
        await passes(1)

        with capture_logs():
            world.evictor.order([eviction(victim)])
            await passes(1)

        assert (world.cluster.marks, world.cluster.evictions) == ([], [])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action.PREEMPT, PREEMPTED),
        (Action.RECLAIM, "Pod q/victim-0 was evicted for workload q/urgent-0, whose queue is below its fair share"),
        (
            Action.CONSOLIDATE,
            "Pod q/victim-0 was evicted to move to another node, so that a PodGroup finds room (consolidation)",
        ),
        (
            Action.EVICT_STALE,
            "Pod q/victim-0 was evicted because its gang is incomplete: fewer than 1 of its pods run",
        ),
    ],
)
async def test_a_victim_is_told_why_it_was_evicted_and_for_which_workload(action: Action, message: str) -> None:
    async with living("a") as world:
        await ordered(world, action=action)
        await passes(1)

        assert world.cluster.marks[0] == ("victim-0", message)


async def test_the_podgroup_of_a_stale_gang_gets_one_event() -> None:
    async with living("a", gpus=2) as world:
        pods = world.gang("gang", size=2, min_member=3)
        for pod in pods:
            world.patch(pod, spec={"nodeName": "a"})
        await passes(0.5)

        world.evictor.order([eviction(pod, action=Action.EVICT_STALE) for pod in pods])
        await passes(1)

        assert sorted(world.cluster.told) == [("gang", EVICTED), ("gang", EVICTED), ("gang", STALE)]
