"""Runs the planned scenarios, interleaved, and writes the report again after each run."""

import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest import admission, plot, removal, sheets
from loadtest.contender import CannotError, Contender
from loadtest.lab import Lab
from loadtest.programs import CONTROL_PLANE, command_line
from loadtest.report import Report
from loadtest.results import Run
from loadtest.scenarios import Scenario, Size
from tests.system.bed import PLAIN_SCHEDULER, WITHOUT_CONTROLLERS, ApiServerOptions, Audit, Bed
from tests.system.controlplane.build import KUBERNETES_VERSION

ADMISSION = "admission"
OTHER_SIZE = "The sizes are not those for which the budgets are meant."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be measured."""

    size: Size
    scenarios: Sequence[Scenario]
    contenders: Sequence[Contender]
    repeats: int
    limit_s: float
    admission: bool
    """Whether creating pods is measured as well."""


class Bench:
    """One whole measurement, and its report in a folder."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan = plan
        self._out = out
        # Who could be built; changed by `_build`.
        self._built: list[Contender] = []
        self._report = Report(
            machine=_machine(plan.size),
            scenarios={scenario.name: scenario.title for scenario in plan.scenarios},
            versions={contender.name: contender.version() for contender in plan.contenders},
        )

    def run(self) -> None:
        """Measure everything."""
        if self._plan.scenarios:
            self._build()
        if self._built:
            with _bed(Audit.WRITES) as bed:
                for scenario in self._plan.scenarios:
                    self._run_scenario(bed, scenario)
        if self._plan.admission:
            self._measure_admission()

    def finish(self, unfinished: str) -> Report:
        """Write all that was done, the picture too; `unfinished` says why there is no more."""
        self._keep(replace(self._report, unfinished=unfinished))
        try:
            plot.draw(self._report, self._out / "report.png")
        except plot.MatplotlibMissingError as missing:
            print(missing)
        print(f"The report is in {self._out}.")
        return self._report

    def _build(self) -> None:
        for contender in self._plan.contenders:
            try:
                contender.build()
            except CannotError as cannot:
                for scenario in self._plan.scenarios:
                    self._keep(self._report.with_run(_not_begun(scenario, contender, str(cannot)), {}))
            else:
                self._built.append(contender)

    def _run_scenario(self, bed: Bed, scenario: Scenario) -> None:
        print(f"{scenario.name}: {scenario.title}", flush=True)
        with Lab(bed, scenario, limit_s=self._plan.limit_s) as lab:
            flags = {name: command_line(bed.child(name)) for name in CONTROL_PLANE}
            self._keep(replace(self._report, control_plane=flags))
            # Interleaved, not in blocks: on a shared machine the noise of one minute then hits every scheduler.
            for number in range(1, self._plan.repeats + 1):
                for contender in self._built:
                    self._run(lab, scenario, contender, number)
                self._measure_removals(lab)

    def _run(self, lab: Lab, scenario: Scenario, contender: Contender, number: int) -> None:
        before = [run for run in self._report.runs if (run.scenario, run.contender) == (scenario.name, contender.name)]
        # Who has failed is not asked again: that would take the time limit, each time.
        if any(run.failure for run in before):
            return
        run = lab.run(contender, number)
        self._keep(self._report.with_run(run, contender.flags()))
        print(f"  {number}/{self._plan.repeats} {contender.name}: {_said(run)}", flush=True)

    def _measure_removals(self, lab: Lab) -> None:
        deleted, evicted = lab.removals_per_s(removal.delete), lab.removals_per_s(removal.evict)
        if deleted is not None and evicted is not None:
            self._keep(self._report.with_removals(deleted, evicted))

    def _measure_admission(self) -> None:
        print("admission: creating pods with and without it", flush=True)
        # No kubelets are simulated here, so no controller may find their nodes silent.
        with _bed(Audit.OFF) as bed:
            bed.start_control_plane()
            bed.start_scheduler(PLAIN_SCHEDULER)
            creations = admission.creations(bed, self._plan.size, self._plan.repeats)
            self._keep(replace(self._report, creations=creations))
            self._keep(replace(self._report, others=admission.others(bed, self._plan.size)))

    def _keep(self, report: Report) -> None:
        self._report = report
        self._out.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.json", report.to_json()), ("report.md", sheets.to_markdown(report))):
            _replace(self._out / name, text)


@contextmanager
def _bed(logged: Audit) -> Iterator[Bed]:
    options = ApiServerOptions(disabled_admission=WITHOUT_CONTROLLERS, audit=logged)
    with Bed(Path(tempfile.mkdtemp(prefix="leeboard-bench-")), options=options) as bed:
        yield bed


def _not_begun(scenario: Scenario, contender: Contender, why: str) -> Run:
    return Run(scenario=scenario.name, contender=contender.name, number=1, pods=scenario.batch.count, failure=why)


def _said(run: Run) -> str:
    rate = run.figures.pods_per_s if run.figures else None
    return run.outcome or (f"{rate:.0f} pods/s" if rate else "nothing was measured")


def _replace(path: Path, text: str) -> None:
    # A reader in between, or an interrupt, finds the old file or the new one, never a part.
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _machine(size: Size) -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    python = platform.python_version()
    told = f"{cores} cores and {memory_gib:.0f} GiB for everything together"
    told = f"{told}; etcd and kube-apiserver {KUBERNETES_VERSION}, Python {python}."
    return told if size == Size() else f"{told} {OTHER_SIZE}"
