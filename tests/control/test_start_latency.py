"""The replica that decides counts each start once, and tells when it last planned."""

from dataclasses import replace

from app.cluster.state.cache import ClusterCache
from app.control.report.start_latency import MOST_QUEUES, StartLatency
from app.model.names import NodeName
from app.model.seam import Resource
from app.telemetry import Metrics
from tests import given
from tests.control.wired import World, living, passes


class Failing:
    """Another replica decides when the reason is not empty."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def failure(self) -> str:
        return self.reason


def started(metrics: Metrics, queue: str = "q") -> tuple[float | None, float | None]:
    read = metrics.registry.get_sample_value
    name = "leeboard_pod_start_latency_seconds"
    return read(f"{name}_count", {"queue": queue}), read(f"{name}_sum", {"queue": queue})


async def test_a_pod_counts_when_the_watch_shows_it_bound() -> None:
    async with living("a", gpus=2) as world:
        await passes(10)
        pod = world.pod("one")
        world.patch(pod, metadata={"creationTimestamp": "1970-01-01T00:00:10Z"})
        await passes(30)
        assert started(world.metrics) == (None, None)
        await world.bind(pod, "a")
        await passes(60)
        world.patch(pod, metadata={"labels": {"x": "y"}})
        await passes(1)

        count, total = started(world.metrics)

        assert count == 1
        assert total is not None
        assert 30 <= total < 32


async def test_pods_that_ran_before_this_process_do_not_count() -> None:
    async with living("a") as world:
        world.runs("old", "a")
        await passes(1)

        assert started(world.metrics) == (None, None)


def test_a_replica_on_standby_counts_nothing() -> None:
    metrics, leadership = Metrics(), Failing("another one leads")
    latency = StartLatency(ClusterCache(), metrics, leadership, wall_clock=lambda: 100.0)
    before = given.pod("a", managed=True, created_at=40.0)
    after = replace(before, node=NodeName("n"))

    latency.note_pod(after, before=before)
    assert started(metrics) == (None, None)

    leadership.reason = ""
    latency.note_pod(after, before=before)
    assert started(metrics) == (1, 60.0)


def test_a_clock_that_lags_shows_no_negative_wait() -> None:
    metrics = Metrics()
    latency = StartLatency(ClusterCache(), metrics, Failing(), wall_clock=lambda: 100.0)
    before = given.pod("a", managed=True, created_at=103.0)

    latency.note_pod(replace(before, node=NodeName("n")), before=before)

    assert started(metrics) == (1, 0.0)


def test_pods_of_others_and_pods_of_unknown_age_do_not_count() -> None:
    metrics = Metrics()
    latency = StartLatency(ClusterCache(), metrics, Failing(), wall_clock=lambda: 100.0)

    for before in (given.pod("a", managed=False, created_at=40.0), given.pod("b", managed=True)):
        latency.note_pod(replace(before, node=NodeName("n")), before=before)

    assert started(metrics) == (None, None)


def test_queues_beyond_a_number_share_one_histogram() -> None:
    metrics = Metrics()
    latency = StartLatency(ClusterCache(), metrics, Failing(), wall_clock=lambda: 100.0)

    for number in range(MOST_QUEUES + 3):
        before = given.pod(f"p{number}", queue=f"q{number}", managed=True, created_at=40.0)
        latency.note_pod(replace(before, node=NodeName("n")), before=before)

    assert started(metrics, "q0") == (1, 60.0)
    assert started(metrics, f"q{MOST_QUEUES}") == (None, None)
    assert started(metrics, "") == (3, 180.0)


async def test_the_age_of_the_plan_grows_only_while_none_is_made() -> None:
    async with living("a") as world:
        await passes(30)
        assert world.now() - last_plan(world) < 2
        world.cluster.hide(Resource.PODS)
        await passes(600)

        assert world.now() - last_plan(world) > 400


async def test_a_replica_on_standby_makes_no_plans() -> None:
    async with living("a", scheduler_lease="ns/other", hostname="me") as world:
        await passes(30)

        assert last_plan(world) == 0


def last_plan(world: World) -> float:
    found = world.metrics.registry.get_sample_value("leeboard_last_plan_timestamp_seconds")
    assert found is not None
    return found
