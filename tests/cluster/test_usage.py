"""Past usage: how it adds up, how it decays, and how it is read back."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.cluster import decode
from app.cluster.encode import status_fields
from app.cluster.queues import usage
from app.cluster.queues.usage import NONE, Sums, Tally, UsageHistory
from app.model.names import QueueName
from app.model.past import MICRO

A, B = QueueName("a"), QueueName("b")
DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
START_MS = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
CLUSTER = (64_000, 512 << 30, 8000)
HALF = (32_000, 256 << 30, 4000)


def history(half_life_ms: int = WEEK_MS) -> UsageHistory:
    return UsageHistory(k_micro=MICRO, half_life_s=half_life_ms / 1000)


def of(one: UsageHistory, name: QueueName = A) -> Tally:
    tally = one.told(name)
    assert tally is not None
    return tally


def spent(one: UsageHistory, held: dict[QueueName, Sums], *, since: int, until: int) -> UsageHistory:
    """Let queues hold the same from one moment to another, and report."""
    one.see(since, held, CLUSTER)
    one.see(until, held, CLUSTER)
    one.tell()
    return one


# Sums


def test_a_queue_that_held_half_the_cluster_since_the_first_measurement_has_used_half() -> None:
    one = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)

    assert one.past().usage_micro == {A: (500_000, 500_000, 500_000)}
    assert one.past().k_micro == MICRO


def test_usage_from_one_half_life_ago_counts_half() -> None:
    one = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)
    fresh = of(one).used

    one.see(START_MS + DAY_MS, {}, CLUSTER)
    one.see(START_MS + DAY_MS + WEEK_MS, {}, CLUSTER)
    one.tell()

    assert of(one).used == pytest.approx([amount / 2 for amount in fresh], abs=1)


def test_constant_usage_converges_to_the_half_life_divided_by_the_logarithm_of_two() -> None:
    one = spent(history(), {A: (1000, 0, 0)}, since=START_MS, until=START_MS + 100 * WEEK_MS)

    assert of(one).used == pytest.approx([1000 * WEEK_MS / 0.6931471805599453, 0, 0])


def test_nothing_is_reported_before_it_is_time() -> None:
    one = history()
    one.see(START_MS, {A: HALF}, CLUSTER)
    one.see(START_MS + DAY_MS, {A: HALF}, CLUSTER)

    assert (one.told(A), one.past().usage_micro) == (None, {})


def test_a_queue_that_never_held_anything_has_no_past_usage() -> None:
    one = spent(history(), {A: NONE}, since=START_MS, until=START_MS + DAY_MS)

    assert one.told(A) is None
    assert not one.tell()


def test_usage_of_resources_that_the_cluster_does_not_have_is_ignored() -> None:
    one = history()
    for moment in (START_MS, START_MS + DAY_MS):
        one.see(moment, {A: HALF}, (64_000, 0, 0))
    one.tell()

    assert one.past().usage_micro == {A: (500_000, 0, 0)}


STEPS = st.lists(st.integers(1, 3_600_000), min_size=1, max_size=200)


@for_all(STEPS, st.integers(1, 100_000), st.sampled_from([60_000, DAY_MS, WEEK_MS]))
def test_many_measurements_add_up_to_the_same_as_one(steps: list[int], gpu_milli: int, half_life_ms: int) -> None:
    many, one = history(half_life_ms), history(half_life_ms)
    held = {A: (0, 0, gpu_milli)}
    for each in (many, one):
        each.see(START_MS, held, CLUSTER)
    now = START_MS
    for step in steps:
        now += step
        many.see(now, held, CLUSTER)
    one.see(now, held, CLUSTER)

    for each in (many, one):
        each.tell()
    # One unit of rounding per measurement, and the error of floats.
    assert of(many).used[2] == pytest.approx(of(one).used[2], rel=1e-9, abs=len(steps))
    assert of(many).capacity == pytest.approx(of(one).capacity, rel=1e-9, abs=len(steps))


def test_a_week_of_measurements_loses_less_than_a_millionth() -> None:
    many, held = history(), {A: (0, 0, 1000)}
    for look in range(7 * 24 * 360 + 1):
        many.see(START_MS + look * 10_000, held, CLUSTER)
    many.tell()
    one = spent(history(), held, since=START_MS, until=START_MS + WEEK_MS)

    assert of(many).used[2] == pytest.approx(of(one).used[2], rel=1e-6)


def test_queues_that_take_turns_reach_equal_usage() -> None:
    one, gaps = history(DAY_MS), []
    for hour in range(24 * 20):
        one.see(START_MS + hour * 3_600_000, {(A, B)[hour % 2]: CLUSTER}, CLUSTER)
        one.tell()
        gpus = {name: used[2] for name, used in one.past().usage_micro.items()}
        gaps.append(abs(gpus.get(A, 0) - gpus.get(B, 0)))

    assert max(gaps[-2:]) < 15_000 < max(gaps[:3])


def test_the_planner_is_informed_after_a_relevant_change_and_statuses_always() -> None:
    one = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)
    known = one.past()

    spent(one, {A: CLUSTER}, since=START_MS + DAY_MS, until=START_MS + DAY_MS + 60_000)
    assert (one.past(), of(one).at_ms) == (known, START_MS + DAY_MS + 60_000)

    spent(one, {A: CLUSTER}, since=START_MS + DAY_MS, until=START_MS + DAY_MS + 3_600_000)
    assert one.past() != known


# Unknown time


def test_unobserved_time_counts_for_no_queue() -> None:
    one = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)
    before = of(one)

    one.lose_sight()
    one.see(START_MS + DAY_MS + WEEK_MS, {}, CLUSTER)
    one.tell()

    assert of(one).used_micro == before.used_micro
    assert of(one).used == pytest.approx([amount / 2 for amount in before.used], abs=1)


def test_a_clock_that_was_turned_back_removes_nothing_and_adds_nothing() -> None:
    one = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)
    before = of(one)

    one.see(START_MS, {A: HALF}, CLUSTER)
    one.tell()
    turned = of(one)
    one.see(START_MS + DAY_MS, {A: HALF}, CLUSTER)
    one.tell()

    assert (turned.used, turned.capacity, turned.at_ms) == (before.used, before.capacity, START_MS)
    assert of(one).used_micro == before.used_micro
    assert of(one).used > before.used


def test_a_deleted_queue_is_forgotten() -> None:
    one = spent(history(), {A: HALF, B: HALF}, since=START_MS, until=START_MS + DAY_MS)
    known = one.past()

    one.forget(A)
    one.see(START_MS + 2 * DAY_MS, {B: HALF}, CLUSTER)
    one.tell()

    assert set(one.past().usage_micro) == {B}
    assert set(known.usage_micro) == {A, B}


# Contents of a status


def restarted(one: UsageHistory, *names: QueueName, now_ms: int) -> UsageHistory:
    """Return the history of a process that knows only what statuses say."""
    other = history()
    for name in names:
        tally, problem = decode.tally(raw(status_fields.usage(of(one, name)), name))
        assert tally is not None, problem
        other.learn(name, tally, now_ms)
    return other


def raw(usage: object, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": "u"}, "status": {"usage": usage}}


def test_past_usage_is_written_in_resource_seconds() -> None:
    tally = Tally(at_ms=START_MS + 5, used=(1_500_000, 2001, 0), capacity=(64_000_000_000, 1, 8_000_001))

    assert status_fields.usage(tally) == {
        "updated": "2026-01-31T12:00:00.005Z",
        "used": {"cpu": "1.5", "memory": "2.001", "nvidia.com/gpu": "0"},
        "capacity": {"cpu": "64000", "memory": "0.001", "nvidia.com/gpu": "8.000001"},
    }


SUMS = st.tuples(*(st.integers(0, 10**30),) * 3)


@for_all(st.builds(Tally, at_ms=st.integers(1, 200_000_000_000_000), used=SUMS, capacity=SUMS))
def test_written_past_usage_is_read_back_exactly(tally: Tally) -> None:
    assert decode.tally(raw(status_fields.usage(tally))) == (tally, "")


def test_a_new_process_continues_where_the_last_one_stopped() -> None:
    held, until = {A: HALF, B: (0, 0, 1000)}, START_MS + DAY_MS
    old = spent(history(), held, since=START_MS, until=until)

    new = restarted(old, A, B, now_ms=until)

    assert [new.told(name) for name in (A, B)] == [old.told(name) for name in (A, B)]
    assert new.past() == old.past()
    for each in (old, new):
        spent(each, held, since=until, until=until + DAY_MS)
    assert new.past() == old.past()


def test_the_usage_of_a_long_idle_queue_decays_in_a_new_process_as_in_the_old() -> None:
    old = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)
    later = START_MS + 5 * WEEK_MS
    spent(old, {}, since=START_MS + DAY_MS, until=later)

    new = restarted(old, A, now_ms=later)

    assert new.past() == old.past()
    assert 0 < new.past().usage_micro[A][2] < 10_000


def test_measured_usage_is_not_replaced_by_its_own_written_copy() -> None:
    one = spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS)
    echo = of(one)
    spent(one, {A: HALF}, since=START_MS + DAY_MS, until=START_MS + 2 * DAY_MS)

    one.learn(A, echo, START_MS + 2 * DAY_MS)

    assert of(one).at_ms == START_MS + 2 * DAY_MS


def test_a_standby_reads_what_the_other_replica_writes() -> None:
    active, standby = (spent(history(), {A: HALF}, since=START_MS, until=START_MS + DAY_MS) for _ in range(2))
    standby.lose_sight()

    spent(active, {B: HALF}, since=START_MS + DAY_MS, until=START_MS + 2 * DAY_MS)
    for name in (A, B):
        standby.learn(name, of(active, name), START_MS + 2 * DAY_MS)

    assert standby.past() == active.past()


def test_past_usage_with_a_future_time_counts_from_now() -> None:
    one = history()

    one.learn(A, Tally(at_ms=START_MS + WEEK_MS, used=HALF, capacity=CLUSTER), START_MS)
    one.see(START_MS, {}, CLUSTER)
    one.tell()

    assert one.told(A) == Tally(at_ms=START_MS, used=HALF, capacity=CLUSTER)


def test_past_usage_from_a_backup_decays_and_the_time_between_counts_for_no_queue() -> None:
    one, now = history(), START_MS + WEEK_MS
    old = Tally(at_ms=START_MS, used=(1000 * DAY_MS, 0, 0), capacity=(4000 * DAY_MS, 0, 0))

    one.learn(A, old, now)
    one.see(now, {A: HALF}, CLUSTER)
    one.tell()

    assert of(one) == Tally(at_ms=now, used=(500 * DAY_MS, 0, 0), capacity=(2000 * DAY_MS, 0, 0))


GOOD = {"cpu": "1", "memory": "2", "nvidia.com/gpu": "3"}
WHEN = "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("usage", "problem"),
    [
        ("much", "field usage is 'much'"),
        ({"used": GOOD, "capacity": GOOD}, "updated is no time"),
        ({"updated": "1969-01-31T12:00:00Z", "used": GOOD, "capacity": GOOD}, "updated is no time"),
        ({"updated": "yesterday", "used": GOOD, "capacity": GOOD}, "field updated is 'yesterday'"),
        ({"updated": WHEN, "used": ["1"], "capacity": GOOD}, "field used is a list"),
        ({"updated": WHEN, "used": GOOD | {"cpu": "-1"}, "capacity": GOOD}, "used of cpu cannot be read: '-1'"),
        ({"updated": WHEN, "used": GOOD | {"cpu": 1}, "capacity": GOOD}, "used of cpu cannot be read: 1"),
        ({"updated": WHEN, "used": GOOD | {"memory": "1.2345"}, "capacity": GOOD}, "at most 3 decimals"),
        ({"updated": WHEN, "used": GOOD, "capacity": GOOD | {"cpu": "9" * 31}}, "capacity of cpu cannot be read"),
        ({"updated": WHEN, "used": GOOD, "capacity": GOOD | {"cpu": "٣"}}, "capacity of cpu cannot be read"),
        ({"updated": WHEN, "used": GOOD, "capacity": GOOD | {"nvidia.com/gpu": "NaN"}}, "of nvidia.com/gpu cannot be"),
    ],
)
def test_unreadable_past_usage_is_ignored_and_reported(usage: object, problem: str) -> None:
    tally, said = decode.tally(raw(usage))

    assert tally is None
    assert problem in said


@pytest.mark.parametrize("status", [None, [], {}, {"usage": None}], ids=repr)
def test_a_queue_with_no_past_usage_in_its_status_has_none(status: object) -> None:
    assert decode.tally({"metadata": {"name": "a", "uid": "u"}, "status": status}) == (None, "")


def test_a_missing_resource_counts_as_zero() -> None:
    tally, problem = decode.tally(raw({"updated": WHEN, "capacity": {"cpu": "4"}}))

    assert (tally, problem) == (Tally(at_ms=START_MS, used=NONE, capacity=(4_000_000, 0, 0)), "")


def test_the_decay_of_a_period_is_computed_once_for_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    found, times = history(), list[float]()
    held = {QueueName(f"q{number}"): HALF for number in range(100)}
    monkeypatch.setattr(usage, "exp", lambda power: times.append(power) or math.exp(power))  # type: ignore[func-returns-value]
    for step in range(3):
        found.see(START_MS + step * DAY_MS, held, CLUSTER)
        found.tell()

    # At the first measurement there is no usage, and the capacity has no duration.
    assert len(times) <= 2 + 1 + 1
    assert {of(found, name).used for name in held} == {of(found, QueueName("q0")).used}
