"""Waits for a condition with a deadline: the only way the system tests synchronise with other processes."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")
POLL_S = 0.05
MOST_TIMES = 10.0


def slowness() -> float:
    """Return how many times as long everything takes now: how many threads want each core of the machine."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MOST_TIMES)


def eventually(
    look: Callable[[], T], *, within_s: float, what: str, until: Callable[[T], object] = bool, every_s: float = POLL_S
) -> T:
    """Return what `look` sees as soon as `until` accepts it; fail with the last thing seen when time is up.

    `within_s` is for a machine that has a core for everybody; others get as much longer as they are busy.
    An unreachable server counts as "not yet"; every other exception of `look` is raised.
    """
    began = time.monotonic()
    seen: object = "nothing yet"
    while True:
        try:
            answer = look()
        except httpx.TransportError as unreachable:
            seen = unreachable
        else:
            if until(answer):
                return answer
            seen = answer
        if time.monotonic() - began >= within_s * slowness():
            raise AssertionError(f"{what}: not within {within_s:g} s; last seen: {_shortened(seen)}")
        time.sleep(every_s)


def _shortened(seen: object) -> str:
    text = repr(seen)
    return text if len(text) <= 2000 else f"{text[:2000]}... ({len(text)} characters)"
