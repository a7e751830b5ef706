"""Metrics, dashboard and alerts, as Prometheus' own promtool sees them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.monitoring import promtool, served_families, served_metrics
from tests.deploy.rendering import CHART, ROOT, SCHEMA, objects, rendered

pytestmark = pytest.mark.slow

UNIT_TESTS = Path(__file__).with_name("alerts.yaml")
VARIABLES = {"$__rate_interval": "5m", "$queue": ".*"}
"""Of Grafana, with a value that Prometheus reads."""

METRIC = re.compile(r"\b(?:leeboard|process)_\w+")
OF_TARGETS = {"instance", "le"}
"""Labels that Prometheus adds, or that only some series of a family have."""


async def test_the_metrics_follow_the_conventions_of_prometheus() -> None:
    assert promtool("check", "metrics", text=await served_metrics()) == (0, "")


def test_the_check_of_conventions_finds_a_metric_that_breaks_them() -> None:
    code, said = promtool("check", "metrics", text="# TYPE wait_milliseconds gauge\nwait_milliseconds 3\n")

    assert code
    assert "use base unit" in said


# Alerts


def test_alerts_are_raised_when_they_should_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(_rule()["spec"]))
    (tmp_path / "tests.yaml").write_text(UNIT_TESTS.read_text())

    code, said = promtool("test", "rules", tmp_path / "tests.yaml")

    assert code == 0, said


def test_every_alert_has_a_unit_test_that_raises_it() -> None:
    cases = [case for one in yaml.safe_load(UNIT_TESTS.read_text())["tests"] for case in one["alert_rule_test"]]

    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {one["alert"] for one in _alerts()}
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == {one["alert"] for one in _alerts()}


def test_every_alert_says_what_it_means_and_where_to_read_on() -> None:
    for alert in _alerts():
        notes = alert["annotations"]
        assert {*notes} == {"summary", "description", "runbook_url"}
        assert notes["runbook_url"].endswith(f"#{alert['alert'].lower()}")
        assert alert["labels"]["severity"] in {"critical", "warning"}


def test_every_runbook_has_its_section_in_the_documents() -> None:
    titles = re.findall(r"^### (\w+)$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)

    assert titles == [one["alert"] for one in _alerts()]


def test_alerts_can_be_left_out_by_their_names_which_the_schema_knows() -> None:
    rule = json.loads(SCHEMA.read_text())["properties"]["monitoring"]["properties"]["prometheusRule"]["properties"]

    assert rule["disabledAlerts"]["items"]["enum"] == [one["alert"] for one in _alerts()]


def test_without_agents_no_alert_misses_them() -> None:
    (rule,) = _rules(agent={"enabled": False})

    assert "LeeboardAgentMissing" not in [one["alert"] for one in rule["spec"]["groups"][0]["rules"]]


# Dashboard


def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"q:{number}", "expr": each} for number, each in enumerate(_queries())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    code, said = promtool("check", "rules", "--lint=none", tmp_path / "rules.yaml")

    assert code == 0, said
    assert f"{len(rules)} rules found" in said


async def test_every_metric_of_the_dashboard_and_the_alerts_is_served() -> None:
    asked = {name for each in [*_queries(), *_expressions(), *_listed()] for name in METRIC.findall(each)}

    assert asked - await served_families() == set()
    assert len(asked) > 20


async def test_every_label_that_a_query_selects_by_is_one_of_the_metric() -> None:
    text = await served_metrics()

    for each in [*_queries(), *_expressions()]:
        for metric, selectors in re.findall(r"(leeboard_\w+)\{([^}]*)\}", each):
            served = set(re.findall(r"(\w+)=", " ".join(re.findall(rf"^{metric}\{{(.*)\}} ", text, re.MULTILINE))))
            assert set(re.findall(r"(\w+)[=!]", selectors)) <= served | OF_TARGETS, each


def test_the_dashboard_answers_its_questions_and_says_what_each_panel_shows() -> None:
    board = _dashboard()
    rows = [one["title"] for one in board["panels"] if one["type"] == "row"]
    panels = [one for one in board["panels"] if one["type"] != "row"]

    assert rows == [
        "Does it work",
        "Who waits, and for how long",
        "Quota against use",
        "Start latency",
        "Evictions",
        "Fragmentation and devices",
        "Health of the service",
    ]
    assert [one["title"] for one in panels if not one["description"] or not one["targets"]] == []
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])
    assert {each["datasource"]["uid"] for one in panels for each in one["targets"]} == {"${datasource}"}


def test_panels_do_not_overlap() -> None:
    taken = set[tuple[int, int]]()
    for panel in _dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


# In the chart


def test_nothing_is_monitored_unless_it_is_asked_for() -> None:
    kinds = {item["kind"] for item in objects(rendered())}

    assert not kinds & {"ServiceMonitor", "PrometheusRule"}
    assert "dashboard" not in rendered()


def test_the_monitor_finds_the_service_of_operations() -> None:
    items = objects(rendered(monitoring={"serviceMonitor": {"enabled": True}}))
    (monitor,) = [item for item in items if item["kind"] == "ServiceMonitor"]
    selector, (endpoint,) = monitor["spec"]["selector"]["matchLabels"], monitor["spec"]["endpoints"]

    found = [
        item["metadata"]["name"]
        for item in items
        if item["kind"] == "Service"
        and selector.items() <= item["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in item["spec"]["ports"]]
    ]
    assert found == ["leeboard"]
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"


def test_no_token_is_sent_where_metrics_need_none() -> None:
    given: dict[str, Any] = {"security": {"anonymousReads": True}}
    items = objects(rendered(**given, monitoring={"serviceMonitor": {"enabled": True, "tokenSecret": "reader"}}))
    (monitor,) = [item for item in items if item["kind"] == "ServiceMonitor"]

    assert not monitor["spec"]["endpoints"][0].keys() & {"authorization", "bearerTokenFile"}


def test_grafana_gets_the_dashboard_unchanged() -> None:
    items = objects(rendered(monitoring={"dashboard": {"enabled": True}}))
    (found,) = [item for item in items if item["metadata"]["name"] == "leeboard-dashboard"]

    assert json.loads(found["data"]["leeboard.json"]) == _dashboard()


def _rules(**values: Any) -> list[dict[str, Any]]:
    given = {"prometheusRule": {"enabled": True}}
    return [item for item in objects(rendered(monitoring=given, **values)) if item["kind"] == "PrometheusRule"]


def _rule() -> dict[str, Any]:
    (rule,) = _rules()
    return rule


def _alerts() -> list[dict[str, Any]]:
    return [alert for group in _rule()["spec"]["groups"] for alert in group["rules"]]


def _expressions() -> list[str]:
    return [alert["expr"] for alert in _alerts()]


def _dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
    return board


def _queries() -> Iterator[str]:
    """Yield the queries of all panels, as Grafana sends them."""
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query: str = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            yield query


def _listed() -> list[str]:
    """Return the queries of the variables."""
    return [one["definition"] for one in _dashboard()["templating"]["list"] if one["type"] == "query"]
