from collections import Counter
from typing import Any

import pytest

from app.cluster.encode import status_fields
from app.control.report.events import EVENTS_PER_ROUND, TOLD_FOR_S
from app.control.report.status import AT_ONCE, LONGEST_PAUSE_S
from app.model.names import GroupKey
from app.model.seam import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    OutcomeUnknownError,
    RawObject,
    Resource,
    UnavailableError,
)
from app.simulation.cluster import Ref
from tests.control.virtual import threads_take, turns
from tests.control.wired import FickleCluster, World, furnished, living, passes

SETTLED_S = 3.0
"""After this time all statuses and events have been written."""


def said(cluster: FickleCluster, resource: Resource, name: str) -> RawObject:
    """Return the status of an object as it is in the store."""
    (status,) = [item["status"] for item in cluster.objects(resource) if item["metadata"]["name"] == name]
    return dict(status)


def written(world: World) -> list[str]:
    return [name for name, _ in world.cluster.statuses]


def many_pods(world: World, count: int) -> list[RawObject]:
    return [world.pod(f"p{number}", gpus=8) for number in range(count)]


# Contents of statuses


async def test_the_status_of_a_queue_shows_what_its_pods_hold_and_request() -> None:
    async with living("a") as world:
        world.pod("one")
        world.pod("waits")
        await passes(SETTLED_S)

        status = said(world.cluster, Resource.QUEUES, "q")

        assert status["allocated"]["nvidia.com/gpu"] == "1"
        assert status["requested"]["nvidia.com/gpu"] == "2"
        assert {one["type"]: one["status"] for one in status["conditions"]} == {"Valid": "True", "OverQuota": "True"}


async def test_shares_of_many_queues_are_computed_in_a_thread_and_written_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worded, whole = Counter[int](), status_fields.queue_status

    def queue_status(*args: Any, **more: Any) -> RawObject:
        worded[turns()] += 1
        return whole(*args, **more)

    async with living("a") as world:
        for each in range(2 * AT_ONCE + 50):
            world.queue(f"q{each}")
        await passes(SETTLED_S)
        monkeypatch.setattr(status_fields, "queue_status", queue_status)
        threads_take(5.0)
        world.queue("new")
        await passes(4)
        assert not worded
        await passes(4)

    assert max(worded.values()) <= AT_ONCE < sum(worded.values())
    assert written(world).count("new") == 1


async def test_a_parent_queue_names_its_children_and_an_orphan_its_error() -> None:
    async with living() as world:
        for name, parent in [("parent", None), ("y", "parent"), ("x", "parent"), ("orphan", "missing")]:
            world.queue(name, parent=parent)
        await passes(SETTLED_S)

        assert said(world.cluster, Resource.QUEUES, "parent")["childQueues"] == ["x", "y"]
        (invalid,) = said(world.cluster, Resource.QUEUES, "orphan")["conditions"][:1]
        assert (invalid["status"], invalid["reason"]) == ("False", "QueueIsInvalid")


async def test_an_invalid_queue_shows_what_still_runs_in_it() -> None:
    async with living("a") as world:
        world.queue("lost", parent="missing")
        world.runs("old", "a", queue="lost")
        await passes(SETTLED_S)

        status = said(world.cluster, Resource.QUEUES, "lost")

        assert (status["allocated"]["nvidia.com/gpu"], status["requested"]["nvidia.com/gpu"]) == ("1", "1")
        assert [one["type"] for one in status["conditions"]] == ["Valid"]


async def test_a_podgroup_shows_why_it_is_pending_until_it_starts() -> None:
    async with living("a") as world:
        world.gang("gang", size=2)
        await passes(SETTLED_S)
        waits = said(world.cluster, Resource.POD_GROUPS, "gang")

        world.nodes("b")
        await passes(SETTLED_S)
        starts = said(world.cluster, Resource.POD_GROUPS, "gang")

        assert [one["reason"] for one in waits["schedulingConditions"]] == ["GangDoesNotFit"]
        assert (starts["schedulingConditions"], starts["pending"], starts["running"]) == ([], 2, 0)
        assert starts["resourcesStatus"]["allocated"]["nvidia.com/gpu"] == "2"


async def test_a_podgroup_counts_the_pods_that_run_and_those_that_do_not() -> None:
    async with living("a", "b") as world:
        first, *_ = world.gang("gang", size=3, min_member=1)
        await world.bind(first, await world.choose(first, "a", "b"))
        await passes(SETTLED_S)

        status = said(world.cluster, Resource.POD_GROUPS, "gang")

        assert (status["running"], status["pending"]) == (1, 2)


async def test_an_owner_gets_the_error_of_a_podgroup() -> None:
    async with living("a") as world:
        world.gang("gang", size=1)
        world.cluster.patch(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"), {"spec": {"minMember": "x"}})
        await passes(SETTLED_S)

        condition, scheduled = said(world.cluster, Resource.POD_GROUPS, "gang")["conditions"]

        assert (condition["status"], condition["reason"]) == ("False", "PodGroupIsInvalid")
        assert (scheduled["status"], scheduled["reason"]) == ("False", "PodGroupIsInvalid")
        assert "minMember" in condition["message"]


# When it is written


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with living("a") as world:
        world.gang("gang", size=2)
        await passes(SETTLED_S)
        world.cluster.statuses.clear()

        await passes(60)

        assert written(world) == []


async def test_an_object_is_written_at_most_once_an_interval() -> None:
    async with living("a", gpus=8, status_interval_s=2) as world:
        for number in range(80):
            world.pod(f"p{number}")
            await passes(0.1)

        assert 3 <= written(world).count("q") <= 4


async def test_nothing_is_written_after_a_restart_where_the_status_is_current() -> None:
    cluster = furnished("a")
    async with living(cluster=cluster) as world:
        world.gang("gang", size=2)
        await passes(SETTLED_S)
    cluster.statuses.clear()

    async with living(cluster=cluster):
        await passes(SETTLED_S)

    assert cluster.statuses == []


async def test_a_status_that_another_client_overwrote_is_corrected() -> None:
    cluster = furnished("a")
    async with living(cluster=cluster):
        await passes(SETTLED_S)
    cluster.patch(Ref(resource=Resource.QUEUES, name="q"), {"status": {"requested": {"cpu": "9"}, "theirs": 1}})

    async with living(cluster=cluster):
        await passes(SETTLED_S)

    status = said(cluster, Resource.QUEUES, "q")
    assert (status["requested"]["cpu"], status["theirs"]) == ("0", 1)


@pytest.mark.parametrize(
    "error", [UnavailableError("503"), OutcomeUnknownError("500"), ForbiddenError("403")], ids=repr
)
async def test_a_failed_write_is_retried_although_nothing_has_changed(error: KubeError) -> None:
    async with living("a") as world:
        world.cluster.errors["write_status"] += [error] * 2

        await passes(2 + SETTLED_S)

        assert written(world) == ["q"] * 3
        assert "allocated" in said(world.cluster, Resource.QUEUES, "q")


async def test_a_write_that_fails_for_an_hour_is_retried_less_and_less_often_and_then_done() -> None:
    async with living("a") as world:
        world.cluster.errors["write_status"] += [OutcomeUnknownError("500 failed calling webhook")] * 1000

        await passes(3600)
        tries = len(written(world))
        world.cluster.errors["write_status"].clear()
        await passes(LONGEST_PAUSE_S + SETTLED_S)

        assert tries < 50
        assert "allocated" in said(world.cluster, Resource.QUEUES, "q")


async def test_the_status_of_a_deleted_object_is_dropped() -> None:
    async with living("a") as world:
        world.cluster.errors["write_status"] += [NotFoundError("404")]

        await passes(SETTLED_S)

        assert written(world) == ["q"]


async def test_nothing_is_written_while_the_cache_is_stale() -> None:
    async with living("a") as world:
        await passes(SETTLED_S)
        world.cluster.hide(Resource.NODES)
        await passes(120)
        world.cluster.statuses.clear()

        world.pod("one")
        await passes(SETTLED_S)

        assert written(world) == []


# Events


async def test_a_cause_that_lasts_makes_one_event() -> None:
    async with living("a") as world:
        world.pod("large", gpus=8)

        await passes(TOLD_FOR_S / 2)

        assert world.cluster.told == [("large-0", "NoNodeFits")]
        assert "8 GPUs requested" in world.cluster.events[0].note


async def test_a_cause_that_lasts_long_makes_another_event() -> None:
    async with living("a") as world:
        world.pod("large", gpus=8)

        await passes(TOLD_FOR_S + 10)

        assert len(world.cluster.told) == 2


async def test_a_cause_that_ends_quickly_makes_no_event() -> None:
    async with living("a") as world:
        world.pod("large", gpus=8)
        await passes(1.2)

        world.nodes("b", gpus=8)
        await passes(SETTLED_S)

        assert world.cluster.told == []


async def test_another_cause_makes_an_event_too() -> None:
    async with living("a") as world:
        world.gang("gang", size=2)
        await passes(SETTLED_S)

        world.cluster.patch(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"), {"spec": {"minMember": 3}})
        await passes(SETTLED_S)

        told = [(name, reason) for reason in ("GangDoesNotFit", "NotReady") for name in ("gang", "gang-0", "gang-1")]
        assert world.cluster.told == told


async def test_a_podgroup_that_backs_off_repeatedly_makes_one_event() -> None:
    async with living("a", "b") as world:
        world.gang("gang", size=2)
        await passes(0.5)
        for _ in range(3):
            world.planning.attempts.dissolve(
                GroupKey("q", "gang"), "kube-scheduler did not ask in time to bind all pods of the gang"
            )
            await passes(10)

        assert world.cluster.told == [(name, "BackingOff") for name in ("gang", "gang-0", "gang-1")]
        assert (
            world.cluster.events[0].note
            == "Kube-scheduler did not ask in time to bind all pods of the gang; Leeboard tries again in 2 s."
        )


async def test_a_round_writes_some_events_and_the_next_round_others() -> None:
    async with living("a") as world:
        many_pods(world, EVENTS_PER_ROUND + 5)

        await passes(2.5)
        first = len(world.cluster.told)
        await passes(1)

        assert (first, len(set(world.cluster.told))) == (EVENTS_PER_ROUND, EVENTS_PER_ROUND + 5)


async def test_an_event_that_was_surely_not_written_is_written_again() -> None:
    async with living("a") as world:
        world.pod("large", gpus=8)
        world.cluster.errors["record_event"] += [UnavailableError("429")]

        await passes(10)

        assert world.cluster.told == [("large-0", "NoNodeFits")] * 2


async def test_a_forbidden_event_does_not_delay_other_events() -> None:
    async with living("a") as world:
        many_pods(world, EVENTS_PER_ROUND + 1)
        world.cluster.errors["record_event"] += [ForbiddenError("403")] * 1000

        await passes(10)

        assert len(set(world.cluster.told)) == len(world.cluster.told) == EVENTS_PER_ROUND + 1


async def test_pods_deleted_while_events_are_written_get_none() -> None:
    async with living("a") as world:
        world.cluster.takes_s["record_event"] = 0.5
        pods = many_pods(world, 3)
        await passes(2.2)

        for pod in pods:
            world.delete(pod)
        await passes(SETTLED_S)

        assert len(world.cluster.told) == 1


async def test_a_gang_that_fails_again_just_before_its_retry_does_not_say_that_it_waits_for_no_time() -> None:
    async with living("a", "b") as world:
        world.gang("gang", size=2)
        await passes(1)
        for pause_s in (1.6, 0.2):
            world.planning.attempts.dissolve(
                GroupKey("q", "gang"), "kube-scheduler did not ask in time to bind all pods of the gang"
            )
            await passes(pause_s)

        refusal = world.inspect.refusal(GroupKey("q", "gang"))

        assert refusal is not None
        assert (
            refusal.sentence
            == "Kube-scheduler did not ask in time to bind all pods of the gang; Leeboard tries again in 1 s."
        )
