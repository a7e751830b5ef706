"""What one run measured, and how runs of the same work are summed up."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Self

from tests.system.api import Object

OURSELVES = "the bench"
"""Among the processes: it creates pods, and plays the device plugins of all nodes where a scenario needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Room that was made for the late pods, and how long it took."""

    evicted: int
    last_eviction_s: float | None
    """Seconds since the first of the late pods was created."""
    evictions_per_s: float | None
    """From the first to the last."""
    plans: int | None = None
    planned_s: float | None = None
    """All plans of this while together, as the scheduler itself tells; None where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What those saw who looked at a scheduler from the release to the last bind, and a probe that asked filter."""

    probes: int
    filter_p50_ms: float
    filter_p99_ms: float
    reads_per_s: float
    refused_reads: int
    deltas_per_s: float
    """Of all viewers together."""
    view_mib: float
    """The most memory that the view's process has held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured until the last bind; `None` where there was nothing to measure."""

    pods_per_s: float | None
    """From the release, or the first creation, to the last bind; None unless all were bound."""
    first_bind_s: float | None
    p50_s: float | None
    p99_s: float | None
    last_bind_s: float | None
    writes_per_pod: float
    writes_by_agent: Mapping[str, float]
    """Per pod, and so is all that follows."""
    attempts_per_pod: float | None
    cpu_ms_per_pod: Mapping[str, float]
    """Per process, user and system time."""
    peak_mib: Mapping[str, float]
    """The most memory that each program of the scheduler has held (VmHWM)."""
    empty_pods_per_s: float | None = None
    """As many pods before there was a backlog."""
    made: Made | None = None
    watched: Watched | None = None

    @property
    def cpu_ms(self) -> float:
        """All processes together; what the bench itself spent is no part of it."""
        return sum(spent for name, spent in self.cpu_ms_per_pod.items() if name != OURSELVES)

    @property
    def memory_mib(self) -> float:
        """All programs of the scheduler together."""
        return sum(self.peak_mib.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One scenario through one scheduler, once."""

    scenario: str
    contender: str
    number: int
    pods: int
    bound: int = 0
    failure: str = ""
    """A sentence; empty when all was done."""
    figures: Figures | None = None
    """Of a run that failed as far as it came; None when it never began."""
    loop_ms: Sequence[float] = ()
    """A fixed CPU loop before and after: what differs here is the machine's noise."""

    @property
    def outcome(self) -> str:
        """Return the failure and how far it came; empty when all was done."""
        return f"{self.bound:,} of {self.pods:,} bound: {self.failure}" if self.failure else ""

    def to_json(self) -> Object:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Self:
        """Return what `to_json` has written."""
        figures = read["figures"] and dict(read["figures"])
        if figures and figures["made"]:
            figures["made"] = Made(**figures["made"])
        if figures and figures.get("watched"):
            figures["watched"] = Watched(**figures["watched"])
        return cls(**{**read, "loop_ms": tuple(read["loop_ms"]), "figures": figures and Figures(**figures)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, minimum and maximum of the same figure of several runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return that of these; None when there are none."""
        if not values:
            return None
        return cls(median=statistics.median(values), low=min(values), high=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All runs of one scenario through one scheduler."""

    scenario: str
    contender: str
    runs: Sequence[Run] = field(repr=False)

    @property
    def measured(self) -> Sequence[Figures]:
        """What the runs that did all measured."""
        return [run.figures for run in self.runs if run.figures and not run.failure]

    @property
    def failures(self) -> Sequence[str]:
        """How runs failed, each in a sentence once."""
        return list(dict.fromkeys(run.outcome for run in self.runs if run.failure))

    def spread(self, name: str) -> Spread | None:
        """Return a figure of `Figures` by its name, over the runs that did all."""
        values = [getattr(figures, name) for figures in self.measured]
        return Spread.of([value for value in values if value is not None])

    def spread_of(self, part: str, name: str) -> Spread | None:
        """Return a figure of `made` or `watched` by its name."""
        parts = [getattr(figures, part) for figures in self.measured]
        values = [getattr(one, name) for one in parts if one]
        return Spread.of([value for value in values if value is not None])

    def medians(self, name: str) -> Mapping[str, float]:
        """Return the median of each value of a mapping of `Figures`; what a run lacks is 0 there."""
        each = [getattr(figures, name) for figures in self.measured]
        keys = dict.fromkeys(key for one in each for key in one)
        return {key: statistics.median(one.get(key, 0.0) for one in each) for key in keys}


def rows(runs: Sequence[Run]) -> Sequence[Row]:
    """Return the runs by scenario and scheduler, in the order in which each came first."""
    keys = dict.fromkeys((run.scenario, run.contender) for run in runs)
    scenarios = list(dict.fromkeys(scenario for scenario, _ in keys))
    return [
        Row(scenario=scenario, contender=contender, runs=[run for run in runs if _key(run) == (scenario, contender)])
        for scenario, contender in sorted(keys, key=lambda key: scenarios.index(key[0]))
    ]


def quantile(values: Sequence[float], percent: int) -> float | None:
    """Return the value that so many percent of the sorted values do not exceed; None of nothing."""
    return values[max(0, ceil(len(values) * percent / 100) - 1)] if values else None


def _key(run: Run) -> tuple[str, str]:
    return run.scenario, run.contender
