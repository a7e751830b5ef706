"""`make bench-cluster`: kube-scheduler alone against kube-scheduler with Leeboard, the same pods in the same run."""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest import admission
from loadtest.cases import CASES, Case
from loadtest.measure import Lab, Run
from tests.system.bed import PLAIN_SCHEDULER, WITHOUT_CONTROLLERS, ApiServerOptions, Audit, Bed


def main() -> None:
    """Run every case as often as asked, interleaved, and print the medians."""
    options = _options()
    bed_options = ApiServerOptions(disabled_admission=WITHOUT_CONTROLLERS, audit=Audit.WRITES)
    with Bed(Path(tempfile.mkdtemp(prefix="leeboard-bench-")), options=bed_options) as bed:
        print(f"creating {options.nodes} nodes and {options.pods} pods", flush=True)
        lab = Lab(bed, node_count=options.nodes, pods=options.pods)
        runs: dict[Case, list[Run]] = {case: [] for case in CASES}
        # Interleaved, not in blocks: on a shared machine the noise of one minute then hits every case.
        for number in range(options.repeats):
            for case in CASES:
                run = lab.run(case)
                runs[case].append(run)
                print(
                    f"{number + 1}/{options.repeats} {case.work.value}, {case.name}: {run.pods_per_s:.0f}/s", flush=True
                )
    _print(options, [_median(of) for of in runs.values()])
    # Nobody plays the kubelets, so no controller may find their nodes silent.
    unattended = ApiServerOptions(disabled_admission=WITHOUT_CONTROLLERS)
    with Bed(Path(tempfile.mkdtemp(prefix="leeboard-bench-")), options=unattended) as bed:
        bed.start_control_plane()
        bed.start_scheduler(PLAIN_SCHEDULER)
        admission.report(bed, PLAIN_SCHEDULER, node_count=options.nodes, pods=options.pods, repeats=options.repeats)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500, help="simulated nodes of 8 GPUs (default 500)")
    parser.add_argument("--pods", type=int, default=3000, help="single-GPU pods, a multiple of 20 (default 3000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case; medians are shown (default 3)")
    return parser.parse_args()


def _median(runs: Sequence[Run]) -> Run:
    """Return the run whose throughput is the median, so that all figures of a line belong together."""
    return sorted(runs, key=lambda run: run.pods_per_s)[(len(runs) - 1) // 2]


def _print(options: argparse.Namespace, medians: Sequence[Run]) -> None:
    title = f"{options.nodes} nodes x 8 GPUs, {options.pods} single-GPU pods, median of {options.repeats}"
    processes = list(dict.fromkeys(name for run in medians for name in run.cpu_ms_per_pod))
    table = Table(title=title)
    for column in ("work", "scheduler", "pods/s", "x alone", "first bind s", "API writes/pod", "attempts/pod"):
        table.add_column(column, justify="left" if column in {"work", "scheduler"} else "right")
    for process in processes:
        table.add_column(f"{process} CPU ms/pod", justify="right")
    for run in medians:
        table.add_row(*_row(run, medians, processes))
    Console(width=180).print(table)


def _row(run: Run, medians: Sequence[Run], processes: Sequence[str]) -> list[str]:
    alone = statistics.fmean(
        one.pods_per_s for one in medians if one.case.work is run.case.work.free and not one.case.leeboard
    )
    return [
        run.case.work.value,
        run.case.name,
        f"{run.pods_per_s:.0f}",
        f"{run.pods_per_s / alone:.2f}",
        f"{run.first_bind_s:.2f}",
        f"{run.writes_per_pod:.2f}",
        f"{run.attempts_per_pod:.2f}",
        *(f"{run.cpu_ms_per_pod[name]:.2f}" if name in run.cpu_ms_per_pod else "-" for name in processes),
    ]


if __name__ == "__main__":
    main()
