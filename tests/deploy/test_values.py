"""The values that a user can set in the chart, and the messages about wrong ones."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from app.settings import Settings
from tests.deploy.describing import WHOLE, described
from tests.deploy.rendering import CHART, FORMS, SCHEMA, THE_CHARTS_OWN, ChartError, files, helm, objects, rendered

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", FORMS)
def test_helm_lint_finds_no_problem(form: str) -> None:
    said = helm("lint", "--strict", str(CHART), f"--set=form={form}")

    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"replicas": "three"}, "at '/replicas': got string, want integer"),
        ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
        ({"form": "sidecar"}, "at '/form': value must be one of 'own-scheduler', 'beside', 'extender-only'"),
        ({"admission": {"policies": "never"}}, "at '/admission/policies': value must be one of 'auto', 'on', 'off'"),
        ({"security": {"profile": "open"}}, "at '/security/profile': value must be one of 'kai-compatible', 'secure'"),
        ({"admission": {"gpuRuntimeClass": "Nvidia"}}, "at '/admission/gpuRuntimeClass': 'Nvidia' does not match"),
        (
            {"form": "extender-only", "admission": {"gpuRuntimeClass": "nvidia"}},
            "admission.gpuRuntimeClass: without admission it is not set on pods; leave it empty, and name",
        ),
        ({"admission": {"enabled": False, "gpuRuntimeClass": "nvidia"}}, "without admission it is not set on pods"),
        ({"image": {"digest": "latest"}}, "at '/image/digest': 'latest' does not match pattern"),
        ({"settings": {"LEEBOARD_AGING_S": 1}}, "at '/settings': additional properties 'LEEBOARD_AGING_S' not allowed"),
        ({"settings": {"LEEBOARD_AGEING_S": "1h"}}, "at '/settings/LEEBOARD_AGEING_S': got string, want number"),
        ({"settings": {"LEEBOARD_FAIR_SHARE_K": -1}}, "LEEBOARD_FAIR_SHARE_K': minimum: got -1, want 0"),
        ({"settings": {"LEEBOARD_PROFILES": "mine"}}, "additional properties 'LEEBOARD_PROFILES' not allowed"),
        ({"settings": {"LEEBOARD_OWNERS_PROJECT": True}}, "properties 'LEEBOARD_OWNERS_PROJECT' not allowed"),
        ({"schedulerName": "default-scheduler"}, "default-scheduler is the cluster's own; write a name"),
        ({"form": "beside", "admission": {"enabled": False}}, "form: beside needs admission"),
        ({"beside": {"address": "10.96.0.99"}}, "it is not used in the form own-scheduler; set form to beside"),
        ({"form": "beside", "beside": {"address": "10.96.0.99"}}, "beside.address and beside.tlsSecret go together"),
        ({"beside": {"lease": "kube-scheduler"}}, "at '/beside/lease': 'kube-scheduler' does not match pattern"),
        ({"certificate": {"secretName": "mine"}}, "set admission.annotations to {cert-manager.io/inject-ca-from: <"),
        ({"certificate": {"caBundle": "mine"}}, "at '/certificate/caBundle': 'mine' does not match pattern"),
        ({"certificate": {"caBundle": "-----BEGIN CERTIFICATE-----"}}, "caBundle goes with certificate.secretName"),
        ({"gpuSharing": {"contextOverheadMib": -1}}, "at '/gpuSharing/contextOverheadMib': minimum: got -1, want 0"),
        ({"gpuSharing": {"evictOveruseAfter": 0}}, "exclusiveMinimum: got 0, want 0"),
        ({"gpuSharing": {"evictOveruseAfter": "1h"}}, "at '/gpuSharing/evictOveruseAfter': got string, want null or"),
        (
            {"grouping": {"extraResources": [{"apiGroups": ["example.com"], "resources": ["*"]}]}},
            "at '/grouping/extraResources/0/resources/0': '*' does not match pattern",
        ),
        (
            {"grouping": {"extraResources": [{"apiGroups": [""], "resources": ["secrets"]}]}},
            "'' does not match pattern",
        ),
        ({"settings": {"LEEBOARD_RECORD_DIR": "/tmp"}}, "additional properties 'LEEBOARD_RECORD_DIR' not allowed"),
        ({"recording": {"sizeMiB": 1}}, "at '/recording/sizeMiB': minimum: got 1, want 2"),
        ({"settings": {"LEEBOARD_GPU_SHARING": False}}, "additional properties 'LEEBOARD_GPU_SHARING' not allowed"),
        (
            {"agent": {"settings": {"LEEBOARD_AGENT_HEARTBEAT_S": 0}}},
            "LEEBOARD_AGENT_HEARTBEAT_S': minimum: got 0, want",
        ),
        ({"agent": {"kubeletFolder": "var/lib"}}, "at '/agent/kubeletFolder': 'var/lib' does not match pattern"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels: app.kubernetes.io/name is the chart's own"),
        ({"form": "beside", "beside": {"tlsSecret": "mine"}}, "beside.address and beside.tlsSecret go together"),
    ],
)
def test_wrong_values_are_refused_with_a_message(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ChartError, match=re.escape(message)):
        rendered(**values)


def test_booleans_may_be_written_as_yaml_reads_them() -> None:
    def hold(wanted: object) -> bool:
        return "MutatingAdmissionPolicy" in {item["kind"] for item in objects(rendered(admission={"policies": wanted}))}

    assert [hold(wanted) for wanted in ("on", True, "auto", "off", False)] == [True, True, True, False, False]


def test_every_value_and_every_group_of_values_is_described_where_it_is_set() -> None:
    assert described((CHART / "values.yaml").read_text()).keys() == set(_paths(_defaults()))


def test_every_property_of_the_schema_is_described() -> None:
    schema = json.loads(SCHEMA.read_text())

    assert [path for path, one in _properties(schema) if not one.get("description", "").strip()] == []


def test_the_schema_has_exactly_the_existing_values() -> None:
    assert _keys_of_schema(json.loads(SCHEMA.read_text())) == _keys_of_values(_defaults())


def test_a_setting_without_a_value_can_be_set() -> None:
    schema = json.loads(SCHEMA.read_text())["properties"]["settings"]["properties"]

    assert {*schema} == {f"LEEBOARD_{name.upper()}" for name in Settings.model_fields if name not in THE_CHARTS_OWN}


def test_files_generated_from_the_chart_are_up_to_date() -> None:
    stale = [str(path) for path, text in files().items() if not path.exists() or path.read_text() != text]

    assert not stale, f"run `make manifests`: {stale}"


def _defaults() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return read


def _paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the path of each value and of each group of values."""
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, dict) and key not in WHOLE:
            yield from _paths(value, f"{above}{key}.")


def _properties(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the schema of each property, also of those in lists and in definitions."""
    for key, one in schema.get("properties", {}).items():
        yield f"{above}{key}", one
        yield from _properties(one, f"{above}{key}.")
    if isinstance(schema.get("items"), dict):
        yield from _properties(schema["items"], f"{above}[].")
    for name, one in schema.get("definitions", {}).items():
        yield from _properties(one, f"{name}:")


def _keys_of_values(values: Mapping[str, Any]) -> dict[str, object]:
    return {
        key: _keys_of_values(value) if isinstance(value, dict) and key not in WHOLE | {"settings"} else {}
        for key, value in values.items()
    }


def _keys_of_schema(schema: Mapping[str, Any]) -> dict[str, object]:
    properties = schema.get("properties", {})
    return {key: _keys_of_schema(one) if key != "settings" else {} for key, one in properties.items()}
