"""The runner: every supported case, compared with KAI's result; unsupported cases are counted and named."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.settings import Preset
from tests.conformance import capacities, divisions, judging, matching, orders, reclaims, runtimes, sessions, topologies
from tests.conformance.judging import Crashed, NotRun, expectation
from tests.conformance.sessions import Outcome
from tests.conformance.vectors import Case, Suite, suites

Runner = Callable[[Case], Any]

RUNNERS: Mapping[str, Runner] = {
    "fairshare": divisions.run,
    "fairshare_generated": divisions.run,
    "plugin_capacity_policy": capacities.run,
    "plugin_queue_order": orders.run_queue_order,
    "plugin_elastic_order": orders.run_elastic_order,
    "plugin_job_order": orders.run_turns,
    "plugin_reclaimable": reclaims.run_reclaimable,
    "plugin_reclaim_strategies": reclaims.run_strategy,
    "plugin_minruntime": runtimes.run,
    "plugin_topology_subset_nodes": topologies.run,
}
"""By suite; a case of any other suite that has a cluster is a scheduling case."""


def result(suite: str, case: Case) -> Any:
    """Compute one case without reading its expected result."""
    runner = RUNNERS.get(suite) or (sessions.run if "cluster" in case else None)
    if runner is None:
        return NotRun("the suite has no runner yet")
    try:
        return runner(case)
    except Exception as error:  # noqa: BLE001  # one case that breaks us must not hide the others
        return Crashed(repr(error))


def verdict(case: Case, computed: Any) -> tuple[str, str]:
    """Return `passed`, `failed` or `not run`, and why."""
    expected = expectation(case)
    if isinstance(computed, NotRun):
        return "not run", computed.why
    if isinstance(computed, Crashed):
        return "failed", computed.why
    if expected is None:
        return "not run", "the case states nothing to compare with"
    found = _differences(case, expected, computed)
    return ("failed", "; ".join(found)) if found else ("passed", "")


def _differences(case: Case, expected: Any, computed: Any) -> list[str]:
    if isinstance(computed, Outcome):
        return matching.differences(case, computed)
    return judging.differences(expected, computed)


def report(suite: Suite) -> Counter[str]:
    """Run and print one suite, a line a case that did not pass, then the count."""
    counts: Counter[str] = Counter()
    for case in suite.cases:
        outcome, why = verdict(case, result(suite.name, case))
        counts[outcome] += 1
        if outcome == "failed" or (outcome == "not run" and (suite.name in RUNNERS or "cluster" in case)):
            print(f"{outcome.upper()} {case['id']}: {why}")
    left_out = f" ({counts['not run']} not run)" if counts["not run"] else ""
    print(f"{suite.name} {counts['passed']}/{len(suite.cases)}{left_out}")
    return counts


def report_all(chosen: Iterable[Suite]) -> int:
    """Print every suite and the sums; return the exit code."""
    counts: Counter[str] = Counter()
    for suite in chosen:
        counts.update(report(suite))
    print(f"{counts['not run']} not run")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0


def write_json(chosen: Iterable[Suite]) -> int:
    """Print one JSON object a case; return the exit code."""
    failed = 0
    for suite in chosen:
        for case in suite.cases:
            computed = result(suite.name, case)
            failed += verdict(case, computed)[0] == "failed"
            print(json.dumps({"id": case["id"]} | _named(computed)))
    return 1 if failed else 0


def _named(computed: Any) -> dict[str, Any]:
    match computed:
        case NotRun(why):
            return {"not_run": why}
        case Crashed(why):
            return {"error": why}
        case Outcome():
            return computed.written()
        case _:
            return {"result": computed}


def main(arguments: list[str]) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a vector file, or a folder of them")
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only the cases whose id contains TEXT")
    parser.add_argument(
        "--preset", choices=list(Preset), default=sessions.PRESET, help="whose defaults cases run under"
    )
    chosen = parser.parse_args(arguments)
    sessions.PRESET = Preset(chosen.preset)
    write = write_json if chosen.output == "json" else report_all
    return write(_only(chosen.only, suites(chosen.paths)))


def _only(text: str, chosen: Iterable[Suite]) -> Iterator[Suite]:
    for suite in chosen:
        cases = tuple(case for case in suite.cases if text in case["id"])
        if cases or not text:
            yield replace(suite, cases=cases)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
