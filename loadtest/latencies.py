"""What one phase of the load test measured, as rows, and the budgets that some of them have; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Quantile(StrEnum):
    """What a budget is about."""

    P50 = "p50"
    P99 = "p99"


class Beside(StrEnum):
    """What else the service does in a phase."""

    NOTHING = ""
    PLAN = "beside a plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of question in one phase; latencies are in ms."""

    name: str
    requests: int
    failures: int
    per_s: float
    p50: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a row has to keep to (DESIGN section 7)."""

    name: str
    names: frozenset[int]
    quantile: Quantile
    below_ms: float
    beside: Beside

    def verdict(self, row: Row) -> str:
        """Tell in one phrase whether the row keeps to it."""
        measured = row.p50 if self.quantile is Quantile.P50 else row.p99
        word = "reached" if measured < self.below_ms else "missed"
        return f"{self.quantile} < {self.below_ms:g} ms {word}"


EVERY_SIZE = frozenset({100, 500, 5000})
BUDGETS = (
    Budget(name="filter promised", names=frozenset({500}), quantile=Quantile.P50, below_ms=1.0, beside=Beside.NOTHING),
    Budget(name="filter promised", names=frozenset({5000}), quantile=Quantile.P50, below_ms=3.0, beside=Beside.NOTHING),
    Budget(name="filter promised", names=EVERY_SIZE, quantile=Quantile.P99, below_ms=20.0, beside=Beside.PLAN),
    Budget(name="filter unmanaged", names=EVERY_SIZE, quantile=Quantile.P50, below_ms=1.0, beside=Beside.NOTHING),
)


def rows(took_ms: Mapping[str, Sequence[float]], faults: Mapping[str, Sequence[str]], over_s: float) -> list[Row]:
    """Sum up every kind of question that was asked at all, by name."""
    return [
        _row(name, sorted(took), len(faults.get(name, ())), over_s) for name, took in sorted(took_ms.items()) if took
    ]


def verdicts(row: Row, names: int, beside: Beside) -> list[str]:
    """Judge a row by every budget that is about it."""
    return [
        budget.verdict(row)
        for budget in BUDGETS
        if budget.name == row.name and names in budget.names and budget.beside is beside
    ]


def _row(name: str, took: Sequence[float], failures: int, over_s: float) -> Row:
    return Row(
        name=name,
        requests=len(took),
        failures=failures,
        per_s=len(took) / over_s,
        p50=_quantile(took, 50),
        p90=_quantile(took, 90),
        p99=_quantile(took, 99),
        most=took[-1],
    )


def _quantile(took: Sequence[float], percent: int) -> float:
    """Return the least latency that so many percent of all do not exceed."""
    return took[-(-len(took) * percent // 100) - 1]
