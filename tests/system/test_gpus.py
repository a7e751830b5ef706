"""Tests of the simulated GPUs themselves, without Leeboard: which pod gets which device, and the reports of agents."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.deploy.rendering import CHART
from tests.system.agents import GPU_NODES
from tests.system.api import DEFAULT_PODS, NODES, Api, ApiError, Object, pod
from tests.system.bed import Bed
from tests.system.cluster import apply_all, documents
from tests.system.gpus import DevicePlugins, Uuids
from tests.system.machines import DGX_1V, GPU, machine_node
from tests.system.shares import environment
from tests.system.waiting import eventually

_numbers = count()


@pytest.fixture
def _gpu_nodes(api: Api) -> Iterator[None]:
    apply_all(api, list(documents(CHART / "files" / "crds" / "gpunodes.yaml")))
    yield
    api.empty(GPU_NODES)


@pytest.fixture
def plugins(bed: Bed, _gpu_nodes: None) -> Iterator[DevicePlugins]:
    with DevicePlugins(bed) as plugins:
        yield plugins


@pytest.fixture
def node(api: Api, plugins: DevicePlugins) -> str:
    """A node with two GPUs whose first report has arrived."""
    name: str = api.create(machine_node(f"gpu-bare-{next(_numbers)}", gpus=2))["metadata"]["name"]
    report(api, name, lambda status: len(status.get("devices", [])) == 2)
    assert len(plugins.uuids(name)) == 2
    return name


def report(api: Api, node: str, until: object) -> Object:
    def look() -> Object:
        found = api.find(f"{GPU_NODES}/{node}") or {}
        status: Object = found.get("status", {})
        return status

    return eventually(look, until=until, within_s=20, what=f"the report of {node}")  # type: ignore[arg-type] # a lambda


def put(api: Api, name: str, node: str, *, gpus: int) -> Object:
    """Create a pod with GPUs on a node, as if a scheduler had bound it; wait until the kubelet has judged it."""
    api.create(pod(name, gpus=gpus, scheduler="default-scheduler", spec={"nodeName": node}))
    path = f"{DEFAULT_PODS}/{name}"
    return eventually(
        lambda: api.get(path), until=lambda one: one["status"]["phase"] != "Pending", within_s=20, what=name
    )


def allocatable(api: Api, node: str) -> str:
    return str(api.get(f"{NODES}/{node}")["status"]["allocatable"][GPU])


def test_pod_gets_free_devices_and_its_container_and_the_report_name_them(
    api: Api, plugins: DevicePlugins, node: str
) -> None:
    made = put(api, "one", node, gpus=1)

    (uuid,) = plugins.held_by(made)
    assert uuid == plugins.uuids(node)[0]
    assert environment(made, plugins.held_by(made)) == {"main": {"NVIDIA_VISIBLE_DEVICES": uuid}}
    holder = {"namespace": "default", "name": "one", "uid": made["metadata"]["uid"]}
    report(api, node, lambda status: [each["pods"] for each in status["devices"]] == [[holder], []])


def test_pod_with_more_gpus_than_are_free_fails_as_at_a_kubelet_and_they_stay_free(
    api: Api, plugins: DevicePlugins, node: str
) -> None:
    put(api, "first", node, gpus=1)

    refused = put(api, "second", node, gpus=2)["status"]

    assert (refused["phase"], refused["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert put(api, "third", node, gpus=1)["status"]["phase"] == "Running"
    assert "" not in {plugins.holder(uuid) for uuid in plugins.uuids(node)}


def test_device_is_free_again_when_its_pod_is_gone(api: Api, plugins: DevicePlugins, node: str) -> None:
    put(api, "both", node, gpus=2)

    api.delete(f"{DEFAULT_PODS}/both")

    report(api, node, lambda status: not any(each["pods"] for each in status["devices"]))
    assert {plugins.holder(uuid) for uuid in plugins.uuids(node)} == {""}


@pytest.mark.parametrize("uuids", list(Uuids))
def test_reboot_fails_pods_with_whole_gpus_and_frees_them(
    api: Api, plugins: DevicePlugins, node: str, uuids: Uuids
) -> None:
    put(api, "whole", node, gpus=1)
    before, boot = plugins.uuids(node), report(api, node, bool)["bootId"]

    plugins.reboot(node, uuids)

    api.wait_for_phase("Failed", "whole", within_s=20)
    after = report(api, node, lambda status: status["bootId"] != boot)["devices"]
    assert ([each["uuid"] for each in after] == before) is (uuids is Uuids.SAME)
    assert allocatable(api, node) == "2"


def test_no_gpu_is_allocatable_while_the_plugin_is_away_and_running_pods_keep_theirs(
    api: Api, plugins: DevicePlugins, node: str
) -> None:
    running = put(api, "running", node, gpus=1)
    with plugins.plugin_away(node):
        assert allocatable(api, node) == "0"
        assert put(api, "refused", node, gpus=1)["status"]["phase"] == "Failed"

    assert allocatable(api, node) == "2"
    assert plugins.held_by(running) == (plugins.uuids(node)[0],)


def test_unhealthy_or_lost_device_is_not_allocatable(api: Api, plugins: DevicePlugins, node: str) -> None:
    first, second = plugins.uuids(node)

    plugins.make_unhealthy(first, "XID 79")
    assert allocatable(api, node) == "1"
    report(api, node, lambda status: status["devices"][0]["healthReason"] == "XID 79")
    plugins.lose(second)
    assert allocatable(api, node) == "0"
    report(api, node, lambda status: [each["uuid"] for each in status["devices"]] == [first])


def test_memory_in_use_is_reported_by_pod(api: Api, plugins: DevicePlugins, node: str) -> None:
    made = put(api, "user", node, gpus=1)
    uuid = plugins.uuids(node)[0]

    plugins.squat(uuid, 300)
    plugins.use(uuid, made, 4000)

    device = report(api, node, lambda status: status["devices"][0]["memoryMiB"]["used"] == 4300)["devices"][0]
    assert device["memoryMiB"] == {"total": 81559, "used": 4300, "foreign": 300}
    assert [(each["name"], each["memoryMiB"]) for each in device["pods"]] == [("user", 4000)]


def test_deleted_gpunode_is_created_again(api: Api, plugins: DevicePlugins, node: str) -> None:
    before = api.get(f"{GPU_NODES}/{node}")["metadata"]["uid"]
    api.delete(f"{GPU_NODES}/{node}")

    put(api, "next", node, gpus=1)

    report(api, node, lambda status: status and status["devices"][0]["pods"])
    assert api.get(f"{GPU_NODES}/{node}")["metadata"]["uid"] != before
    plugins.check()


def test_deleted_node_removes_its_agent(api: Api, plugins: DevicePlugins, node: str) -> None:
    other = api.create(machine_node("gpu-bare-staying", gpus=1))["metadata"]["name"]
    report(api, other, bool)

    api.delete(f"{NODES}/{node}")
    put(api, "next", other, gpus=1)

    report(api, other, lambda status: status["devices"][0]["pods"])
    plugins.check()


@pytest.mark.usefixtures("_gpu_nodes")
def test_rejected_write_of_an_agent_is_reported_at_once(bed: Bed, api: Api) -> None:
    # A GpuNode has room for 64.
    api.create(machine_node("gpu-bare-crowded", gpus=65))

    with pytest.raises(ApiError, match="devices"):
        run_until_told(bed)


def run_until_told(bed: Bed) -> None:
    with DevicePlugins(bed) as plugins:
        eventually(plugins.check, within_s=20, what="the failure is told")


def test_silent_agent_reports_nothing_until_it_is_heard_again(api: Api, plugins: DevicePlugins, node: str) -> None:
    plugins.fall_silent(node)
    put(api, "unseen", node, gpus=1)
    other = api.create(machine_node("gpu-bare-talkative", gpus=1))["metadata"]["name"]
    report(api, other, bool)
    assert not report(api, node, bool)["devices"][0]["pods"]

    plugins.speak_again(node)

    report(api, node, lambda status: status["devices"][0]["pods"])


def test_links_are_those_of_the_machine(api: Api, plugins: DevicePlugins) -> None:
    name = api.create(machine_node("gpu-bare-dgx", gpus=8, machine=DGX_1V))["metadata"]["name"]

    first = report(api, name, lambda status: len(status.get("devices", [])) == 8)["devices"][0]

    uuids = plugins.uuids(name)
    assert {uuids.index(link["uuid"]): link["nvlinks"] for link in first["links"]} == {
        1: 1, 2: 1, 3: 2, 4: 2, 5: 0, 6: 0, 7: 0,
    }  # fmt: skip
