import threading
from collections.abc import Callable

import pytest

from tests.system.playground import begun


@pytest.mark.parametrize(("ended_in", "taken"), [("first", ["first"]), ("second", ["first", "second"])])
def test_a_start_that_is_ended_takes_no_further_step_and_is_none(ended_in: str, taken: list[str]) -> None:
    ended, seen = threading.Event(), list[str]()

    def step(name: str) -> Callable[[], None]:
        def take() -> None:
            seen.append(name)
            if name == ended_in:
                ended.set()

        return take

    assert (begun([step("first"), step("second")], ended), seen) == (False, taken)


def test_a_start_that_nobody_ends_takes_every_step() -> None:
    seen: list[None] = []

    assert begun([lambda: seen.append(None)] * 2, threading.Event())
    assert len(seen) == 2
