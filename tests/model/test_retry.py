from itertools import islice

from app.model.retry import RetryPolicy, no_sooner_than_asked
from app.model.seam import RejectedError, UnavailableError

DOUBLING = RetryPolicy(first_s=0.5, longest_s=3.0)


def test_a_pause_grows_from_failure_to_failure_up_to_its_bound() -> None:
    assert list(islice(DOUBLING.pauses(), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert DOUBLING.after(10_000) == 3.0


def test_after_the_last_pause_no_retry_follows() -> None:
    assert list(RetryPolicy(first_s=1.0, factor=1.0, pauses_until_given_up=3).pauses()) == [1.0, 1.0, 1.0]


def test_the_next_pause_follows_from_the_last_one_which_others_may_have_extended() -> None:
    assert [DOUBLING.following(1.2), DOUBLING.following(2.0)] == [2.4, 3.0]


def test_the_retry_after_of_the_api_server_replaces_the_pause_or_is_its_minimum() -> None:
    busy = UnavailableError("busy", retry_after_s=0.7)

    assert [DOUBLING.asked_or_after(2, error) for error in (busy, RejectedError("no"))] == [0.7, 1.0]
    assert [no_sooner_than_asked(pause_s, busy) for pause_s in (0.5, 2.0)] == [0.7, 2.0]
    assert no_sooner_than_asked(0.5, RejectedError("no")) == 0.5
