"""GPUs in the read API and in the metrics, and the picture of their links."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from inline_snapshot import snapshot
from prometheus_client.parser import text_string_to_metric_families

from app.model import links
from app.model.device import DeviceUuid, Health
from app.model.layout import Layout
from app.model.names import NodeName
from app.model.occupancy import NodeUse, SharedMemory
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody
from tests.occupied import DGX1, device, layout, node_use, occupant, on, shared, switched
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import HttpReply, get, serving

MIB = 1 << 20
HALF = occupant("train", portion=0.5, promised_mib=40_000, used_mib=39_100)


async def asked(path: str, *gpus: NodeUse) -> HttpReply:
    async with serving(
        operations.application(FakeInspect(gpus=gpus), Metrics(), FakePulse(), callers=Anybody())
    ) as served:
        return await served.ask(get(path))


async def scraped(inspect: FakeInspect) -> dict[tuple[str, ...], float]:
    async with serving(operations.application(inspect, Metrics(), FakePulse(), callers=Anybody())) as served:
        text = (await served.ask(get("/metrics"))).body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name, *one.labels.values()): one.value for one in samples if "gpu" in one.name}


def two() -> NodeUse:
    """Build a node of two linked devices, one of them shared."""
    devices = (
        on(device(0, used_mib=39_200, numa_node=1), HALF, reason="it is full of promises"),
        on(device(1), whole=[occupant("llm")]),
    )
    late = shared("uid-late-0", occupant("late", portion=0.25, promised_mib=20_000), state="opening")
    return node_use("a", *devices, layout=switched(2, 4), opening=[late], failures=("nvmlSomething: Not Supported",))


async def test_a_node_is_shown_with_its_devices_pods_and_links() -> None:
    assert (await asked("/api/v1/gpus/a", two())).json == snapshot(
        {
            "apiVersion": "leeboard.dev/v1alpha1",
            "name": "a",
            "driverVersion": "550.54.15",
            "heardSecondsAgo": 12,
            "trusted": True,
            "kubeletAnswers": True,
            "kubeletReason": None,
            "message": None,
            "failures": ["nvmlSomething: Not Supported"],
            "reasons": [],
            "devices": [
                {
                    "uuid": "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd",
                    "index": 0,
                    "product": "NVIDIA H100 80GB HBM3",
                    "health": "Healthy",
                    "healthReason": None,
                    "free": False,
                    "memory": {"totalMib": 81559, "usedMib": 39200, "foreignMib": 0, "promisedMib": 40000},
                    "mig": {"enabled": False, "profiles": []},
                    "numaNode": 1,
                    "pods": [],
                    "shared": [
                        {
                            "name": "group-0",
                            "state": "ready",
                            "reason": "it is full of promises",
                            "promisedMib": 40000,
                            "pods": [
                                {
                                    "namespace": "team",
                                    "name": "train",
                                    "uid": "uid-train",
                                    "portionPpm": 500000,
                                    "promisedMib": 40000,
                                    "usedMib": 39100,
                                }
                            ],
                        }
                    ],
                },
                {
                    "uuid": "GPU-00000001-aaaa-bbbb-cccc-dddddddddddd",
                    "index": 1,
                    "product": "NVIDIA H100 80GB HBM3",
                    "health": "Healthy",
                    "healthReason": None,
                    "free": False,
                    "memory": {"totalMib": 81559, "usedMib": 0, "foreignMib": 0, "promisedMib": 81559},
                    "mig": {"enabled": False, "profiles": []},
                    "numaNode": None,
                    "pods": [
                        {
                            "namespace": "team",
                            "name": "llm",
                            "uid": "uid-llm",
                            "portionPpm": 1000000,
                            "promisedMib": 81559,
                            "usedMib": None,
                        }
                    ],
                    "shared": [],
                },
            ],
            "opening": [
                {
                    "name": "uid-late-0",
                    "state": "opening",
                    "reason": None,
                    "promisedMib": 20000,
                    "pods": [
                        {
                            "namespace": "team",
                            "name": "late",
                            "uid": "uid-late",
                            "portionPpm": 250000,
                            "promisedMib": 20000,
                            "usedMib": None,
                        }
                    ],
                }
            ],
            "reserved": [],
            "claimDevices": [],
            "kind": "GpuNodeState",
            "links": {
                "scores": [[0, 410], [410, 0]],
                "nvlinks": [[0, 4], [4, 0]],
                "paths": [["X", "NV4"], ["NV4", "X"]],
                "cliques": [[0, 1]],
            },
        }
    )


async def test_all_nodes_are_listed_with_the_same_devices_and_without_links() -> None:
    one, many = (await asked("/api/v1/gpus/a", two())).json, (await asked("/api/v1/gpus", two(), node_use("b"))).json

    assert isinstance(one, dict)
    assert isinstance(many, dict)
    assert (many["kind"], [each["name"] for each in many["items"]]) == ("GpuNodeStateList", ["a", "b"])
    assert many["items"][0] == {key: one[key] for key in one if key not in {"apiVersion", "kind", "links"}}


async def test_an_unknown_value_is_null() -> None:
    node = node_use("a", on(device(0, used_mib=None), occupant("p")), driver_version="", kubelet_answers=False)

    reply = (await asked("/api/v1/gpus/a", node)).json

    assert isinstance(reply, dict)
    assert (reply["links"], reply["driverVersion"], reply["kubeletAnswers"]) == (None, None, False)
    assert reply["devices"][0]["memory"]["usedMib"] is reply["devices"][0]["shared"][0]["pods"][0]["usedMib"] is None


async def test_an_unknown_node_is_a_problem_that_says_which_call_lists_the_nodes() -> None:
    reply = await asked("/api/v1/gpus/b", two())

    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    assert isinstance(reply.json, dict)
    assert "no agent has reported GPUs on a node 'b'; GET /api/v1/gpus lists" in reply.json["detail"]


# -- metrics


async def test_devices_are_counted_by_health_and_every_health_is_listed() -> None:
    bad = on(device(2, health=Health.UNHEALTHY))

    samples = await scraped(FakeInspect(gpus=(two(), node_use("b", bad))))

    health = {key[1]: value for key, value in samples.items() if key[0] == "leeboard_gpus"}
    assert health == {"Healthy": 2, "Unhealthy": 1, "Unknown": 0}


async def test_memory_of_shared_devices_is_given_in_bytes_and_unmeasured_memory_is_left_out() -> None:
    measured = SharedMemory(
        node=NodeName("a"), device=DeviceUuid("GPU-1"), total_mib=80_000, promised_mib=40_000, used_mib=39_200
    )
    unmeasured = replace(measured, node=NodeName("b"), device=DeviceUuid("GPU-2"), used_mib=None)

    samples = await scraped(FakeInspect(shared=(measured, unmeasured)))

    assert {key: value / MIB for key, value in samples.items() if key[0].startswith("leeboard_shared_gpu")} == {
        ("leeboard_shared_gpu_memory_total_bytes", "GPU-1", "a"): 80_000,
        ("leeboard_shared_gpu_memory_promised_bytes", "GPU-1", "a"): 40_000,
        ("leeboard_shared_gpu_memory_used_bytes", "GPU-1", "a"): 39_200,
        ("leeboard_shared_gpu_memory_total_bytes", "GPU-2", "b"): 80_000,
        ("leeboard_shared_gpu_memory_promised_bytes", "GPU-2", "b"): 40_000,
    }


# -- links


def picture(machine: Layout) -> list[str]:
    every = range(machine.size)
    return [" ".join(links.path(machine, one, other) for other in every) for one in every]


def test_a_pair_is_shown_by_its_nvlinks_or_else_by_its_pcie_path() -> None:
    worth = (10, 20, 30, 40, 50, 60, 0)
    machine = Layout(((0, *worth), *((score, *(0 for _ in worth)) for score in worth)))

    assert picture(machine)[0] == "X SYS NODE PHB PXB PIX PSB ?"
    assert picture(switched(2, 18)) == ["X NV18", "NV18 X"]


@pytest.mark.parametrize(
    ("machine", "cliques"),
    [
        (switched(8), ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (DGX1, ((0, 1, 2, 3), (4, 5, 6, 7))),
        (layout([[0, 4, 0], [4, 0, 0], [0, 0, 0]]), ((0, 1),)),
        (switched(4, 0), ()),
    ],
    ids=["NVSwitch", "DGX-1", "one bridge", "PCIe"],
)
def test_cliques_are_fully_connected_sets(machine: Layout, cliques: object) -> None:
    assert links.cliques(machine) == cliques


@pytest.mark.parametrize("seed", range(20))
def test_no_device_is_in_two_cliques_and_no_clique_lacks_a_link(seed: int) -> None:
    random, size = Random(seed), 12
    pairs = {pair: random.choice((0, 1, 6)) for pair in combinations(range(size), 2)}
    machine = layout(
        [[pairs.get((min(one, other), max(one, other)), 0) for other in range(size)] for one in range(size)]
    )

    found = links.cliques(machine)

    assert len({one for clique in found for one in clique}) == sum(map(len, found))
    assert all(pairs[pair] for clique in found for pair in combinations(clique, 2))
