import json

from loadtest.results import Row, Run, Spread, quantile, rows
from tests.loadtest.made_up import MADE, failed, figures, run


def test_spread_is_median_minimum_and_maximum() -> None:
    assert Spread.of([3.0, 1.0, 8.0]) == Spread(median=3.0, low=1.0, high=8.0)
    assert Spread.of([3.0, 1.0]) == Spread(median=2.0, low=1.0, high=3.0)
    assert Spread.of([]) is None


def test_quantile_is_a_measured_value() -> None:
    values = [float(number) for number in range(1, 201)]

    assert (quantile(values, 50), quantile(values, 99), quantile([7.0], 1), quantile([], 50)) == (100, 198, 7, None)


def test_rows_keep_the_order_of_their_first_appearance() -> None:
    runs = [run("x"), run("y"), run("x", number=2), run("x", scenario="gangs")]

    assert rows(runs) == [
        Row(scenario="lone", contender="x", runs=[runs[0], runs[2]]),
        Row(scenario="lone", contender="y", runs=[runs[1]]),
        Row(scenario="gangs", contender="x", runs=[runs[3]]),
    ]


def test_failed_run_is_reported_and_its_figures_are_not_averaged_in() -> None:
    (row,) = rows([run("x", 100), failed("x", "time was up after 300 s.", bound=1200), run("x", 300, number=3)])

    assert row.spread("pods_per_s") == Spread(median=200, low=100, high=300)
    assert row.failures == ["1,200 of 3,000 bound: time was up after 300 s."]


def test_medians_of_programs_count_a_missing_one_as_zero() -> None:
    (row,) = rows(
        [
            run("x", writes_by_agent={"leeboard": 1.0, "other": 2.0}),
            run("x", number=2, writes_by_agent={"leeboard": 3.0}),
        ]
    )

    assert row.medians("writes_by_agent") == {"leeboard": 2.0, "other": 1.0}


def test_costs_of_the_bench_itself_are_no_cost_of_a_scheduler() -> None:
    assert figures(cpu_ms_per_pod={"etcd": 1.0, "leeboard": 2.5, "the bench": 40.0}).cpu_ms == 3.5


def test_runs_are_unchanged_after_json() -> None:
    for one in (run("x"), run("x", made=MADE, attempts_per_pod=None), failed("x", "it has no such thing.")):
        assert Run.from_json(json.loads(json.dumps(one.to_json()))) == one
