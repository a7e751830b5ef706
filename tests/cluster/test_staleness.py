"""When a gang is stale, and when this cannot be known."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.cluster.changes import ChangeLog
from app.cluster.groups.staleness import Staleness
from app.cluster.groups.touched import Touched
from app.model.names import PodUid
from app.model.podgroup import GroupSpec
from tests import given

BROKEN = given.group(min_member=2, running=[given.placed(given.pod("a", gang="g"), "n1")])
SPEC = GroupSpec(key=BROKEN.key, min_member=2)
LOST = PodUid("uid-b")


def staleness() -> Staleness:
    return Staleness(Touched((), ChangeLog()))


def stale_since(formed: Staleness, *, spec: GroupSpec = SPEC, now: float = 10.0) -> float | None:
    """Form the broken gang, read the clock, and return since when it is stale."""
    formed.timed(BROKEN.key, BROKEN, spec)
    formed.age(now)
    return formed.since().get(BROKEN.key)


def test_a_gang_below_its_minimum_is_stale_from_the_next_clock_reading() -> None:
    formed = staleness()

    assert (stale_since(formed, now=10.0), stale_since(formed, now=20.0)) == (10.0, 10.0)
    assert formed.timed(BROKEN.key, BROKEN, SPEC) == replace(BROKEN, stale_since=10.0)


@pytest.mark.parametrize("excused", [replace(SPEC, problem="It is odd"), replace(SPEC, suspended="It is suspended.")])
def test_a_gang_is_not_stale_if_it_is_unknown_whether_pods_are_missing(excused: GroupSpec) -> None:
    formed = staleness()
    assert stale_since(formed) == 10.0

    assert stale_since(formed, spec=excused, now=20.0) is None

    assert stale_since(formed, now=30.0) == 30.0


Doubt = Callable[[Staleness], None]


@pytest.mark.parametrize(
    ("doubt", "trust"),
    [
        (lambda formed: formed.doubt(BROKEN.key, LOST), lambda formed: formed.trust(BROKEN.key, LOST)),
        (Staleness.doubt_all, Staleness.trust_all),
    ],
)
def test_a_gang_is_not_stale_while_the_results_of_its_members_are_unknown(doubt: Doubt, trust: Doubt) -> None:
    formed = staleness()
    doubt(formed)
    assert stale_since(formed, now=10.0) is None

    trust(formed)

    assert stale_since(formed, now=20.0) == 20.0


def test_one_known_result_does_not_settle_that_of_another_member() -> None:
    formed = staleness()
    formed.doubt(BROKEN.key, LOST)
    formed.doubt(BROKEN.key, PodUid("uid-c"))

    formed.trust(BROKEN.key, LOST)
    formed.trust(BROKEN.key, LOST)

    assert stale_since(formed) is None


def test_the_grace_period_of_a_stale_gang_does_not_restart_with_another_lost_pod() -> None:
    formed = staleness()
    assert stale_since(formed, now=10.0) == 10.0
    formed.doubt(BROKEN.key, LOST)
    meanwhile = stale_since(formed, now=20.0), formed.timed(BROKEN.key, BROKEN, SPEC)

    formed.trust(BROKEN.key, LOST)

    assert (meanwhile, stale_since(formed, now=30.0)) == ((None, BROKEN), 10.0)


def test_a_gang_that_was_completed_while_a_result_was_unknown_gets_its_whole_grace_period_again() -> None:
    formed = staleness()
    assert stale_since(formed, now=10.0) == 10.0
    formed.doubt(BROKEN.key, LOST)
    formed.timed(BROKEN.key, replace(BROKEN, min_member=1), SPEC)
    formed.trust(BROKEN.key, LOST)

    assert stale_since(formed, now=30.0) == 30.0
