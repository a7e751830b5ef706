"""The budgets of the design for the way of a pod, as ratios within one run of the bench: reached, missed, not measured.

A ratio is one of medians: both are in the tables.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, LET_IN
from loadtest.results import Row, Spread

KAI, COSCHEDULING = "KAI-Scheduler", "coscheduling"
LEVEL = 0.9
"""From here on a rate counts as the same: medians of three runs differ by so much on a quiet machine."""


class Outcome(Enum):
    """What became of a budget."""

    REACHED = "reached"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One budget, and what was measured."""

    path: str
    budget: str
    measured: str
    outcome: Outcome


Find = Callable[[str, str], Row | None]
"""Scenario and scheduler -> what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Pods a second of Leeboard, in at least so many times those of another."""

    path: str
    scenario: str
    ours: str
    other: str
    least: float
    goal: float | None = None

    def verdict(self, find: Find) -> Verdict:
        """Compare the medians."""
        row, others = find(self.scenario, self.ours), find(self.scenario, self.other)
        goal = f" (goal {self.goal:g})" if self.goal else ""
        budget = f">= {self.least:g} x {self.other}{goal}"
        ours, other = _rate(_unfailed(row)), _rate(others)
        if ours is None or other is None:
            return _without(self.path, budget, row, others)
        measured = f"{ours / other:.2f} x ({ours:.0f}/s against {other:.0f}/s)"
        return Verdict(path=self.path, budget=budget, measured=measured, outcome=_reached(ours / other >= self.least))


RATIOS = (
    Ratio(path="lone pods", scenario="lone", ours=LET_IN, other=ALONE, least=0.7, goal=0.9),
    Ratio(path="lone pods", scenario="lone", ours=LET_IN, other=KAI, least=5),
    Ratio(path="lone pods, extender-only", scenario="lone", ours=EXTENDER_ONLY, other=ALONE, least=0.7, goal=0.9),
    Ratio(path="lone pods, extender-only", scenario="lone", ours=EXTENDER_ONLY, other=KAI, least=5),
    Ratio(path="lone pods, large", scenario="lone-large", ours=LET_IN, other=ALONE, least=0.7, goal=0.9),
    Ratio(path="lone pods, large", scenario="lone-large", ours=LET_IN, other=KAI, least=5),
    Ratio(
        path="lone pods, large, extender-only",
        scenario="lone-large",
        ours=EXTENDER_ONLY,
        other=ALONE,
        least=0.7,
        goal=0.9,
    ),
    Ratio(path="lone pods, large, extender-only", scenario="lone-large", ours=EXTENDER_ONLY, other=KAI, least=5),
    Ratio(path="held pods", scenario="lone", ours=HELD, other=ALONE, least=0.45),
    Ratio(path="held pods", scenario="lone", ours=HELD, other=KAI, least=3),
    Ratio(path="held pods, large", scenario="lone-large", ours=HELD, other=ALONE, least=0.45),
    Ratio(path="held pods, large", scenario="lone-large", ours=HELD, other=KAI, least=3),
    Ratio(path="gangs of 20", scenario="gangs", ours=EXTENDER_ONLY, other=COSCHEDULING, least=0.8, goal=1.0),
    Ratio(path="gangs of 20", scenario="gangs", ours=EXTENDER_ONLY, other=KAI, least=3),
    Ratio(path="held gangs of 20", scenario="gangs", ours=HELD, other=COSCHEDULING, least=0.45),
    Ratio(path="held gangs of 20", scenario="gangs", ours=HELD, other=KAI, least=2),
)
PLAN_BUDGET_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """How many pods a second can be removed when only the bench removes pods; None where it was not measured."""

    deletions: Spread | None = None
    evictions: Spread | None = None
    """Slower than deletions, and what Leeboard uses, with others beside it that use the machine."""


def verdicts(rows: Sequence[Row], ceilings: Ceilings) -> Sequence[Verdict]:
    """Return each budget with what was measured."""
    found = {(row.scenario, row.contender): row for row in rows}

    def find(scenario: str, contender: str) -> Row | None:
        return found.get((scenario, contender))

    return [
        *(ratio.verdict(find) for ratio in RATIOS),
        *(_backlog(find("backlog", name), name) for name in (EXTENDER_ONLY, LET_IN, HELD)),
        *(_planned(find("reclaim", name), name) for name in (EXTENDER_ONLY, HELD)),
        *(
            _evicted(find("reclaim", name), name, verb, ceiling)
            for name in (EXTENDER_ONLY, HELD)
            for verb, ceiling in (("deletes", ceilings.deletions), ("evicts", ceilings.evictions))
        ),
    ]


def _backlog(row: Row | None, name: str) -> Verdict:
    path, budget = f"backlog, {name}", f"the rate of an empty backlog (>= {LEVEL:g} x)"
    behind, empty = _rate(_unfailed(row)), row.spread("empty_pods_per_s") if row else None
    if behind is None or empty is None:
        return _without(path, budget, row)
    ratio = behind / empty.median
    measured = f"{ratio:.2f} x ({behind:.0f}/s against {empty.median:.0f}/s)"
    return Verdict(path=path, budget=budget, measured=measured, outcome=_reached(ratio >= LEVEL))


def _planned(row: Row | None, name: str) -> Verdict:
    path, budget = f"reclaim, {name}: planned", f"< {PLAN_BUDGET_S:g} s, all plans together"
    spent, plans = (_made(_unfailed(row), name) for name in ("planned_s", "plans"))
    if spent is None or plans is None:
        return _without(path, budget, row)
    measured = f"{spent.median:.2f} s in {plans.median:.0f} plans"
    return Verdict(path=path, budget=budget, measured=measured, outcome=_reached(spent.median < PLAN_BUDGET_S))


def _evicted(row: Row | None, name: str, verb: str, ceiling: Spread | None) -> Verdict:
    path, budget = f"reclaim, {name}: executed", f"as fast as the API server {verb} (>= {LEVEL:g} x)"
    rate = _made(_unfailed(row), "evictions_per_s")
    if rate is None or ceiling is None:
        return _without(path, budget, row)
    ratio = rate.median / ceiling.median
    measured = f"{ratio:.2f} x ({rate.median:.0f}/s against {ceiling.median:.0f}/s)"
    return Verdict(path=path, budget=budget, measured=measured, outcome=_reached(ratio >= LEVEL))


def _without(path: str, budget: str, ours: Row | None, other: Row | None = None) -> Verdict:
    """Return the verdict where there is nothing to compare: missed when a run of ours failed, whatever the rest did."""
    if ours and ours.failures:
        return Verdict(path=path, budget=budget, measured=f"failed: {ours.failures[0]}", outcome=Outcome.MISSED)
    why = f"{other.contender} failed: {other.failures[0]}" if other and other.failures else ""
    return Verdict(path=path, budget=budget, measured=why, outcome=Outcome.NOT_MEASURED)


def _unfailed(ours: Row | None) -> Row | None:
    """Return a row of ours; None when any of its runs failed: no budget is reached by the others."""
    return None if ours and ours.failures else ours


def _rate(row: Row | None) -> float | None:
    spread = row.spread("pods_per_s") if row else None
    return spread.median if spread else None


def _made(row: Row | None, name: str) -> Spread | None:
    return row.spread_of("made", name) if row else None


def _reached(condition: object) -> Outcome:
    return Outcome.REACHED if condition else Outcome.MISSED
