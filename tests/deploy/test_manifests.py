"""The rendered rights, admission, ports and configuration of kube-scheduler for values of the chart."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import yaml

from app.control.leadership.rights import rights_of, rights_to_owners
from app.grouping import RESOURCES
from app.model.marks import ASK_MARKER, BIND_MARKER
from app.model.rights import Right
from app.settings import Settings
from tests.deploy.reading import FIXED, Object, environment_of, pod_of, settings_of, workload_of
from tests.deploy.rendering import FORMS, NAMESPACE, objects, rendered, scheduler_config

pytestmark = pytest.mark.slow

CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
GIVEN_CERTIFICATE: dict[str, Any] = {"certificate": {"secretName": "leeboard-tls", "caBundle": CA}}
INJECTED: dict[str, Any] = {
    "certificate": {"secretName": "leeboard-tls"},
    "admission": {"annotations": {"cert-manager.io/inject-ca-from": "a/b"}},
}
INSTALLATIONS: list[dict[str, Any]] = [
    *({"form": form} for form in FORMS),
    FIXED,
    GIVEN_CERTIFICATE,
    {"form": "beside", **GIVEN_CERTIFICATE},
    {"form": "beside", "beside": {"lease": "system/their-scheduler"}},
    {"admission": {"enabled": False}},
    {"gpuSharing": {"enabled": False}},
    {"grouping": {"enabled": False}},
    {"autoscaling": {"way": "provisioning-request"}},
    {"autoscaling": {"way": "scaling-pods"}},
    {"security": {"anonymousReads": True}},
    {"aggregatedApi": {"enabled": True}},
    {"aggregatedApi": {"enabled": True}, "form": "extender-only"},
    {"aggregatedApi": {"enabled": True}, **GIVEN_CERTIFICATE},
]
AGENTS_RIGHTS = {("gpunodes", "create"), ("gpunodes/status", "patch")}
REVIEW = Right(group="authorization.k8s.io", resource="selfsubjectaccessreviews", verb="create", without="")

RESERVATIONS = "kai-resource-reservation"

NEW_PODS = {"resources": ["pods"], "operations": ["CREATE"]}


@pytest.mark.parametrize("values", INSTALLATIONS, ids=str)
def test_leeboard_has_the_rights_that_its_settings_need_and_no_others(values: Mapping[str, Any]) -> None:
    items = objects(rendered(**values))

    granted = set(_granted(item for item in items if not _component_of(item) and not _is_aggregated(item)))

    settings = settings_of(items)
    used = (*rights_of(settings), *rights_to_owners(settings), REVIEW)
    assert granted == {replace(right, without="", optional=False) for right in used}


def test_owners_of_additional_kinds_are_read_where_pods_are_grouped_by_owner() -> None:
    def granted(**grouping: Any) -> set[Right]:
        items = objects(rendered(grouping=grouping))
        return set(_granted(item for item in items if not _component_of(item) and not _is_aggregated(item)))

    extra = {"extraResources": [{"apiGroups": ["example.com"], "resources": ["trainings"]}]}
    read = {
        Right(group="example.com", resource="trainings", verb=verb, without="") for verb in ("get", "list", "watch")
    }

    assert granted(**extra) - granted() == read
    assert granted(**extra, enabled=False) == granted(enabled=False)


def test_an_agent_may_only_publish_its_report() -> None:
    for form in FORMS:
        granted = list(_granted(item for item in objects(rendered(form=form)) if _component_of(item) == "agent"))

        assert {(right.resource, right.verb) for right in granted} == AGENTS_RIGHTS
        assert {(right.group, right.namespace, right.name) for right in granted} == {("leeboard.dev", "", "")}


def test_reads_are_anonymous_only_where_the_values_say_so() -> None:
    usual, anonymous = (objects(rendered(security={"anonymousReads": value})) for value in (False, True))

    assert [settings_of(items).anonymous_reads for items in (usual, anonymous)] == [False, True]
    assert [settings_of(objects(rendered(form=form))).anonymous_reads for form in FORMS] == [False] * len(FORMS)
    readers = [item for item in anonymous if _component_of(item) == "reader"]
    assert not readers, "nobody needs a token"


def test_the_account_of_readers_sees_everything_and_may_change_nothing() -> None:
    items = [item for item in objects(rendered()) if _component_of(item) == "reader"]
    (role,) = [item for item in items if item["kind"] == "ClusterRole"]

    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}
    resources = {resource for rule in role["rules"] for resource in rule.get("resources", ())}
    assert (resources, role["rules"][-1]["nonResourceURLs"]) == ({"pods", "queues"}, ["/metrics"])


@pytest.mark.parametrize(
    ("component", "account"), [("", "leeboard"), ("agent", "leeboard-agent"), ("reader", "leeboard-reader")]
)
def test_every_role_is_bound_to_one_service_account_only(component: str, account: str) -> None:
    others = {"agent", "reader"} - {component}
    items = [item for item in objects(rendered()) if _component_of(item) not in others]
    items = [item for item in items if not component or _component_of(item) == component]
    bindings = [item for item in items if item["kind"].endswith("RoleBinding")]

    roles = [item for item in items if item["kind"].endswith("Role") and not _is_aggregated(item)]
    assert {_name(item) for item in roles} <= {item["roleRef"]["name"] for item in bindings}
    assert [item["subjects"] for item in bindings] == [
        [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    ] * len(bindings)


def test_no_rule_has_wildcards_or_escalates_rights() -> None:
    rules = [rule for form in FORMS for item in objects(rendered(form=form)) for rule in item.get("rules", ())]

    assert rules
    assert not {"*", "escalate", "bind", "impersonate"} & {verb for rule in rules for verb in rule["verbs"]}
    of_urls = [rule for rule in rules if "nonResourceURLs" in rule]
    assert {(*rule["nonResourceURLs"], *rule["verbs"]) for rule in of_urls} == {("/metrics", "get")}
    rules = [rule for rule in rules if rule not in of_urls]
    assert not [rule for rule in rules if "*" in rule["resources"] or "*" in rule["apiGroups"]]
    assert all(rule.get("resourceNames") for rule in rules if "secrets" in rule["resources"])


def test_default_roles_of_kubernetes_include_podgroups_and_may_read_queues_and_topologies() -> None:
    def reached(role: str, **values: Any) -> set[tuple[str, bool]]:
        """Return each kind, and whether it may be written."""
        label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
        roles = [item for item in objects(rendered(**values)) if label in item["metadata"].get("labels", {})]
        return {(right.resource, right.verb not in {"get", "list", "watch"}) for right in _granted(iter(roles))}

    assert reached("view") == {("podgroups", False), ("queues", False), ("topologies", False)}
    assert reached("edit") == {("podgroups", True)}
    assert reached("view", rbac={"aggregate": False}) == set()


def test_beside_the_default_scheduler_no_right_of_kube_scheduler_is_granted() -> None:
    assert {_component_of(item) for item in objects(rendered(form="beside"))} == {"", "agent", "reader"}


@pytest.mark.parametrize("values", INSTALLATIONS, ids=str)
def test_every_variable_of_the_pod_is_a_setting(values: Mapping[str, Any]) -> None:
    variables = environment_of(objects(rendered(**values)))

    assert {*variables} <= {f"LEEBOARD_{name.upper()}" for name in Settings.model_fields}


def test_settings_are_passed_on_as_they_were_written() -> None:
    given: dict[str, Any] = {
        "LEEBOARD_CA_ROTATION_S": 157680000,
        "LEEBOARD_FAIR_SHARE_K": 0.5,
        "LEEBOARD_ACTIONS": "",
        "LEEBOARD_PLACEMENT": "spread",
    }

    settings = settings_of(objects(rendered(settings=given)))

    assert (settings.ca_rotation_s, settings.fair_share_k) == (157680000, 0.5)
    assert (settings.actions, settings.placement) == (frozenset(), "spread")


def test_the_forms_differ_in_which_scheduler_decides_and_where_it_is_called() -> None:
    own, beside, fixed = (settings_of(objects(rendered(**values))) for values in ({}, {"form": "beside"}, FIXED))

    assert [each.scheduler_lease for each in (own, beside, fixed)] == [
        "leeboard/leeboard-scheduler",
        "kube-system/kube-scheduler",
        "",
    ]
    assert [each.webhook_host for each in (own, beside, fixed)] == ["127.0.0.1", "127.0.0.1", "::"]
    assert [each.webhook_tls_dir for each in (own, beside, fixed)] == [None, None, "/etc/leeboard/extender-tls"]


@pytest.mark.parametrize(
    ("values", "asks", "binds"),
    [
        ({}, [], [BIND_MARKER]),
        ({"form": "beside"}, [ASK_MARKER], [BIND_MARKER]),
        (FIXED, [ASK_MARKER], [BIND_MARKER]),
        ({"form": "extender-only"}, [], []),
        ({"admission": {"enabled": False}}, [], []),
    ],
    ids=str,
)
def test_kube_scheduler_uses_exactly_the_markers_that_admission_adds(
    values: Mapping[str, Any], asks: list[str], binds: list[str]
) -> None:
    text = rendered(**values)
    asking, binding = yaml.safe_load(scheduler_config(text))["extenders"]

    assert ("filterVerb" in asking, "bindVerb" in binding) == (True, True)
    assert [asking.get("managedResources", []), binding.get("managedResources", [])] == [
        [{"name": name, "ignoredByScheduler": True} for name in names] for names in (asks, binds)
    ]
    assert settings_of(objects(text)).markers == {*asks, *binds}


@pytest.mark.parametrize(("values", "markers"), [({}, [BIND_MARKER]), ({"form": "beside"}, [ASK_MARKER, BIND_MARKER])])
def test_the_mutation_that_gates_pods_also_adds_the_markers_of_the_form(
    values: Mapping[str, Any], markers: list[str]
) -> None:
    (hold,) = [item for item in objects(rendered(**values)) if item["kind"] == "MutatingAdmissionPolicy"]

    (mutation,) = hold["spec"]["mutations"]
    listed = json.dumps(markers, separators=(",", ":"))
    assert mutation["jsonPatch"]["expression"].count(f"{listed}.map(marker") == len(("requests", "limits"))


def test_a_deployment_with_one_replica_by_design_never_runs_twice() -> None:
    (deployment,) = [item for item in objects(rendered(**FIXED, replicas=3)) if item["kind"] == "Deployment"]

    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert "PodDisruptionBudget" not in _kinds(objects(rendered(**FIXED, replicas=3)))


@pytest.mark.parametrize(
    ("form", "kubernetes", "kinds", "failure_policy"),
    [
        ("own-scheduler", "1.36.0", {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}, {"Ignore"}),
        ("own-scheduler", "1.35.4", {"ValidatingAdmissionPolicy"}, {"Fail"}),
        ("beside", "v1.36.2-gke.100", {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}, {"Ignore"}),
        ("beside", "v1.31.2+k3s1", {"ValidatingAdmissionPolicy"}, {"Fail"}),
        ("extender-only", "1.36.0", {"ValidatingAdmissionPolicy"}, set[str]()),
    ],
)
def test_pods_wait_for_the_webhook_only_where_the_api_server_cannot_gate_them_itself(
    form: str, kubernetes: str, kinds: set[str], failure_policy: set[str]
) -> None:
    items = objects(rendered(form=form, kubernetes=kubernetes))

    assert {kind for kind in _kinds(items) if kind.endswith("AdmissionPolicy")} <= kinds
    assert ("MutatingAdmissionPolicy" in _kinds(items)) == ("MutatingAdmissionPolicy" in kinds)
    assert {one["failurePolicy"] for one in _webhooks(items) if _is_about_new_pods(one)} == failure_policy
    assert {one["failurePolicy"] for one in _webhooks(items) if not _is_about_new_pods(one)} <= {"Ignore"}


@pytest.mark.parametrize("form", ["own-scheduler", "beside"])
def test_while_leeboard_hangs_requests_that_do_not_need_it_wait_at_most_a_second(form: str) -> None:
    items = objects(rendered(form=form, kubernetes="1.36.0"))

    assert {one["timeoutSeconds"] for one in _webhooks(items)} == {1}
    conditions = {one["name"]: [each["name"] for each in one.get("matchConditions", ())] for one in _webhooks(items)}
    assert "was-answered" in conditions["managed.validate.leeboard.dev"], "or it would wait a second time"


def test_where_only_the_webhook_can_gate_a_pod_a_slow_answer_does_not_refuse_it() -> None:
    items = objects(rendered(kubernetes="1.35.0"))

    assert {(one["failurePolicy"], one["timeoutSeconds"]) for one in _webhooks(items)} == {("Fail", 3), ("Ignore", 1)}
    assert not [one for one in _webhooks(items) if "was-answered" in str(one.get("matchConditions"))]


@pytest.mark.parametrize("profile", ["kai-compatible", "secure"])
@pytest.mark.parametrize("form", FORMS)
def test_writes_of_our_own_account_are_restricted_in_both_profiles(form: str, profile: str) -> None:
    items = objects(rendered(form=form, security={"profile": profile}, autoscaling={"way": "scaling-pods"}))

    assert {"leeboard-own-writes", "leeboard-scaling-pods"} <= {_name(item) for item in items}
    rules = [item for item in items if _name(item) == "leeboard-reservations" and "validations" in item.get("spec", {})]
    assert all("Leeboard's own account may only run" in str(item["spec"]["validations"]) for item in rules)


def test_no_webhook_of_pods_is_called_for_the_system_or_for_leeboard() -> None:
    excluded = {
        tuple(expression["values"])
        for one in _webhooks(objects(rendered()))
        if any("pods" in rule["resources"] for rule in one["rules"])
        for expression in one["namespaceSelector"]["matchExpressions"]
    }

    assert excluded == {("kube-system", "kube-public", "kube-node-lease", NAMESPACE, "kai-resource-reservation")}


def test_an_upgrade_keeps_what_leeboard_has_filled_in() -> None:
    items = objects(rendered())
    (secret,) = [item for item in items if item["kind"] == "Secret"]

    assert not {"data", "stringData"} & {*secret}
    assert [one for one in _webhooks(items) if "caBundle" in one["clientConfig"]] == []


def test_an_external_certificate_leaves_no_ca_of_ours() -> None:
    items = objects(rendered(**INJECTED))

    assert "Secret" not in _kinds(items)
    assert settings_of(items).admission_tls_dir == "/etc/leeboard/admission-tls"
    assert [item["metadata"]["annotations"] for item in items if item["kind"].endswith("WebhookConfiguration")] == [
        {"cert-manager.io/inject-ca-from": "a/b"}
    ] * 2


def test_the_ca_of_an_external_certificate_can_be_given() -> None:
    bundles = {one["clientConfig"].get("caBundle") for one in _webhooks(objects(rendered(**GIVEN_CERTIFICATE)))}

    assert bundles == {base64.b64encode(CA.encode()).decode()}


@pytest.mark.parametrize("form", FORMS)
def test_the_chart_has_only_the_hook_of_helm_test_and_no_lookup_in_the_cluster(form: str) -> None:
    items = objects(rendered(form=form))

    assert not [item for item in items if "helm.sh/hook" in item["metadata"].get("annotations", {})]


def test_objects_of_users_survive_the_release() -> None:
    items = objects(rendered(defaultQueue={"create": True}))

    # GPUs that users share stay reserved for them: so does the namespace.
    kinds = {"CustomResourceDefinition", "Queue", "PriorityClass", "Namespace"}
    users = [item for item in items if item["kind"] in kinds]

    assert {_name(item) for item in users} >= {"queues.scheduling.run.ai", "default-queue", "train", RESERVATIONS}
    assert [item for item in users if "app.kubernetes.io/name" in item["metadata"].get("labels", {})] == []
    assert [item for item in items if _is_kept(item)] == users


def test_other_pods_reach_only_admission_operations_and_metrics() -> None:
    def open_ports(**values: Any) -> list[str]:
        (policy,) = [
            item for item in objects(rendered(**values)) if item["kind"] == "NetworkPolicy" and not _component_of(item)
        ]
        return [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]

    assert open_ports() == ["operations", "scheduler", "admission"]
    assert open_ports(form="extender-only") == ["operations", "scheduler"]
    assert open_ports(**FIXED) == ["operations", "admission", "extender"]


def test_no_pod_may_connect_to_an_agent() -> None:
    (policy,) = [
        item for item in objects(rendered()) if item["kind"] == "NetworkPolicy" and _component_of(item) == "agent"
    ]

    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert "ingress" not in policy["spec"]
    assert policy["spec"]["podSelector"]["matchLabels"] == _labels_of_pods("leeboard-agent")


def test_selectors_of_leeboard_select_no_agent() -> None:
    items = objects(rendered())
    services = [item["spec"]["selector"] for item in items if item["kind"] == "Service"]
    others = [item["spec"] for item in items if item["kind"] in {"Deployment", "PodDisruptionBudget"}]
    agents = _labels_of_pods("leeboard-agent").items()

    for labels in (*services, *(each["selector"]["matchLabels"] for each in others)):
        assert not labels.items() <= agents
        assert labels.items() <= _labels_of_pods("leeboard").items()


# Fields of tenants on owners of pods


CLUSTER_WIDE = {"nodes", "priorityclasses", "queues", "topologies", "gpunodes"}
CLUSTER_WIDE |= {"deviceclasses", "resourceslices", "devicetaintrules"}
"""Kinds that no tenant writes."""
OF_OTHER_USE = {("", "pods"), ("resource.k8s.io", "resourceclaims")}
"""Kinds whose labels other rules check, or of which no pod takes its queue."""


@pytest.mark.parametrize("values", INSTALLATIONS, ids=str)
@pytest.mark.parametrize("policy", ["leeboard-queues-of-owners", "leeboard-priorities-of-owners"])
def test_every_kind_that_leeboard_may_read_as_an_owner_of_pods_is_checked(
    policy: str, values: Mapping[str, Any]
) -> None:
    extra = {"extraResources": [{"apiGroups": ["example.com"], "resources": ["trainings"]}]}
    grouping = extra | values.get("grouping", {})
    items = objects(rendered(**{**values, "grouping": grouping, "security": {"profile": "secure"}}))

    checked = set(_written(items, policy))

    read = {(right.group, right.resource) for right in _granted(_ours(items)) if right.verb == "list"}
    assert {(group, kind) for group, kind in read if kind not in CLUSTER_WIDE} - checked == OF_OTHER_USE
    assert {*RESOURCES, ("example.com", "trainings")} <= checked


def test_labels_of_owners_need_no_rights_in_the_kai_profile() -> None:
    assert not [item for item in objects(rendered()) if _name(item).endswith("-of-owners")]


@pytest.mark.parametrize("form", FORMS)
def test_project_of_an_owner_names_a_queue_only_where_no_rights_are_checked(form: str) -> None:
    profiles = ("kai-compatible", "secure")

    counts = {each: settings_of(objects(rendered(form=form, security={"profile": each}))) for each in profiles}

    assert {each: settings.owners_project for each, settings in counts.items()} == {
        "kai-compatible": True,
        "secure": False,
    }


# GPU sharing


def test_gpu_sharing_is_offered_where_admission_can_set_the_variables_of_containers() -> None:
    offered: dict[str, bool] = {}
    installations: dict[str, dict[str, Any]] = {
        "own": {},
        "beside": {"form": "beside"},
        "alone": {"form": "extender-only"},
        "unasked": {"admission": {"enabled": False}},
        "off": {"gpuSharing": {"enabled": False}},
    }
    for name, values in installations.items():
        items = objects(rendered(**values))
        reserved = {_name(item) for item in items} & {RESERVATIONS, "leeboard-reservation", "leeboard-reservations"}
        offered[name] = settings_of(items).gpu_sharing
        assert reserved == ({RESERVATIONS, "leeboard-reservation", "leeboard-reservations"} if offered[name] else set())

    assert offered == {"own": True, "beside": True, "alone": False, "unasked": False, "off": False}


def test_settings_of_sharing_are_passed_on_as_they_were_written() -> None:
    usual = settings_of(objects(rendered()))
    given = {
        "reservation": {"image": "mirror/pause@sha256:1"},
        "contextOverheadMib": 500,
        "overuseToleranceMib": 0,
        "evictOveruseAfter": 90.5,
    }
    other = settings_of(objects(rendered(gpuSharing=given)))

    assert _of_sharing(usual) == _of_sharing(Settings())
    assert _of_sharing(other) == _of_sharing(Settings()) | {
        "reservation_image": "mirror/pause@sha256:1",
        "context_overhead_mib": 500,
        "overuse_tolerance_mib": 0,
        "evict_overuse_after_s": 90.5,
    }


def test_pods_with_gpus_get_a_runtime_class_where_a_value_names_one() -> None:
    def given(**values: Any) -> tuple[str, bool]:
        text = rendered(**values)
        (hold,) = [item for item in objects(text) if item["kind"] == "MutatingAdmissionPolicy"]
        (mutation,) = hold["spec"]["mutations"]
        written = 'path: "/spec/runtimeClassName", value: "nvidia"' in mutation["jsonPatch"]["expression"]
        return settings_of(objects(text)).gpu_runtime_class, written

    for form in ("own-scheduler", "beside"):
        assert given(form=form) == ("", False)
        assert given(form=form, admission={"gpuRuntimeClass": "nvidia"}) == ("nvidia", True)
    assert given(gpuSharing={"enabled": False}, admission={"gpuRuntimeClass": "nvidia"}) == ("nvidia", True)


def test_the_priority_of_reservation_pods_is_the_highest_below_the_system_and_preempts_no_pod() -> None:
    (found,) = [item for item in objects(rendered()) if _name(item) == Settings().reservation_priority_class]

    assert (found["kind"], found["value"], found["preemptionPolicy"]) == ("PriorityClass", 1_000_000_000, "Never")
    assert found["globalDefault"] is False


def test_the_crds_of_kai_can_be_left_out_and_ours_are_still_installed() -> None:
    kinds = {_name(item) for item in objects(rendered(crds={"install": False})) if item["kind"].startswith("Custom")}

    assert kinds == {"gpunodes.leeboard.dev"}


@pytest.mark.parametrize("values", [{}, {"form": "extender-only"}, {"admission": {"enabled": False}}], ids=str)
def test_each_agent_writes_for_its_own_node_only_in_every_form(values: Mapping[str, Any]) -> None:
    names = {_name(item) for item in objects(rendered(**values))}

    assert {"leeboard-agent", "leeboard-gpunodes"} <= names
    assert "leeboard-agent" not in {_name(item) for item in objects(rendered(**values, agent={"enabled": False}))}


def test_every_port_can_be_changed() -> None:
    ports = {"extender": 18888, "operations": 18080, "probes": 18081, "admission": 19443}
    items = objects(rendered(ports=ports))

    settings = settings_of(items)
    named = {port["name"]: port["containerPort"] for port in pod_of(items)["containers"][0]["ports"]}

    assert (settings.webhook_port, settings.operations_port, settings.admission_port) == (18888, 18080, 19443)
    assert settings.probe_port == 18081
    assert named == {"operations": 18080, "probes": 18081, "admission": 19443}
    assert scheduler_config(rendered(ports=ports)).count("http://127.0.0.1:18888") == 2


@pytest.mark.parametrize("form", FORMS)
def test_probes_use_a_port_that_no_other_pod_may_connect_to(form: str) -> None:
    items = objects(rendered(form=form))
    containers = pod_of(items)["containers"]

    kinds = ("livenessProbe", "readinessProbe", "startupProbe")
    asked = {str(one[kind]["httpGet"]["port"]) for one in containers for kind in kinds if kind in one}
    assert asked <= {"probes", "8081", "scheduler"} >= {"probes"}
    rules = [rule for item in items if item["kind"] == "NetworkPolicy" for rule in item["spec"].get("ingress", ())]
    assert not [port for rule in rules for port in rule["ports"] if port["port"] in ("probes", 8081)]


def test_the_api_server_calls_the_name_in_the_certificate() -> None:
    items = objects(rendered())
    called = {
        (one["clientConfig"]["service"]["name"], one["clientConfig"]["service"]["namespace"])
        for one in _webhooks(items)
    }

    assert {f"{name}.{namespace}.svc" for name, namespace in called} == settings_of(items).certificate_names
    assert {name for name, _ in called} <= {_name(item) for item in items if item["kind"] == "Service"}


def _of_sharing(settings: Settings) -> dict[str, object]:
    names = {"gpu_sharing", "context_overhead_mib", "overuse_tolerance_mib", "evict_overuse_after_s"}
    return settings.model_dump(include=names | {name for name in Settings.model_fields if "reservation" in name})


def _labels_of_pods(name: str) -> dict[str, str]:
    labels: dict[str, str] = workload_of(objects(rendered()), name)["spec"]["template"]["metadata"]["labels"]
    return labels


def _granted(items: Iterator[Object]) -> Iterator[Right]:
    for item in items:
        namespace = item["metadata"].get("namespace", "")
        for rule in item.get("rules", ()) if item["kind"] in {"ClusterRole", "Role"} else ():
            named = product(rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""]))
            for group, resource, verb, name in named:
                yield Right(group=group, resource=resource, verb=verb, without="", namespace=namespace, name=name)


def _written(items: list[Object], policy: str) -> Iterator[tuple[str, str]]:
    """Return each kind, by group and plural, whose creations and updates a policy checks."""
    (found,) = [item for item in items if (item["kind"], _name(item)) == ("ValidatingAdmissionPolicy", policy)]
    for rule in found["spec"]["matchConstraints"]["resourceRules"]:
        if rule["operations"] == ["CREATE", "UPDATE"] and rule["apiVersions"] in (["*"], ["v1"]):
            yield from product(rule["apiGroups"], rule["resources"])


def _ours(items: list[Object]) -> Iterator[Object]:
    """Return the rights of Leeboard itself."""
    return (item for item in items if not _component_of(item) and not _is_aggregated(item))


def _webhooks(items: list[Object]) -> list[Object]:
    return [one for item in items if item["kind"].endswith("WebhookConfiguration") for one in item["webhooks"]]


def _is_about_new_pods(webhook: Object) -> bool:
    return any(
        {"resources": rule["resources"], "operations": rule["operations"]} == NEW_PODS for rule in webhook["rules"]
    )


def _component_of(item: Object) -> str:
    """Return the component of an object, empty when it is Leeboard's own."""
    return str(item["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def _is_aggregated(item: Object) -> bool:
    return any(key.startswith("rbac.authorization.k8s.io/") for key in item["metadata"].get("labels", {}))


def _is_kept(item: Object) -> bool:
    return bool(item["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep")


def _kinds(items: list[Object]) -> set[str]:
    return {item["kind"] for item in items}


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
