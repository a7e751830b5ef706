"""Metrics, dashboard and alerts, as Prometheus' own promtool sees them."""

from tests.deploy.monitoring import promtool, served_metrics


async def test_the_metrics_follow_the_conventions_of_prometheus() -> None:
    assert promtool("check", "metrics", text=await served_metrics()) == (0, "")


def test_the_check_of_conventions_finds_a_metric_that_breaks_them() -> None:
    code, said = promtool("check", "metrics", text="# TYPE wait_milliseconds gauge\nwait_milliseconds 3\n")

    assert code
    assert "use base unit" in said
