"""Says how long a PodGroup whose attempts fail is left out, doubling from try to try, and what it failed by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.model.names import GroupKey

FIRST_S = 2.0
LONGEST_S = 120.0
LONGEST_COSTLY_S = 3600.0
"""The longest after attempts that cost others their places: who can never use them must not go on emptying nodes."""
FORGIVEN_AFTER_S = 600.0
"""A group that has not failed for this long starts again from `FIRST_S`."""

MOST_DOUBLINGS = 16
"""Enough to reach any longest pause."""


def doubled(first_s: float, times: int, longest_s: float) -> float:
    """Return a pause in seconds that was doubled so many times."""
    return min(longest_s, first_s * 2.0 ** min(times, MOST_DOUBLINGS))


@dataclass(frozen=True, slots=True)
class Setback:
    """What an attempt failed by."""

    error: str
    bound: int = 0
    """How many pods of the group were bound then: once there are more, the cause is over."""


@dataclass(frozen=True, slots=True)
class _Failure:
    delay_s: float
    until: float
    setback: Setback | None


class Backoff:
    """Failures by group. Time is the caller's monotonic clock."""

    def __init__(self) -> None:
        """Start with nobody backing off."""
        self._failures: dict[GroupKey, _Failure] = {}
        self._waiting: set[GroupKey] = set()

    def failed(
        self,
        key: GroupKey,
        now: float,
        *,
        least_s: float = 0.0,
        longest_s: float = LONGEST_S,
        setback: Setback | None = None,
    ) -> float:
        """Note a failed attempt; return for how many seconds the group is left out, `least_s` at the least.

        Only attempts that cost others their places ask for any. A gang has many members to tell of one attempt: while
        it is left out already, nothing doubles.
        """
        before = self._failures.get(key)
        if before is not None and now < before.until:
            until = max(before.until, now + least_s)
            self._failures[key] = replace(before, until=until, setback=setback or before.setback)
            return self._failures[key].until - now
        fresh = before is None or now > before.until + FORGIVEN_AFTER_S
        longest_s = LONGEST_COSTLY_S if least_s else longest_s
        delay_s = FIRST_S if before is None or fresh else min(2 * before.delay_s, longest_s)
        delay_s = max(delay_s, least_s)
        self._failures[key] = _Failure(delay_s, now + delay_s, setback)
        self._waiting.add(key)
        return delay_s

    def setbacks(self) -> Mapping[GroupKey, Setback]:
        """Return what the last attempt of each group failed by that takes part again, until that is long past."""
        failures = ((key, one.setback) for key, one in self._failures.items() if key not in self._waiting)
        return {key: setback for key, setback in failures if setback is not None}

    def over(self, now: float) -> list[GroupKey]:
        """Return, once, the groups whose time is over; forget failures that are long past."""
        ended = [key for key in self._waiting if self._failures[key].until <= now]
        self._waiting.difference_update(ended)
        for key in [key for key, one in self._failures.items() if one.until + FORGIVEN_AFTER_S < now]:
            del self._failures[key]
        return ended
