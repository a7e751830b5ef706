from loadtest.latencies import BUDGETS, Beside, Quantile, Row, rows, verdicts


def row(name: str, *, p50: float = 0.5, p99: float = 5.0) -> Row:
    return Row(name=name, requests=10, failures=0, per_s=1.0, p50=p50, p90=p50, p99=p99, most=p99)


def test_row_holds_exact_quantiles_of_what_was_measured() -> None:
    took = {"filter promised": [float(ms) for ms in range(200, 0, -1)], "never asked": []}

    made = rows(took, {"filter promised": ["wrong", "wrong"]}, over_s=10.0)

    expected = Row(
        name="filter promised", requests=200, failures=2, per_s=20.0, p50=100.0, p90=180.0, p99=198.0, most=200.0
    )
    assert made == [expected]


def test_one_call_is_all_its_quantiles() -> None:
    assert rows({"bind": [3.0]}, {}, over_s=1.0) == [
        Row(name="bind", requests=1, failures=0, per_s=1.0, p50=3.0, p90=3.0, p99=3.0, most=3.0)
    ]


def test_budget_is_shown_beside_the_row_it_is_about() -> None:
    promised = row("filter promised", p50=1.5, p99=25.0)

    assert verdicts(promised, 500, Beside.NOTHING) == ["p50 < 1 ms missed"]
    assert verdicts(promised, 5000, Beside.NOTHING) == ["p50 < 3 ms reached"]
    assert verdicts(promised, 500, Beside.PLAN) == ["p99 < 20 ms missed"]
    assert verdicts(row("bind"), 500, Beside.NOTHING) == []


def test_budget_that_is_met_exactly_is_missed() -> None:
    assert verdicts(row("filter unmanaged", p50=1.0), 100, Beside.NOTHING) == ["p50 < 1 ms missed"]


def test_every_budget_of_the_webhooks_exists_once() -> None:
    told = [(one.name, one.quantile, one.below_ms, one.beside) for one in BUDGETS]

    assert told == [
        ("filter promised", Quantile.P50, 1.0, Beside.NOTHING),
        ("filter promised", Quantile.P50, 3.0, Beside.NOTHING),
        ("filter promised", Quantile.P99, 20.0, Beside.PLAN),
        ("filter unmanaged", Quantile.P50, 1.0, Beside.NOTHING),
    ]
