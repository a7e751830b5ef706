"""`make bench-webhooks`: the webhooks under locust at several sizes, then beside a great plan, with their budgets.

Starts what `leeboard serve` runs on a simulated cluster, and locust without its page; ends with 1 when any answer was
wrong. Latencies are those of the caller, through HTTP over a kept connection. Locust shares the machine with the
service, and its users share one thread: bind's figures hold what the other user encodes and checks meanwhile.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from loadtest.latencies import Beside, Row, rows, verdicts
from loadtest.target import ROOT, Target, Usage

GRACE_S = 60.0
"""How long after its time locust may take to end."""
RAISED_AT = 0.6
"""The part of its phase in which the backlog is planned again and again in vain; then its queue's limit is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One run of locust."""

    names: int
    beside: Beside = Beside.NOTHING

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.names} names", self.beside.value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of a phase."""

    phase: Phase
    rows: Sequence[Row]
    faults: Mapping[str, Sequence[str]]
    used: Usage
    ended_well: bool


def main() -> None:
    """Run every phase against one service, print what each measured, and end with 1 for a wrong answer."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="leeboard-webhooks-"))
    print(f"starting the service on {options.nodes} simulated nodes; its log is {folder / 'service.log'}", flush=True)
    with Target(options.nodes, folder / "service.log") as target:
        every = [
            _measured(target, phase, options, folder / f"{phase}.json")
            for phase in phases(options.names, options.beside_plan)
        ]
    good = [is_good(one) for one in every]
    sys.exit(0 if all(good) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-webhooks", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000, help="simulated nodes of 8 GPUs (default 5000)")
    parser.add_argument(
        "--names", type=int, nargs="*", default=[100, 500, 5000], help="names in a question (default 100 500 5000)"
    )
    parser.add_argument(
        "--beside-plan", type=int, nargs="*", default=[500, 5000], help="names beside the plan (default 500 5000)"
    )
    parser.add_argument("--backlog", type=int, default=10_000, help="pods of the plan beside it (default 10000)")
    parser.add_argument("--seconds", type=int, default=12, help="length of each phase (default 12)")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of one that asks and one that binds (default 1)")
    options = parser.parse_args()
    most = max([*options.names, *options.beside_plan], default=0)
    if most > options.nodes:
        parser.error(f"{most} names cannot be offered of {options.nodes} nodes; simulate more nodes or offer fewer")
    return options


def phases(names: Iterable[int], beside_plan: Iterable[int]) -> Iterable[Phase]:
    """Return the phases in their order: each size by itself, then beside a plan."""
    return (
        *(Phase(names=each) for each in names),
        *(Phase(names=each, beside=Beside.PLAN) for each in beside_plan),
    )


def _measured(target: Target, phase: Phase, options: argparse.Namespace, summary: Path) -> Measured:
    if phase.beside is Beside.PLAN:
        target.fill(options.backlog)
    before = target.usage()
    ended_well = _run(target, phase, options, summary)
    used = target.usage().since(before)
    if phase.beside is Beside.PLAN:
        target.empty()
    told = orjson.loads(summary.read_bytes()) if summary.exists() else {"took_ms": {}, "faults": {}}
    made = rows(told["took_ms"], told["faults"], options.seconds)
    measured = Measured(phase=phase, rows=made, faults=told["faults"], used=used, ended_well=ended_well)
    _print(measured)
    return measured


def _run(target: Target, phase: Phase, options: argparse.Namespace, summary: Path) -> bool:
    """Run locust for one phase; return whether it ended as it should, answers aside."""
    command = [
        *(sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"),
        *("--host", target.webhooks, "--cluster", target.cluster, "--names", str(phase.names)),
        *("--users", str(2 * options.pairs), "--spawn-rate", str(2 * options.pairs)),
        *("--run-time", f"{options.seconds}s", "--stop-timeout", "10", "--exit-code-on-error", "0"),
        *("--summary", str(summary), "--logfile", str(summary.with_suffix(".log"))),
        *(("--tags", "decided") if phase.beside is Beside.PLAN else ()),
    ]
    locust = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if phase.beside is Beside.PLAN:
            _keep_planning(target, until=time.monotonic() + options.seconds * RAISED_AT)
            target.let_start()
        return locust.wait(options.seconds + GRACE_S) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        locust.kill()
        locust.wait()


def _keep_planning(target: Target, *, until: float) -> None:
    while time.monotonic() < until:
        target.stir()


def _print(measured: Measured) -> None:
    used = measured.used
    caption = (
        f"service: {1e6 * used.cpu_s / max(used.calls, 1):.0f} us of CPU a call over all verbs, its cluster and plans "
        f"included; {used.resident_mb:.0f} MB; {used.plans} plans in {used.planning_s:.1f} s"
    )
    table = Table(title=str(measured.phase), caption=caption, title_justify="left", caption_justify="left")
    for column in ("question", "requests", "failures", "per s", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="left" if column == "question" else "right")
    table.add_column("budget")
    for row in measured.rows:
        judged = verdicts(row, measured.phase.names, measured.phase.beside)
        latencies = (f"{each:.2f}" for each in (row.p50, row.p90, row.p99, row.most))
        counts = (str(row.requests), str(row.failures), f"{row.per_s:.0f}")
        table.add_row(row.name, *counts, *latencies, "; ".join(judged))
    Console(width=140).print(table)


def is_good(measured: Measured) -> bool:
    """Say what went wrong in a phase, if anything; a missed budget is no fault, since it depends on the machine."""
    for name, faults in measured.faults.items():
        print(f"{measured.phase}: {len(faults)} of {name} failed; the first: {faults[0]}")
    if not measured.ended_well or not measured.rows:
        print(f"{measured.phase}: locust did not end as it should")
    return measured.ended_well and bool(measured.rows) and not measured.faults


if __name__ == "__main__":
    main()
