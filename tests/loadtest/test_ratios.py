from collections.abc import Mapping

from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, LET_IN
from loadtest.ratios import COSCHEDULING, KAI, RATIOS, Ceilings, Outcome, verdicts
from loadtest.results import Run, Spread, rows
from tests.loadtest.made_up import MADE, SIDE_BY_SIDE, failed, run

CEILINGS = Ceilings(deletions=Spread(median=400, low=390, high=410), evictions=Spread(median=300, low=290, high=310))


def judged(*runs: Run, ceilings: Ceilings | None = None) -> Mapping[tuple[str, str], tuple[str, Outcome]]:
    """Return the measurements, and the outcome of each measured budget."""
    found = verdicts(rows(runs), ceilings or Ceilings())
    return {
        (one.path, one.budget): (one.measured, one.outcome) for one in found if one.outcome is not Outcome.NOT_MEASURED
    }


def test_budgets_are_ratios_of_medians_of_the_same_run() -> None:
    assert judged(*SIDE_BY_SIDE) == {
        ("lone pods", ">= 0.7 x kube-scheduler alone (goal 0.9)"): (
            "0.78 x (310/s against 400/s)",
            Outcome.REACHED,
        ),
        ("lone pods, extender-only", ">= 0.7 x kube-scheduler alone (goal 0.9)"): (
            "0.60 x (240/s against 400/s)",
            Outcome.MISSED,
        ),
        ("held pods", ">= 0.45 x kube-scheduler alone"): ("0.40 x (160/s against 400/s)", Outcome.MISSED),
    }


def test_gangs_are_compared_with_coscheduling_and_with_kai() -> None:
    found = judged(
        run(EXTENDER_ONLY, 200, scenario="gangs"),
        run(HELD, 110, scenario="gangs"),
        run(COSCHEDULING, 290, scenario="gangs"),
        run(KAI, 60, scenario="gangs"),
    )

    assert found == {
        ("gangs of 20", ">= 0.8 x coscheduling (goal 1)"): ("0.69 x (200/s against 290/s)", Outcome.MISSED),
        ("gangs of 20", ">= 3 x KAI-Scheduler"): ("3.33 x (200/s against 60/s)", Outcome.REACHED),
        ("held gangs of 20", ">= 0.45 x coscheduling"): ("0.38 x (110/s against 290/s)", Outcome.MISSED),
        ("held gangs of 20", ">= 2 x KAI-Scheduler"): ("1.83 x (110/s against 60/s)", Outcome.MISSED),
    }


def test_no_two_budgets_have_the_same_name() -> None:
    rows_ = [(one.path, one.budget) for one in verdicts([], Ceilings())]

    assert len(rows_) == len(set(rows_))


def test_single_pods_with_and_without_admission_have_the_same_budgets_in_rows_of_their_own() -> None:
    budgets: dict[str, list[tuple[str, str, float, float | None]]] = {LET_IN: [], EXTENDER_ONLY: []}
    for one in RATIOS:
        if one.ours in budgets and one.scenario.startswith("lone"):
            path = one.path.removesuffix(", extender-only" if one.ours == EXTENDER_ONLY else "")
            budgets[one.ours].append((path, one.other, one.least, one.goal))

    assert budgets[LET_IN] == budgets[EXTENDER_ONLY]
    assert [path for path, *_ in budgets[LET_IN]] == [
        "lone pods",
        "lone pods",
        "lone pods, large",
        "lone pods, large",
    ]


def test_budget_against_a_failed_scheduler_is_not_measured() -> None:
    assert judged(run(EXTENDER_ONLY, 310), failed(ALONE, "time was up after 300 s.", bound=10)) == {}


def test_budget_is_missed_when_one_of_our_runs_failed_whatever_the_speed_of_the_others() -> None:
    late = failed(LET_IN, "time was up after 300 s.", bound=10)

    found = judged(run(LET_IN, 390), late, run(ALONE, 400))

    assert found == {
        ("lone pods", ">= 0.7 x kube-scheduler alone (goal 0.9)"): (f"failed: {late.outcome}", Outcome.MISSED),
        ("lone pods", ">= 5 x KAI-Scheduler"): (f"failed: {late.outcome}", Outcome.MISSED),
    }


def test_a_failed_peer_is_named_where_nothing_could_be_compared() -> None:
    late = failed(ALONE, "time was up after 300 s.", bound=10)

    found = next(one for one in verdicts(rows([run(HELD, 310), late]), Ceilings()) if one.path == "held pods")

    assert (found.measured, found.outcome) == (f"{ALONE} failed: {late.outcome}", Outcome.NOT_MEASURED)


def test_no_budget_is_measured_where_nothing_was_run() -> None:
    assert {one.outcome for one in verdicts([], Ceilings())} == {Outcome.NOT_MEASURED}


def test_backlog_is_compared_with_the_same_pods_without_it() -> None:
    behind = run(HELD, 100, scenario="backlog", empty_pods_per_s=120.0)

    (found,) = judged(behind).values()

    assert found == ("0.83 x (100/s against 120/s)", Outcome.MISSED)


def test_reclaim_is_judged_by_its_plans_and_by_the_possible_speed_of_evictions() -> None:
    found = judged(run(EXTENDER_ONLY, scenario="reclaim", made=MADE), ceilings=CEILINGS)

    path = f"reclaim, {EXTENDER_ONLY}"
    assert found == {
        (f"{path}: planned", "< 2 s, all plans together"): ("1.50 s in 4 plans", Outcome.REACHED),
        (f"{path}: executed", "as fast as the API server deletes (>= 0.9 x)"): (
            "0.70 x (280/s against 400/s)",
            Outcome.MISSED,
        ),
        (f"{path}: executed", "as fast as the API server evicts (>= 0.9 x)"): (
            "0.93 x (280/s against 300/s)",
            Outcome.REACHED,
        ),
    }
