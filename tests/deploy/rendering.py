"""`make manifests`: writes the files generated from the chart, for users without Helm; tests check them.

The chart is the one source of `deploy/kustomize/`, `scheduler-config/` and `deploy/default-queues.yaml`. The settings
in its `values.schema.json` follow from `app/settings.py`; the descriptions there, and the table of values in its
README.md, from the comments in `values.yaml`.
"""

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from app.agent.settings import PREFIX, AgentSettings
from app.settings import Settings
from tests.deploy.describing import described, table
from tests.system.controlplane import build

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "leeboard"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
VALUES_BEGIN, VALUES_END = "<!-- values: `make manifests` writes this table -->\n", "<!-- end of values -->\n"
FORMS = ("own-scheduler", "beside", "extender-only")
NAMESPACE = "leeboard"

THE_CHARTS_OWN = frozenset(
    {
        "kubeconfig",
        "profiles",
        "webhook_host",
        "webhook_port",
        "webhook_tls_dir",
        "operations_host",
        "operations_port",
        "view_host",
        "view_port",
        "admission_host",
        "admission_port",
        "admission_tls_dir",
        "aggregated_host",
        "aggregated_port",
        "certificate_secret",
        "certificate_names",
        "webhook_configuration",
        "markers",
        "gpu_runtime_class",
        "scheduler_lease",
        "kube_scheduler_groups",
        "hostname",
        "record_dir",
        "record_mib",
        "pod_grouping",
        "owners_project",
        "autoscaling",
        "autoscaling_namespace",
        "gpu_sharing",
        "reservation_namespace",
        "reservation_image",
        "reservation_priority_class",
        "context_overhead_mib",
        "overuse_tolerance_mib",
        "evict_overuse_after_s",
    }
)
"""Settings that follow from other values, so that they cannot contradict those."""

OF_THE_AGENTS_POD = frozenset({"node_name", "kubeconfig", "pod_resources_socket", "proc_root"})
"""The same of the agent's settings."""

OF_HELM = ("    app.kubernetes.io/managed-by: Helm\n", "    helm.sh/chart: ")
RENDERED = "# Rendered from deploy/leeboard by `make manifests`: change the chart.\n"
KUSTOMIZATION = (
    RENDERED
    + """\
# For Kubernetes {version} and later, and no older one, which lacks kinds that are in it. For such a cluster, render the
# chart with its version:
#   helm template leeboard deploy/leeboard -n leeboard --skip-tests --kube-version 1.33.0 --set form={form}
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [manifests.yaml]
# `kubectl delete -k` would take the kinds with it, and with them every Queue and PodGroup: deploy/leeboard/README.md.
# Where your images are:
# images:
#   - {{name: leeboard, newName: registry.example.com/leeboard}}
#   - {{name: registry.k8s.io/kube-scheduler, newTag: v{version}.0}}
"""
)
NAMESPACE_MANIFEST = """\
---
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    # For the agents, which look at their nodes.
    pod-security.kubernetes.io/enforce: privileged
"""


class ChartError(RuntimeError):
    """Helm rejected the chart or its values; the message is Helm's."""


@cache
def helm(*arguments: str) -> str:
    """Run Helm and return what it printed, the same for the same arguments."""
    done = subprocess.run([build.helm(), *arguments], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise ChartError(done.stderr + done.stdout)
    return done.stdout


def rendered(*arguments: str, kubernetes: str = build.DEFAULT_VERSION, **values: object) -> str:
    """Return the chart as Helm would install it, without its test; `values` replace the defaults of the same name."""
    command = ["template", NAMESPACE, str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={kubernetes}"]
    given = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    return helm(*command, "--skip-tests", *given, *arguments)


def objects(text: str) -> list[dict[str, Any]]:
    """Return every object of some manifests."""
    return [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]


def scheduler_config(manifests: str) -> str:
    """Return the KubeSchedulerConfiguration that is in the ConfigMap of some manifests."""
    (found,) = [item for item in objects(manifests) if item["kind"] == "ConfigMap"]
    text: str = found["data"]["config.yaml"]
    return text


def files() -> Mapping[Path, str]:
    """Return every file generated from the chart, with its text."""
    wanted = {SCHEMA: _schema(), README: _readme()}
    for form in FORMS:
        manifests = rendered(form=form)
        folder = ROOT / "deploy" / "kustomize" / form
        namespace = NAMESPACE_MANIFEST.format(namespace=NAMESPACE)
        wanted[folder / "manifests.yaml"] = RENDERED + namespace + _without_helm(manifests)
        wanted[folder / "kustomization.yaml"] = KUSTOMIZATION.format(version=_minor(), form=form)
        wanted[ROOT / "scheduler-config" / f"{form}.yaml"] = scheduler_config(manifests)
    queues = rendered("--show-only=templates/default-queues.yaml", defaultQueue={"create": True})
    return wanted | {ROOT / "deploy" / "default-queues.yaml": RENDERED + queues}


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _schema() -> str:
    schema = json.loads(SCHEMA.read_text())
    values = schema["properties"]
    for path, text in described((CHART / "values.yaml").read_text()).items():
        _describe(schema, path, text)
    values["settings"]["properties"] = _variables(Settings.model_json_schema(), "LEEBOARD_", THE_CHARTS_OWN)
    agents = AgentSettings.model_json_schema(by_alias=False)
    values["agent"]["properties"]["settings"]["properties"] = _variables(agents, PREFIX, OF_THE_AGENTS_POD)
    return json.dumps(schema, indent=2) + "\n"


def _describe(schema: dict[str, Any], path: str, text: str) -> None:
    """Describe the value at a path such as `image.tag`. A draft-07 schema ignores what stands beside a reference."""
    *above, name = path.split(".")
    for part in above:
        schema = schema["properties"][part]
    found = schema["properties"][name]
    if "$ref" in found:
        found = {"allOf": [{"$ref": found["$ref"]}]}
    schema["properties"][name] = {**found, "description": text}


def _readme() -> str:
    before, _, rest = README.read_text().partition(VALUES_BEGIN)
    _, _, after = rest.partition(VALUES_END)
    values = (CHART / "values.yaml").read_text()
    return f"{before}{VALUES_BEGIN}\n{table(values)}\n{VALUES_END}{after}"


def _variables(model: Mapping[str, Any], prefix: str, left_out: frozenset[str]) -> dict[str, Any]:
    """Return the possible values of each environment variable of some settings."""
    named = model.get("$defs", {})
    fields = {name: field for name, field in model["properties"].items() if name not in left_out}
    return {f"{prefix}{name.upper()}": _setting(field, named) for name, field in fields.items()}


def _setting(field: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the possible values of an environment variable: lists are written with commas, and unset means absent."""
    reference = field.get("$ref", "").rpartition("/")[2]
    if reference:
        field = {"enum": named[reference]["enum"], "description": field["description"]}
    for one in field.get("anyOf", ()):
        if one["type"] != "null":
            field = {**field, **one}
    if field.get("type") == "array":
        field = {"type": "string", "description": field["description"]}
    kept = ("type", "enum", "pattern", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    return {key: field[key] for key in kept if key in field} | {"description": " ".join(field["description"].split())}


def _without_helm(manifests: str) -> str:
    """Leave out the labels that name Helm as the owner."""
    lines = manifests.splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith(tuple(each.lstrip() for each in OF_HELM)))


def _minor() -> str:
    return build.DEFAULT_VERSION.rpartition(".")[0]


if __name__ == "__main__":
    main()
