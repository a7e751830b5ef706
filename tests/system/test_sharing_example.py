"""The example of GPU sharing works as described."""

from collections.abc import Iterator

import pytest

from tests.system.api import PODS, Api, Object
from tests.system.bed import Bed
from tests.system.cluster import ROOT, documents
from tests.system.machines import RUNTIME_CLASS
from tests.system.rendered import policies_in_force
from tests.system.shares import VISIBLE, devices
from tests.system.sharing import SharingCluster, ground, same_device
from tests.system.waiting import eventually

EXAMPLE = ROOT / "deploy" / "examples" / "gpu-sharing.yaml"
REPLICA_SETS = "/apis/apps/v1/replicasets"


@pytest.fixture
def cluster(bed: Bed, api: Api) -> Iterator[SharingCluster]:
    api.apply(RUNTIME_CLASS)
    # In the strictest profile: none of our writes may be refused.
    with ground(bed, api) as running, policies_in_force(api, profile="secure"), running.cluster() as cluster:
        yield cluster
        api.empty(REPLICA_SETS)


def applied(api: Api, item: Object) -> list[Object]:
    """Create an object of the example, and return its pods once all of them run."""
    api.create(item | {"metadata": {"namespace": "default"} | item["metadata"]})
    app, number = item["metadata"]["name"], item["spec"].get("replicas", 1)

    def running() -> list[Object]:
        return [pod for pod in api.items(PODS, labelSelector=f"app={app}") if pod["status"]["phase"] == "Running"]

    return eventually(running, until=lambda seen: len(seen) == number, within_s=30, what=f"{app} runs")


def test_halves_share_a_gpu_and_each_container_gets_its_variables(cluster: SharingCluster, api: Api) -> None:
    cluster.add_gpu_nodes(1, gpus=4)

    halves, (by_memory,), (by_mps,) = (applied(api, item) for item in documents(EXAMPLE))

    assert same_device(*halves)
    assert cluster.sees(halves[0])["main"] == {
        VISIBLE: devices(halves[0])[0],
        "GPU_PORTION": "0.50",
        "GPU_MEMORY_MIB": "40750",
    }
    of_memory = cluster.sees(by_memory)
    assert of_memory["proxy"] == {VISIBLE: "void"}
    assert of_memory["model"] | {"GPU_PORTION": ""} == {
        VISIBLE: ",".join(devices(by_memory)),
        "GPU_PORTION": "",
        "GPU_MEMORY_MIB": "4096",
    }
    assert len(devices(by_memory)) == 2
    # Each reservation pod has the name of its GPU, so that KAI's tools can read it.
    told = eventually(
        lambda: {
            one["metadata"]["annotations"].get("run.ai/reserve_for_gpu_index", "") for one in cluster.reservations()
        },
        until=lambda seen: "" not in seen,
        within_s=30,
        what="reservations are told their GPUs",
    )
    assert told == {*devices(halves[0]), *devices(by_memory), *devices(by_mps)}
    assert cluster.sees(by_mps)["main"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20375M"
