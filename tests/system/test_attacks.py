"""Attacks of the tenant of the threat model on the API server: refused with a helpful message, never charged."""

import pytest

from tests.system.api import QUEUE_LABEL, ApiError, Object, job, pod, pod_group
from tests.system.attacked import OTHER_TEAM, TEAM_PODS, Attacked, path_of, team_pod
from tests.system.bed import Bed
from tests.system.dra_driver import with_claims
from tests.system.identities import User
from tests.system.owners import owner, path
from tests.system.tenants import TEAM, accounts, allow, of_controller, refusal, refused_patch, revoke, subject
from tests.system.waiting import eventually

NOT_YOURS = f"You may not use queue {OTHER_TEAM}. Name a queue that is yours"
USE_QUEUES = {"group": "scheduling.run.ai", "resource": "queues", "verbs": ["use"]}


def reference_to(made: Object) -> Object:
    kind = {key: made[key] for key in ("apiVersion", "kind")}
    return kind | {key: made["metadata"][key] for key in ("name", "uid")}


def a_node(attacked: Attacked) -> str:
    return str(attacked.api.items("/api/v1/nodes")[0]["metadata"]["name"])


# -- T1: fields that assign devices


FORGED: list[tuple[str, str]] = [
    *(
        ("annotations", f"leeboard.dev/{key}")
        for key in ("devices", "device-groups", "portion", "memory-mib", "mps-memory", "preemptible")
    ),
    *(("annotations", key) for key in ("gpu-uuids", "received-resource-type")),
    *(("annotations", key) for key in ("run.ai/reserve_for_gpu_index", "runai/shared-gpu-configmap")),
    *(("labels", key) for key in ("runai-gpu-group", "runai-gpu-group/7", "leeboard.dev/devices")),
]


@pytest.mark.parametrize(("kind", "key"), FORGED)
def test_marks_of_leeboard_cannot_be_forged_at_creation_or_later(attacked: Attacked, kind: str, key: str) -> None:
    honest = attacked.serve()
    with attacked.nothing_taken():
        forged = team_pod(queue=TEAM)
        forged["metadata"][kind][key] = "1"
        assert f"Leeboard alone writes {key} on pods; leave it out" in refusal(attacked.tenant, forged)
        for target in (path_of(honest), f"{path_of(honest)}/status"):
            assert "leave it out" in refused_patch(attacked.tenant, target, {"metadata": {kind: {key: "1"}}})


# -- T2: the environment that the container toolkit obeys


def with_env(*variables: Object, where: str = "containers") -> Object:
    made = team_pod(queue=TEAM, gpus=0)
    made["spec"].setdefault(where, [{"name": "init", "image": "none"}])[0]["env"] = list(variables)
    return made


ALL_DEVICES = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
FROM_ANNOTATION = {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}
OURS = {"fieldRef": {"fieldPath": "metadata.annotations['leeboard.dev/devices']"}}


@pytest.mark.parametrize(
    "item",
    [
        with_env(ALL_DEVICES),
        with_env({"name": "A"}, ALL_DEVICES, where="initContainers"),
        with_env(ALL_DEVICES | {"value": "0"}),
        with_env(ALL_DEVICES | {"value": "GPU-8f2d3c4b-0000-4a6e-9b1d-1234567890ab"}),
        with_env({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": FROM_ANNOTATION}),
    ],
)
def test_environment_variables_of_a_tenant_give_no_access_to_devices(attacked: Attacked, item: Object) -> None:
    assert "NVIDIA_VISIBLE_DEVICES would give the container GPUs" in refusal(attacked.tenant, item)
    item["spec"]["schedulerName"] = "default-scheduler"
    assert "NVIDIA_VISIBLE_DEVICES would give the container GPUs" in refusal(attacked.tenant, item)


def test_environment_variables_that_give_nothing_are_accepted(attacked: Attacked) -> None:
    harmless: list[Object] = [ALL_DEVICES | {"value": value} for value in ("none", "void", "")]
    for variable in [*harmless, {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": OURS}, {"name": "OTHER"}]:
        assert not refusal(attacked.tenant, with_env(variable) | {"metadata": team_pod()["metadata"]})


def test_ephemeral_container_gets_no_devices(attacked: Attacked) -> None:
    target = f"{path_of(attacked.serve())}/ephemeralcontainers"
    extra = {"name": "debug", "image": "none"}
    greedy = {"spec": {"ephemeralContainers": [extra | {"env": [ALL_DEVICES]}]}}
    assert "NVIDIA_VISIBLE_DEVICES would give" in refused_patch(attacked.tenant, target, greedy)
    assert not refused_patch(attacked.tenant, target, {"spec": {"ephemeralContainers": [extra]}})


def test_gpu_share_of_a_running_pod_cannot_be_changed(attacked: Attacked) -> None:
    annotations = {"gpu-fraction": "0.1", "mps": "true"}
    placed = team_pod(queue=TEAM, gpus=0, spec={"nodeName": a_node(attacked)}, annotations=annotations)
    made = attacked.api.create(placed)
    for key, value in {"gpu-fraction": "0.9", "gpu-memory": "80000", "mps": "false"}.items():
        said = refused_patch(attacked.tenant, path_of(made), {"metadata": {"annotations": {key: value}}})
        assert f"Annotation {key} is fixed once the pod has a node" in said

    attacked.serve()
    eventually(attacked.ledger, until=lambda seen: seen[TEAM] == 1100, within_s=20, what="a tenth is still charged")


# -- the namespace of reservation pods


def test_tenant_reserves_no_gpu_and_frees_none(attacked: Attacked) -> None:
    place = "kai-resource-reservation"
    labels = {"app": place, "runai-gpu-group": "mine", "app.kubernetes.io/managed-by": "leeboard"}
    mine = team_pod(queue=TEAM, labels=labels)
    mine["metadata"]["namespace"] = place
    with attacked.nothing_taken():
        assert "cannot create resource" in refusal(attacked.tenant, mine)
        with pytest.raises(ApiError, match="cannot delete resource"):
            attacked.tenant.delete(f"/api/v1/namespaces/{place}/pods/any")
        # In their own namespace it is an ordinary pod, and its marks are refused.
        elsewhere = team_pod(queue=TEAM, labels=labels)
        assert "Leeboard alone writes runai-gpu-group on pods" in refusal(attacked.tenant, elsewhere)


# -- T3: the queue of another team


NAMINGS = [
    {QUEUE_LABEL: OTHER_TEAM},
    {"runai/queue": OTHER_TEAM},
    {"project": OTHER_TEAM},
    {"project": "team", "kai.scheduler/node-pool": "b"},
]


@pytest.mark.parametrize("labels", NAMINGS, ids="+".join)
def test_pod_cannot_name_the_queue_of_another_team(attacked: Attacked, labels: dict[str, str]) -> None:
    honest = attacked.serve(labels={"project": TEAM})
    with attacked.nothing_taken():
        assert NOT_YOURS in refusal(attacked.tenant, team_pod(labels=labels))
        change: Object = {"metadata": {"labels": {QUEUE_LABEL: None} | labels}}
        for target in (path_of(honest), f"{path_of(honest)}/status"):
            assert NOT_YOURS in refused_patch(attacked.tenant, target, change)


def test_pod_of_another_scheduler_cannot_be_charged_to_another_team(attacked: Attacked) -> None:
    with attacked.nothing_taken():
        assert NOT_YOURS in refusal(attacked.tenant, team_pod(queue=OTHER_TEAM, scheduler="default-scheduler", gpus=0))


@pytest.mark.parametrize(("project", "pool"), [(OTHER_TEAM, {}), ("team", {"kai.scheduler/node-pool": "b"})])
def test_pod_is_not_charged_to_the_project_of_an_owner_that_no_policy_checks(
    attacked: Attacked, project: str, pool: dict[str, str]
) -> None:
    unchecked = owner("Deployment", own={"project": project, "priorityClassName": "train"})
    foreign = {"schedulerName": "default-scheduler", "containers": [{"name": "a", "image": "none"}]}
    unchecked["spec"] |= {"replicas": 0, "template": {"metadata": {"labels": {"app": "x"}}, "spec": foreign}}
    made = attacked.tenant.create(unchecked)
    stealing = team_pod(labels=pool)
    stealing["metadata"]["ownerReferences"] = [reference_to(made)]

    attacked.wait_for_node(attacked.tenant.create(stealing))

    attacked.charge({"default-queue": 1, "default-parent-queue": 1})
    attacked.api.delete_now(path(made))


def test_podgroup_cannot_name_the_queue_of_another_team(attacked: Attacked) -> None:
    with attacked.nothing_taken():
        assert NOT_YOURS in refusal(attacked.tenant, pod_group("g", min_member=1, queue=OTHER_TEAM, namespace=TEAM))
        attacked.tenant.create(pod_group("g", min_member=1, queue=TEAM, namespace=TEAM))
        groups = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{TEAM}/podgroups/g"
        assert NOT_YOURS in refused_patch(attacked.tenant, groups, {"spec": {"queue": OTHER_TEAM}})


def test_pods_of_a_job_are_admitted_when_the_service_accounts_of_the_namespace_may_use_the_queue(
    attacked: Attacked,
) -> None:
    template = pod("x", namespace=TEAM, queue=OTHER_TEAM)
    assert NOT_YOURS in refusal(attacked.tenant, job("j", template=template))
    allow(attacked.api, "accounts-use-b", accounts(), **USE_QUEUES, names=[OTHER_TEAM])  # type: ignore[arg-type] # as named

    eventually(lambda: not refusal(attacked.tenant, job("j", template=template)), within_s=10, what="the job is taken")

    pods = eventually(lambda: attacked.api.items(TEAM_PODS), within_s=20, what="the job has a pod")
    attacked.api.wait_for_phase("Succeeded", pods[0]["metadata"]["name"], within_s=30, namespace=TEAM)
    revoke(attacked.api, "accounts-use-b")


def test_every_user_may_use_the_default_queue(attacked: Attacked) -> None:
    assert not refusal(attacked.tenant, team_pod(queue="default-queue"))
    assert not refusal(attacked.tenant, team_pod())


# -- T8: priority


@pytest.mark.parametrize("class_name", ["build", "inference", "system-node-critical"])
def test_priority_class_needs_a_right(attacked: Attacked, class_name: str) -> None:
    said = f"You may not use priority class {class_name}. Name train or build-preemptible"
    with attacked.nothing_taken():
        assert said in refusal(attacked.tenant, team_pod(queue=TEAM, labels={"priorityClassName": class_name}))
        assert said in refusal(attacked.tenant, team_pod(queue=TEAM, priority_class=class_name))
        group = pod_group("g", min_member=1, queue=TEAM, namespace=TEAM, priorityClassName=class_name)
        assert said in refusal(attacked.tenant, group)


@pytest.mark.parametrize("label", ["priorityClassName", "kai.scheduler/preemptibility"])
def test_priority_of_a_pod_cannot_be_raised_later(attacked: Attacked, label: str) -> None:
    honest = attacked.serve(labels={"priorityClassName": "train"})
    with attacked.nothing_taken():
        for target in (path_of(honest), f"{path_of(honest)}/status"):
            raised = refused_patch(attacked.tenant, target, {"metadata": {"labels": {label: "non-preemptible"}}})
            assert "preemptibility are fixed once the pod is created; delete the pod and create it again" in raised


def test_priority_of_a_podgroup_cannot_be_raised_later(attacked: Attacked) -> None:
    attacked.tenant.create(pod_group("g", min_member=1, queue=TEAM, namespace=TEAM, priorityClassName="train"))
    group = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{TEAM}/podgroups/g"
    raised = refused_patch(attacked.tenant, group, {"spec": {"priorityClassName": "build"}})
    assert "You may not use priority class build" in raised
    raised = refused_patch(attacked.tenant, group, {"spec": {"preemptibility": "non-preemptible"}})
    assert "spec.preemptibility is fixed once the PodGroup is created" in raised
    assert not refused_patch(attacked.tenant, group, {"spec": {"minMember": 2}})


def test_user_with_the_right_to_a_priority_class_may_name_it(attacked: Attacked) -> None:
    right = {"group": "scheduling.k8s.io", "resource": "priorityclasses", "verbs": ["use"], "names": ["build"]}
    allow(attacked.api, "tenant-builds", subject(User.TENANT), **right)  # type: ignore[arg-type] # as named
    item = team_pod(queue=TEAM, labels={"priorityClassName": "build"})
    eventually(lambda: not refusal(attacked.tenant, item), within_s=10, what="the pod is taken")
    revoke(attacked.api, "tenant-builds")


# -- T9: bypassing Leeboard


def gpu_limits(**limits: str) -> Object:
    resources = {key.replace("__", "/").replace("_", "-"): value for key, value in limits.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": resources}}
    return {"schedulerName": "default-scheduler", "containers": [container]}


@pytest.mark.parametrize(
    "item",
    [
        team_pod(scheduler="default-scheduler"),
        team_pod(scheduler="volcano", gpus=8),
        team_pod(spec=gpu_limits(**{"nvidia.com/mig-1g.10gb": "1"})),
        team_pod(spec=gpu_limits(cpu="1"), annotations={"gpu-fraction": "0.5"}),
        team_pod(spec=gpu_limits(cpu="1"), annotations={"gpu-memory": "1024"}),
        with_claims(team_pod(scheduler="default-scheduler", gpus=0), claims=["gpus"]),
        with_claims(team_pod(scheduler="default-scheduler", gpus=0), templates=["gpus"]),
        team_pod(spec=gpu_limits(**{"deviceclass.resource.kubernetes.io/gpu.example.com": "1"})),
    ],
)
def test_gpus_are_requested_only_through_leeboard(attacked: Attacked, item: Object) -> None:
    with attacked.nothing_taken():
        assert "are scheduled by Leeboard: write schedulerName: kai-scheduler" in refusal(attacked.tenant, item)


def test_pod_without_gpus_may_have_any_scheduler(attacked: Attacked) -> None:
    assert not refusal(attacked.tenant, team_pod(scheduler="default-scheduler", gpus=0))
    assert not refusal(attacked.tenant, team_pod(spec=gpu_limits(**{"nvidia.com/gpu": "0"})))


@pytest.mark.parametrize("gpus", [0, 1])
def test_tenant_cannot_name_the_node_of_a_managed_pod(attacked: Attacked, gpus: int) -> None:
    with attacked.nothing_taken():
        said = refusal(attacked.tenant, team_pod(queue=TEAM, gpus=gpus, spec={"nodeName": a_node(attacked)}))
        assert "may not be created with spec.nodeName; leave it out, and write spec.nodeSelector" in said


def test_tenant_binds_nothing(attacked: Attacked) -> None:
    made = attacked.tenant.create(team_pod(queue=TEAM, gpus=100))
    node = attacked.api.items("/api/v1/nodes")[0]["metadata"]["name"]
    head = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": made["metadata"]["name"]}}
    with attacked.nothing_taken(), pytest.raises(ApiError, match="pods/binding"):
        attacked.tenant.call("POST", f"{path_of(made)}/binding", body=head | {"target": {"kind": "Node", "name": node}})


def test_pods_of_a_daemon_set_are_admitted_only_when_its_controller_creates_them(bed: Bed, attacked: Attacked) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "0", "controller": True}
    item = team_pod(scheduler="default-scheduler")
    item["metadata"]["ownerReferences"] = [reference]
    assert "are scheduled by Leeboard" in refusal(attacked.tenant, item)

    with of_controller(bed, attacked.api, "daemon-set-controller") as of_kubernetes:
        assert not refusal(of_kubernetes, item)


# -- users above the rules


def test_right_to_bypass_is_a_right_like_others(attacked: Attacked) -> None:
    item = team_pod(scheduler="default-scheduler")
    assert "are scheduled by Leeboard" in refusal(attacked.tenant, item)
    bypass = {"group": "leeboard.dev", "resource": "policies", "verbs": ["bypass"]}
    allow(attacked.api, "tenant-bypasses", subject(User.TENANT), **bypass)  # type: ignore[arg-type] # as named
    eventually(lambda: not refusal(attacked.tenant, item), within_s=10, what="the pod is taken")
    revoke(attacked.api, "tenant-bypasses")
