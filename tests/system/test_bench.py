"""The bench itself, small, and the budgets that are counts: the cost of a single pod with Leeboard."""

from collections.abc import Mapping
from pathlib import Path

from loadtest.lab import Lab
from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, LET_IN, ours
from loadtest.results import Figures
from loadtest.scenarios import Size, scenarios
from tests.system.bed import WITHOUT_CONTROLLERS, ApiServerOptions, Audit, Bed

LONE = scenarios(Size(nodes=10, pods=60))[0]
WRITES: Mapping[str, int] = {ALONE: 2, EXTENDER_ONLY: 2, LET_IN: 2, HELD: 3}
"""For each pod: the binding and its event, and for a gated one the patch that removes the gate."""
ELECTED, QUEUES = 1, 2
"""Writes of no pod: the election of kube-scheduler, and the statuses of queues, at most once a second."""


def test_single_pod_costs_two_writes_and_one_attempt_with_and_without_leeboard_and_a_gated_one_a_third(
    tmp_path: Path,
) -> None:
    contenders = [one for one in ours() if one.name in WRITES]
    options = ApiServerOptions(disabled_admission=WITHOUT_CONTROLLERS, audit=Audit.WRITES)

    with Bed(tmp_path, options=options) as bed, Lab(bed, LONE, limit_s=60) as lab:
        runs = {contender.name: lab.run(contender, 1) for contender in contenders}

    assert {name: run.outcome for name, run in runs.items()} == dict.fromkeys(WRITES, "")
    figures = {name: run.figures for name, run in runs.items() if run.figures}
    assert {name: one.attempts_per_pod for name, one in figures.items()} == dict.fromkeys(WRITES, 1.0)
    above = {name: above_those_of_pods(one, WRITES[name]) for name, one in figures.items()}
    assert {name: 0 <= writes <= others(figures[name]) for name, writes in above.items()} == dict.fromkeys(WRITES, True)


def above_those_of_pods(figures: Figures, writes: int) -> int:
    return round((figures.writes_per_pod - writes) * LONE.batch.count)


def others(figures: Figures) -> int:
    """Return how many writes may belong to no pod in the time it took, and in the quiet time after it."""
    return ELECTED + QUEUES * (2 + int(figures.last_bind_s or 0))
