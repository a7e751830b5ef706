"""The chart's admission policies in the API server: the changes to pods, and the rights to write fields."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from app.cluster.admit import environment
from app.cluster.decode.environment import shows_devices
from tests.system import rendered
from tests.system.api import QUEUE_LABEL, Api, ApiError, Object, collection_of, gpu_node, pod
from tests.system.bed import Bed
from tests.system.identities import User
from tests.system.tenants import TEAM, allow, refusal, refused_patch, revoke, settle, subject
from tests.system.waiting import eventually

GATE = "leeboard.dev/held"
HELD = {"name": GATE}
FOREIGN = {"name": "example.com/quota"}
SHOWN = [
    ("NVIDIA_VISIBLE_DEVICES", "metadata.annotations['leeboard.dev/devices']"),
    ("GPU_PORTION", "metadata.annotations['leeboard.dev/portion']"),
    ("GPU_MEMORY_MIB", "metadata.annotations['leeboard.dev/memory-mib']"),
]
MPS_LIMIT = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "metadata.annotations['leeboard.dev/mps-memory']")
WRITTEN_BY_BIND = [
    "devices",
    "portion",
    "memory-mib",
    "mps-memory",
    "device-groups",
    "gpu-share",
    "preemptible",
    "queue",
]
PREEMPTIBLE = "leeboard.dev/preemptible"
QUEUE = "leeboard.dev/queue"
ASKING = {"leeboard.dev/ask": "0"}
BINDING = {"leeboard.dev/bind": "0"}
MARKERS = ASKING | BINDING
OPTED_IN = "opted-in"

OWN = {"form": "own-scheduler"}
OWN_WITHOUT_HOLD = {"form": "own-scheduler", "policies": "off"}
BESIDE = {"form": "beside"}
BESIDE_WITHOUT_HOLD = {"form": "beside", "policies": "off"}
SECURE = {"form": "beside", "profile": "secure"}
SECURE_WITHOUT_HOLD = {"form": "own-scheduler", "profile": "secure", "policies": "off"}
SECURE_WITHOUT_ADMISSION = {"form": "extender-only", "profile": "secure"}

_numbers = count()


@pytest.fixture(scope="module")
def rules(request: pytest.FixtureRequest, session_api: Api) -> Iterator[None]:
    """Put the policies of one form and profile in force."""
    options: dict[str, str] = getattr(request, "param", OWN)
    with rendered.policies_in_force(session_api, **options):  # type: ignore[arg-type] # none of them is `values`
        yield


@pytest.fixture(scope="module", autouse=True)
def _namespaces(session_api: Api) -> None:
    settle(session_api)
    labels = {"leeboard.dev/managed": "true"}
    head = {"apiVersion": "v1", "kind": "Namespace"}
    session_api.apply(head | {"metadata": {"name": rendered.NAMESPACE}})
    session_api.apply(head | {"metadata": {"name": OPTED_IN, "labels": labels}})
    account = f"/api/v1/namespaces/{OPTED_IN}/serviceaccounts/default"
    eventually(lambda: session_api.find(account), within_s=20, what="the namespace has its service account")


@pytest.fixture
def tenant(bed: Bed) -> Iterator[Api]:
    with bed.api(User.TENANT) as tenant:
        yield tenant


def name() -> str:
    return f"p-{next(_numbers)}"


def containers(*envs: list[Object], names: str = "abc") -> list[Object]:
    return [{"name": each, "image": "none", "env": env} for each, env in zip(names, envs, strict=False)]


def gates(made: Object) -> list[Object]:
    found: list[Object] = made["spec"].get("schedulingGates", [])
    return found


def path(made: Object) -> str:
    return f"/api/v1/namespaces/{made['metadata']['namespace']}/pods/{made['metadata']['name']}"


# -- the gate


@pytest.mark.usefixtures("rules")
def test_managed_pod_is_gated(api: Api) -> None:
    assert gates(api.create(pod(name()))) == [HELD]


@pytest.mark.usefixtures("rules")
def test_gates_of_others_are_kept_and_ours_is_not_doubled(api: Api) -> None:
    assert gates(api.create(pod(name(), spec={"schedulingGates": [FOREIGN]}))) == [FOREIGN, HELD]
    assert gates(api.create(pod(name(), spec={"schedulingGates": [HELD, FOREIGN]}))) == [HELD, FOREIGN]


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    "item",
    [
        pod("unmanaged", scheduler="default-scheduler", queue="q"),
        pod("of-others", scheduler="another-scheduler", namespace=OPTED_IN, queue="q"),
        pod("no-queue", scheduler="default-scheduler", namespace=OPTED_IN),
        pod("placed", spec={"nodeName": "somewhere"}),
        pod("system", namespace="kube-system"),
    ],
    ids=lambda item: str(item["metadata"]["name"]),
)
def test_pod_of_another_scheduler_is_not_changed(api: Api, item: Object) -> None:
    made = api.create(item)
    assert (gates(made), made["spec"]["schedulerName"]) == ([], item["spec"]["schedulerName"])


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("label", [QUEUE_LABEL, "runai/queue"])
def test_pod_that_names_a_queue_in_an_opted_in_namespace_gets_our_scheduler(api: Api, label: str) -> None:
    made = api.create(pod(name(), scheduler="default-scheduler", namespace=OPTED_IN, labels={label: "q"}))
    assert (made["spec"]["schedulerName"], gates(made)) == ("kai-scheduler", [HELD])


# -- the device environment


def env_of(container: Object) -> list[tuple[str, object]]:
    return [
        (each["name"], each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"]) for each in container["env"]
    ]


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
def test_first_container_that_shares_a_gpu_gets_the_variables_that_name_it(api: Api, annotation: str) -> None:
    spec = {"containers": containers([], [])}
    made = api.create(pod(name(), annotations={annotation: "0.5"}, spec=spec))
    first, second = made["spec"]["containers"]
    assert env_of(first) == SHOWN
    assert "env" not in second


@pytest.mark.usefixtures("rules")
def test_container_named_by_the_annotation_gets_its_device_whatever_its_variables_were(api: Api) -> None:
    named = ["A", *(variable for variable, _ in SHOWN), MPS_LIMIT[0]]
    own = [{"name": each, "value": "all"} for each in named]
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"}
    made = api.create(pod(name(), annotations=annotations, spec={"containers": containers([], own)}))
    first, second = made["spec"]["containers"]
    assert "env" not in first
    # In front, since variables of the owner may refer to them; the owner set nothing for MPS, so that stays.
    assert env_of(second) == [*SHOWN, ("A", "all"), (MPS_LIMIT[0], "all")]


@pytest.mark.usefixtures("rules")
def test_variables_of_every_kind_are_kept_and_repeated_ones_are_replaced(api: Api) -> None:
    kept: list[Object] = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "D"},
    ]
    first, second = ({"name": variable, "value": "all"} for variable, _ in SHOWN[:2])
    own = [first, kept[0], second, first, kept[1], kept[2], first, kept[3], second]
    made = api.create(pod(name(), annotations={"gpu-memory": "1024"}, spec={"containers": containers(own)}))
    stored = made["spec"]["containers"][0]["env"]
    assert env_of({"env": stored[: len(SHOWN)]}) == SHOWN
    assert stored[len(SHOWN) :] == kept


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(("mps", "shown"), [("true", [*SHOWN, MPS_LIMIT]), ("false", SHOWN), ("yes", SHOWN)])
def test_only_a_container_that_uses_mps_gets_its_memory_limit(api: Api, mps: str, shown: object) -> None:
    (container,) = api.create(pod(name(), annotations={"gpu-memory": "1024", "mps": mps}))["spec"]["containers"]
    assert env_of(container) == shown


@pytest.mark.usefixtures("rules")
def test_pod_changed_by_the_policy_needs_no_change_by_the_webhook(api: Api) -> None:
    annotations = {"gpu-fraction": "0.5", "mps": "true", "gpu-fraction-container-name": "b"}
    own = [{"name": "GPU_PORTION", "value": "1"}, {"name": "A", "value": "$(GPU_PORTION)"}]
    made = api.create(pod(name(), annotations=annotations, spec={"containers": containers([], own)}))

    assert list(environment.devices(made)) == []
    assert shows_devices(made["spec"], annotations)


@pytest.mark.usefixtures("rules")
def test_init_container_named_by_the_annotation_gets_its_device(api: Api) -> None:
    spec = {"containers": containers([]), "initContainers": containers([], names="i")}
    annotations = {"gpu-memory": "1024", "gpu-fraction-container-name": "i"}
    made = api.create(pod(name(), annotations=annotations, spec=spec))
    assert env_of(made["spec"]["initContainers"][0]) == SHOWN
    assert "env" not in made["spec"]["containers"][0]


@pytest.mark.usefixtures("rules")
def test_pod_is_gated_although_no_container_has_the_name_in_the_annotation(api: Api) -> None:
    made = api.create(pod(name(), annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "nobody"}))
    assert gates(made) == [HELD]
    assert "env" not in made["spec"]["containers"][0]


@pytest.mark.usefixtures("rules")
def test_pod_with_whole_gpus_gets_no_environment(api: Api) -> None:
    (container,) = api.create(pod(name()))["spec"]["containers"]
    assert "env" not in container


# -- markers: kube-scheduler calls filter and bind of Leeboard for pods that have them


def marked(amounts: Object, kind: str = "containers") -> Object:
    """Return the spec of a pod in which one container of this kind requests these resources."""
    names = "a" if kind == "containers" else "i"
    resources = {"resources": {"requests": amounts, "limits": amounts}}
    return {"containers": containers([])} | {kind: [containers([], names=names)[0] | resources]}


@pytest.mark.parametrize(("rules", "markers"), [(OWN, BINDING), (BESIDE, MARKERS)], indirect=["rules"])
@pytest.mark.usefixtures("rules")
def test_managed_pod_has_the_markers_of_the_form(api: Api, markers: Object) -> None:
    asks = api.create(pod(name(), gpus=1))["spec"]["containers"][0]["resources"]
    bare = api.create(pod(name(), spec={"containers": containers([], [])}))["spec"]["containers"]
    assert [{key: asks[kind].get(key) for key in (*MARKERS, "nvidia.com/gpu")} for kind in ("requests", "limits")] == [
        dict.fromkeys(MARKERS) | markers | {"nvidia.com/gpu": "1"}
    ] * 2
    assert [each["resources"] for each in bare] == [{"requests": markers, "limits": markers}, {}]


@pytest.mark.parametrize(("rules", "markers"), [(OWN, BINDING), (BESIDE, MARKERS)], indirect=["rules"])
@pytest.mark.parametrize("given", [BINDING, MARKERS, {"leeboard.dev/bind": "7"}], ids=str)
@pytest.mark.usefixtures("rules")
def test_marker_that_a_pod_already_has_is_there_once(api: Api, markers: Object, given: Object) -> None:
    (container,) = api.create(pod(name(), spec=marked(given)))["spec"]["containers"]
    assert container["resources"] == dict.fromkeys(("requests", "limits"), given | markers)


@pytest.mark.parametrize("rules", [BESIDE], indirect=True)
@pytest.mark.parametrize("none", [[], None])
@pytest.mark.usefixtures("rules")
def test_pod_without_containers_is_refused_by_kubernetes(api: Api, none: object) -> None:
    said = refusal(api, pod(name(), annotations={"gpu-fraction": "0.5"}, spec={"containers": none}))
    assert "spec.containers: Required value" in said


@pytest.mark.parametrize("rules", [BESIDE_WITHOUT_HOLD], indirect=True)
@pytest.mark.usefixtures("rules")
def test_managed_pod_that_would_not_be_sent_to_leeboard_is_refused(api: Api) -> None:
    for unasked in (pod(name()), pod(name(), spec=marked(BINDING))):
        said = refusal(api, unasked)
        assert "lacks the resource leeboard.dev/ask, which Leeboard's admission adds" in said
        assert "did not reach Leeboard: try again in a moment" in said
        assert "another webhook, which runs after it, set schedulerName" in said
    assert not refusal(api, pod(name(), scheduler="default-scheduler"))
    assert not refusal(api, pod(name(), spec={"nodeName": "somewhere"}))
    assert not refusal(api, pod(name(), spec=marked(MARKERS)))
    assert not refusal(api, pod(name(), spec=marked(ASKING)))


# -- our marks


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("key", [f"leeboard.dev/{each}" for each in WRITTEN_BY_BIND])
@pytest.mark.parametrize("kind", ["annotations", "labels"])
@pytest.mark.parametrize("scheduler", ["kai-scheduler", "another-scheduler"])
def test_tenant_cannot_forge_our_marks(api: Api, tenant: Api, key: str, kind: str, scheduler: str) -> None:
    forged = pod(name(), namespace=TEAM, scheduler=scheduler, **{kind: {key: "GPU-1"}})  # type: ignore[arg-type] # either is a mapping
    assert f"Leeboard alone writes {key} on pods; leave it out" in refusal(tenant, forged)
    made = tenant.create(pod(name(), namespace=TEAM, scheduler=scheduler))
    write = {"metadata": {kind: {key: "GPU-1"}}}
    assert "Leeboard alone writes" in refused_patch(tenant, path(made), write)

    api.patch(path(made), write)

    for changed in ("GPU-2", None):
        change = {"metadata": {kind: {key: changed}}}
        assert "Leeboard alone writes" in refused_patch(tenant, path(made), change)
        assert "Leeboard alone writes" in refused_patch(tenant, f"{path(made)}/status", change)
    assert not refused_patch(tenant, path(made), {"metadata": {kind: {"mine": "1"}}})
    assert api.get(path(made))["metadata"][kind][key] == "GPU-1"


@pytest.mark.parametrize(
    ("rules", "markers"),
    [(OWN_WITHOUT_HOLD, {}), (SECURE_WITHOUT_HOLD, {}), (BESIDE_WITHOUT_HOLD, ASKING)],
    indirect=["rules"],
)
@pytest.mark.usefixtures("rules")
def test_pod_that_kube_scheduler_binds_is_stamped_at_creation_and_never_again(tenant: Api, markers: Object) -> None:
    stamps = {PREEMPTIBLE: "true", QUEUE: "team"}
    made = tenant.create(pod(name(), namespace=TEAM, annotations=stamps, spec=marked(markers)))

    assert made["metadata"]["annotations"] == stamps
    for key in stamps:
        for changed in ("false", None):
            change = {"metadata": {"annotations": {key: changed}}}
            assert f"Leeboard alone writes {key} on pods" in refused_patch(tenant, path(made), change)
            assert f"Leeboard alone writes {key} on pods" in refused_patch(tenant, f"{path(made)}/status", change)


def preemptible(value: str = "true", *, spec: Object | None = None, **more: object) -> Object:
    annotations = {PREEMPTIBLE: value}
    return pod(name(), namespace=TEAM, annotations=annotations, spec=marked(ASKING) | (spec or {}), **more)  # type: ignore[arg-type] # free-form by design


@pytest.mark.parametrize("rules", [OWN_WITHOUT_HOLD, SECURE_WITHOUT_HOLD, BESIDE_WITHOUT_HOLD], indirect=True)
@pytest.mark.parametrize(
    ("item", "key"),
    [
        (preemptible(spec=marked(MARKERS)), PREEMPTIBLE),
        (preemptible(spec={"initContainers": marked(BINDING, "initContainers")["initContainers"]}), PREEMPTIBLE),
        (preemptible("True"), PREEMPTIBLE),
        (preemptible(""), PREEMPTIBLE),
        (preemptible(scheduler="another-scheduler"), PREEMPTIBLE),
        (preemptible(labels={PREEMPTIBLE: "true"}), PREEMPTIBLE),
        (preemptible(gang="crew"), PREEMPTIBLE),
        (preemptible(labels={"leeboard.dev/devices": "GPU-1"}), "leeboard.dev/devices"),
    ],
    ids=[
        "bound by us",
        "by an init container",
        "other value",
        "no value",
        "not ours",
        "label",
        "for a gang",
        "other mark",
    ],
)
@pytest.mark.usefixtures("rules")
def test_no_other_field_about_the_binding_of_a_pod_may_be_written(tenant: Api, item: Object, key: str) -> None:
    assert f"Leeboard alone writes {key} on pods; leave it out" in refusal(tenant, item)


@pytest.mark.parametrize("rules", [OWN, BESIDE], indirect=True)
@pytest.mark.usefixtures("rules")
def test_pod_that_names_its_node_may_not_be_stamped_as_preemptible(tenant: Api) -> None:
    """Admission does not change such pods, so that no other field would show their scheduler."""
    assert f"Leeboard alone writes {PREEMPTIBLE} on pods" in refusal(tenant, preemptible(spec={"nodeName": "nowhere"}))


@pytest.mark.parametrize("rules", [SECURE_WITHOUT_ADMISSION], indirect=True)
@pytest.mark.usefixtures("rules")
def test_no_pod_may_be_stamped_as_preemptible_where_leeboard_binds_all(tenant: Api) -> None:
    assert f"Leeboard alone writes {PREEMPTIBLE} on pods; leave it out" in refusal(tenant, preemptible())


@pytest.mark.parametrize("rules", [OWN, BESIDE, SECURE], indirect=True)
@pytest.mark.usefixtures("rules")
def test_pod_without_the_marker_may_not_be_stamped_as_preemptible_where_admission_marks_pods(tenant: Api) -> None:
    assert f"Leeboard alone writes {PREEMPTIBLE} on pods; leave it out" in refusal(tenant, preemptible())


@pytest.mark.usefixtures("rules")
def test_only_our_binding_writes_devices(bed: Bed, api: Api) -> None:
    marks = {f"leeboard.dev/{each}": "GPU-1" for each in WRITTEN_BY_BIND}
    api.create(gpu_node(f"policies-{name()}"))
    made = api.create(pod(name(), scheduler="another-scheduler"))
    reference = {"apiVersion": "v1", "kind": "Node", "name": api.items("/api/v1/nodes")[0]["metadata"]["name"]}
    binding = {"apiVersion": "v1", "kind": "Binding", "target": reference}
    for key in marks:
        metadata = {"name": made["metadata"]["name"], "annotations": {key: "GPU-1"}}
        with bed.api(User.SCHEDULER) as scheduler, pytest.raises(ApiError, match="leave it out of the Binding"):
            scheduler.call("POST", f"{path(made)}/binding", body=binding | {"metadata": metadata})

    with bed.api(User.LEEBOARD) as leeboard:
        let_leeboard_bind(api)
        metadata = {"name": made["metadata"]["name"], "annotations": marks}
        leeboard.call("POST", f"{path(made)}/binding", body=binding | {"metadata": metadata})

    assert api.get(path(made))["metadata"]["annotations"].items() >= marks.items()


def let_leeboard_bind(api: Api) -> None:
    for item in rendered.objects(only="templates/rbac.yaml"):
        api.apply(item)


@pytest.mark.usefixtures("rules")
def test_gpu_share_of_a_pod_is_fixed_once_the_pod_has_a_node(tenant: Api) -> None:
    placed = tenant.create(pod(name(), namespace=TEAM, annotations={"gpu-fraction": "0.9"}, spec={"nodeName": "n"}))
    waiting = tenant.create(pod(name(), namespace=TEAM, annotations={"gpu-fraction": "0.9"}))
    for fewer in ("0.1", None):
        write = {"metadata": {"annotations": {"gpu-fraction": fewer}}}
        assert "gpu-fraction is fixed once the pod has a node; delete" in refused_patch(tenant, path(placed), write)
    assert not refused_patch(tenant, path(waiting), {"metadata": {"annotations": {"gpu-fraction": "0.1"}}})


@pytest.mark.parametrize("rules", [OWN, SECURE, SECURE_WITHOUT_ADMISSION], indirect=True)
@pytest.mark.usefixtures("rules")
def test_podgroup_of_a_pod_is_fixed_once_the_pod_has_a_node(api: Api, tenant: Api) -> None:
    for kind, key in (("annotations", "pod-group-name"), ("labels", "kai.scheduler/subgroup-name")):
        marks: Object = {kind: {key: "mine"}}
        placed = api.create(pod(name(), namespace=TEAM, spec={"nodeName": "n"}, **marks))
        unnamed = api.create(pod(name(), namespace=TEAM, spec={"nodeName": "n"}))
        waiting = tenant.create(pod(name(), namespace=TEAM, **marks))
        foreign = api.create(pod(name(), namespace=TEAM, scheduler="another", spec={"nodeName": "n"}, **marks))
        for made, value in ((placed, "theirs"), (placed, None), (unnamed, "theirs")):
            write = {"metadata": {kind: {key: value}}}
            for target in (path(made), f"{path(made)}/status"):
                assert f"{key} is fixed once the pod has a node; delete" in refused_patch(tenant, target, write)
        for made in (waiting, foreign):
            assert not refused_patch(tenant, path(made), {"metadata": {kind: {key: "theirs"}}})


RELEASE = {"spec": {"schedulingGates": None}}


@pytest.mark.usefixtures("rules")
def test_tenant_may_remove_the_gate_in_the_kai_profile(tenant: Api) -> None:
    made = tenant.create(pod(name(), namespace=TEAM))
    assert not refused_patch(tenant, path(made), RELEASE)
    assert gates(tenant.get(path(made))) == []


@pytest.mark.parametrize("rules", [SECURE], indirect=True)
@pytest.mark.usefixtures("rules")
def test_only_leeboard_may_remove_the_gate_in_the_secure_profile(bed: Bed, api: Api, tenant: Api) -> None:
    made = tenant.create(pod(name(), namespace=TEAM, spec={"schedulingGates": [FOREIGN]}))
    assert "Leeboard alone takes the gate leeboard.dev/held off" in refused_patch(tenant, path(made), RELEASE)
    assert not refused_patch(tenant, path(made), {"spec": {"schedulingGates": [HELD]}})
    let_leeboard_bind(api)
    with bed.api(User.LEEBOARD) as leeboard:
        assert not refused_patch(leeboard, path(made), RELEASE)


# -- our own account, in the hands of an attacker


def changed_by_a_thief(spec: Object) -> dict[str, Object]:
    """Build changes that Kubernetes allows on a pending pod, and that are useful to an attacker."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "theirs", "uid": "u"}
    images = {kind: [each | {"image": "theirs"} for each in spec[kind]] for kind in ("containers", "initContainers")}
    expression = {"key": "theirs", "operator": "Exists"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {
        "spec.containers": {"spec": {"containers": images["containers"]}},
        "spec.initContainers": {"spec": {"initContainers": images["initContainers"]}},
        "spec.nodeSelector": {"spec": {"nodeSelector": {"theirs": "1"}}},
        "spec.affinity": {"spec": {"affinity": affinity}},
        "spec.activeDeadlineSeconds": {"spec": {"activeDeadlineSeconds": 1}},
        f"label {QUEUE_LABEL}": {"metadata": {"labels": {QUEUE_LABEL: "theirs"}}},
        "label project": {"metadata": {"labels": {"project": "theirs"}}},
        "annotation leeboard.dev/devices": {"metadata": {"annotations": {"leeboard.dev/devices": "GPU-1"}}},
        "annotation pod-group-name": {"metadata": {"annotations": {"pod-group-name": "theirs"}}},
        "annotation gpu-fraction": {"metadata": {"annotations": {"gpu-fraction": None}}},
        "metadata.finalizers": {"metadata": {"finalizers": ["example.com/theirs"]}},
        "metadata.ownerReferences": {"metadata": {"ownerReferences": [owner]}},
    }


def waiting(tenant: Api) -> Object:
    """Create a pod with our gate and another one."""
    spec = {"schedulingGates": [FOREIGN], "initContainers": containers([], names="i")}
    marks = {"labels": {"mine": "1"}, "annotations": {"gpu-fraction": "0.5"}}
    return tenant.create(pod(name(), namespace=TEAM, spec=spec, **marks))  # type: ignore[arg-type] # each is a mapping


@pytest.fixture
def _our_account_may_use_their_queue(api: Api) -> Iterator[None]:
    """Leave the refusal of the queue to the rule under test."""
    us = subject(User.LEEBOARD)
    allow(api, "use-theirs", us, group="scheduling.run.ai", resource="queues", verbs=["use"], names=["theirs"])
    yield
    revoke(api, "use-theirs")


@pytest.mark.parametrize("rules", [SECURE], indirect=True)
@pytest.mark.usefixtures("rules", "_our_account_may_use_their_queue")
def test_our_account_cannot_change_the_spec_of_pods(bed: Bed, api: Api, tenant: Api) -> None:
    made = waiting(tenant)
    let_leeboard_bind(api)
    with bed.api(User.LEEBOARD) as leeboard:
        for field, change in changed_by_a_thief(made["spec"]).items():
            with_our_gate_off = change | {"spec": change.get("spec", {}) | {"schedulingGates": [FOREIGN]}}
            for tried in (change, with_our_gate_off):
                said = refused_patch(leeboard, path(made), tried)
                assert f"may not change {field} of pods: use another account" in said
        assert "takes no gate off a pod but its own" in refused_patch(leeboard, path(made), RELEASE)

        assert not refused_patch(leeboard, path(made), {"spec": {"schedulingGates": [FOREIGN]}})

    assert gates(api.get(path(made))) == [FOREIGN]


@contextmanager
def other_admission(api: Api, *changes: str) -> Iterator[None]:
    """Let the API server change pods in these ways, as JSONPatch expressions, at every update."""
    metadata = {"name": "of-others"}
    resources = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": f"[{', '.join(changes)}]"}}
    spec: Object = {"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [mutation]}
    spec["matchConstraints"] = {"resourceRules": [resources]}
    head = {"apiVersion": rendered.ADMISSION, "metadata": metadata}
    rules = [
        head | {"kind": "MutatingAdmissionPolicy", "spec": spec},
        head | {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "of-others"}},
    ]
    try:
        for rule in rules:
            api.create(rule)
        rendered.await_policies(api)
        yield
    finally:
        for rule in rules:
            api.delete(f"{collection_of(rule)}/of-others")
        rendered.await_policies(api)


ANNOTATING = """JSONPatch{op: "add", path: "/metadata/annotations/example.com~1seen", value: "now"}"""
LABELLING = """JSONPatch{op: "add", path: "/metadata/labels/injected", value: "yes"}"""
TOLERATING = """JSONPatch{op: "add", path: "/spec/tolerations/-", value: {"key": "theirs", "operator": "Exists"}}"""
REPLACING = """JSONPatch{op: "replace", path: "/spec/containers/0/image", value: "mirrored"}"""


@pytest.mark.parametrize("rules", [SECURE], indirect=True)
@pytest.mark.usefixtures("rules")
def test_admission_that_changes_updated_pods_does_not_keep_leeboard_from_releasing(
    bed: Bed, api: Api, tenant: Api
) -> None:
    made = waiting(tenant)
    let_leeboard_bind(api)
    with bed.api(User.LEEBOARD) as leeboard, other_admission(api, ANNOTATING, LABELLING, TOLERATING):
        assert not refused_patch(leeboard, path(made), {"spec": {"schedulingGates": [FOREIGN]}})

    released = api.get(path(made))
    assert gates(released) == [FOREIGN]
    assert released["metadata"]["annotations"]["example.com/seen"] == "now"
    assert released["metadata"]["labels"]["injected"] == "yes"
    assert released["spec"]["tolerations"][-1]["key"] == "theirs"


@pytest.mark.parametrize("rules", [SECURE], indirect=True)
@pytest.mark.usefixtures("rules")
def test_images_changed_by_other_admission_in_our_updates_are_reported_with_what_to_do(
    bed: Bed, api: Api, tenant: Api
) -> None:
    made = waiting(tenant)
    let_leeboard_bind(api)
    with bed.api(User.LEEBOARD) as leeboard, other_admission(api, REPLACING):
        said = refused_patch(leeboard, path(made), {"spec": {"schedulingGates": [FOREIGN]}})

    assert "may not change spec.containers of pods" in said
    assert f"if other admission changed it, exempt {User.LEEBOARD.value[0]} there" in said


@pytest.mark.parametrize("rules", [SECURE, OWN], indirect=True)
@pytest.mark.usefixtures("rules", "_our_account_may_use_their_queue")
def test_our_account_writes_only_the_status_of_pods(bed: Bed, api: Api, tenant: Api) -> None:
    made = tenant.create(pod(name(), namespace=TEAM))
    let_leeboard_bind(api)
    nominated: Object = {"status": {"nominatedNodeName": "n"}}
    with bed.api(User.LEEBOARD) as leeboard:
        for kind, key in (("label", QUEUE_LABEL), ("annotation", "leeboard.dev/devices")):
            told = refused_patch(
                leeboard, f"{path(made)}/status", nominated | {"metadata": {f"{kind}s": {key: "theirs"}}}
            )
            assert f"may not change {kind} {key} of pods" in told
        assert not refused_patch(leeboard, f"{path(made)}/status", nominated)
        api.patch(path(made), {"metadata": {"finalizers": ["example.com/holds-it"]}})
        api.delete(path(made))
        assert not refused_patch(leeboard, f"{path(made)}/status", {"status": {"nominatedNodeName": None}})
    api.patch(path(made), {"metadata": {"finalizers": None}})


# -- the expressions themselves


@pytest.mark.parametrize("rules", [SECURE], indirect=True)
@pytest.mark.usefixtures("rules")
def test_expressions_use_only_fields_that_exist(api: Api) -> None:
    def checked() -> dict[str, object]:
        policies = api.items(f"/apis/{rendered.ADMISSION}/validatingadmissionpolicies")
        return {one["metadata"]["name"]: one["status"].get("typeChecking") for one in policies}

    found = eventually(checked, until=lambda seen: None not in seen.values(), within_s=20, what="all are checked")
    assert not [name for name, warnings in found.items() if warnings]
    assert len(found) == 14


WEIRD = [
    {"metadata": {"annotations": {"gpu-fraction": ""}}},
    {"metadata": {"annotations": {"gpu-fraction": "x", "gpu-fraction-container-name": "a/b~1"}}},
    {"metadata": {"labels": {"project": "", "priorityClassName": "", QUEUE_LABEL: ""}}},
    {"metadata": {"labels": {"kai.scheduler/node-pool": "pool", "project": "p"}}},
    {"spec": {"schedulerName": "kai-scheduler", "initContainers": containers([{"name": "A"}], names="i")}},
    {"spec": {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "0"}}}]}},
    {"spec": {"containers": containers([{"name": "NVIDIA_VISIBLE_DEVICES"}, {"name": "NVIDIA_VISIBLE_DEVICES"}])}},
    {"spec": {"nodeName": "n", "schedulerName": "kai-scheduler"}},
    {"spec": {"schedulingGates": []}},
]


@pytest.mark.parametrize("rules", [SECURE], indirect=True)
@pytest.mark.parametrize("odd", WEIRD)
@pytest.mark.parametrize("scheduler", ["default-scheduler", "kai-scheduler"])
@pytest.mark.usefixtures("rules")
def test_no_pod_makes_the_policies_fail(api: Api, tenant: Api, odd: Object, scheduler: str) -> None:
    spec: Object = {"schedulerName": scheduler, "containers": containers([])} | odd.get("spec", {})
    metadata = {"name": name(), "namespace": TEAM} | odd.get("metadata", {})
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    # The tenant may be refused, but only for what the pod requests; no right of an administrator hides anything.
    said = [refusal(tenant, item)]
    made = api.create(item | {"metadata": metadata | {"name": name()}})
    said.append(refused_patch(tenant, path(made), {"metadata": {"labels": {"touched": "1"}}}))
    said.append(refused_patch(tenant, f"{path(made)}/status", {"status": {"message": "touched"}}))

    assert not [each for each in said if "resulted in error" in each or "denied request: expression" in each]
