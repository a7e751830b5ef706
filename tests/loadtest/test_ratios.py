from collections.abc import Mapping

from loadtest.ours import ALONE, EXTENDER_ONLY, HELD
from loadtest.ratios import COSCHEDULING, KAI, Outcome, verdicts
from loadtest.results import Run, Spread, rows
from tests.loadtest.made_up import MADE, SIDE_BY_SIDE, failed, run

CEILING = Spread(median=300, low=290, high=310)


def judged(*runs: Run, ceiling: Spread | None = None) -> Mapping[tuple[str, str], tuple[str, Outcome]]:
    """Return what was measured and the outcome of each budget that was."""
    found = verdicts(rows(runs), ceiling)
    return {
        (one.path, one.budget): (one.measured, one.outcome) for one in found if one.outcome is not Outcome.NOT_MEASURED
    }


def test_budgets_are_ratios_of_medians_of_the_same_run() -> None:
    assert judged(*SIDE_BY_SIDE) == {
        ("lone pods", ">= 0.7 x kube-scheduler alone (goal 0.9)"): (
            "0.78 x (310/s against 400/s)",
            Outcome.REACHED,
        ),
        ("held pods", ">= 0.45 x kube-scheduler alone"): ("0.40 x (160/s against 400/s)", Outcome.MISSED),
    }


def test_gangs_are_compared_with_coscheduling_and_with_kai() -> None:
    found = judged(
        run(EXTENDER_ONLY, 200, scenario="gangs"),
        run(COSCHEDULING, 290, scenario="gangs"),
        run(KAI, 60, scenario="gangs"),
    )

    assert {budget: outcome for (_, budget), (_, outcome) in found.items()} == {
        ">= 0.8 x coscheduling (goal 1)": Outcome.MISSED,
        ">= 3 x KAI-Scheduler": Outcome.REACHED,
    }


def test_budget_against_one_that_failed_is_not_measured() -> None:
    assert judged(run(EXTENDER_ONLY, 310), failed(ALONE, "time was up after 300 s.", bound=10)) == {}


def test_everything_is_not_measured_where_nothing_was_run() -> None:
    assert {one.outcome for one in verdicts([], None)} == {Outcome.NOT_MEASURED}


def test_backlog_is_compared_with_the_same_pods_without_it() -> None:
    behind = run(HELD, 100, scenario="backlog", empty_pods_per_s=120.0)

    (found,) = judged(behind).values()

    assert found == ("0.83 x (100/s against 120/s)", Outcome.MISSED)


def test_reclaim_is_judged_by_its_plans_and_by_what_the_api_server_deletes() -> None:
    found = judged(run(EXTENDER_ONLY, scenario="reclaim", made=MADE), ceiling=CEILING)

    assert [*found.values()] == [
        ("1.50 s in 4 plans", Outcome.REACHED),
        ("0.93 x (280/s against 300/s)", Outcome.REACHED),
    ]
