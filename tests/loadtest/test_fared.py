from loadtest.admission import Others, fared
from tests.system.observer import Sight


def seen(name: str, at_s: float, node: str = "") -> Sight:
    return Sight(at_s=at_s, uid=f"uid-{name}", name=name, node=node)


def test_pods_bound_between_two_moments_are_counted_with_their_waiting_time() -> None:
    history = [
        seen("other-0", 1.0),
        seen("other-0", 1.5, "n"),
        seen("other-1", 9.0),
        seen("other-1", 11.0, "n"),
        seen("other-2", 12.0),
        seen("other-2", 12.25, "n"),
        seen("held-0", 12.0),
        seen("held-0", 19.0, "n"),
    ]

    found = fared(history, "now", 10.0, 20.0)

    assert found == Others(when="now", pods_per_s=0.2, median_s=2.0, p99_s=2.0)


def test_pods_that_are_still_pending_have_waited_until_then() -> None:
    history = [seen("other-0", 12.0), seen("other-1", 13.0), seen("other-1", 13.5, "n"), seen("other-0", 25.0, "n")]

    found = fared(history, "now", 10.0, 20.0)

    assert found == Others(when="now", pods_per_s=0.1, median_s=8.0, p99_s=8.0)


def test_without_pods_no_waiting_time_is_reported() -> None:
    assert fared([], "now", 10.0, 20.0) == Others(when="now", pods_per_s=0.0, median_s=0.0, p99_s=0.0)
