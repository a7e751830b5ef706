"""Time-based fairness, from the usage of pods to the division of the surplus."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.cli.options import WrongSettingError, read_settings
from app.cluster.queues.usage import UsageHistory
from app.control.cycle.usage_meter import history_of
from app.model.names import QueueName
from app.model.past import MICRO
from app.model.resources import Resources
from app.model.seam import RawObject, Resource
from app.model.snapshot import Snapshot, Usage
from app.scheduling.queues.fairshare import fair_shares
from app.settings import Settings
from app.simulation.cluster import Ref
from tests import given
from tests.control.wired import FickleCluster, World, furnished, living, passes

HOUR_S = 3600
K: dict[str, Any] = {"fair_share_k": 1.0, "usage_interval_s": 60}
TOLD_S = 90
"""After this time the measurements of the first minute have been reported and written."""


def status(cluster: FickleCluster, name: str) -> RawObject:
    (found,) = [one for one in cluster.objects(Resource.QUEUES) if one["metadata"]["name"] == name]
    return dict(found.get("status", {}))


def gpu_shares(world: World) -> dict[str, int]:
    return {name: share.fair_share.gpu_milli // 1000 for name, share in world.inspect.queues()().items()}


def two_queues(world: World, *, running: int, waiting: int) -> None:
    """Let `q` hold GPUs of node `a`, and `r` wait for some."""
    world.queue("r")
    for number in range(running):
        world.runs(f"old-{number}", "a")
    for number in range(waiting):
        world.pod(f"new-{number}", queue="r")


# What is written


async def test_past_usage_does_not_matter_by_default() -> None:
    async with living("a") as world:
        world.runs("one", "a")
        await passes(5)
        world.cluster.statuses.clear()

        await passes(HOUR_S)

        assert world.cluster.statuses == []
        assert "usage" not in status(world.cluster, "q")
        assert world.cache.snapshot().past == UsageHistory().past()


async def test_a_queue_shows_the_past_usage_of_itself_and_its_descendants() -> None:
    async with living("a", gpus=4, **K) as world:
        world.queue("team", parent="q")
        world.runs("one", "a", queue="team")
        await passes(TOLD_S)

        usages = [status(world.cluster, name)["usage"] for name in ("q", "team")]

        assert usages[0] == usages[1]
        used, capacity = (float(usages[0][key]["nvidia.com/gpu"]) for key in ("used", "capacity"))
        assert [used, capacity / used] == pytest.approx([60, 4], rel=1e-3)


async def test_past_usage_is_written_once_an_interval_and_only_if_there_is_any() -> None:
    async with living("a", **K) as world:
        world.queue("idle")
        world.runs("one", "a")
        await passes(5)
        world.cluster.statuses.clear()

        await passes(10 * 60)

        names = [name for name, _ in world.cluster.statuses]
        assert 9 <= names.count("q") <= 10
        assert names.count("idle") == 0


async def test_time_with_a_stale_cache_counts_for_no_queue() -> None:
    async with living("a", **K) as world:
        world.runs("one", "a")
        await passes(TOLD_S)
        world.cluster.hide(Resource.NODES)
        await passes(HOUR_S)
        world.cluster.show(Resource.NODES)
        world.nodes("b")
        await passes(TOLD_S)

        assert float(status(world.cluster, "q")["usage"]["used"]["nvidia.com/gpu"]) < 300


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
async def test_a_clock_that_jumps_charges_no_queue_for_the_time_between(jump_s: float) -> None:
    async with living("a", gpus=2, usage_half_life_s=HOUR_S, **K) as world:
        world.runs("one", "a")
        await passes(HOUR_S)
        world.runs("two", "a")
        await passes(20)

        world.meter._wall_clock = lambda: world.now() + jump_s
        await passes(TOLD_S)

        used, capacity = (
            float(status(world.cluster, "q")["usage"][each]["nvidia.com/gpu"]) for each in ("used", "capacity")
        )
        assert 0.5 < used / capacity < 0.65


async def test_an_exception_in_the_meter_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a mistake")

    async with living("a", **K) as world:
        world.runs("one", "a")
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(world.cache.history, "see", broken)  # no object of a cluster makes it fail
            await passes(30)
        await passes(TOLD_S)

        assert {each["event"] for each in logs if each["log_level"] == "error"} == {"usage not counted"}
        assert "usage" in status(world.cluster, "q")


# What survives a restart


async def test_a_new_process_reads_past_usage_before_it_plans_and_writes_nothing_again() -> None:
    cluster = furnished("a")
    async with living(cluster=cluster, **K) as world:
        world.runs("one", "a")
        await passes(HOUR_S)
        told = world.cache.snapshot().past
    cluster.statuses.clear()

    async with living(cluster=cluster, **K) as world:
        assert world.cache.snapshot().past == told
        await passes(5)

        assert cluster.statuses == []
        assert told.usage_micro[QueueName("q")][2] == MICRO


async def test_unreadable_past_usage_counts_as_none_and_is_reported() -> None:
    cluster = furnished("a")
    usage = {"updated": "some day", "used": {}, "capacity": {}}
    cluster.patch(Ref(resource=Resource.QUEUES, name="q"), {"status": {"usage": usage}})

    with capture_logs() as logs:
        async with living(cluster=cluster, **K) as world:
            world.runs("one", "a")
            await passes(TOLD_S)

    (log,) = [each for each in logs if each["event"].startswith("past usage cannot be read")]
    assert (log["queue"], "some day" in log["problem"]) == ("q", True)
    assert float(status(cluster, "q")["usage"]["used"]["nvidia.com/gpu"]) == pytest.approx(60, rel=1e-3)


async def test_a_standby_reads_past_usage_and_measures_nothing_itself() -> None:
    cluster = furnished("a")
    cluster.holders = {"ns/lease": "me_1"}
    lease: dict[str, Any] = {"scheduler_lease": "ns/lease"}
    async with living(cluster=cluster, hostname="me", **lease, **K) as active:
        active.runs("one", "a")
        standby = World(cluster, Settings(hostname="other", **lease, **K))
        others = [asyncio.create_task(part.run()) for part in standby.running]
        await passes(10 * 60)

        assert standby.cache.snapshot().past == active.cache.snapshot().past
        assert active.cache.snapshot().past.usage_micro[QueueName("q")][2] == MICRO
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_a_queue_that_is_created_again_has_no_past_usage() -> None:
    async with living("a", **K) as world:
        world.runs("one", "a")
        await passes(TOLD_S)

        world.cluster.delete(Ref(resource=Resource.QUEUES, name="q"))
        world.queue("q")
        await passes(1)

        assert world.cache.snapshot().past.usage_micro == {}


# Effects


async def test_a_queue_without_past_usage_gets_more_of_the_surplus() -> None:
    async with living("a", gpus=8, actions="", **K) as world:
        two_queues(world, running=6, waiting=8)
        world.pod("more", gpus=8)
        await passes(30)
        before = gpu_shares(world)
        await passes(TOLD_S)

        # q holds 6 of 8, so its weight is 1/2 + (1/2 - 3/4); that of r, which got the rest, 1/2 + (1/2 - 1/4).
        assert (before, gpu_shares(world)) == ({"q": 4, "r": 4}, {"q": 2, "r": 6})


@pytest.mark.parametrize(("k", "evicted"), [(0.0, 1), (1.0, 2)])
async def test_a_queue_that_used_everything_gives_up_more_than_half(k: float, evicted: int) -> None:
    async with living("a", gpus=2, usage_interval_s=60, fair_share_k=k) as world:
        two_queues(world, running=2, waiting=0)
        await passes(HOUR_S)

        for number in range(2):
            world.pod(f"new-{number}", queue="r")
        await passes(30)

        assert len(world.cluster.evictions) == evicted


async def test_the_passing_of_time_alone_gives_a_queue_its_turn() -> None:
    async with living("a", gpus=2, usage_half_life_s=600, **K) as world:
        two_queues(world, running=2, waiting=0)
        await passes(HOUR_S)
        for number in range(2):
            world.runs(f"new-{number}", "a", queue="r")
        for name in ("old-0", "old-1"):
            world.cluster.delete(Ref(resource=Resource.PODS, namespace="q", name=f"{name}-0"))
        world.pod("again")
        await passes(30)
        at_first = list(world.cluster.evictions)

        await passes(HOUR_S)

        assert (at_first, len(world.cluster.evictions)) == ([], 1)


def wanting(*queues: str, gpus: int) -> Snapshot:
    """Build a cluster in which every queue requests everything."""
    usage = {QueueName(name): Usage(requested=Resources(gpu_milli=gpus * 1000)) for name in queues}
    return replace(given.snapshot([given.node("n", gpus=gpus)], [given.queue(one) for one in queues], []), usage=usage)


def test_a_queue_that_had_everything_compensates_until_all_have_used_the_same() -> None:
    history = history_of(Settings(fair_share_k=1.0))
    cluster, hour_ms = wanting("old", "new", gpus=8), HOUR_S * 1000
    a, b = QueueName("old"), QueueName("new")
    history.see(0, {a: (0, 0, 8000)}, (0, 0, 8000))
    shares: list[tuple[int, int]] = []
    for hour in range(7 * 24, 35 * 24):
        now = {name: share.fair_share.gpu_milli for name, share in fair_shares(cluster).items()}
        shares.append((now[a], now[b]))
        history.see(hour * hour_ms, {name: (0, 0, share) for name, share in now.items()}, (0, 0, 8000))
        history.tell()
        cluster = replace(cluster, past=history.past())

    assert all(sum(each) == 8000 for each in shares)
    assert shares[2] == (0, 8000)
    assert set(shares[-24:]) == {(4000, 4000)}
    gpus = {name: part[2] for name, part in history.past().usage_micro.items()}
    assert abs(gpus[a] - gpus[b]) < 100_000


def test_a_gpu_that_cannot_be_divided_changes_its_queue_seldom() -> None:
    history = history_of(Settings(fair_share_k=1.0))
    cluster, shares = wanting("a", "b", gpus=9), list[int]()
    for step in range(28 * 24 * 12):
        now = {name: share.fair_share.gpu_milli for name, share in fair_shares(cluster).items()}
        shares.append(now[QueueName("a")])
        history.see(step * 300_000, {name: (0, 0, share) for name, share in now.items()}, (0, 0, 9000))
        history.tell()
        cluster = replace(cluster, past=history.past())

    last_week = shares[-7 * 24 * 12 :]
    assert set(last_week) == {4000, 5000}
    assert sum(one != other for one, other in pairwise(last_week)) < 14


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("usage_half_life_s", 0),
        ("usage_half_life_s", float("inf")),
        ("usage_interval_s", 1),
        ("fair_share_k", -1),
        ("fair_share_k", float("inf")),
        ("fair_share_k", float("nan")),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: float) -> None:
    with pytest.raises(WrongSettingError, match=f"LEEBOARD_{setting.upper()}: input should be "):
        read_settings(**{setting: value})


def test_the_text_none_is_no_number_for_the_half_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_USAGE_HALF_LIFE_S", "None")

    with pytest.raises(WrongSettingError, match="LEEBOARD_USAGE_HALF_LIFE_S: input should be a valid number"):
        read_settings()
