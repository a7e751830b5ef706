"""The bench itself, small, and the budgets that are counts: what a lone pod may cost with Leeboard beside it."""

from pathlib import Path

from loadtest.lab import Lab
from loadtest.ours import ALONE, EXTENDER_ONLY, LET_IN, ours
from loadtest.scenarios import Size, scenarios
from tests.system.bed import WITHOUT_CONTROLLERS, ApiServerOptions, Audit, Bed

LONE = scenarios(Size(nodes=10, pods=60))[0]
MEASURED = (ALONE, EXTENDER_ONLY, LET_IN)
EVENTS_OF_ALL = 5
"""A few writes are no pod's: of the queues, and that kube-scheduler was elected."""


def test_lone_pod_costs_two_writes_and_one_attempt_with_leeboard_as_without(tmp_path: Path) -> None:
    contenders = [one for one in ours() if one.name in MEASURED]
    options = ApiServerOptions(disabled_admission=WITHOUT_CONTROLLERS, audit=Audit.WRITES)

    with Bed(tmp_path, options=options) as bed, Lab(bed, LONE, limit_s=60) as lab:
        runs = {contender.name: lab.run(contender, 1) for contender in contenders}

    assert {name: run.outcome for name, run in runs.items()} == dict.fromkeys(MEASURED, "")
    figures = {name: run.figures for name, run in runs.items() if run.figures}
    assert {name: one.attempts_per_pod for name, one in figures.items()} == dict.fromkeys(MEASURED, 1.0)
    above = {name: round(one.writes_per_pod * LONE.batch.count) - 2 * LONE.batch.count for name, one in figures.items()}
    assert {name: 0 <= writes <= EVENTS_OF_ALL for name, writes in above.items()} == dict.fromkeys(MEASURED, True)
