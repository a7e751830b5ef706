"""Keeps the past usage of each queue. Old usage counts less: half after each half-life.

A queue's past usage is a quotient of two sums over the same time: what the queue held, and the capacity of the cluster.
Time without observation, for example while Leeboard does not run, is in neither sum. A queue's sums include the queues
that were below it at the time. The sums are stored in the queue's status (`status_fields.usage`, `history.tally`).

Every step multiplies the old sums by the part that is left, and adds the exact integral of what was held since. The
factors are floats, all sums are integers: the error of a step is less than one part in 10^12 and one unit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, expm1, log

from app.model.names import QueueName
from app.model.past import MICRO, Past

Sums = tuple[int, int, int]
"""One number an axis of `QUOTA_AXES`: an amount in the unit of the axis, or such an amount times milliseconds."""

NONE: Sums = (0, 0, 0)

Weights = Callable[[int], tuple[int, int]]
"""`UsageHistory._weights` of a time that has passed, in milliseconds."""

WEEK_S = 7 * 24 * 3600.0

STEP_MICRO = 10_000
"""The planner gets a new past when the usage of any queue has changed by this much: one percent of the cluster.

Usage changes all the time, and a share between two whole GPUs changes with it: without this step, every update would
evict pods. A step takes at least a seventieth of the half-life, once that much time has been observed.
"""

SHIFT = 53
"""Factors are multiplied as integers of so many binary digits: as many as a float has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The published usage of a queue at one moment."""

    at_ms: int
    """Since the epoch."""
    used: Sums
    """Times milliseconds, as is `capacity`."""
    capacity: Sums

    @property
    def used_micro(self) -> Sums:
        """The part of the capacity that was used, rounded; 0 without capacity."""
        cpu, memory, gpu = (
            (2 * used * MICRO + there) // (2 * there) if there else 0
            for used, there in zip(self.used, self.capacity, strict=True)
        )
        return cpu, memory, gpu


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum as of one moment."""

    at_ms: int
    sums: Sums = NONE


@dataclass(frozen=True, slots=True)
class _Sight:
    """What was observed at one moment, and is assumed to last until the next observation."""

    at_ms: int
    held: dict[QueueName, Sums]
    capacity: Sums


class UsageHistory:
    """The past of all queues. Only `control.usage` and `ClusterCache` call the methods that change it."""

    def __init__(self, *, k_micro: int = 0, half_life_s: float = WEEK_S) -> None:
        """Start with no past. The sums (`_used`, `_capacity`) are newer than the published ones (`_told`)."""
        self.k_micro = k_micro
        self._half_life_ms = half_life_s * 1000
        self._used: dict[QueueName, _Sum] = {}
        self._capacity = _Sum(0)
        self._sight: _Sight | None = None
        self._told: dict[QueueName, Tally] = {}
        self._past: Past | None = None

    def learn(self, name: QueueName, tally: Tally, now_ms: int) -> None:
        """Store the usage of a queue's status, unless more is known already.

        A time in the future counts as now: a clock is wrong, or was wrong when the status was written.
        """
        at_ms = min(tally.at_ms, now_ms)
        known = self._used.get(name)
        if known is not None and known.at_ms >= at_ms:
            return
        self._used[name] = _Sum(at_ms, tally.used)
        if at_ms > self._capacity.at_ms:
            self._capacity = _Sum(at_ms, tally.capacity)
        self._told[name] = Tally(at_ms=at_ms, used=tally.used, capacity=tally.capacity)
        self._past = None

    def see(self, now_ms: int, held: Mapping[QueueName, Sums], capacity: Sums) -> None:
        """Count the last observation until now, and start the next: what each queue and the queues below it hold now.

        When the clock was set back, the time since the last observation is unknown, and counts for no queue.
        """
        before = self._sight or _Sight(now_ms, {}, NONE)
        # Nearly all queues were counted last at the same moment.
        weights = lru_cache(self._weights)
        for name in dict.fromkeys((*self._used, *before.held)):
            used = self._used.get(name, _Sum(before.at_ms))
            self._used[name] = _carried(weights, used, before.held.get(name, NONE), before.at_ms, now_ms)
        self._capacity = _carried(weights, self._capacity, before.capacity, before.at_ms, now_ms)
        self._used = {name: used for name, used in self._used.items() if any(used.sums)}
        self._sight = _Sight(now_ms, dict(held), capacity)

    def lose_sight(self) -> None:
        """Note that the last observation may be outdated: until the next `see`, time counts for no queue."""
        self._sight = None

    def forget(self, name: QueueName) -> None:
        """Forget a deleted queue; the usage of its ancestors stays."""
        self._used.pop(name, None)
        if self._sight is not None:
            self._sight.held.pop(name, None)
        if self._told.pop(name, None) is not None:
            self._past = None

    def tell(self) -> bool:
        """Publish what has been observed; return whether there is anything to publish."""
        capacity, before = self._capacity.sums, self._told
        self._told = {
            name: Tally(at_ms=used.at_ms, used=used.sums, capacity=capacity) for name, used in self._used.items()
        }
        if self._past is not None and _has_moved(self._past.usage_micro, self._parts()):
            self._past = None
        return bool(before or self._told)

    def told(self, name: QueueName) -> Tally | None:
        """Return the published usage of a queue; None when it has no past."""
        return self._told.get(name)

    def past(self) -> Past:
        """Return the published usage for the planner, a little older than the sums; the value never changes."""
        if self._past is None:
            self._past = Past(k_micro=self.k_micro, usage_micro=self._parts())
        return self._past

    def _parts(self) -> dict[QueueName, Sums]:
        return {name: tally.used_micro for name, tally in self._told.items()}

    def _weights(self, elapsed_ms: int) -> tuple[int, int]:
        """Return, shifted, the part left of 1 after a time, and the sum of a steady 1 over it, in milliseconds."""
        halvings = log(2) * max(0, elapsed_ms) / self._half_life_ms
        added_ms = -expm1(-halvings) * self._half_life_ms / log(2)
        return round(exp(-halvings) * (1 << SHIFT)), round(added_ms * (1 << SHIFT))


def _has_moved(before: Mapping[QueueName, Sums], after: Mapping[QueueName, Sums]) -> bool:
    pairs = [(before.get(name, NONE), after.get(name, NONE)) for name in {**before, **after}]
    return any(abs(one - other) >= STEP_MICRO for old, new in pairs for one, other in zip(old, new, strict=True))


def _carried(weights: Weights, past: _Sum, held: Sums, since_ms: int, now_ms: int) -> _Sum:
    """Return a sum as of now; it does not yet include the amounts `held` since then."""
    kept, _ = weights(now_ms - past.at_ms)
    _, added_ms = weights(now_ms - max(since_ms, past.at_ms))
    cpu, memory, gpu = (
        (amount * kept + each * added_ms + (1 << SHIFT - 1)) >> SHIFT
        for amount, each in zip(past.sums, held, strict=True)
    )
    return _Sum(now_ms, (cpu, memory, gpu))
