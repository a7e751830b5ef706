"""What `leeboard agent --once` says of each machine.

An old driver, a table and no driver at all: by a process of its own, where pynvml finds the driver as ever.
"""

from pathlib import Path
from typing import Any

import pytest

from app.cluster.decode.gpu_nodes import gpu_node
from app.model.device import GpuNode, Health
from tests.agent.conftest import Furnish
from tests.agent.kubelet import FakeKubelet
from tests.agent.machines import GPU_IS_LOST, MACHINES, NO_PERMISSION, TOPOLOGIES, leeboard_agent, printed


def read(printed: dict[str, Any]) -> GpuNode:
    """Read what was printed as the service reads it from the API server."""
    printed["metadata"]["uid"] = "u"
    return gpu_node(printed)


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-a100", "hgx-h100", "pcie-one-bridge"])
def test_the_layout_read_from_the_report_has_the_published_score_of_every_pair(name: str, loaded: Furnish) -> None:
    topology = TOPOLOGIES[MACHINES[name]["topology"]]

    node = read(printed(loaded(name)))

    assert node.layout is not None
    assert [list(row) for row in node.layout.scores] == topology["go_gpuallocator_pair_score"]
    assert node.problem == ""


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100"])
def test_every_pair_behind_an_nvswitch_has_all_its_links(name: str, loaded: Furnish) -> None:
    machine = loaded(name)

    devices = printed(machine)["status"]["devices"]

    links = [{link["uuid"]: link["nvlinks"] for link in device["links"]} for device in devices]
    matrix = [[links[one].get(machine.uuid(other), 0) for other in range(8)] for one in range(8)]
    assert matrix == machine.topology["nvlinks"]


def test_one_device_is_reported_with_all_there_is_to_know(loaded: Furnish) -> None:
    status = printed(loaded("hgx-h100"))["status"]

    device = status["devices"][1]
    assert status["driverVersion"] == "570.86.15"
    assert "failures" not in status
    assert device | {"links": device["links"][:1]} == {
        "uuid": "GPU-00000001-1234-5678-9abc-00000000abc1",
        "index": 1,
        "minor": 1,
        "product": "NVIDIA H100 80GB HBM3",
        "pciBusId": "00000000:08:00.0",
        "memoryMiB": {"total": 81559, "used": 10, "reserved": 512, "foreign": 0},
        "health": "Healthy",
        "mig": {"enabled": False, "pending": False},
        "fabric": {"cluster": "4d3cb1a2-f05e-4b7c-9a11-22334455667f", "clique": 7},
        "links": [
            {
                "uuid": "GPU-00000000-1234-5678-9abc-00000000abc0",
                "nvlinks": 18,
                "p2p": "NVLink",
                "ancestor": "Node",
            }
        ],
    }


def test_what_the_hardware_does_not_have_is_left_out_and_no_failure(loaded: Furnish) -> None:
    status = printed(loaded("desktop"))["status"]

    (device,) = status["devices"]
    assert "failures" not in status
    assert device["health"] == "Healthy"
    assert {"mig", "fabric", "links", "numaNode"} & set(device) == set()


def test_mig_instances_are_told_by_profile_also_where_the_driver_does_not_name_it(loaded: Furnish) -> None:
    node = printed(loaded("mig"))

    assert node["status"]["devices"][0]["mig"] == {
        "enabled": True,
        "pending": False,
        "instances": [
            {"uuid": "MIG-11111111-aaaa-5555-8888-000000000001", "profile": "3g.20gb", "memoryMiB": 19968},
            {"uuid": "MIG-11111111-aaaa-5555-8888-000000000002", "profile": "1c.2g.10gb", "memoryMiB": 9984},
        ],
    }
    assert read(node).devices[0].is_mig


def test_an_old_driver_is_read_as_far_as_it_goes_and_what_it_lacks_is_named_once(
    old_library: Path, furnish: Furnish
) -> None:
    node = printed(furnish("dgx-1v"), old_library)

    status = node["status"]
    assert [device["memoryMiB"] for device in status["devices"]] == [
        {"total": 32768, "used": 522, "foreign": 0}  # what is reserved is part of what is used
    ] * 8
    assert {failure["call"]: failure["error"] for failure in status["failures"]} == dict.fromkeys(
        [
            "nvmlDeviceGetGpuFabricInfoV",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            "nvmlDeviceGetMemoryAffinity",
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetNumaNodeId",
            "nvmlDeviceGetRemappedRows",
        ],
        "Function Not Found",
    )
    assert all("device" not in failure for failure in status["failures"])
    layout = read(node).layout
    assert layout is not None
    assert [list(row) for row in layout.scores] == TOPOLOGIES["dgx1-v100"]["go_gpuallocator_pair_score"]


def test_an_old_driver_that_does_not_know_switches_still_tells_links_by_peer_access(
    old_library: Path, furnish: Furnish
) -> None:
    layout = read(printed(furnish("dgx-a100"), old_library)).layout

    assert layout is not None
    assert [list(row) for row in layout.scores] == TOPOLOGIES["dgx-a100"]["go_gpuallocator_pair_score"]


def test_a_lost_gpu_leaves_the_others_as_they_are(loaded: Furnish) -> None:
    machine = loaded("dgx-a100")
    machine.fails("*", GPU_IS_LOST, 3)

    status = printed(machine)["status"]

    assert [device["index"] for device in status["devices"]] == [0, 1, 2, 4, 5, 6, 7]
    assert {device["health"] for device in status["devices"]} == {"Healthy"}
    assert all(len(device["links"]) == 6 for device in status["devices"])
    assert status["failures"] == [{"call": "nvmlDeviceGetHandleByIndex", "error": "GPU is lost", "device": "index 3"}]


def test_a_lost_gpu_that_still_has_a_name_is_unhealthy(loaded: Furnish) -> None:
    machine = loaded("dgx-a100")
    for call in ("GetMemoryInfo_v2", "GetPciInfo", "GetName", "GetNvLinkState", "GetP2PStatus", "GetMinorNumber"):
        machine.fails(f"nvmlDevice{call}", GPU_IS_LOST, 3)

    node = read(printed(machine))

    lost = node.devices[3]
    assert (lost.uuid, lost.health, lost.health_reason) == (machine.uuid(3), Health.UNHEALTHY, "GPU is lost")
    assert node.layout is not None
    assert set(node.layout.scores[3]) == {0}
    assert node.layout.scores[0][1] == 1240


def test_what_may_not_be_asked_is_named_and_the_rest_reported(loaded: Furnish) -> None:
    machine = loaded("mig")
    for call in ("GetMemoryInfo_v2", "GetComputeRunningProcesses", "GetGraphicsRunningProcesses"):
        machine.fails(f"nvmlDevice{call}", NO_PERMISSION)

    status = printed(machine)["status"]

    (device,) = status["devices"]
    assert "memoryMiB" not in device
    assert len(device["mig"]["instances"]) == 2
    assert [(failure["call"], failure["error"]) for failure in status["failures"]] == [
        ("nvmlDeviceGetComputeRunningProcesses_v3", "Insufficient Permissions"),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "Insufficient Permissions"),
        ("nvmlDeviceGetMemoryInfo_v2", "Insufficient Permissions"),
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (9, "the NVIDIA driver is not loaded"),
        (4, "no permission to open the NVIDIA driver"),
        (18, "the NVIDIA driver and libnvidia-ml.so.1 have different versions: restart the container"),
        (999, "the NVIDIA driver cannot be opened: Unknown Error"),
    ],
)
def test_a_driver_that_does_not_open_is_a_message(error: int, says: str, loaded: Furnish) -> None:
    machine = loaded("desktop")
    machine.fails("nvmlInit", error)

    node = printed(machine)

    assert (node["status"]["message"], node["status"]["devices"]) == (says, [])
    assert read(node).message == says


def test_a_machine_without_a_gpu_says_so(loaded: Furnish) -> None:
    assert printed(loaded("empty"))["status"]["message"] == "the NVIDIA driver sees no GPU"


def test_without_any_driver_a_table_says_why_it_is_empty() -> None:
    assert leeboard_agent(None, None, "--once") == [
        "node-1: driver none, 0 devices",
        "",
        "devices: no NVIDIA driver here: libnvidia-ml.so.1 is not found (the RuntimeClass nvidia adds it to a pod)",
        "kubelet: there is no socket at /nonexistent/kubelet.sock: No such file or directory",
    ]


def test_the_table_shows_devices_who_holds_them_and_how_they_are_linked(
    library: Path, furnish: Furnish, kubelet: FakeKubelet, socket: Path
) -> None:
    machine = furnish("pcie-one-bridge")
    machine.sets(1, rows="0 1 1 0")
    kubelet.give("team-a/train", machine.uuid(0))

    lines = leeboard_agent(library, machine, "--once", LEEBOARD_AGENT_POD_RESOURCES_SOCKET=str(socket))

    assert lines[0] == "node-1: driver 550.54.15, 4 devices"
    assert [" ".join(line.split()) for line in lines[2:5]] == [
        "GPU UUID PRODUCT USED MiB OF HEALTH MIG PODS",
        f"0 {machine.uuid(0)} NVIDIA A100 80GB PCIe 10 81920 Healthy off team-a/train",
        f"1 {machine.uuid(1)} NVIDIA A100 80GB PCIe 10 81920 Unhealthy off -",
    ]
    assert [line.split() for line in lines[8:10]] == [
        ["0", "1", "2", "3"],
        ["0", "X", "12", "NVLink", "System", "System"],
    ]
    assert lines[-1] == f"{machine.uuid(1)}: a row of its memory is to be remapped: it must be reset"


def test_a_gpu_that_is_a_numa_node_itself_is_told_as_that_one(loaded: Furnish) -> None:
    machine = loaded("dgx-a100")
    machine.sets(0, numa=9)

    devices = printed(machine)["status"]["devices"]

    assert [device["numaNode"] for device in devices[:2]] == [9, 3]
