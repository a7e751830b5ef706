"""Health, metrics and the read API over a real socket."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, TypeVar

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from app.model.explanation import QueueStand
from app.model.names import NodeName, QueueName
from app.model.question import Check
from app.model.queue import Entitlement, Queue
from app.model.reason import Reason, Refusal
from app.model.resources import UNLIMITED, Resources
from app.telemetry import CallOutcome, Metrics, Verb
from app.web import operations
from app.web.callers import Anybody
from tests.given import GIB, group, pod, queue
from tests.web.fakes import FakeInspect, FakePulse, Known
from tests.web.served import HttpReply, get, serving

STALE = Check("watches-fresh", "nodes were last heard of 80 s ago; see the log")
REFUSAL = Refusal(reason=Reason.OVER_LIMIT, sentence="q may hold 8 GPUs and holds 8.", details={"limitGpuMilli": 8000})
T = TypeVar("T")

STAND = QueueStand(
    queue=replace(
        queue("q", deserved=8, limit=12),
        cpu_milli=Entitlement(deserved=UNLIMITED),
        memory_bytes=Entitlement(deserved=64 * GIB),
    ),
    fair_share=Resources(gpu_milli=7500),
    allocated=Resources(gpu_milli=500),
)


async def asked(path: str, inspect: FakeInspect | None = None, pulse: FakePulse | None = None) -> HttpReply:
    app = operations.application(inspect or FakeInspect(), Metrics(), pulse or FakePulse(), callers=Anybody())
    async with serving(app) as served:
        return await served.ask(get(path))


async def scraped(inspect: FakeInspect, metrics: Metrics | None = None) -> dict[tuple[str, ...], float]:
    async with serving(operations.application(inspect, metrics or Metrics(), FakePulse(), callers=Anybody())) as served:
        text = (await served.ask(get("/metrics"))).body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


# -- health


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz", "/readyz/cache-synced", "/livez/watchdog"])
async def test_healthy_service_says_ok(path: str) -> None:
    reply = await asked(path)
    assert (reply.status, reply.body) == (200, b"ok")


async def test_the_version_is_told_to_those_who_may_ask() -> None:
    reply = await asked("/version")
    assert (reply.status, reply.json) == (
        200,
        {"version": version("leeboard"), "gitCommit": None, "apiVersions": ["leeboard.dev/v1alpha1"]},
    )
    assert (await asked("/version?a=b")).status == 400


async def test_verbose_readiness_lists_every_check() -> None:
    reply = await asked("/readyz?verbose")
    assert reply.body == b"[+]cache-synced ok\n[+]event-loop ok\nreadyz check passed\n"


async def test_failed_check_makes_readiness_fail_with_the_reason() -> None:
    reply = await asked("/readyz", FakeInspect(conditions=(Check("cache-synced"), STALE)))
    assert (reply.status, reply.body.decode().splitlines()) == (
        503,
        [
            "[+]cache-synced ok",
            "[-]watches-fresh failed: nodes were last heard of 80 s ago; see the log",
            "[+]event-loop ok",
            "readyz check failed",
        ],
    )


async def test_single_check_fails_alone() -> None:
    reply = await asked("/readyz/watches-fresh", FakeInspect(conditions=(Check("cache-synced"), STALE)))
    assert (reply.status, reply.body) == (503, f"[-]watches-fresh failed: {STALE.failure}\n".encode())


async def test_unknown_check_is_a_problem() -> None:
    reply = await asked("/readyz/nothing")
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")


async def test_stalled_loop_makes_readiness_fail_but_not_liveness() -> None:
    stalled = FakePulse(ready=Check("event-loop", "stalled"))
    assert (await asked("/readyz", pulse=stalled)).status == 503
    assert (await asked("/livez", pulse=stalled)).status == 200


@pytest.mark.parametrize("path", ["/livez", "/healthz"])
async def test_dead_watchdog_makes_liveness_fail(path: str) -> None:
    reply = await asked(path, pulse=FakePulse(live=Check("watchdog", "has not run for 30 s")))
    assert (reply.status, reply.body) == (503, b"[-]watchdog failed: has not run for 30 s\nlivez check failed\n")


# -- metrics


class Counted(Collector):
    """Metrics that record how many threads read them at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def collect(self) -> Iterator[Metric]:
        self.now += 1
        self.most = max(self.most, self.now)
        # Lets other threads run.
        time.sleep(0.001)
        self.now -= 1
        yield from ()


async def test_metrics_are_written_for_one_caller_at_a_time() -> None:
    metrics, counted = Metrics(), Counted()
    metrics.registry.register(counted)
    counted.most = 0
    async with serving(operations.application(FakeInspect(), metrics, FakePulse(), callers=Anybody())) as served:
        replies = await asyncio.gather(*(served.ask(get("/metrics")) for _ in range(8)))

    assert ([reply.status for reply in replies], counted.most) == ([200] * 8, 1)


async def test_reservations_are_scraped_by_state() -> None:
    assert (await scraped(FakeInspect(promised={"Promised": 3})))["leeboard_promises", "Promised"] == 3


async def test_refused_pods_are_scraped_by_reason_and_other_reasons_are_0() -> None:
    waiting = group(pod("a", gang="g"), pod("b", gang="g"))
    samples = await scraped(FakeInspect(groups=((waiting, REFUSAL), (group(pod("c")), None))))
    seen = {key[1]: value for key, value in samples.items() if key[0] == "leeboard_refused_pods"}
    assert seen == {reason.value: 2.0 if reason is Reason.OVER_LIMIT else 0.0 for reason in Reason}


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/queues"])
async def test_shares_of_queues_are_computed_outside_of_every_event_loop(path: str) -> None:
    threads = list[int]()

    class Noting(FakeInspect):
        def queue_stands(self) -> Callable[[], Sequence[QueueStand]]:
            return lambda: list(map(noted, super(Noting, self).queue_stands()()))

    def noted(item: T) -> T:
        threads.append(threading.get_ident())
        return item

    inspect = Noting(stands=[STAND])

    async with serving(operations.application(inspect, Metrics(), FakePulse(), callers=Anybody())) as served:
        reply = await served.ask(get(path))

    assert (reply.status, len(threads), threading.get_ident() in threads) == (200, 1, False)


async def test_queues_are_scraped_in_their_units() -> None:
    samples = await scraped(FakeInspect(stands=[STAND]))
    assert {key: value for key, value in samples.items() if value and key[0].startswith("leeboard_queue")} == {
        ("leeboard_queue_deserved_cpu_cores", "q"): float("inf"),
        ("leeboard_queue_deserved_memory_bytes", "q"): 64.0 * GIB,
        ("leeboard_queue_deserved_gpus", "q"): 8.0,
        ("leeboard_queue_limit_cpu_cores", "q"): float("inf"),
        ("leeboard_queue_limit_memory_bytes", "q"): float("inf"),
        ("leeboard_queue_limit_gpus", "q"): 12.0,
        ("leeboard_queue_fair_share_gpus", "q"): 7.5,
        ("leeboard_queue_allocated_gpus", "q"): 0.5,
    }


async def test_counters_are_scraped() -> None:
    metrics = Metrics()
    metrics.webhooks[Verb.FILTER, CallOutcome.FITS].observe(0.0002)
    metrics.watch_lost("pods")
    metrics.invalid_objects("queues", 2)
    samples = await scraped(FakeInspect(), metrics)
    assert samples["leeboard_webhook_duration_seconds_count", "fits", "filter"] == 1
    assert samples["leeboard_watch_lost_total", "pods"] == 1
    assert samples["leeboard_invalid_objects", "queues"] == 2


async def test_webhook_buckets_begin_at_a_tenth_of_a_millisecond() -> None:
    samples = await scraped(FakeInspect())
    assert ("leeboard_webhook_duration_seconds_bucket", "0.0001", "bound", "bind") in samples


# -- read API


async def test_queues_are_listed_with_null_for_unlimited() -> None:
    guaranteed = QueueStand(
        queue=replace(queue("a", "top", deserved=8, limit=12, weight=2), memory_bytes=Entitlement(deserved=64 * GIB)),
        fair_share=Resources(gpu_milli=7500),
        allocated=Resources(gpu_milli=500),
        waiting=3,
    )
    invalid = QueueStand(queue=replace(queue("b", "gone"), problem="its parent queue gone does not exist"))
    reply = await asked("/api/v1/queues", FakeInspect(stands=(guaranteed, invalid)))
    unlimited = {"cpuMilli": None, "memoryBytes": None, "gpuMilli": None}
    nothing = {"cpuMilli": 0, "memoryBytes": 0, "gpuMilli": 0}
    first = {
        "name": "a",
        "parent": "top",
        "displayName": None,
        "priority": 100,
        "deserved": {"cpuMilli": None, "memoryBytes": 64 * GIB, "gpuMilli": 8000},
        "limit": unlimited | {"gpuMilli": 12000},
        "overQuotaWeightMicro": {"cpu": 1_000_000, "memory": 1_000_000, "gpu": 2_000_000},
        "fairShare": nothing | {"gpuMilli": 7500},
        "allocated": nothing | {"gpuMilli": 500},
        "allocatedNonPreemptible": nothing,
        "requested": nothing,
        "waitingPodGroups": 3,
        "problem": None,
        "claimedGpuMilli": 0,
    }
    second = first | {
        "name": "b",
        "parent": "gone",
        "deserved": unlimited | {"gpuMilli": 0},
        "limit": unlimited,
        "overQuotaWeightMicro": {"cpu": 1_000_000, "memory": 1_000_000, "gpu": 1_000_000},
        "fairShare": None,
        "allocated": nothing,
        "waitingPodGroups": 0,
        "problem": "its parent queue gone does not exist",
        "claimedGpuMilli": 0,
    }
    assert reply.json == {"apiVersion": "leeboard.dev/v1alpha1", "kind": "QueueList", "items": [first, second]}


async def test_pending_podgroups_are_listed_with_reason_message_and_numbers() -> None:
    waiting = group(pod("a", gang="g"), pod("b", gang="g"))
    reply = await asked("/api/v1/podgroups", FakeInspect(groups=((waiting, REFUSAL),)))
    assert reply.json == {
        "apiVersion": "leeboard.dev/v1alpha1",
        "kind": "PodGroupList",
        "items": [
            {
                "namespace": "default",
                "name": "g",
                "queue": "q",
                "priority": 0,
                "preemptible": True,
                "minMember": 2,
                "pendingPods": 2,
                "activePods": 0,
                "succeededPods": 0,
                "why": {
                    "reason": "OverLimit",
                    "sentence": "q may hold 8 GPUs and holds 8.",
                    "details": {"limitGpuMilli": 8000},
                },
            }
        ],
    }


async def test_a_single_pod_has_its_name_as_podgroup_everywhere() -> None:
    groups = await asked("/api/v1/podgroups", FakeInspect(groups=((group(pod("alone")), None),)))
    known = await asked("/api/v1/pods/default/alone", FakeInspect(known=Known(pod=pod("alone"))))

    assert isinstance(groups.json, dict)
    assert isinstance(known.json, dict)
    assert (groups.json["items"][0]["name"], known.json["podGroup"]) == ("alone", "alone")


async def test_podgroup_without_any_decision_has_no_why() -> None:
    reply = await asked("/api/v1/podgroups", FakeInspect(groups=((group(pod("a")), None),)))
    assert isinstance(reply.json, dict)
    assert reply.json["items"][0]["why"] is None


async def test_pod_is_explained() -> None:
    known = Known(pod=pod("a", gang="g"), state="Promised", node=NodeName("n1"))
    reply = await asked("/api/v1/pods/default/a", FakeInspect(known=known))
    assert reply.json == {
        "apiVersion": "leeboard.dev/v1alpha1",
        "kind": "PodState",
        "namespace": "default",
        "name": "a",
        "uid": "uid-a",
        "queue": "q",
        "podGroup": "g",
        "managed": True,
        "state": "Promised",
        "node": "n1",
        "why": None,
        "problem": None,
    }


async def test_pending_pod_is_explained_by_its_refusal_and_its_problem() -> None:
    known = Known(pod=replace(pod("a"), problem="gpu-fraction is not a number"), refusal=REFUSAL)
    reply = await asked("/api/v1/pods/default/a", FakeInspect(known=known))
    assert isinstance(reply.json, dict)
    assert (reply.json["why"]["reason"], reply.json["problem"]) == ("OverLimit", "gpu-fraction is not a number")


@pytest.mark.parametrize("path", ["/api/v1/pods/default/other", "/api/v1/pods/other/a", "/api/v1/nothing"])
async def test_unknown_pod_or_path_is_a_problem(path: str) -> None:
    reply = await asked(path, FakeInspect(known=Known(pod=pod("a"))))
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    assert isinstance(reply.json, dict)
    assert reply.json["title"] == "Not Found"


@pytest.mark.parametrize("path", ["/livez/", "/api/v1/queues/", "/metrics/", "/docs", "/redoc"])
async def test_trailing_slash_and_docs_are_never_a_redirect(path: str) -> None:
    assert (await asked(path)).status == 404


async def test_broken_inspector_is_a_problem_without_a_traceback() -> None:
    broken = FakeInspect(stands=(None,))  # type: ignore[arg-type] # what breaks it does not matter
    reply = await asked("/api/v1/queues", broken)
    assert (reply.status, reply.headers["content-type"]) == (500, "application/problem+json")
    assert b"Traceback" not in reply.body


async def test_openapi_describes_only_the_read_api() -> None:
    contract = (await asked("/openapi.json")).json
    assert isinstance(contract, dict)
    assert sorted(contract["paths"]) == [
        "/api/v1/gpus",
        "/api/v1/gpus/{node}",
        "/api/v1/podgroups",
        "/api/v1/pods/{namespace}/{name}",
        "/api/v1/queues",
        "/api/v1/state",
        "/api/v1/stream",
        "/api/v1/why/{namespace}/{name}",
        "/version",
    ]


# -- pages and parameters


@pytest.mark.parametrize("path", ["queues", "podgroups", "gpus", "gpus/n", "pods/a/b", "why/a/b"])
async def test_an_unknown_parameter_is_refused_with_the_names_that_exist(path: str) -> None:
    reply = await asked(f"/api/v1/{path}?namespaces=x")
    assert reply.status == 400
    assert b"unknown parameter 'namespaces'; it takes " in reply.body


@pytest.mark.parametrize("limit", ["0", "-1", "many", "100000000"])
async def test_a_limit_that_cannot_be_used_is_refused(limit: str) -> None:
    assert (await asked(f"/api/v1/podgroups?limit={limit}")).status == 400


async def test_pages_have_each_podgroup_once_although_others_come_and_go() -> None:
    groups = [(group(pod(f"g-{number}")), None) for number in range(7)]
    inspect, met, after = FakeInspect(groups=groups), list[str](), ""
    app = operations.application(inspect, Metrics(), FakePulse(), callers=Anybody())
    async with serving(app) as served:
        while True:
            path = f"/api/v1/podgroups?limit=2&continue={after}"
            answer: Any = (await served.ask(get(path))).json
            met += [each["name"] for each in answer["items"]]
            if "continue" not in answer:
                break
            after = answer["continue"]
            inspect.groups = [one for one in inspect.groups if one[0].name != met[0]]
        old = await served.ask(get("/api/v1/podgroups?continue=0123-4567"))
    assert sorted(met) == [f"g-{number}" for number in range(7)]
    assert old.status == 410


async def test_a_queue_is_listed_with_those_below_it() -> None:
    names = [("a", None), ("b", "a"), ("c", "b"), ("d", None)]
    stands = [QueueStand(queue=Queue(name=QueueName(name), parent=QueueName(up) if up else None)) for name, up in names]
    app = operations.application(FakeInspect(stands=stands), Metrics(), FakePulse(), callers=Anybody())
    async with serving(app) as served:
        below: Any = (await served.ask(get("/api/v1/queues?queue=b"))).json
        first: Any = (await served.ask(get("/api/v1/queues?limit=3"))).json
        second: Any = (await served.ask(get(f"/api/v1/queues?limit=3&continue={first['continue']}"))).json
    assert [one["name"] for one in below["items"]] == ["b", "c"]
    assert [one["name"] for one in first["items"] + second["items"]] == ["a", "b", "c", "d"]
    assert "continue" not in second
