"""Pods that share GPUs: their placement, and the environment of their containers."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.api import Api, gang
from tests.system.bed import Bed
from tests.system.cluster import documents
from tests.system.machines import L4
from tests.system.shares import VISIBLE, devices, node_of
from tests.system.sharing import QUEUE, Ground, SharingCluster, ground, same_device, sharer, whole
from tests.system.waiting import eventually

MANIFESTS = Path(__file__).parent / "manifests"
NOTHING: dict[str, str] = {}


@pytest.fixture(scope="module")
def running(session_bed: Bed, session_api: Api) -> Iterator[Ground]:
    with ground(session_bed, session_api) as running:
        yield running


@pytest.fixture
def cluster(running: Ground) -> Iterator[SharingCluster]:
    with running.cluster() as cluster:
        yield cluster


# -- placement


def test_two_halves_share_a_gpu_and_three_fifths_use_another(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)

    first, second = cluster.run(sharer("a", "0.5"), sharer("b", "0.5"))
    (third,) = cluster.run(sharer("c", "0.6"))

    assert same_device(first, second)
    assert not same_device(first, third)
    assert len(cluster.reservations()) == 2


def test_pod_with_a_whole_gpu_is_never_placed_on_a_shared_gpu(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=2)
    (part,) = cluster.run(sharer("part", "0.1"))
    (alone,) = cluster.run(whole("alone"))
    cluster.api.create(whole("waiting"))
    cluster.wait_for_why("waiting", "GPU")

    assert {*cluster.plugins.held_by(alone), *devices(part)} == {*cluster.plugins.uuids(node)}
    cluster.delete("part")

    (late,) = cluster.wait_until_run("waiting")
    assert cluster.plugins.held_by(late) == devices(part)


def test_gpu_share_waits_while_all_gpus_are_used_as_a_whole(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    cluster.run(whole("one"), whole("other"))
    cluster.api.create(sharer("part", "0.1"))
    cluster.wait_for_why("part", "GPU")
    assert not cluster.reservations()

    cluster.delete("one")

    cluster.wait_until_run("part")


def test_memory_is_shared_to_the_last_mib_that_counts(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=1, machine=L4)
    half, over = {"gpu-memory": "11500"}, {"gpu-memory": "11501"}

    (first,) = cluster.run(sharer("a", annotations=half))
    cluster.api.create(sharer("too-much", annotations=over))
    cluster.wait_for_why("too-much", "GPU")
    (second,) = cluster.run(sharer("b", annotations=half))

    assert same_device(first, second)
    assert cluster.sees(second)["main"]["GPU_MEMORY_MIB"] == "11500"


def test_fraction_and_memory_share_a_gpu(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2, machine=L4)

    pods = cluster.run(sharer("a", "0.5"), sharer("b", annotations={"gpu-memory": "11500"}))

    assert same_device(*pods)


def test_pod_gets_shares_of_two_different_gpus(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=2)
    cluster.run(sharer("there", "0.5"))

    (pair,) = cluster.run(sharer("pair", "0.5", annotations={"gpu-fraction-num-devices": "2"}))

    assert sorted(devices(pair)) == sorted(cluster.plugins.uuids(node))
    assert cluster.sees(pair)["main"][VISIBLE] == ",".join(devices(pair))
    assert len(cluster.reservations()) == 2


def test_gang_of_gpu_shares_runs_whole_or_not_at_all(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    group, *members = gang("crew", size=4, queue=QUEUE, gpus=0)
    for member in members:
        member["metadata"]["annotations"]["gpu-fraction"] = "0.5"
    cluster.api.create_all([group, *members])
    cluster.wait_for_why("crew-0", "Even empty, all nodes together hold at most 2 of 4 pods")
    assert not any(node_of(cluster.get(f"crew-{index}")) for index in range(4))

    cluster.add_gpu_nodes(1, gpus=1)

    crew = cluster.wait_until_run(*(f"crew-{index}" for index in range(4)))
    assert len({devices(one) for one in crew}) == 2


def test_reservation_pod_is_deleted_with_the_last_pod_that_shares_its_gpu(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=1)
    cluster.run(sharer("a", "0.5"), sharer("b", "0.5"))
    cluster.delete("a")
    cluster.run(sharer("c", "0.5"))
    assert len(cluster.reservations()) == 1

    cluster.delete("b", "c")

    cluster.wait_for_reservations(0, within_s=10)
    (uuid,) = cluster.plugins.uuids(node)
    eventually(lambda: not cluster.plugins.holder(uuid), within_s=10, what="the device is free")


# -- environment of containers


def test_container_that_shares_a_gpu_sees_its_device_its_share_and_its_memory(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=1)

    (made,) = cluster.run(sharer("a", "0.5"))

    assert cluster.sees(made) == {
        "main": {VISIBLE: cluster.plugins.uuids(node)[0], "GPU_PORTION": "0.50", "GPU_MEMORY_MIB": "40750"}
    }


def test_mps_client_gets_its_memory_limit(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    asked = {"mps": "true", "gpu-memory": "8192", "gpu-fraction-num-devices": "2"}

    (made,) = cluster.run(sharer("client", annotations=asked))

    assert cluster.sees(made)["main"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M,1=8192M"


@pytest.mark.parametrize(
    ("manifest", "sharing"),
    [
        ("gpu-fraction", "gpu-workload"),
        ("gpu-memory", "gpu-workload"),
        ("gpu-fraction-init-container", "gpu-init"),
        ("gpu-fraction-non-default-container", "gpu-workload"),
        ("gpu-fraction-mps", "gpu-workload"),
    ],
)
def test_manifest_gives_the_device_only_to_the_named_container(
    cluster: SharingCluster, manifest: str, sharing: str
) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=1)
    (item,) = documents(MANIFESTS / f"{manifest}.yaml")

    (made,) = cluster.run(item)

    visible = {name: seen.get(VISIBLE) for name, seen in cluster.sees(made).items()}
    assert visible == dict.fromkeys(visible, None) | {sharing: cluster.plugins.uuids(node)[0]}


# -- costs


def test_every_gpu_share_is_placed_on_one_of_two_gpu_nodes_among_300_at_the_first_attempt(
    cluster: SharingCluster,
) -> None:
    cluster.add_cpu_nodes(300)
    gpu_nodes = cluster.add_gpu_nodes(2, gpus=8)
    # An attempt before kube-scheduler has seen the nodes would fail, whatever Leeboard does.
    eventually(lambda: nodes_seen(cluster), until=lambda seen: seen == 302, within_s=30, what="all nodes are seen")
    attempts = attempts_by_result(cluster)

    made = cluster.run(*(sharer(f"half-{index}", "0.5") for index in range(32)))

    assert {node_of(one) for one in made} <= {*gpu_nodes}
    assert all(cluster.sees(one)["main"][VISIBLE] for one in made)
    assert len(cluster.reservations()) == 16
    assert attempts_by_result(cluster) - attempts == Counter(scheduled=32 + 16)


def nodes_seen(cluster: SharingCluster) -> float:
    """Return how many nodes kube-scheduler knows."""
    return cluster.told('scheduler_cache_size{type="nodes"}')


def attempts_by_result(cluster: SharingCluster) -> Counter[str]:
    """Count the scheduling attempts of kube-scheduler so far, of pods and reservation pods."""
    metric = 'scheduler_schedule_attempts_total{profile="kai-scheduler",result='
    return Counter(
        {result: int(cluster.told(f'{metric}"{result}"')) for result in ("scheduled", "unschedulable", "error")}
    )
