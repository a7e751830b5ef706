"""The input of the bench's peers: the same pods, each in its own form. Nothing is built and nothing started."""

import re
from collections.abc import Callable, Sequence

import pytest

from loadtest.contender import Batch, CannotError, Entitled
from loadtest.peers import coscheduling, kai, kai_objects, peers, volcano
from loadtest.peers.source import MODULES, Source
from tests.system.api import Object, pod, pod_group, queue

LONE = Batch(name="p", count=3, queue="bench")
GANGS = Batch(name="g", count=4, queue="bench", gang_size=2, gpus=8)
RUNNING = Batch(name="r", count=3, queue="rich", on=["n0", "n1"])
HALVES = Batch(name="h", count=2, queue="bench", gpus=0, fraction="0.5")
PINNED = (
    (kai.SOURCE, kai.VERSION),
    (coscheduling.SOURCE, coscheduling.VERSION),
    (volcano.SOURCE, volcano.VERSION),
)


def of_kind(kind: str, objects: Sequence[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def names(objects: Sequence[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in objects]


# What all have in common ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [LONE, GANGS], ids=["lone", "gangs"])
def test_all_peers_get_pods_of_the_same_names_and_requests(batch: Batch) -> None:
    given = [of_kind("Pod", peer.work(batch)) for peer in peers()]

    said = {tuple((one["metadata"]["name"], repr(one["spec"]["containers"])) for one in pods) for pods in given}
    assert len(said) == 1
    assert [name for name, _ in said.pop()] == [f"{batch.name}-{index:05}" for index in range(batch.count)]


@pytest.mark.parametrize(("source", "version"), PINNED, ids=[source.name for source, _ in PINNED])
def test_the_named_version_of_a_peer_is_the_one_pinned_by_its_module(source: Source, version: str) -> None:
    pins = (MODULES / source.name / "go.mod").read_text()

    # Kubernetes 1.34.2 is version v0.34.2 of its libraries; a replacement is listed after what it replaces.
    *_, library = re.findall(r"^\s*k8s\.io/client-go.* v(\S+)", pins, re.MULTILINE)
    assert re.search(rf"^(require|\t)\s*{source.module} {version}$", pins, re.MULTILINE)
    assert library == f"0.{source.kubernetes.partition('.')[2]}"


def test_the_named_version_of_the_volcano_api_module_is_its_replacement() -> None:
    pins = (MODULES / volcano.SOURCE.name / "go.mod").read_text()

    assert f"volcano.sh/apis => volcano.sh/apis {volcano.APIS}\n" in pins
    assert volcano.APIS in volcano.Volcano().version()


# KAI-Scheduler -------------------------------------------------------------------------------------------------------


def test_kai_groups_single_pods_itself() -> None:
    assert kai_objects.objects(LONE) == [pod(f"p-{index:05}", queue="bench") for index in range(3)]


def test_kai_gets_a_podgroup_for_each_gang() -> None:
    objects = kai_objects.objects(GANGS)

    groups = [pod_group(name, min_member=2, queue="bench", priorityClassName="train") for name in ("g-0000", "g-0001")]
    gangs = ["g-0000", "g-0000", "g-0001", "g-0001"]
    members = [pod(f"g-{index:05}", gpus=8, queue="bench", gang=gang) for index, gang in enumerate(gangs)]
    assert objects == [*groups, *members]


def test_running_pods_are_grouped_one_by_one_and_deleted_at_once() -> None:
    objects = kai_objects.objects(RUNNING)

    pods = of_kind("Pod", objects)
    assert names(of_kind("PodGroup", objects)) == [one["metadata"]["annotations"]["pod-group-name"] for one in pods]
    assert [one["spec"]["nodeName"] for one in pods] == ["n0", "n1", "n0"]
    assert {one["spec"]["terminationGracePeriodSeconds"] for one in pods} == {0}
    assert {one["status"]["phase"] for one in pods} == {"Running"}


def test_a_gpu_share_has_the_form_that_the_admission_of_kai_leaves() -> None:
    first, _ = kai_objects.objects(HALVES)

    (container,) = first["spec"]["containers"]
    assert first["metadata"]["annotations"] == {
        "gpu-fraction": "0.5",
        "runai/shared-gpu-configmap": "h-00000-shared-gpu",
    }
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {one["valueFrom"]["configMapKeyRef"]["name"] for one in container["env"]} == {"h-00000-shared-gpu-0"}
    assert container["envFrom"] == [{"configMapRef": {"name": "h-00000-shared-gpu-0-evar", "optional": False}}]


def test_queues_of_kai_have_two_levels_and_the_root_is_first() -> None:
    made = kai_objects.queues([Entitled(name="rich", quota_gpus=80), Entitled(name="poor")])

    root = kai_objects.ROOT
    assert made == [queue(root), queue("rich", parent=root, deserved=80), queue("poor", parent=root)]


def test_programs_of_kai_share_no_address_and_listen_only_on_loopback() -> None:
    flags = kai.flags(metrics_port=1234)

    said = {flag for one in flags.values() for flag in one if "address" in flag or "port" in flag}
    assert list(flags) == [kai.SCHEDULER, kai.BINDER, kai.PODGROUPER]
    assert said == {
        "--listen-address=127.0.0.1:1234",
        "--plugin-server-port=-1",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    }


# coscheduling and Volcano --------------------------------------------------------------------------------------------


def test_coscheduling_recognizes_a_gang_by_its_label() -> None:
    objects = coscheduling.objects(GANGS)

    assert names(of_kind("PodGroup", objects)) == ["g-0000", "g-0001"]
    assert [one["metadata"]["labels"] for one in of_kind("Pod", objects)] == [
        {"scheduling.x-k8s.io/pod-group": gang} for gang in ("g-0000", "g-0000", "g-0001", "g-0001")
    ]


def test_volcano_groups_single_pods_itself_in_the_queue_they_name() -> None:
    objects = volcano.objects(LONE)

    assert {one["kind"] for one in objects} == {"Pod"}
    assert [one["metadata"]["annotations"] for one in objects] == [{"scheduling.volcano.sh/queue-name": "bench"}] * 3


def test_volcano_recognizes_a_gang_by_its_annotation() -> None:
    objects = volcano.objects(GANGS)

    assert [one["spec"] for one in of_kind("PodGroup", objects)] == [{"minMember": 2, "queue": "bench"}] * 2
    assert [one["metadata"]["annotations"] for one in of_kind("Pod", objects)] == [
        {"scheduling.k8s.io/group-name": gang} for gang in ("g-0000", "g-0000", "g-0001", "g-0001")
    ]


@pytest.mark.parametrize("objects", [coscheduling.objects, volcano.objects], ids=["coscheduling", "volcano"])
@pytest.mark.parametrize("batch", [RUNNING, HALVES], ids=["running", "halves"])
def test_a_peer_without_support_for_a_kind_of_workload_says_so_in_a_sentence(
    objects: Callable[[Batch], Sequence[Object]], batch: Batch
) -> None:
    with pytest.raises(CannotError) as refused:
        objects(batch)

    assert re.fullmatch(r"[^.\n]+\.", str(refused.value))
