from app.control.journal.backoff import COSTLY, FORGIVEN_AFTER_S, USUAL, Backoff, Setback
from app.model.names import GroupKey

GANG, OTHER = GroupKey("q", "gang"), GroupKey("q", "other")


def failures(backoff: Backoff, *, times: int, least_s: float = 0.0) -> list[float]:
    """Fail each time as soon as the group takes part again; return how long each backoff was."""
    now, delays = 0.0, []
    for _ in range(times):
        delays.append(backoff.failed(GANG, now, least_s=least_s))
        now += delays[-1]
        backoff.over(now)
    return delays


def test_a_podgroup_that_fails_repeatedly_backs_off_twice_as_long_each_time_up_to_a_limit() -> None:
    assert failures(Backoff(), times=8) == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, USUAL.longest_s, USUAL.longest_s]


def test_a_podgroup_whose_evictions_were_useless_backs_off_up_to_an_hour() -> None:
    told = failures(Backoff(), times=8, least_s=60.0)

    assert told == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, COSTLY.longest_s, COSTLY.longest_s]


def test_podgroups_back_off_independently() -> None:
    backoff = Backoff()
    failures(backoff, times=3)

    assert backoff.failed(OTHER, now=100.0) == USUAL.first_s


def test_a_podgroup_whose_backoff_ended_is_named_once() -> None:
    backoff = Backoff()
    backoff.failed(GANG, now=0.0)

    assert [backoff.over(now) for now in (1.9, 2.0, 2.1)] == [[], [GANG], []]


def test_a_failure_may_request_a_longer_backoff_once_or_during_a_backoff() -> None:
    backoff = Backoff()

    told = [backoff.failed(GANG, 0.0, least_s=60.0), backoff.failed(GANG, 1.0, least_s=60.0), backoff.failed(GANG, 2.0)]

    assert told == [60.0, 60.0, 59.0]
    assert backoff.over(60.5) == []


def test_failures_of_several_members_in_one_attempt_count_once() -> None:
    backoff = Backoff()

    told = [backoff.failed(GANG, now) for now in (0.0, 0.0, 0.5)]

    assert told == [2.0, 2.0, 1.5]
    assert backoff.over(2.0) == [GANG]
    assert backoff.failed(GANG, now=3.0) == 4.0


def test_a_podgroup_without_failures_for_long_starts_again_from_the_shortest_backoff() -> None:
    backoff = Backoff()
    failures(backoff, times=5)

    assert backoff.failed(GANG, now=62.0 + FORGIVEN_AFTER_S + 1) == USUAL.first_s


def test_failures_long_ago_are_forgotten() -> None:
    backoff = Backoff()
    backoff.failed(GANG, now=0.0)
    backoff.over(USUAL.first_s)

    backoff.over(USUAL.first_s + FORGIVEN_AFTER_S + 1)

    assert backoff._failures == {}


def test_the_cause_of_a_failure_is_known_from_the_end_of_the_backoff_until_it_is_forgiven() -> None:
    backoff = Backoff()
    backoff.failed(GANG, 0.0, setback=Setback("denied"))
    backoff.failed(GANG, 1.0, setback=Setback("denied again"))
    backoff.failed(OTHER, 0.0)
    known = [backoff.setbacks()]

    for now in (USUAL.first_s, USUAL.first_s + FORGIVEN_AFTER_S + 1):
        backoff.over(now)
        known.append(backoff.setbacks())

    assert known == [{}, {GANG: Setback("denied again")}, {}]
