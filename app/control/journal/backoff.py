"""Computes how long a PodGroup with failed attempts is left out, doubling with each failure, and keeps the cause."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.model.names import GroupKey
from app.model.retry import RetryPolicy

FORGIVEN_AFTER_S = 600.0
"""A group that has not failed for this long starts again from the first pause."""

USUAL = RetryPolicy(first_s=2.0, longest_s=120.0)
COSTLY = RetryPolicy(first_s=2.0, longest_s=3600.0)
"""After attempts that evicted other pods: a group that can never use the room must not keep emptying nodes."""


@dataclass(frozen=True, slots=True)
class Setback:
    """The cause of a failed attempt."""

    error: str
    bound: int = 0
    """How many pods of the group were bound then: once more pods are bound, the cause is over."""


@dataclass(frozen=True, slots=True)
class _Failure:
    delay_s: float
    until: float
    setback: Setback | None


class Backoff:
    """Failures by group. Times are on the monotonic clock of the caller."""

    def __init__(self) -> None:
        """Start without failures."""
        self._failures: dict[GroupKey, _Failure] = {}
        self._waiting: dict[GroupKey, None] = {}

    def failed(
        self,
        key: GroupKey,
        now: float,
        *,
        least_s: float = 0.0,
        policy: RetryPolicy = USUAL,
        setback: Setback | None = None,
    ) -> float:
        """Note a failed attempt; return for how many seconds the group is left out, `least_s` at the least.

        Only attempts that evicted other pods set `least_s`. Many members of a gang report one attempt: while the group
        is left out already, the pause does not double.
        """
        before = self._failures.get(key)
        if before is not None and now < before.until:
            until = max(before.until, now + least_s)
            self._failures[key] = replace(before, until=until, setback=setback or before.setback)
            return self._failures[key].until - now
        fresh = before is None or now > before.until + FORGIVEN_AFTER_S
        policy = COSTLY if least_s else policy
        delay_s = policy.first_s if before is None or fresh else policy.following(before.delay_s)
        delay_s = max(delay_s, least_s)
        self._failures[key] = _Failure(delay_s, now + delay_s, setback)
        self._waiting[key] = None
        return delay_s

    def setbacks(self) -> Mapping[GroupKey, Setback]:
        """Return the last cause of failure of each group that takes part again, until the failure is forgotten."""
        failures = ((key, one.setback) for key, one in self._failures.items() if key not in self._waiting)
        return {key: setback for key, setback in failures if setback is not None}

    def over(self, now: float) -> list[GroupKey]:
        """Return, once, the groups whose pause is over; forget failures that are long past."""
        if not self._failures:
            return []
        ended = [key for key in self._waiting if self._failures[key].until <= now]
        for key in ended:
            del self._waiting[key]
        for key in [key for key, one in self._failures.items() if one.until + FORGIVEN_AFTER_S < now]:
            del self._failures[key]
        return ended
