"""Which reports are worth a write."""

import pytest

from app.agent.changes import Change, change
from app.agent.readings import DriverFailure, KubeletReading, Memory
from app.agent.report import status_of
from app.model.device import Health
from tests.agent.seen import device, holding, sight, using


def test_the_first_report_is_sent_at_once() -> None:
    assert change(None, using(0)) is Change.AT_ONCE


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (using(1000), using(1000), Change.NONE),
        (using(1000), using(1063), Change.NONE),
        (using(1000), using(1064), Change.MEMORY),
        (using(1000), using(936), Change.MEMORY),
        (using(1000, a=500), using(1000, a=563), Change.NONE),
        (using(1000, a=500), using(1000, a=564), Change.MEMORY),
        (using(1000, a=500), using(1000, b=500), Change.AT_ONCE),
        (using(1000, a=500), using(1000), Change.AT_ONCE),
    ],
)
def test_measured_memory_counts_when_it_has_changed_by_64_mib_and_holders_always(
    before: dict[str, object], now: dict[str, object], expected: Change
) -> None:
    assert change(before, now) is expected


@pytest.mark.parametrize(("used_mib", "expected"), [(19, Change.NONE), (20, Change.MEMORY)])
def test_on_a_small_device_two_percent_are_enough(used_mib: int, expected: Change) -> None:
    reports = [status_of(sight(device(memory=Memory(total_mib=1000, used_mib=used)))) for used in (0, used_mib)]

    assert change(*reports) is expected


def test_occasional_failures_of_the_driver_can_wait() -> None:
    before, now = (status_of(sight(device(), failures=failures)) for failures in ((), (DriverFailure("a", "b"),)))

    assert {change(before, now), change(now, before)} == {Change.MEMORY}


def test_any_other_difference_is_sent_at_once() -> None:
    before = status_of(sight(device()))
    held = KubeletReading(answers=True, holdings=(holding("a/p", "GPU-0"),))
    others = [
        sight(device(), kubelet=held),
        sight(device(), kubelet=KubeletReading(answers=False)),
        sight(device(health=Health.UNHEALTHY)),
        sight(device(), device(1)),
        sight(),
        sight(device(), message="no driver"),
        sight(device(memory=None)),
    ]

    assert {change(before, status_of(other)) for other in others} == {Change.AT_ONCE}
