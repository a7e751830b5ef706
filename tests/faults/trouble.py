"""The faults that are in force: what happens to the next writes, watches and webhook calls of each host."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.model.seam import (
    BudgetError,
    ConflictError,
    ForbiddenError,
    KubeError,
    RejectedError,
    UnavailableError,
    WebhookFailedError,
)
from tests.faults.script import Operation

ERRORS: dict[str, type[KubeError]] = {
    "conflict": ConflictError,
    "forbidden": ForbiddenError,
    "rejected": RejectedError,
    "unavailable": UnavailableError,
    "webhook": WebhookFailedError,
    "budget": BudgetError,
}


@dataclass(slots=True)
class Fault:
    """A fault in force, which ends after a time or after a number of uses."""

    kind: str
    args: dict[str, Any]
    until: float
    left: int


@dataclass(slots=True)
class Troubles:
    """All faults in force. Only `begin`, `take` and `end_all` change them."""

    faults: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault had an effect."""

    def begin(self, one: Operation) -> None:
        args = dict(one.args)
        self.faults.append(Fault(one.do, args, one.at + args.get("for_s", 1e9), args.get("count", 1 << 30)))

    def end_all(self) -> None:
        self.faults.clear()

    def take(self, fault: str, now: float, **wanted: str) -> Fault | None:
        """Use the first fault of this kind that concerns this; None when there is none."""
        self.faults = [one for one in self.faults if one.until > now and one.left > 0]
        for one in self._matching(fault, wanted):
            one.left -= 1
            self.counts[fault] += 1
            return one
        return None

    def _matching(self, fault: str, wanted: dict[str, str]) -> Iterator[Fault]:
        for one in self.faults:
            if one.kind == fault and all(one.args.get(key, value) in {value, "*"} for key, value in wanted.items()):
                yield one
