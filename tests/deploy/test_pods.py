"""The rendered pods for values of the chart, including those of `helm test`."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from app.agent.settings import AgentSettings
from app.model.marks import PREFIX
from tests.deploy.reading import FIXED, Object, pod_of, settings_of, workload_of
from tests.deploy.rendering import CHART, FORMS, helm, objects, rendered, scheduler_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("values", [{}, {"form": "beside"}, FIXED], ids=str)
def test_every_container_is_confined(values: dict[str, Any]) -> None:
    pod = pod_of(objects(rendered(**values)))

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for container in pod["containers"]:
        assert container["securityContext"] == confined
        assert {*container["resources"]} == {"requests", "limits"}


@pytest.mark.parametrize(
    ("kubernetes", "image"),
    [
        ("1.36.3", "registry.k8s.io/kube-scheduler:v1.36.3"),
        ("v1.31.2+k3s1", "registry.k8s.io/kube-scheduler:v1.31.2"),
        ("v1.30.5-gke.100", "registry.k8s.io/kube-scheduler:v1.30.5"),
        # As Argo CD says it.
        ("v1.34", "registry.k8s.io/kube-scheduler:v1.34.0"),
        ("1.34", "registry.k8s.io/kube-scheduler:v1.34.0"),
    ],
)
def test_the_kube_scheduler_beside_leeboard_has_the_version_of_the_cluster(kubernetes: str, image: str) -> None:
    pod = pod_of(objects(rendered(kubernetes=kubernetes)))

    assert [container["image"] for container in pod["containers"]] == ["leeboard:0.1.0", image]


GATE_OFF = "--feature-gates=GenericWorkload=false"


@pytest.mark.parametrize(
    ("kubernetes", "image", "is_off"),
    [
        ("1.34.4", {}, False),
        ("v1.35", {}, True),
        ("v1.37.2+k3s1", {}, True),
        # An older kube-scheduler would not start with a gate that it does not know.
        ("1.37.2", {"tag": "v1.34.0"}, False),
        ("1.34.4", {"tag": "v1.36.3"}, True),
        ("1.37.2", {"tag": "patched"}, True),
        ("1.37.2", {"digest": f"sha256:{64 * 'a'}"}, True),
    ],
)
def test_to_our_kube_scheduler_pods_of_a_native_group_are_single_pods(
    kubernetes: str, image: dict[str, str], *, is_off: bool
) -> None:
    pod = pod_of(objects(rendered(kubernetes=kubernetes, kubeScheduler={"image": image})))

    (args,) = [container["args"] for container in pod["containers"] if container["name"] == "kube-scheduler"]
    assert args == ["--config=/etc/leeboard/scheduler/config.yaml", *([GATE_OFF] if is_off else [])]


@pytest.mark.parametrize(("kubernetes", "is_off"), [("1.36.3", False), ("v1.37.0", True), ("1.37.2-gke.1", True)])
def test_the_clusters_kube_scheduler_evicts_nobody_for_a_native_group_where_it_can_be_told(
    kubernetes: str, *, is_off: bool
) -> None:
    config = yaml.safe_load(scheduler_config(rendered(form="beside", kubernetes=kubernetes)))

    profiles = {one["schedulerName"]: one.get("plugins") for one in config["profiles"]}
    off = {"podGroupPostFilter": {"disabled": [{"name": "DefaultPreemption"}]}}
    assert profiles == {"default-scheduler": None, "kai-scheduler": off if is_off else None}
    assert config.get("podMaxBackoffSeconds") == (1 if is_off else None)


def test_only_a_kube_scheduler_beside_which_leeboard_runs_may_schedule_groups_itself() -> None:
    assert settings_of(objects(rendered(form="beside"))).kube_scheduler_groups
    off = rendered(form="beside", beside={"groupScheduling": False})
    assert not any(settings_of(objects(text)).kube_scheduler_groups for text in (off, rendered()))


def test_images_can_be_named_by_digest() -> None:
    digest = f"sha256:{64 * 'a'}"

    pod = pod_of(objects(rendered(image={"digest": digest}, kubeScheduler={"image": {"digest": digest}})))

    images = [container["image"] for container in pod["containers"]]
    assert images == [f"leeboard@{digest}", f"registry.k8s.io/kube-scheduler@{digest}"]


def test_the_lease_of_the_default_scheduler_may_have_another_name() -> None:
    items = objects(rendered(form="beside", beside={"lease": "system/their-scheduler"}))

    assert settings_of(items).scheduler_lease == "system/their-scheduler"


def test_control_plane_nodes_are_known_by_their_label_whatever_its_value() -> None:
    pod = pod_of(objects(rendered(form="beside", nodeSelector={"pool": "a"})))

    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "a"}


def test_the_pod_of_helm_test_is_pulled_and_placed_like_the_others_and_may_always_connect() -> None:
    given: dict[str, Any] = {
        "imagePullSecrets": ["pull"],
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "dedicated"}],
        "networkPolicy": {"operationsFrom": [{"podSelector": {}}]},
    }
    items = objects(rendered(**given))
    doctor = _doctor(given)

    same = ("imagePullSecrets", "nodeSelector", "tolerations", "enableServiceLinks")
    assert [doctor["spec"][key] for key in same] == [pod_of(items)[key] for key in same]
    (policy,) = [item for item in items if (item["kind"], item["metadata"]["name"]) == ("NetworkPolicy", "leeboard")]
    labels = doctor["metadata"]["labels"]
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {}}, {"podSelector": {"matchLabels": labels}}]


@pytest.mark.parametrize("form", FORMS)
def test_no_service_variable_is_taken_for_a_setting(form: str) -> None:
    assert pod_of(objects(rendered(form=form)))["enableServiceLinks"] is False
    assert _doctor({"form": form})["spec"]["enableServiceLinks"] is False


def test_a_changed_configuration_of_kube_scheduler_starts_new_pods() -> None:
    def template(name: str) -> object:
        (item,) = [item for item in objects(rendered(schedulerName=name)) if item["kind"] == "Deployment"]
        return item["spec"]["template"]["metadata"]["annotations"]

    assert template("one") != template("another")


@pytest.mark.parametrize("values", [{}, {"form": "beside"}], ids=str)
def test_our_own_pods_have_no_mark_that_our_policies_refuse(values: dict[str, Any]) -> None:
    metadata = workload_of(objects(rendered(**values)))["spec"]["template"]["metadata"]

    assert [key for key in (*metadata["labels"], *metadata["annotations"]) if key.startswith(PREFIX)] == []


# Recordings


@pytest.mark.parametrize("values", [*({"form": form} for form in FORMS), FIXED], ids=str)
def test_recordings_have_a_volume_with_more_room_than_they_may_take(values: dict[str, Any]) -> None:
    items = objects(rendered(**values, recording={"enabled": True, "sizeMiB": 100}))
    pod, settings = pod_of(items), settings_of(items)
    leeboard, *others = pod["containers"]

    assert settings.record_mib == 100
    assert {"name": "recordings", "mountPath": settings.record_dir} in leeboard["volumeMounts"]
    assert {"name": "recordings", "emptyDir": {"sizeLimit": "228Mi"}} in pod["volumes"]
    assert leeboard["resources"]["requests"]["ephemeral-storage"] == "228Mi"
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"], "the volume belongs to this group"
    assert "recordings" not in str(others)


@pytest.mark.parametrize("values", [*({"form": form} for form in FORMS), FIXED], ids=str)
def test_nothing_is_recorded_unless_it_is_asked_for(values: dict[str, Any]) -> None:
    items = objects(rendered(**values))

    assert settings_of(items).record_dir is None
    assert "ephemeral-storage" not in str(workload_of(items))
    assert "emptyDir" not in str(workload_of(items))


@pytest.mark.parametrize("kind", ["requests", "limits"])
def test_who_says_how_much_storage_the_pod_gets_is_obeyed(kind: str) -> None:
    given = {kind: {"ephemeral-storage": "2Gi", "memory": "1Gi"}}
    leeboard = pod_of(objects(rendered(recording={"enabled": True}, resources=given)))["containers"][0]

    requests = leeboard["resources"]["requests"]
    assert leeboard["resources"][kind] == {**leeboard["resources"][kind], **given[kind]}
    assert requests.get("ephemeral-storage") == (None if kind == "limits" else "2Gi")


def test_a_recording_does_not_keep_a_cluster_autoscaler_from_removing_the_node() -> None:
    local = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

    def annotations(**given: Any) -> Mapping[str, str]:
        template = workload_of(objects(rendered(recording={"enabled": True}, **given)))["spec"]["template"]
        found: Mapping[str, str] = template["metadata"]["annotations"]
        return found

    assert annotations()[local] == "recordings"
    assert annotations(podAnnotations={local: "others"})[local] == "others"


# The agents


def test_an_agent_is_root_without_any_capability() -> None:
    pod = _agent()
    (container,) = pod["containers"]

    assert container["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["hostPID"] is True
    assert "hostNetwork" not in pod
    assert {*container["resources"]} == {"requests", "limits"}


def test_an_agent_sees_every_device_and_only_the_kubelet_socket_of_the_node() -> None:
    pod = _agent(kubeletFolder="/var/lib/k0s/kubelet", settings={"LEEBOARD_AGENT_HEARTBEAT_S": 30})
    (container,) = pod["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}

    assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == ["/var/lib/k0s/kubelet/pod-resources"]
    (mount,) = container["volumeMounts"]
    assert AgentSettings(node_name="a").pod_resources_socket == f"{mount['mountPath']}/kubelet.sock"
    assert mount["readOnly"] is True
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert AgentSettings(node_name="a", heartbeat_s=variables["LEEBOARD_AGENT_HEARTBEAT_S"]).heartbeat_s == 30
    assert pod["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in _agent(runtimeClassName="")


def test_agents_run_on_nodes_with_gpus_or_on_all_whatever_their_taints() -> None:
    terms = _agent()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    everywhere = _agent(allNodes=True, nodeSelector={"pool": "gpu"})

    assert "nvidia.com/gpu.present" in {one["key"] for term in terms for one in term["matchExpressions"]}
    assert "affinity" not in everywhere
    assert everywhere["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert everywhere["tolerations"] == [{"operator": "Exists"}]
    assert _agent(affinity={"podAffinity": {}})["affinity"] == {"podAffinity": {}}


def test_a_rollout_keeps_most_gpus_observed() -> None:
    strategy = workload_of(objects(rendered()), "leeboard-agent")["spec"]["updateStrategy"]

    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}


def _agent(**values: Any) -> Object:
    spec: Object = workload_of(objects(rendered(agent=values)), "leeboard-agent")["spec"]["template"]["spec"]
    return spec


def _doctor(values: Mapping[str, Any]) -> Object:
    given = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    (found,) = objects(
        helm("template", "leeboard", str(CHART), "-n=leeboard", "-s=templates/tests/doctor.yaml", *given)
    )
    return found
