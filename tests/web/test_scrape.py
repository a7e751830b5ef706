"""The metrics that are read from state: what waits, who decides, how full and how scattered the GPUs are."""

import asyncio
import platform

from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.model.explanation import QueueStand
from app.model.occupancy import AgentState, FreeGpus
from app.model.question import Check
from app.web.scrape import scrape
from app.web.visits import OnTheSpot
from tests.given import group, pod, queue
from tests.web.fakes import FakeInspect

NOW = 10_000.0
Samples = dict[tuple[str, ...], float]


def seen(inspect: FakeInspect) -> Samples:
    read = asyncio.run(scrape(CollectorRegistry(), inspect, OnTheSpot(), ready=inspect, clock=lambda: NOW))
    families = text_string_to_metric_families(generate_latest(read).decode())
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def only(samples: Samples, *names: str) -> Samples:
    return {key: value for key, value in samples.items() if key[0] in names}


def test_each_queue_shows_how_much_waits_in_it_and_for_how_long() -> None:
    old, young = (pod(name, gang="g", created_at=at) for name, at in (("a", NOW - 90), ("b", NOW - 30)))
    inspect = FakeInspect(
        stands=[QueueStand(queue=queue("q")), QueueStand(queue=queue("idle"))],
        groups=[(group(old, young), None), (group(pod("c", created_at=NOW - 60)), None)],
    )

    assert only(
        seen(inspect),
        "leeboard_queue_pending_pods",
        "leeboard_queue_pending_podgroups",
        "leeboard_queue_longest_wait_seconds",
    ) == {
        ("leeboard_queue_pending_pods", "q"): 3,
        ("leeboard_queue_pending_pods", "idle"): 0,
        ("leeboard_queue_pending_podgroups", "q"): 2,
        ("leeboard_queue_pending_podgroups", "idle"): 0,
        ("leeboard_queue_longest_wait_seconds", "q"): 90,
        ("leeboard_queue_longest_wait_seconds", "idle"): 0,
    }


def test_names_of_queues_that_do_not_exist_make_no_series() -> None:
    waiting = [(group(pod(f"p{number}", queue=f"made-up-{number}")), None) for number in range(3)]

    samples = seen(FakeInspect(groups=waiting))

    assert only(samples, "leeboard_queue_pending_pods") == {("leeboard_queue_pending_pods", "(orphaned)"): 3}


def test_a_pod_without_a_creation_time_has_not_waited() -> None:
    samples = seen(FakeInspect(stands=[QueueStand(queue=queue("q"))], groups=[(group(pod("a")), None)]))

    assert samples["leeboard_queue_longest_wait_seconds", "q"] == 0


def test_the_leader_is_the_replica_whose_check_says_so() -> None:
    follower = FakeInspect(conditions=(Check("active", "another one leads"), Check("watch-pods")))
    leader = FakeInspect(conditions=(Check("active"),))

    assert [seen(each)["leeboard_leader",] for each in (leader, follower, FakeInspect(conditions=()))] == [1, 0, 0]


def test_each_check_of_readiness_has_one_present_status() -> None:
    checks = Check("active"), Check("watch-pods", "silent"), Check("owners", degraded="not readable")

    samples = only(seen(FakeInspect(conditions=checks)), "leeboard_healthcheck")

    assert len(samples) == 9
    assert [key[1:] for key, value in samples.items() if value] == [
        ("active", "ok"),
        ("watch-pods", "failed"),
        ("owners", "degraded"),
    ]


def test_free_gpus_are_counted_by_node_and_by_what_typical_pods_can_use() -> None:
    samples = seen(FakeInspect(free=FreeGpus(nodes={0: 5, 1: 2}, unusable_ratio=0.25)))

    assert only(samples, "leeboard_nodes_with_free_gpus", "leeboard_gpu_fragmentation_ratio") == {
        ("leeboard_nodes_with_free_gpus", "0"): 5,
        ("leeboard_nodes_with_free_gpus", "1"): 2,
        ("leeboard_gpu_fragmentation_ratio",): 0.25,
    }


def test_fragmentation_has_no_value_while_no_typical_pod_is_known() -> None:
    assert not only(seen(FakeInspect(free=FreeGpus(nodes={}))), "leeboard_gpu_fragmentation_ratio")


def test_gpu_nodes_are_counted_by_the_state_of_their_agent() -> None:
    samples = only(seen(FakeInspect()), "leeboard_gpu_nodes")

    assert samples == {("leeboard_gpu_nodes", state.value): 0 for state in AgentState}


def test_the_build_names_its_versions() -> None:
    ((_, python, version),) = only(seen(FakeInspect()), "leeboard_build_info")

    assert version[0].isdigit()
    assert python == platform.python_version()


def test_limits_are_scraped_beside_what_queues_deserve() -> None:
    stand = QueueStand(queue=queue("q", deserved=8, limit=12))

    samples = seen(FakeInspect(stands=[stand]))

    assert samples["leeboard_queue_limit_gpus", "q"] == 12
    assert samples["leeboard_queue_limit_memory_bytes", "q"] == float("inf")
