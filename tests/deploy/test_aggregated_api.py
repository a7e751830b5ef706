"""The aggregated API in the chart: off by default; with it an APIService, its rights, and one certificate."""

from typing import Any

import pytest

from tests.deploy.reading import Object, pod_of, settings_of
from tests.deploy.rendering import ChartError, objects, rendered

pytestmark = pytest.mark.slow

API_SERVICE = "v1.view.leeboard.dev"


def named(items: list[Object], kind: str, name: str) -> Any:
    (found,) = [item for item in items if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found


def test_there_is_no_aggregated_api_unless_it_is_asked_for() -> None:
    items = objects(rendered())

    assert settings_of(items).aggregated_port is None
    assert "APIService" not in {item["kind"] for item in items}


@pytest.mark.parametrize("form", ["own-scheduler", "extender-only"])
def test_the_api_server_finds_the_port_and_trusts_the_name(form: str) -> None:
    items = objects(rendered(form=form, aggregatedApi={"enabled": True}, ports={"aggregated": 19444}))

    settings, service = settings_of(items), named(items, "Service", "leeboard-api")
    names = ["leeboard-api.leeboard.svc", *(["leeboard-admission.leeboard.svc"] if form == "own-scheduler" else [])]
    (policy,) = [one for one in items if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "leeboard"]

    assert (settings.aggregated_host, settings.aggregated_port) == ("::", 19444)
    assert (settings.certificate_secret, settings.certificate_names) == ("leeboard/leeboard-ca", frozenset(names))
    assert bool(settings.webhook_configuration) is (form == "own-scheduler")
    assert named(items, "Secret", "leeboard-ca")
    assert {"name": "aggregated", "containerPort": 19444} in pod_of(items)["containers"][0]["ports"]
    assert service["spec"]["ports"] == [{"name": "aggregated", "port": 443, "targetPort": "aggregated"}]
    assert named(items, "APIService", API_SERVICE)["spec"]["service"]["name"] == "leeboard-api"
    assert {"ports": [{"port": "aggregated", "protocol": "TCP"}]} in policy["spec"]["ingress"]


def test_another_programs_certificate_needs_a_ca_that_the_api_server_knows() -> None:
    values: dict[str, Any] = {"certificate": {"secretName": "tls"}, "form": "extender-only"}
    inject = {"cert-manager.io/inject-ca-from": "leeboard/tls"}
    items = objects(rendered(**values, aggregatedApi={"enabled": True, "annotations": inject}))

    assert named(items, "APIService", API_SERVICE)["metadata"]["annotations"] == inject
    assert settings_of(items).admission_tls_dir == "/etc/leeboard/admission-tls"
    assert not [item for item in items if item["metadata"]["name"] == "leeboard-ca"]
    with pytest.raises(ChartError, match=r"aggregatedApi\.annotations"):
        rendered(**values, aggregatedApi={"enabled": True})
