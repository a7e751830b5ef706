"""The view in the chart: off by default; with it a port, a Service and a rule of the NetworkPolicy."""

from typing import Any

import pytest

from tests.deploy.reading import Object, pod_of, settings_of
from tests.deploy.rendering import objects, rendered

pytestmark = pytest.mark.slow


def services(items: list[Object]) -> dict[str, Any]:
    return {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Service"}


def test_there_is_no_view_unless_it_is_asked_for() -> None:
    items = objects(rendered())

    assert settings_of(items).view_port is None
    assert "leeboard-view" not in services(items)


def test_the_view_has_a_port_a_service_and_the_peers_of_operations() -> None:
    peers: list[Object] = [{"namespaceSelector": {}}]
    values: dict[str, Any] = {"view": {"enabled": True, "servicePort": 8000}, "ports": {"view": 18082}}
    items = objects(rendered(**values, networkPolicy={"operationsFrom": peers}))

    settings, service = settings_of(items), services(items)["leeboard-view"]
    (policy,) = [one for one in items if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "leeboard"]
    (rule,) = [one for one in policy["spec"]["ingress"] if {"port": "view", "protocol": "TCP"} in one["ports"]]

    assert (settings.view_host, settings.view_port) == ("::", 18082)
    assert {"name": "view", "containerPort": 18082} in pod_of(items)["containers"][0]["ports"]
    assert service["ports"] == [{"name": "view", "port": 8000, "targetPort": "view"}]
    assert rule["from"][0] == peers[0]
