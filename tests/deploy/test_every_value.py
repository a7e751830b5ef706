"""Each value of the chart has the effect that its description promises, and no value is without one."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from tests.deploy.describing import leaves
from tests.deploy.reading import FIXED, Object, environment_of
from tests.deploy.rendering import CHART, helm, objects, rendered

pytestmark = pytest.mark.slow

LEEBOARD, AGENT = "Deployment/leeboard", "DaemonSet/leeboard-agent"
SPEC, TEMPLATE = "spec.template.spec", "spec.template.metadata"
MONITOR, RULE, BOARD = "ServiceMonitor/leeboard", "PrometheusRule/leeboard", "ConfigMap/leeboard-dashboard"

VARIABLE = {"name": "TZ", "value": "UTC"}
VOLUME, MOUNT = {"name": "extra", "emptyDir": {}}, {"name": "extra", "mountPath": "/extra"}
PROBE = {"periodSeconds": 7, "timeoutSeconds": 6, "failureThreshold": 9}
SPREAD = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
OWN = {"app.kubernetes.io/name": "leeboard", "app.kubernetes.io/instance": "leeboard"}
USER = "system:serviceaccount:leeboard:mine"
CHANGED = {"a": "b"}

EFFECTS: Sequence[tuple[str, object, str, str, object]] = (
    # path, value, object, path in the object ("-1" is the last of a list), what is there then
    ("global.imageRegistry", "r.io/k8s/", LEEBOARD, f"{SPEC}.containers.0.image", "r.io/k8s/leeboard:0.1.0"),
    ("global.imageRegistry", "r.io", LEEBOARD, f"{SPEC}.containers.1.image", "r.io/kube-scheduler:v1.36.3"),
    ("global.imageRegistry", "r.io", AGENT, f"{SPEC}.containers.0.image", "r.io/leeboard:0.1.0"),
    (
        "global.imagePullSecrets",
        [{"name": "s"}, "t"],
        LEEBOARD,
        f"{SPEC}.imagePullSecrets",
        [{"name": "s"}, {"name": "t"}],
    ),
    ("imagePullSecrets", ["s", {"name": "t"}], AGENT, f"{SPEC}.imagePullSecrets", [{"name": "s"}, {"name": "t"}]),
    ("nameOverride", "lee", "Deployment/lee", "spec.selector.matchLabels", {**OWN, "app.kubernetes.io/name": "lee"}),
    ("fullnameOverride", "gpu", "Deployment/gpu", "spec.selector.matchLabels", OWN),
    ("fullnameOverride", "gpu", "Service/gpu-admission", "metadata.namespace", "leeboard"),
    ("namespaceOverride", "elsewhere", LEEBOARD, "metadata.namespace", "elsewhere"),
    ("namespaceOverride", "elsewhere", "ClusterRoleBinding/leeboard", "subjects.0.namespace", "elsewhere"),
    ("commonLabels", CHANGED, "Service/leeboard", "metadata.labels.a", "b"),
    ("commonLabels", CHANGED, "ValidatingAdmissionPolicy/leeboard-own-writes", "metadata.labels.a", "b"),
    ("commonLabels", CHANGED, LEEBOARD, f"{TEMPLATE}.labels.a", "b"),
    ("commonLabels", CHANGED, AGENT, f"{TEMPLATE}.labels.a", "b"),
    ("commonAnnotations", CHANGED, "ClusterRole/leeboard-view", "metadata.annotations.a", "b"),
    ("commonAnnotations", CHANGED, LEEBOARD, f"{TEMPLATE}.annotations.a", "b"),
    ("commonAnnotations", CHANGED, AGENT, f"{TEMPLATE}.annotations.a", "b"),
    ("kubeScheduler.extraArgs", ["--v=4"], LEEBOARD, f"{SPEC}.containers.1.args.-1", "--v=4"),
    (
        "kubeScheduler.containerSecurityContext",
        {"runAsUser": 7},
        LEEBOARD,
        f"{SPEC}.containers.1.securityContext.runAsUser",
        7,
    ),
    ("agent.podLabels", CHANGED, AGENT, f"{TEMPLATE}.labels.a", "b"),
    (
        "agent.updateStrategy",
        {"type": "OnDelete", "rollingUpdate": None},
        AGENT,
        "spec.updateStrategy.type",
        "OnDelete",
    ),
    ("agent.serviceAccount.name", "mine", "ServiceAccount/mine", "metadata.namespace", "leeboard"),
    ("agent.serviceAccount.name", "mine", AGENT, f"{SPEC}.serviceAccountName", "mine"),
    ("agent.serviceAccount.name", "mine", "ClusterRoleBinding/leeboard-agent", "subjects.0.name", "mine"),
    ("agent.serviceAccount.annotations", CHANGED, "ServiceAccount/leeboard-agent", "metadata.annotations", CHANGED),
    ("agent.serviceAccount.automount", False, AGENT, f"{SPEC}.automountServiceAccountToken", False),
    ("agent.podSecurityContext", {"fsGroup": 7}, AGENT, f"{SPEC}.securityContext.fsGroup", 7),
    ("agent.containerSecurityContext", {"runAsUser": 7}, AGENT, f"{SPEC}.containers.0.securityContext.runAsUser", 7),
    ("agent.extraEnv", [VARIABLE], AGENT, f"{SPEC}.containers.0.env.-1", VARIABLE),
    ("agent.volumes", [VOLUME], AGENT, f"{SPEC}.volumes.-1", VOLUME),
    ("agent.volumeMounts", [MOUNT], AGENT, f"{SPEC}.containers.0.volumeMounts.-1", MOUNT),
    ("podDisruptionBudget.maxUnavailable", "20%", "PodDisruptionBudget/leeboard", "spec.maxUnavailable", "20%"),
    ("podDisruptionBudget.minAvailable", 1, "PodDisruptionBudget/leeboard", "spec.minAvailable", 1),
    (
        "podDisruptionBudget.unhealthyPodEvictionPolicy",
        "IfHealthyBudget",
        "PodDisruptionBudget/leeboard",
        "spec.unhealthyPodEvictionPolicy",
        "IfHealthyBudget",
    ),
    ("serviceAccount.name", "mine", "ServiceAccount/mine", "metadata.namespace", "leeboard"),
    ("serviceAccount.name", "mine", LEEBOARD, f"{SPEC}.serviceAccountName", "mine"),
    ("serviceAccount.name", "mine", "RoleBinding/leeboard-ca", "subjects.0.name", "mine"),
    ("serviceAccount.annotations", CHANGED, "ServiceAccount/leeboard", "metadata.annotations", CHANGED),
    ("serviceAccount.automount", False, LEEBOARD, f"{SPEC}.automountServiceAccountToken", False),
    ("workloadAnnotations", CHANGED, LEEBOARD, "metadata.annotations", CHANGED),
    ("serviceAnnotations", CHANGED, "Service/leeboard", "metadata.annotations", CHANGED),
    (
        "topologySpreadConstraints",
        [SPREAD],
        LEEBOARD,
        f"{SPEC}.topologySpreadConstraints",
        [{**SPREAD, "labelSelector": {"matchLabels": OWN}}],
    ),
    ("strategy", {"type": "Recreate"}, LEEBOARD, "spec.strategy", {"type": "Recreate"}),
    ("podSecurityContext", {"fsGroup": 7}, LEEBOARD, f"{SPEC}.securityContext.fsGroup", 7),
    ("containerSecurityContext", {"runAsUser": 7}, LEEBOARD, f"{SPEC}.containers.0.securityContext.runAsUser", 7),
    ("livenessProbe", PROBE, LEEBOARD, f"{SPEC}.containers.0.livenessProbe.failureThreshold", 9),
    ("readinessProbe", PROBE, LEEBOARD, f"{SPEC}.containers.0.readinessProbe.failureThreshold", 9),
    ("startupProbe", PROBE, LEEBOARD, f"{SPEC}.containers.0.startupProbe.failureThreshold", 9),
    ("extraEnv", [VARIABLE], LEEBOARD, f"{SPEC}.containers.0.env.-1", VARIABLE),
    ("volumes", [VOLUME], LEEBOARD, f"{SPEC}.volumes.-1", VOLUME),
    ("volumeMounts", [MOUNT], LEEBOARD, f"{SPEC}.containers.0.volumeMounts.-1", MOUNT),
    ("monitoring.serviceMonitor.enabled", True, MONITOR, "spec.endpoints.0.port", "operations"),
    ("monitoring.serviceMonitor.namespace", "prom", MONITOR, "metadata.namespace", "prom"),
    ("monitoring.serviceMonitor.namespace", "prom", MONITOR, "spec.namespaceSelector.matchNames", ["leeboard"]),
    ("monitoring.serviceMonitor.labels", CHANGED, MONITOR, "metadata.labels.a", "b"),
    ("monitoring.serviceMonitor.annotations", CHANGED, MONITOR, "metadata.annotations", CHANGED),
    ("monitoring.serviceMonitor.interval", "15s", MONITOR, "spec.endpoints.0.interval", "15s"),
    ("monitoring.serviceMonitor.scrapeTimeout", "5s", MONITOR, "spec.endpoints.0.scrapeTimeout", "5s"),
    (
        "monitoring.serviceMonitor.tokenSecret",
        "reader",
        MONITOR,
        "spec.endpoints.0.authorization",
        {"credentials": {"name": "reader", "key": "token"}},
    ),
    ("monitoring.serviceMonitor.relabelings", [CHANGED], MONITOR, "spec.endpoints.0.relabelings", [CHANGED]),
    (
        "monitoring.serviceMonitor.metricRelabelings",
        [CHANGED],
        MONITOR,
        "spec.endpoints.0.metricRelabelings",
        [CHANGED],
    ),
    ("monitoring.prometheusRule.enabled", True, RULE, "spec.groups.0.rules.0.alert", "LeeboardNotActive"),
    ("monitoring.prometheusRule.namespace", "prom", RULE, "metadata.namespace", "prom"),
    ("monitoring.prometheusRule.labels", CHANGED, RULE, "metadata.labels.a", "b"),
    ("monitoring.prometheusRule.annotations", CHANGED, RULE, "metadata.annotations", CHANGED),
    ("monitoring.prometheusRule.alertLabels", CHANGED, RULE, "spec.groups.0.rules.0.labels.a", "b"),
    (
        "monitoring.prometheusRule.disabledAlerts",
        ["LeeboardNotActive"],
        RULE,
        "spec.groups.0.rules.0.alert",
        "LeeboardPlanTooOld",
    ),
    (
        "monitoring.prometheusRule.runbookUrl",
        "https://x",
        RULE,
        "spec.groups.0.rules.0.annotations.runbook_url",
        "https://x#leeboardnotactive",
    ),
    ("monitoring.dashboard.enabled", True, BOARD, "metadata.labels.grafana_dashboard", "1"),
    ("monitoring.dashboard.namespace", "prom", BOARD, "metadata.namespace", "prom"),
    ("monitoring.dashboard.labels", CHANGED, BOARD, "metadata.labels.a", "b"),
    ("monitoring.dashboard.annotations", CHANGED, BOARD, "metadata.annotations", CHANGED),
)

OTHERS: Mapping[str, object] = {
    "form": "beside",
    "schedulerName": "gpu",
    "replicas": 3,
    "image.repository": "mine",
    "image.tag": "1",
    "image.digest": f"sha256:{64 * 'a'}",
    "image.pullPolicy": "Always",
    "kubeScheduler.image.repository": "mine",
    "kubeScheduler.image.tag": "v1.36.0",
    "kubeScheduler.image.digest": f"sha256:{64 * 'a'}",
    "kubeScheduler.resources": {"limits": {"memory": "3Gi"}},
    "resources": {"limits": {"memory": "3Gi"}},
    "recording.enabled": True,
    "settings": {"LEEBOARD_AGEING_S": 3600},
    "admission.enabled": False,
    "admission.policies": "off",
    "admission.gpuRuntimeClass": "nvidia",
    "admission.annotations": CHANGED,
    "grouping.enabled": False,
    "grouping.extraResources": [{"apiGroups": ["a.b"], "resources": ["cs"]}],
    "autoscaling.way": "scaling-pods",
    "gpuSharing.enabled": False,
    "gpuSharing.reservation.image": "mine:1",
    "gpuSharing.contextOverheadMib": 500,
    "gpuSharing.overuseToleranceMib": 1,
    "gpuSharing.evictOveruseAfter": 600,
    "agent.enabled": False,
    "agent.allNodes": True,
    "agent.nodeSelector": CHANGED,
    "agent.affinity": {"podAffinity": {}},
    "agent.tolerations": [],
    "agent.runtimeClassName": "",
    "agent.kubeletFolder": "/data",
    "agent.priorityClassName": "",
    "agent.resources": {"limits": {"memory": "3Gi"}},
    "agent.podAnnotations": CHANGED,
    "agent.settings": {"LEEBOARD_AGENT_HEARTBEAT_S": 30},
    "security.profile": "secure",
    "security.anonymousReads": True,
    "ports.extender": 1,
    "ports.operations": 1,
    "ports.probes": 1,
    "ports.admission": 1,
    "view.enabled": True,
    "aggregatedApi.enabled": True,
    "crds.install": False,
    "priorityClasses.create": False,
    "defaultQueue.create": True,
    "podDisruptionBudget.enabled": False,
    "networkPolicy.enabled": False,
    "networkPolicy.operationsFrom": [{"podSelector": {}}],
    "rbac.aggregate": False,
    "podAnnotations": CHANGED,
    "podLabels": CHANGED,
    "priorityClassName": "high",
    "nodeSelector": CHANGED,
    "tolerations": [{"key": "a"}],
    "affinity": {"podAffinity": {}},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}],
}
"""Values whose effect other tests assert."""

ONLY_WITH: Mapping[str, tuple[object, dict[str, Any]]] = {
    "ports.view": (1, {"view": {"enabled": True}}),
    "view.servicePort": (1, {"view": {"enabled": True}}),
    "ports.aggregated": (1, {"aggregatedApi": {"enabled": True}}),
    "aggregatedApi.annotations": ({"a": "b"}, {"aggregatedApi": {"enabled": True}}),
    "recording.sizeMiB": (100, {"recording": {"enabled": True}}),
    "security.exemptNamespaces": (["a"], {"security": {"profile": "secure"}}),
    "security.openQueues": (["a"], {"security": {"profile": "secure"}}),
    "security.openPriorityClasses": (["a"], {"security": {"profile": "secure"}}),
    "certificate.secretName": ("mine", {"admission": {"annotations": {"cert-manager.io/inject-ca-from": "a/b"}}}),
    "certificate.caBundle": (
        "-----BEGIN CERTIFICATE-----b",
        {"certificate": {"secretName": "mine", "caBundle": "-----BEGIN CERTIFICATE-----a"}},
    ),
    "beside.address": ("10.96.0.98", FIXED),
    "beside.tlsSecret": ("other", FIXED),
    "beside.lease": ("a/b", {"form": "beside"}),
    "beside.groupScheduling": (False, {"form": "beside"}),
    "beside.kubeconfig": ("/a", {"form": "beside"}),
    "beside.tlsFolder": ("/a", FIXED),
    "serviceAccount.create": (False, {"serviceAccount": {"name": "mine"}}),
    "agent.serviceAccount.create": (False, {"agent": {"serviceAccount": {"name": "mine"}}}),
}
"""Values that matter only beside others."""


@pytest.mark.parametrize(("path", "value", "item", "where", "expected"), EFFECTS)
def test_a_value_has_its_effect(path: str, value: object, item: str, where: str, expected: object) -> None:
    items = objects(rendered(**_switched_on(_nested(path, value))))

    assert _at(_named(items, item), where) == expected


@pytest.mark.parametrize("path", OTHERS)
def test_a_value_changes_what_is_installed(path: str) -> None:
    assert _all(_nested(path, OTHERS[path])) != _all({})


@pytest.mark.parametrize("path", ONLY_WITH)
def test_a_value_that_needs_others_changes_what_is_installed(path: str) -> None:
    value, others = ONLY_WITH[path]

    assert _all(_merged(others, _nested(path, value))) != _all(others)


def test_every_value_is_tried_above() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    tried = {path for path, *_ in EFFECTS} | OTHERS.keys() | ONLY_WITH.keys()

    assert {path for path, _ in leaves(values)} == tried


# Beyond single values


def test_an_account_of_the_users_own_is_used_and_not_created() -> None:
    given: dict[str, Any] = {"serviceAccount": {"create": False, "name": "mine"}, "security": {"profile": "secure"}}
    items = objects(rendered(**given, agent={"serviceAccount": {"create": False, "name": "agents"}}))

    accounts = {item["metadata"]["name"] for item in items if item["kind"] == "ServiceAccount"}
    assert accounts == {"leeboard-reader"}
    bound = {one["name"] for item in items if item["kind"].endswith("RoleBinding") for one in item["subjects"]}
    assert bound == {"mine", "agents", "leeboard-reader"}
    policies = [str(item) for item in items if item["kind"] == "ValidatingAdmissionPolicy"]
    assert any(USER in each for each in policies)
    assert any("system:serviceaccount:leeboard:agents" in each for each in policies)
    assert not any("serviceaccount:leeboard:leeboard" in each for each in policies)


def test_other_names_leave_nothing_under_the_usual_ones() -> None:
    given: dict[str, Any] = {
        "fullnameOverride": "gpu",
        "namespaceOverride": "elsewhere",
        "recording": {"enabled": True},
    }
    items = objects(rendered(**given))

    # Policies have fixed names; what stays when the release is removed as well.
    fixed = ("AdmissionPolic", "CustomResourceDefinition", "PriorityClass", "Namespace")
    usual = [
        f"{item['kind']}/{item['metadata']['name']}"
        for item in items
        if item["metadata"]["name"].startswith("leeboard") and not any(kind in item["kind"] for kind in fixed)
    ]
    assert usual == []
    assert {item["metadata"].get("namespace") for item in items} == {
        None,
        "elsewhere",
        "kube-system",
        "kai-resource-reservation",
    }
    settings = {name: value for name, value in environment_of(_as_leeboard(items)).items() if "leeboard" in value}
    assert settings == {
        "LEEBOARD_MARKERS": "leeboard.dev/bind",
        "LEEBOARD_RECORD_DIR": "/var/lib/leeboard/recordings",
        "LEEBOARD_RESERVATION_PRIORITY_CLASS": "leeboard-reservation",
    }
    environment = environment_of(_as_leeboard(items))
    assert environment["LEEBOARD_SCHEDULER_LEASE"] == "elsewhere/gpu-scheduler"
    assert environment["LEEBOARD_CERTIFICATE_NAMES"] == "gpu-admission.elsewhere.svc"


def test_every_object_and_pod_of_ours_has_the_common_labels_and_annotations() -> None:
    items = objects(rendered(commonLabels={"team": "gpu"}, commonAnnotations={"owner": "me"}))

    stays = ("CustomResourceDefinition", "PriorityClass", "Namespace")
    ours = [item["metadata"] for item in items if item["kind"] not in stays]
    ours += [item["spec"]["template"]["metadata"] for item in items if "template" in item.get("spec", {})]
    assert len(ours) > 30
    assert [one for one in ours if one["labels"].get("team") != "gpu" or one["annotations"].get("owner") != "me"] == []
    selectors = [item["spec"]["selector"] for item in items if "selector" in item.get("spec", {})]
    assert "team" not in str(selectors)


def test_annotations_of_one_object_win_over_common_ones() -> None:
    given: dict[str, Any] = {"commonAnnotations": {"a": "common"}, "serviceAnnotations": {"a": "mine"}}

    assert _at(_named(objects(rendered(**given)), "Service/leeboard"), "metadata.annotations.a") == "mine"


def test_images_for_reservations_come_from_the_registry_of_all_images_and_policies_know() -> None:
    given: dict[str, Any] = {"global": {"imageRegistry": "r.io"}}
    items = objects(rendered(**given))

    assert environment_of(items)["LEEBOARD_RESERVATION_IMAGE"] == "r.io/pause:3.10"
    assert '"r.io/pause:3.10"' in str(_named(items, "ValidatingAdmissionPolicy/leeboard-reservations"))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("registry.k8s.io/pause:3.10", "r.io/pause:3.10"),
        ("localhost:5000/a/b:1", "r.io/a/b:1"),
        ("localhost/b", "r.io/b"),
        ("library/busybox", "r.io/library/busybox"),
        ("busybox", "r.io/busybox"),
    ],
)
def test_only_the_registry_of_an_image_is_replaced(image: str, expected: str) -> None:
    given: dict[str, Any] = {"global": {"imageRegistry": "r.io"}, "gpuSharing": {"reservation": {"image": image}}}

    assert environment_of(objects(rendered(**given)))["LEEBOARD_RESERVATION_IMAGE"] == expected


def test_objects_of_users_are_rendered_with_the_release() -> None:
    text = "apiVersion: v1\nkind: Secret\nmetadata: {name: '{{ .Release.Name }}-b'}"
    given = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}}, text]
    items = objects(rendered(extraObjects=given))

    assert _named(items, "ConfigMap/leeboard-a")
    assert _named(items, "Secret/leeboard-b")


def test_the_pod_of_helm_test_is_marked_and_confined_like_the_others() -> None:
    given = ["--set=commonLabels.a=b", "--set=commonAnnotations.c=d", "--set=serviceAccount.name=mine"]
    (doctor,) = objects(helm("template", "leeboard", str(CHART), "-s=templates/tests/doctor.yaml", *given))

    assert doctor["metadata"]["labels"]["a"] == "b"
    assert doctor["metadata"]["annotations"]["c"] == "d"
    assert doctor["spec"]["serviceAccountName"] == "mine"
    assert doctor["spec"]["securityContext"]["runAsNonRoot"] is True
    assert doctor["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_beside_a_scheduler_the_strategy_is_that_of_the_daemonset() -> None:
    items = objects(rendered(form="beside", strategy={"type": "OnDelete"}))

    assert _at(_named(items, "DaemonSet/leeboard"), "spec.updateStrategy") == {"type": "OnDelete"}


# Reading


def _switched_on(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with the monitor on that they are about."""
    return {
        key: {one: {"enabled": True, **inner} for one, inner in value.items()} if key == "monitoring" else value
        for key, value in values.items()
    }


def _all(values: Mapping[str, Any]) -> list[Object]:
    return objects(rendered(**values))


def _nested(path: str, value: object) -> dict[str, Any]:
    name, _, below = path.partition(".")
    return {name: _nested(below, value) if below else value}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(other[key], dict)}
    return {**one, **other, **both}


def _as_leeboard(items: list[Object]) -> list[Object]:
    """Return the Deployment of another name under the usual one."""
    (found,) = [item for item in items if item["kind"] == "Deployment"]
    return [{**found, "metadata": {"name": "leeboard"}}]


def _named(items: list[Object], item: str) -> Object:
    kind, _, name = item.partition("/")
    (found,) = [one for one in items if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def _at(item: Any, path: str) -> Any:
    for part in path.split("."):
        item = item[int(part)] if isinstance(item, list) else item[part]
    return item
