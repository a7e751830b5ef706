"""Measures cache, planner and webhooks as a simulated cluster grows to 15,000 nodes; `make bench-scale`.

Each size has a fresh process, so that its memory is its own. Times are CPU time, which a busy machine changes little,
save those of webhooks: these are asked over HTTP by another process, so they are what kube-scheduler would wait.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.scale_pods import Size

WITHIN_S = 900

GROWTH = (
    Size(nodes=1_500, running=45, pending=5),
    Size(nodes=5_100, running=153, pending=17),
    Size(nodes=15_000, running=450, pending=50),
)
"""Of the same mix, so that what grows faster than the cluster does shows."""

DESIGNED = Size(nodes=5_000, running=225, pending=25, gpus_of_large=1)
"""The cluster that budgets are stated for."""

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report."""

    key: str
    title: str
    grows: bool = True
    """Whether an exponent is worth telling."""


ROWS = (
    Row(key="fill_cpu_us_a_pod", title="list of everything, us a pod"),
    Row(key="fill_json_s", title="of it reading JSON, s"),
    Row(key="fill_longest_hold_ms", title="longest hold of the loop meanwhile, ms"),
    Row(key="pods_first_hold_ms", title="the same, pods listed before nodes, ms"),
    Row(key="rss_mb", title="memory, MB"),
    Row(key="pod_add_us", title="a pod comes, us"),
    Row(key="pod_add_p99_us", title="p99, us"),
    Row(key="pod_bind_us", title="a pod is bound, us"),
    Row(key="pod_bind_p99_us", title="p99, us"),
    Row(key="pod_delete_us", title="a pod goes, us"),
    Row(key="pod_delete_p99_us", title="p99, us"),
    Row(key="node_heartbeat_us", title="heartbeat of a node, us"),
    Row(key="node_change_us", title="change of a node, us"),
    Row(key="agent_report_us", title="report of an agent, us"),
    Row(key="snapshot_after_pod_us", title="snapshot after a pod came, us"),
    Row(key="snapshot_after_pod_p99_us", title="p99, us"),
    Row(key="snapshot_after_gang_us", title="snapshot after a gang of 64 changed, us"),
    Row(key="snapshot_after_node_us", title="snapshot after a node changed, us"),
    Row(key="promised", title="pods placed by the first plan"),
    Row(key="plan_first_s", title="the first plan, s"),
    Row(key="plan_first_hold_ms", title="longest hold of the loop meanwhile, ms"),
    Row(key="plan_after_relief_ms", title="plan after a pod has gone, ms"),
    Row(key="plan_of_one_pod_ms", title="plan after a pod has come, ms"),
    Row(key="why_ms", title="why of one pod, ms"),
    Row(key="queue_stands_ms", title="how all queues stand, ms"),
    Row(key="metrics_read_ms", title="/metrics, processor time, ms"),
    Row(key="status_after_change_ms", title="status writers after a change, ms"),
    Row(key="status_idle_ms", title="status writers when nothing changed, ms"),
    Row(key="gpus_list_s", title="the GPUs of all nodes, s"),
    *(
        Row(key=f"filter_{kind}_{names}{when}_{which}_ms", title=f"{title}, {which}, ms", grows=False)
        for kind in ("promised", "unmanaged")
        for names in (500, 5000)
        for when, title in (
            ("", f"filter of a pod {kind}, {names} names"),
            ("_beside_plan", f"filter of a pod {kind}, {names} names, beside a plan"),
        )
        for which in ("p50", "p99")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What DESIGN section 7 allows."""

    key: str
    title: str
    most: float


BUDGETS = (
    Budget(key="snapshot_after_pod_us", title="snapshot after one change, us", most=1000),
    Budget(key="rss_mb", title="memory, MB", most=500),
    Budget(key="filter_promised_500_p50_ms", title="filter of a promised pod, 500 names, p50 ms", most=1),
    Budget(key="filter_promised_5000_p50_ms", title="filter of a promised pod, 5,000 names, p50 ms", most=3),
    Budget(key="filter_promised_500_beside_plan_p99_ms", title="beside a plan, 500 names, p99 ms", most=20),
    Budget(key="filter_promised_5000_beside_plan_p99_ms", title="beside a plan, 5,000 names, p99 ms", most=20),
    Budget(key="filter_unmanaged_500_p50_ms", title="filter of an unmanaged pod, 500 names, p50 ms", most=1),
)


def exponent(smallest: Figures, largest: Figures, key: str) -> float | None:
    """Return the power of the number of pods with which a figure grows: 1 is linear; None where it says nothing."""
    before, after = smallest.get(key, 0.0), largest.get(key, 0.0)
    if before <= 0 or after <= 0:
        return None
    return math.log(after / before) / math.log(largest["pods"] / smallest["pods"])


def lines(growth: Sequence[Figures], designed: Figures) -> Iterator[list[str]]:
    """Yield the cells of each row: title, a figure for each size, the exponent over those that grow."""
    for row in ROWS:
        power = exponent(growth[0], growth[-1], row.key) if row.grows else None
        cells = [shown(figures.get(row.key)) for figures in (*growth, designed)]
        if any(cells):
            yield [row.title, *cells, "" if power is None else f"{power:.2f}"]


def verdicts(designed: Figures) -> Iterator[list[str]]:
    """Yield a line a budget: title, budget, figure, reached or missed."""
    for budget in BUDGETS:
        figure = designed.get(budget.key)
        verdict = "not measured" if figure is None else "reached" if figure < budget.most else "missed"
        yield [budget.title, f"< {shown(budget.most)}", shown(figure), verdict]


def shown(figure: float | None) -> str:
    """Return a figure with as many digits as it deserves; nothing for none."""
    if figure is None:
        return ""
    return f"{figure:,.0f}" if figure >= 100 or figure == int(figure) else f"{figure:.3g}"  # noqa: PLR2004 # three digits


def heads(sizes: Sequence[Figures]) -> list[str]:
    """Return the heads of the columns."""
    return ["", *(f"{one['nodes']:,.0f} nodes, {one['pods']:,.0f} pods" for one in sizes), "grows as pods^"]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    every = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def _measured(size: Size, *more: str) -> dict[str, float]:
    numbers = (size.nodes, size.running, size.pending, size.gpus_of_large)
    command = [sys.executable, "-m", "loadtest.scale_probe", *map(str, numbers), *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=WITHIN_S)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _of_size(size: Size, say: Callable[[str], None]) -> Figures:
    say(f"{size.nodes:,} nodes, {8 * size.nodes:,} GPUs, {size.pods:,} pods ...")
    figures = _measured(size, "--webhooks")
    figures["pods_first_hold_ms"] = _measured(size, "--pods-first")["fill_longest_hold_ms"]
    return figures


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for scale.json and scale.md")
    parser.add_argument("--sizes", type=int, default=len(GROWTH), choices=(2, 3), help="how many sizes grow")
    chosen = parser.parse_args()
    console = Console()
    growth = [_of_size(size, console.print) for size in GROWTH[: chosen.sizes]]
    designed = _of_size(DESIGNED, console.print)
    head, rows, judged = heads([*growth, designed]), list(lines(growth, designed)), list(verdicts(designed))
    budgets = ["budget, 5,000 nodes and 50,000 pods", "at most", "measured", ""]
    for titles, body in ((head, rows), (budgets, judged)):
        table = Table(*titles)
        for cells in body:
            table.add_row(*cells)
        console.print(table)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "scale.json").write_text(json.dumps({"growth": growth, "designed": designed}, indent=1))
        (chosen.out / "scale.md").write_text(f"{markdown(head, rows)}\n\n{markdown(budgets, judged)}\n")


if __name__ == "__main__":
    _main()
