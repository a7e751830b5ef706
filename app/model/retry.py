"""Says how long to wait before something that failed is tried again: the one rule, with numbers for each case."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf

from app.model.seam import KubeError, UnavailableError

MOST_STEPS = 16
"""A pause grows no further after so many failures: enough to reach any longest pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The first pause, by what it is multiplied from failure to failure, its bound, and how many pauses there are."""

    first_s: float
    factor: float = 2.0
    longest_s: float = inf
    pauses_until_given_up: int | None = None
    """None: it is tried for ever."""

    def after(self, failures: int) -> float:
        """Return the pause after so many failures in a row, of which there is at least one."""
        return min(self.longest_s, self.first_s * self.factor ** min(failures - 1, MOST_STEPS))

    def following(self, pause_s: float) -> float:
        """Return the pause after the one that followed the failure before."""
        return min(self.longest_s, self.factor * pause_s)

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between tries, as long as it is worth another try."""
        most = self.pauses_until_given_up
        return map(self.after, count(1) if most is None else range(1, most + 1))

    def asked_or_after(self, failures: int, error: KubeError) -> float:
        """Return the pause that the API server asks for, and the policy's own when it asks for none."""
        return error.retry_after_s if isinstance(error, UnavailableError) else self.after(failures)


def no_sooner_than_asked(pause_s: float, error: KubeError) -> float:
    """Return the pause, or the one that the API server asks for, if that is longer."""
    return max(pause_s, error.retry_after_s) if isinstance(error, UnavailableError) else pause_s
