from typing import Any

from loadtest.ledger import Ledger

SINCE_S = 1_780_000_000.0  # 2026-05-28T20:26:40Z


def event(verb: str, resource: str, name: str, *, at: str = "20:26:41.500000", **more: Any) -> dict[str, Any]:
    """Build an audit event; by default a second and a half after the clock started."""
    part, agent, code = more.get("part"), more.get("agent", "kube-scheduler/v1"), more.get("code", 201)
    reference = {"resource": resource, "namespace": more.get("namespace", "default"), "name": name}
    return {
        "verb": verb,
        "objectRef": reference | ({"subresource": part} if part else {}),
        "userAgent": agent,
        "responseStatus": {"code": code},
        "stageTimestamp": f"2026-05-28T{at}Z",
    }


def bind(name: str, **more: Any) -> dict[str, Any]:
    return event("create", "pods", name, part="binding", **more)


def noted(*events: dict[str, Any]) -> Ledger:
    ledger = Ledger(["a", "b"], since_s=SINCE_S)
    for one in events:
        ledger.note(one)
    return ledger


def test_counted_pods_are_bound_when_their_binding_was_answered() -> None:
    ledger = noted(bind("b", at="20:26:42.000000"), bind("a"), bind("another"), bind("a", namespace="elsewhere"))

    assert (ledger.bound, ledger.binds_s) == (2, [1.5, 2.0])


def test_pod_that_is_bound_twice_counts_once_and_writes_twice() -> None:
    ledger = noted(bind("a"), bind("a", at="20:26:43.000000"))

    assert (ledger.binds_s, ledger.writes) == ([1.5], 2)


def test_writes_are_counted_by_program_without_leases_and_without_those_of_the_bench() -> None:
    ledger = noted(
        event("patch", "pods", "a", part="status"),
        event("create", "events", "", agent="leeboard/0.1"),
        event("patch", "pods", "a", agent="leeboard/0.1"),
        event("update", "leases", "bench"),
        event("create", "pods", "a", agent="leeboard-tests/1"),
    )

    assert ledger.writes_by_agent == {"leeboard": 2, "kube-scheduler": 1}
    assert ledger.writes == 3


def test_writes_before_the_clock_started_are_left_out() -> None:
    early = bind("a", at="20:26:39.999000"), event("patch", "pods", "b", at="20:26:39.000000")
    ledger = noted(bind("a", code=409), *early)

    assert (ledger.bound, ledger.writes) == (0, 0)


def test_pods_that_are_evicted_or_deleted_are_counted_once() -> None:
    ledger = noted(
        event("create", "pods", "victim", part="eviction"),
        event("delete", "pods", "victim", at="20:26:45.000000"),
        event("delete", "pods", "other", at="20:26:42.000000"),
        event("delete", "pods", "a"),
        event("patch", "pods", "third", part="status"),
    )

    assert ledger.evictions_s == [1.5, 2.0]


def test_event_without_an_object_is_only_a_write() -> None:
    ledger = noted({**event("create", "", ""), "objectRef": None})

    assert (ledger.writes, ledger.bound, ledger.evictions_s) == (1, 0, [])
