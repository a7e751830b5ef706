"""Invented results of a bench."""

from dataclasses import replace

from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, LET_IN
from loadtest.report import Report
from loadtest.results import Figures, Made, Run

FIGURES = Figures(
    pods_per_s=300.0,
    first_bind_s=0.1,
    p50_s=5.0,
    p99_s=9.9,
    last_bind_s=10.0,
    writes_per_pod=2.0,
    writes_by_agent={"kube-scheduler": 2.0},
    attempts_per_pod=1.0,
    cpu_ms_per_pod={"etcd": 0.5, "kube-apiserver": 2.0, "kube-scheduler": 1.5, "the bench": 100.0},
    peak_mib={"kube-scheduler": 80.0},
)
MADE = Made(evicted=800, last_eviction_s=3.0, evictions_per_s=280.0, plans=4, planned_s=1.5)


def figures(pods_per_s: float = 300.0, **more: object) -> Figures:
    return replace(FIGURES, pods_per_s=pods_per_s, **more)  # type: ignore[arg-type] # any field of it


def run(contender: str, pods_per_s: float = 300.0, *, scenario: str = "lone", number: int = 1, **more: object) -> Run:
    """Build a run that bound all its 3,000 pods; `more` are other figures."""
    return Run(
        scenario=scenario,
        contender=contender,
        number=number,
        pods=3000,
        bound=3000,
        figures=figures(pods_per_s, **more),
        loop_ms=(14.0, 16.0),
    )


def failed(contender: str, failure: str, *, scenario: str = "lone", bound: int = 0) -> Run:
    """Build a run that stopped at this point."""
    partial = replace(FIGURES, pods_per_s=None) if bound else None
    return Run(
        scenario=scenario, contender=contender, number=1, pods=3000, bound=bound, failure=failure, figures=partial
    )


def report(*runs: Run) -> Report:
    """Build the report of such runs."""
    return Report(
        machine="2 cores.",
        control_plane={"etcd": ["--log-level=error"]},
        scenarios={name: f"title of {name}" for name in dict.fromkeys(run.scenario for run in runs)},
        versions={run.contender: f"version of {run.contender}" for run in runs},
        runs=runs,
    )


SIDE_BY_SIDE = (
    run(ALONE, 400),
    run(ALONE, 420, number=2),
    run(ALONE, 300, number=3),
    run(EXTENDER_ONLY, 240),
    run(LET_IN, 310),
    run(HELD, 160),
)
