"""The tables of a report, on a terminal and in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from loadtest.admission import STARTING
from loadtest.ours import ALONE
from loadtest.report import Report
from loadtest.results import Row, Spread

NOTES = """\
* Pods exist before the clock starts where nothing else is said. Time runs from the release of all programs at one
  moment, or from the first creation of late pods, to the last bind, by the API server's audit log.
* Figures are the median of the runs that did all, with minimum and maximum in parentheses. A scheduler that fails
  stays in the table with what went wrong and how far it came, and is not given that scenario again.
* Client limits of every program are lifted, priority and fairness of the API server are off, and etcd does not wait
  for the disk: this compares schedulers on one machine and says nothing about a production cluster.
* kube-scheduler alone, coscheduling and Leeboard's kube-scheduler are held back by a lease that is deleted at the
  release. They look for it every 0.1 to 0.22 s, so up to that is part of every run. Leeboard has no queue before. KAI
  is released by its queues, and KAI's podgrouper and Volcano's controllers by being let go on: their start, about a
  second, is part of their runs.
* Leeboard's own kube-scheduler is configured to look for a twentieth of the nodes, at least 100, since Leeboard decides
  among all of them. "kube-scheduler alone, 5 % of the nodes" shows what that setting does by itself.
* With Leeboard's admission, pods that are there before the clock starts are as it makes them: in the rows "held" with
  its gate, in the rows "let in" without, as lone pods that can run at once; a new gang has the gate in any case. Those
  who come late go through admission, which holds those that cannot run now: for them the two are the same.
* Where parts of GPUs are given out, the bench itself plays the device plugins of all nodes, and its CPU time is shown.
  Writes of the bench are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table: the first column is text, the others are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_markdown(self) -> str:
        """Return it as Markdown."""
        rule = ["---", *("---:" for _ in self.columns[1:])]
        lines = [_line(self.columns), _line(rule), *(_line(row) for row in self.rows)]
        note = f"\n\n{self.note}" if self.note else ""
        return f"## {self.title}\n\n" + "\n".join(lines) + note

    def to_terminal(self, console: Console) -> None:
        """Print it."""
        table = Table(title=self.title, title_justify="left", caption=self.note or None, caption_justify="left")
        for position, column in enumerate(self.columns):
            table.add_column(column, justify="right" if position else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def to_markdown(report: Report) -> str:
    """Return the whole report."""
    unfinished = [f"**{report.unfinished}**"] if report.unfinished else []
    parts = ["# Side by side on one machine", report.machine, *unfinished, "![pods a second](report.png)", NOTES]
    parts += [sheet.to_markdown() for sheet in sheets(report)]
    return "\n\n".join([*parts, *_programs(report)]) + "\n"


def to_terminal(report: Report, console: Console) -> None:
    """Print all tables."""
    for sheet in sheets(report):
        sheet.to_terminal(console)


def sheets(report: Report) -> Iterator[Sheet]:
    """Yield every table for which there is something, the budgets first."""
    yield _budgets(report)
    for name, title in report.scenarios.items():
        found = [row for row in report.rows if row.scenario == name]
        if found:
            yield _figures(name, title, found)
            yield from _special(found, report)
            yield _costs(name, found)
    if report.creations:
        yield _creations(report)
    if report.others:
        yield _others(report)


# The tables -----------------------------------------------------------------------------------------------------------


def _budgets(report: Report) -> Sheet:
    lines = [[one.path, one.budget, one.measured or "-", one.outcome.value] for one in report.verdicts]
    return Sheet(title="Budgets of the design", columns=("path", "budget", "measured", ""), rows=lines)


def _figures(name: str, title: str, found: Sequence[Row]) -> Sheet:
    alone = next((row.spread("pods_per_s") for row in found if row.contender == ALONE), None)
    columns = ("scheduler", "pods/s", "x alone", "first bind s", "p50 s", "p99 s", "API writes/pod", "attempts/pod")
    lines = [_figure_line(row, alone) for row in found]
    note = " ".join(f"{row.contender}: {text}" for row in found for text in row.failures)
    return Sheet(title=f"{name}: {title}", columns=(*columns, "CPU ms/pod", "peak MiB", "runs"), rows=lines, note=note)


def _figure_line(row: Row, alone: Spread | None) -> Sequence[str]:
    rate = row.spread("pods_per_s")
    ratio = f"{rate.median / alone.median:.2f}" if rate and alone else "-"
    names = ("first_bind_s", "p50_s", "p99_s", "writes_per_pod", "attempts_per_pod", "cpu_ms")
    failed = sum(bool(run.failure) for run in row.runs)
    runs = f"{len(row.runs)}" if not failed else f"FAILED {failed} of {len(row.runs)}"
    return [
        row.contender,
        _shown(rate, digits=0),
        ratio,
        *(_shown(row.spread(name), digits=2) for name in names),
        _shown(row.spread("memory_mib"), digits=0),
        runs,
    ]


def _special(found: Sequence[Row], report: Report) -> Iterator[Sheet]:
    behind = [row for row in found if row.spread("empty_pods_per_s")]
    if behind:
        lines = [
            [row.contender, *(_shown(row.spread(name), digits=0) for name in ("empty_pods_per_s", "pods_per_s"))]
            for row in behind
        ]
        columns = ("scheduler", "pods/s, no backlog", "pods/s behind the backlog")
        yield Sheet(title="backlog: the same pods without it, in the same run", columns=columns, rows=lines)
    made = [row for row in found if any(run.figures and run.figures.made for run in row.runs)]
    if made:
        yield _made(made, report)
    watched = [row for row in found if row.spread_of("watched", "probes")]
    if watched:
        yield _watched(watched)


def _watched(found: Sequence[Row]) -> Sheet:
    names = (
        ("probes", 0),
        ("filter_p50_ms", 2),
        ("filter_p99_ms", 2),
        ("reads_per_s", 0),
        ("refused_reads", 0),
        ("deltas_per_s", 0),
        ("view_mib", 0),
    )
    columns = ("scheduler", "pods/s", "peak MiB", *(name.replace("_per_", "/").replace("_", " ") for name, _ in names))
    lines = [
        [
            row.contender,
            _shown(row.spread("pods_per_s"), digits=0),
            _shown(row.spread("memory_mib"), digits=0),
            *(_shown(row.spread_of("watched", name), digits=digits) for name, digits in names),
        ]
        for row in found
    ]
    note = "The watchers run on the same cores. The probe asks filter about a pod that Leeboard does not manage."
    return Sheet(title="with and without watchers", columns=columns, rows=lines, note=note)


def _made(found: Sequence[Row], report: Report) -> Sheet:
    columns = ("scheduler", "evicted", "evictions/s", "last eviction s", "last bind s", "plans", "planned s")
    names = (("evicted", 0), ("evictions_per_s", 0), ("last_eviction_s", 2))
    lines = []
    for row in found:
        last = _shown(row.spread("last_bind_s"), digits=2)
        before = [_shown(row.spread_of("made", name), digits=digits) for name, digits in names]
        after = [
            _shown(row.spread_of("made", name), digits=digits) for name, digits in (("plans", 0), ("planned_s", 2))
        ]
        lines.append([row.contender, *before, last, *after])
    removals = (("deleted", report.ceilings.deletions), ("evicted", report.ceilings.evictions))
    rates = [f"{_shown(ceiling, digits=0)} {how}" for how, ceiling in removals if ceiling]
    note = (
        f"The same number of pods, as many at once, removed only by the bench: {' or '.join(rates)} a second."
        if rates
        else ""
    )
    return Sheet(title="reclaim: which pods left, and when", columns=columns, rows=lines, note=note)


def _costs(name: str, found: Sequence[Row]) -> Sheet:
    lines = [
        [row.contender, *(_listed(row.medians(of)) for of in ("cpu_ms_per_pod", "writes_by_agent", "peak_mib"))]
        for row in found
    ]
    columns = ("scheduler", "CPU ms/pod by process", "API writes/pod by user agent", "peak MiB by program")
    loops = [each for row in found for run in row.runs for each in run.loop_ms]
    noise = f"A fixed CPU loop took {_shown(Spread.of(loops), digits=0)} ms beside these runs."
    return Sheet(title=f"{name}: what it costs, by program", columns=columns, rows=lines, note=noise)


def _creations(report: Report) -> Sheet:
    lines = []
    for one in sorted(report.creations, key=lambda one: one.what.startswith(STARTING)):
        kind = one.what.partition(":")[0]
        # The first of its kind is the one without Leeboard.
        alone = next(other.median for other in report.creations if other.what.startswith(kind))
        rate = _shown(Spread.of(one.pods_per_s), digits=0)
        lines.append([one.what, rate, f"{one.median / alone:.2f}"])
    columns = ("pods", "created/s", "x without Leeboard")
    return Sheet(title="creating pods, 16 at a time, with and without admission", columns=columns, rows=lines)


def _others(report: Report) -> Sheet:
    lines = [[one.when, f"{one.pods_per_s:.1f}", f"{one.median_s:.3f}", f"{one.p99_s:.3f}"] for one in report.others]
    columns = ("", "bound/s", "median s to bind", "p99 s")
    return Sheet(title="pods of kube-scheduler alone, 20 a second", columns=columns, rows=lines)


def _programs(report: Report) -> Iterator[str]:
    """Yield the version and flags of every program."""
    yield "## Programs and their flags"
    yield "Paths are left out."
    yield _flags(report.control_plane)
    for contender, version in report.versions.items():
        yield f"### {contender}\n\n{version}"
        yield _flags(report.flags.get(contender, {}))


def _flags(programs: Mapping[str, Sequence[str]]) -> str:
    lines = [f"{name} {' '.join(flags)}" for name, flags in programs.items()]
    return "```text\n" + "\n".join(lines) + "\n```" if lines else "It was never started."


# Cells ----------------------------------------------------------------------------------------------------------------


def _shown(spread: Spread | None, *, digits: int) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return f"{spread.median:,.{digits}f}"
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f}-{spread.high:,.{digits}f})"


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value >= 0.005) or "-"  # noqa: PLR2004 - shown as 0.00


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
