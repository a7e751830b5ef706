"""The output of `leeboard doctor` about GPUs, their agents, and the prerequisites of sharing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.cli.findings import Severity
from tests.cli.installation import CLASSES, GPU_NODES, NODES, RESERVATIONS, FakeCluster, examined

SHARES = {"webhook_configuration": "leeboard"}
"""Settings that show that the installation has admission, which sharing needs."""


def gpu_node(name: str, gpus: str = "8", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}


def told(name: str, *, minutes_ago: float = 1, **status: object) -> dict[str, Any]:
    """Build a GpuNode that was last written this long ago."""
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    usual = {"observedAt": f"{at:%Y-%m-%dT%H:%M:%SZ}", "kubelet": {"answers": True}}
    return {"metadata": {"name": name}, "status": usual | status}


def cluster_of(*nodes: dict[str, Any], agents: tuple[dict[str, Any], ...] = ()) -> FakeCluster:
    cluster = FakeCluster()
    cluster.set_items(NODES, *nodes)
    cluster.set_items(GPU_NODES, *agents)
    return cluster


# Nodes and agents


async def test_a_cluster_without_gpus_is_reported(tmp_path: Path) -> None:
    found = await examined(tmp_path, cluster_of(gpu_node("a", "0")))

    assert found["gpus"].message == "no node offers nvidia.com/gpu"


async def test_a_node_whose_gpus_are_all_unhealthy_still_has_gpus(tmp_path: Path) -> None:
    # The kubelet removes them from allocatable, and leaves them in the capacity.
    node = {
        **gpu_node("a", "0"),
        "status": {"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "1"}},
    }
    agent = told("a", devices=[device("GPU-1", healthReason="XID 79")])

    found = await examined(tmp_path, cluster_of(node, agents=(agent,)))

    assert found["gpus"].message == "1 node has GPUs, and agents report all of them"
    assert found["gpu-health"].message.startswith("1 GPU takes no new work: a GPU-1")


async def test_gpu_nodes_without_an_agent_are_named(tmp_path: Path) -> None:
    cluster = cluster_of(*map(gpu_node, "abc"), agents=(told("b"), told("without-gpus")))

    found = (await examined(tmp_path, cluster))["gpus"]

    assert found.state is Severity.WARNING
    assert found.message.startswith("no agent has reported 2 of 3 GPU nodes: a, c; whole GPUs work there, and none can")
    assert "app.kubernetes.io/name=leeboard-agent" in found.fix


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (SHARES, Severity.WARNING),
        ({}, Severity.WARNING),
        ({"scheduler_lease": "a/b"}, Severity.OK),
        ({"gpu_sharing": "0"}, Severity.OK),
    ],
    ids=["surely shared", "not known", "without admission", "turned off"],
)
async def test_gpus_without_any_agent_are_correct_where_sharing_is_off(
    tmp_path: Path, settings: dict[str, str], state: Severity
) -> None:
    found = (await examined(tmp_path, cluster_of(gpu_node("a"), gpu_node("b")), **settings))["gpus"]

    said = "2 nodes have GPUs; no agents: whole GPUs are counted from node labels, none can be shared"
    assert (found.state, found.message) == (state, said)
    if state is Severity.WARNING:
        assert "get pods -A -l app.kubernetes.io/name=leeboard-agent" in found.fix
        assert "is agent.enabled true" in found.fix
        assert "agent.allNodes=true" in found.fix


async def test_gpu_nodes_whose_agents_report_no_problem_are_one_line(tmp_path: Path) -> None:
    found = await examined(tmp_path, cluster_of(gpu_node("a"), agents=(told("a"),)), **SHARES)

    assert [name for name in found if name.startswith("gpu")] == ["gpus"]
    assert found["gpus"].state is Severity.OK


@pytest.mark.parametrize(
    "agent", [told("a", minutes_ago=11), told("a", observedAt="soon"), {"metadata": {"name": "a"}}]
)
async def test_a_silent_agent_is_named_and_its_old_report_no_longer_counts(
    tmp_path: Path, agent: dict[str, Any]
) -> None:
    old = agent | {"status": agent.get("status", {}) | {"message": "no driver"}}

    found = await examined(tmp_path, cluster_of(gpu_node("a"), agents=(old,)))

    assert found["gpu-agents"].state is Severity.WARNING
    assert found["gpu-agents"].message == (
        "agents have been silent for more than 10 min, so no further GPU is shared on: a"
    )
    assert "gpu-driver" not in found


async def test_an_agent_without_a_first_report_is_not_silent(tmp_path: Path) -> None:
    found = await examined(tmp_path, cluster_of(gpu_node("a"), agents=({"metadata": {"name": "a"}},)))

    assert "gpu-agents" not in found
    assert found["gpus"].message.startswith("1 node has GPUs; no agents")


async def test_an_agent_may_be_silent_for_as_long_as_the_settings_say(tmp_path: Path) -> None:
    cluster = cluster_of(gpu_node("a"), agents=(told("a", minutes_ago=11),))

    assert "gpu-agents" not in await examined(tmp_path, cluster, agent_ttl_s="3600")


async def test_problems_of_driver_and_kubelet_are_shown_once_for_all_like_nodes(tmp_path: Path) -> None:
    silent = {"answers": False, "reason": "no such file"}
    agents = (told("a", message="no driver is loaded"), told("b", kubelet=silent), told("c", kubelet=silent))

    found = await examined(tmp_path, cluster_of(*map(gpu_node, "abc"), agents=agents))

    assert found["gpu-driver"].message == "a: no driver is loaded"
    assert found["gpu-kubelet"].message == (
        "the kubelet does not report which pods have which GPUs, so none can be shared on b, c: no such file"
    )
    assert found["gpu-kubelet"].fix == "is agent.kubeletFolder the folder of the kubelet there?"


def device(uuid: str, health: str = "Unhealthy", **more: str) -> dict[str, str]:
    return {"uuid": uuid, "health": health, **more}


async def test_unschedulable_devices_are_named_with_their_reason(tmp_path: Path) -> None:
    xid = device("GPU-1", healthReason="it has reported XID 79")
    agents = (
        told("a", devices=[device("GPU-0", "Healthy"), {"uuid": "GPU-9"}, xid]),
        told("b", devices=[device("GPU-2", "Unknown")]),
    )

    found = (await examined(tmp_path, cluster_of(*map(gpu_node, "ab"), agents=agents)))["gpu-health"]

    assert found.state is Severity.WARNING
    assert found.message == (
        "2 GPUs take no new work: a GPU-1 Unhealthy (it has reported XID 79), b GPU-2 Unknown (no reason given)"
    )


async def test_of_many_unschedulable_devices_a_few_are_named(tmp_path: Path) -> None:
    agent = told("a", devices=[device(f"GPU-{number}", healthReason="lost") for number in range(8)])

    found = (await examined(tmp_path, cluster_of(gpu_node("a"), agents=(agent,))))["gpu-health"]

    assert found.message.startswith("8 GPUs take no new work: a GPU-0 Unhealthy (lost), ")
    assert found.message.endswith("a GPU-2 Unhealthy (lost) and 5 more")


@pytest.mark.parametrize("why", ["message", "observedAt"])
async def test_devices_of_an_agent_that_cannot_read_them_are_not_shown_one_by_one(tmp_path: Path, why: str) -> None:
    agent = told("a", devices=[device("GPU-0", "Unknown")])
    agent["status"][why] = "the driver hangs"

    assert "gpu-health" not in await examined(tmp_path, cluster_of(gpu_node("a"), agents=(agent,)))


@pytest.mark.parametrize(("replicas", "is_told"), [("4", True), ("1", False), ("0", False)])
async def test_nodes_whose_device_plugin_shares_gpus_itself_are_reported(
    tmp_path: Path, replicas: str, *, is_told: bool
) -> None:
    cluster = cluster_of(gpu_node("a"), gpu_node("b", **{"nvidia.com/gpu.replicas": replicas}))

    found = await examined(tmp_path, cluster)

    assert ("gpu-replicas" in found) is is_told
    if is_told:
        assert found["gpu-replicas"].message.endswith("so no pod gets a part of one there: b")
    assert "gpu-replicas" not in await examined(tmp_path, cluster, gpu_sharing="false")


# Prerequisites of sharing


async def test_missing_prerequisites_of_reservation_pods_are_named(tmp_path: Path) -> None:
    cluster = cluster_of(gpu_node("a"))
    cluster.set_items(CLASSES)
    del cluster.objects[RESERVATIONS]

    found = (await examined(tmp_path, cluster, **SHARES))["gpu-sharing"]

    assert found.state is Severity.BROKEN
    assert found.message == (
        "there is no namespace kai-resource-reservation and no PriorityClass leeboard-reservation,"
        " so pods that request a part of a GPU wait"
    )


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (SHARES, Severity.BROKEN),
        ({}, Severity.WARNING),
        ({"scheduler_lease": "ns/lease"}, None),
        (SHARES | {"gpu_sharing": "false"}, None),
    ],
    ids=["surely shared", "not known", "without admission", "turned off"],
)
async def test_missing_prerequisites_of_sharing_are_shown_only_where_sharing_is_on(
    tmp_path: Path, settings: dict[str, str], state: Severity | None
) -> None:
    cluster = cluster_of(gpu_node("a"))
    cluster.set_items(CLASSES)

    found = await examined(tmp_path, cluster, **settings)

    assert (found["gpu-sharing"].state if "gpu-sharing" in found else None) is state


async def test_the_missing_right_of_leeboard_to_read_namespaces_is_no_fault(tmp_path: Path) -> None:
    cluster = cluster_of(gpu_node("a"))
    cluster.forbidden.add(RESERVATIONS)
    cluster.objects.pop(RESERVATIONS)

    assert "gpu-sharing" not in await examined(tmp_path, cluster, **SHARES)


async def test_rights_that_only_some_forms_need_are_not_missed_where_the_form_is_unknown(tmp_path: Path) -> None:
    cluster = FakeCluster(denied={"create  pods"})

    assert (await examined(tmp_path, cluster, **SHARES))["rights"].state is Severity.BROKEN
    unknown = (await examined(tmp_path, cluster))["rights"]
    assert unknown.state is Severity.OK
    assert "those of optional parts were not checked" in unknown.message
    assert (await examined(tmp_path, cluster, scheduler_lease="ns/lease", gpu_sharing="false"))[
        "rights"
    ].state is Severity.OK


# The runtime of pods with GPUs

RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"


async def test_a_runtime_class_that_does_not_exist_is_named_with_what_to_do(tmp_path: Path) -> None:
    cluster = cluster_of(gpu_node("a"))

    found = (await examined(tmp_path, cluster, gpu_runtime_class="nvidia"))["gpu-runtime"]

    assert found.state is Severity.BROKEN
    assert found.message == "there is no RuntimeClass nvidia, so no managed pod that requests GPUs can be created"
    assert found.fix.startswith("create it (the GPU operator's is called nvidia), or set admission.gpuRuntimeClass to")


@pytest.mark.parametrize("settings", [{}, {"gpu_runtime_class": "nvidia", "scheduler_lease": "ns/lease"}], ids=str)
async def test_a_runtime_class_that_no_pod_gets_is_not_checked(tmp_path: Path, settings: dict[str, str]) -> None:
    assert "gpu-runtime" not in await examined(tmp_path, cluster_of(gpu_node("a")), **settings)


async def test_a_runtime_class_that_exists_or_may_not_be_read_is_no_fault(tmp_path: Path) -> None:
    there, unseen = cluster_of(gpu_node("a")), cluster_of(gpu_node("a"))
    there.objects[RUNTIME_CLASS] = {"metadata": {"name": "nvidia"}}
    unseen.forbidden.add(RUNTIME_CLASS)

    for cluster in (there, unseen):
        assert "gpu-runtime" not in await examined(tmp_path, cluster, gpu_runtime_class="nvidia", **SHARES)
