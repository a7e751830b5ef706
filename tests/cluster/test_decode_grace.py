"""The grace period of a stale PodGroup, as its owner writes it."""

from typing import Any

import pytest

from app.cluster import decode
from app.model.podgroup import FOREVER_S
from tests.cluster.raw import pod_group

ANNOTATION = "kai.scheduler/staleness-grace-period"


def read(spec: dict[str, Any], *, annotation: object = None) -> tuple[float | None, str]:
    raw = pod_group(**spec)
    raw["metadata"] |= {} if annotation is None else {"annotations": {ANNOTATION: annotation}}
    seen = decode.pod_group(raw)
    return seen.stale_grace_s, seen.problem


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (None, None),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("0", 0.0),
        ("0s", 0.0),
        ("-0s", 0.0),
        ("-1", FOREVER_S),
        ("-1s", FOREVER_S),
        ("-1h30m", FOREVER_S),
    ],
)
def test_the_grace_period_is_a_duration_and_a_negative_one_never_ends(written: object, seconds: float | None) -> None:
    assert read({"stalenessGracePeriod": written}) == (seconds, "")
    assert read({}, annotation=written) == (seconds, "")


def test_the_spec_overrides_the_annotation() -> None:
    assert read({"stalenessGracePeriod": "-1s"}, annotation="30s") == (FOREVER_S, "")


@pytest.mark.parametrize(
    "written", ["soon", "", "-", "--1s", "- 1s", "1", "-2", "1e3s", "-soon", "9999999h", 30, -1, [], {}, True]
)
def test_an_unreadable_grace_period_is_reported_and_that_of_the_policy_is_used(written: object) -> None:
    seconds, problem = read({"stalenessGracePeriod": written}, annotation="30s")

    assert seconds is None
    assert problem.startswith("spec.stalenessGracePeriod cannot be read: ")


def test_an_unreadable_annotation_is_reported_by_its_name() -> None:
    seconds, problem = read({}, annotation="soon")

    assert seconds is None
    assert problem == (
        f"annotation {ANNOTATION} cannot be read: 'soon' is not a duration;"
        " write numbers with units, such as 90s or 1h30m"
    )
