"""Since when a gang counts as partially bound."""

from dataclasses import replace

from app.cluster.groups.partly_bound import TornSince
from app.model.pod import Placed
from app.model.podgroup import GroupSpec, PodGroup
from tests import given

PODS = [given.pod(f"p{index}", gang="g") for index in range(3)]
WHOLE = given.group(running=[given.placed(pod, "n") for pod in PODS], min_member=3)
TORN = given.group(PODS[2], running=WHOLE.placed[:2], min_member=3)
PROMISED = replace(TORN, placed=(*TORN.placed, Placed(pod=PODS[2], node=WHOLE.placed[0].node)), pending=())
UNBOUND = given.group(*PODS)
SPEC = GroupSpec(key=WHOLE.key, min_member=3)
LAST_BOUND = 20.0


def since(torn: TornSince, group: PodGroup, *, now: float, spec: GroupSpec = SPEC) -> float | None:
    """Form the group, read the clock, and form it again."""
    torn.timed(group, spec, lambda: LAST_BOUND)
    torn.age(now)
    formed = torn.timed(group, spec, lambda: LAST_BOUND)
    assert formed is not None
    return formed.torn_since


def test_a_gang_that_loses_a_member_is_partially_bound_since_then() -> None:
    torn = TornSince()

    assert [since(torn, each, now=now) for each, now in ((WHOLE, 30.0), (TORN, 40.0), (TORN, 50.0))] == [
        None,
        40.0,
        40.0,
    ]


def test_a_gang_that_was_never_seen_complete_is_partially_bound_since_its_last_binding() -> None:
    assert since(TornSince(), TORN, now=1000.0) == LAST_BOUND
    assert since(TornSince(), TORN, now=10.0) == 10.0  # the clock of a kubelet may be ahead


def test_a_gang_with_an_unknown_minimum_has_not_been_seen_complete() -> None:
    torn, unknown = TornSince(), GroupSpec(key=SPEC.key, problem="It does not exist")
    since(torn, replace(WHOLE, min_member=1, placed=TORN.placed), now=30.0, spec=unknown)

    assert since(torn, TORN, now=1000.0) == LAST_BOUND


def test_an_ended_reservation_for_the_rest_does_not_restart_the_time() -> None:
    torn = TornSince()
    since(torn, WHOLE, now=30.0)

    assert [since(torn, each, now=now) for each, now in ((TORN, 40.0), (PROMISED, 50.0), (TORN, 60.0))][::2] == [
        40.0,
        40.0,
    ]


def test_a_gang_that_is_complete_again_or_has_no_pods_left_is_no_longer_partially_bound() -> None:
    for end in (WHOLE, UNBOUND):
        torn = TornSince()
        since(torn, TORN, now=30.0)

        assert since(torn, end, now=40.0) is None
        assert since(torn, TORN, now=50.0) == (50.0 if end is WHOLE else LAST_BOUND)
