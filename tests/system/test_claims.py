"""GPUs that pods get by ResourceClaims: queues, gangs, reclaim and shared claims count them like all other GPUs."""

from collections.abc import Iterator
from itertools import count
from random import Random

import httpx
import pytest

from tests.system.api import DEFAULT_PODS, PODS, RUN_FOR, Api, Object, gang, gpu_node, pod, pod_group, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.dra_driver import (
    CLAIMS,
    DRIVER,
    GPU_CLASS,
    H100,
    L40S,
    MIG_CLASS,
    GpuModel,
    device_classes,
    device_request,
    device_taint_rule,
    devices_of,
    partitioned_gpu,
    publish,
    resource_claim,
    resource_claim_template,
    resource_slices,
    whole_gpus,
    with_claims,
)
from tests.system.features import HAS_DEVICE_FEATURES, TAINT_RULES
from tests.system.forms import Deployed, Form, deployed
from tests.system.waiting import eventually

_numbers = count()


@pytest.fixture(scope="module")
def leeboard(session_bed: Bed, session_api: Api) -> Iterator[Deployed]:
    """Leeboard and its kube-scheduler as shipped; pods that wait are held."""
    with deployed(session_bed, session_api, Form.HELD, PLAIN_SCHEDULER) as running:
        yield running


@pytest.fixture
def cluster(leeboard: Deployed, bed: Bed, api: Api) -> Api:
    """The cluster with the driver's classes, one template for each number of GPUs, and no nodes."""
    assert leeboard.bed is bed
    for item in documents(DEFAULT_QUEUES):
        api.apply(item)
    api.create_all(device_classes())
    for gpus in (1, 2, 4):
        api.create(resource_claim_template(f"gpus-{gpus}", device_request(count=gpus)))
    return api


def add_node(api: Api, gpus: int, *, model: GpuModel = H100) -> str:
    """Create a node whose GPUs only claims can get."""
    name = f"dra{next(_numbers):03}"
    api.create(gpu_node(name, gpus=0))
    publish(api, resource_slices(name, whole_gpus(name, gpus, model)))
    return name


def claiming(name: str, gpus: int = 1, **more: object) -> Object:
    """Build a pod that gets its GPUs by a claim from a template."""
    return with_claims(pod(name, gpus=0, **more), templates=[f"gpus-{gpus}"])  # type: ignore[arg-type] # free-form


def held(leeboard: Deployed, name: str) -> float:
    """Return how many GPUs a queue holds, as Leeboard says."""
    (found,) = (one for one in seen(leeboard, "queues")["items"] if one["name"] == name)
    allocated: int = found["allocated"]["gpuMilli"]
    return allocated / 1000


def seen(leeboard: Deployed, path: str) -> Object:
    """Return an answer of the read API."""
    answer = httpx.get(f"{leeboard.operations}/api/v1/{path}", headers=leeboard.bed.reading(), timeout=5.0)
    found: Object = answer.raise_for_status().json()
    return found


def holders(leeboard: Deployed, node: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the claims that hold the devices of a node, with their pods, as Leeboard says."""
    devices = seen(leeboard, f"gpus/{node}")["claimDevices"]
    return [(each["name"], tuple(each["pods"])) for device in devices for each in device["claims"]]


def given(api: Api) -> list[tuple[str, str]]:
    """Return the pool and the name of every device that is allocated."""
    return sorted(device for one in api.items(CLAIMS) for device in devices_of(one))


def says(leeboard: Deployed, name: str, reason: str) -> str:
    """Wait until a pod waits for this reason; return the sentence."""
    found = eventually(
        lambda: leeboard.why(name), until=lambda why: why.get("reason") == reason, within_s=20, what=f"{name}: {reason}"
    )
    message: str = found["sentence"]
    return message


def test_queue_pays_for_claims_and_its_limit_holds(cluster: Api, leeboard: Deployed) -> None:
    add_node(cluster, 4)
    cluster.create(queue("small", deserved=1, limit=2))
    cluster.create_all(claiming(f"p{index}", queue="small") for index in range(2))
    cluster.wait_for_phase("Running", "p0", "p1", within_s=20)

    cluster.create(claiming("p2", queue="small"))

    assert "limit of 2 GPUs" in says(leeboard, "p2", "OverLimit")
    assert (held(leeboard, "small"), len(given(cluster))) == (2, 2)

    cluster.delete_now(f"{DEFAULT_PODS}/p0")
    cluster.wait_for_phase("Running", "p2", within_s=20)
    eventually(lambda: held(leeboard, "small"), until=lambda gpus: gpus == 2, within_s=10, what="two GPUs are paid")


def test_gang_over_claims_starts_whole_or_waits(cluster: Api, leeboard: Deployed) -> None:
    for _ in range(2):
        add_node(cluster, 4)
    members = [claiming(f"big-{index}", queue="default-queue", gang="big") for index in range(9)]
    cluster.create_all([pod_group("big", min_member=9, queue="default-queue"), *members])
    assert "8 of 9" in says(leeboard, "big-0", "GangDoesNotFit")
    assert given(cluster) == []

    fits = [claiming(f"fit-{index}", gpus=2, queue="default-queue", gang="fit") for index in range(4)]
    cluster.create_all([pod_group("fit", min_member=4, queue="default-queue"), *fits])

    cluster.wait_for_phase("Running", *(f"fit-{index}" for index in range(4)), within_s=30)
    assert len(given(cluster)) == 8


def test_claims_are_reclaimed_for_the_queue_that_deserves_the_gpus(cluster: Api, leeboard: Deployed) -> None:
    add_node(cluster, 4)
    cluster.create_all([queue("lender", deserved=2), queue("borrower", deserved=2)])
    cluster.create_all(claiming(f"b{index}", queue="borrower") for index in range(4))
    cluster.wait_for_phase("Running", *(f"b{index}" for index in range(4)), within_s=30)

    cluster.create(claiming("mine", gpus=2, queue="lender"))

    cluster.wait_for_phase("Running", "mine", within_s=60)
    eventually(
        lambda: (held(leeboard, "lender"), held(leeboard, "borrower")),
        until=lambda gpus: gpus == (2, 2),
        within_s=20,
        what="each queue holds what it deserves",
    )


def test_pod_gets_the_node_whose_devices_its_selector_accepts(cluster: Api, leeboard: Deployed) -> None:
    small, large = add_node(cluster, 2, model=L40S), add_node(cluster, 2, model=H100)
    wanted = {
        "by-name": f"device.attributes['{DRIVER}'].productName.lowerAscii().contains('h100')",
        "by-memory": f"device.capacity['{DRIVER}'].memory.compareTo(quantity('50Gi')) < 0",
        "nothing": f"device.attributes['{DRIVER}'].productName == 'none'",
    }
    for name, selector in wanted.items():
        cluster.create(resource_claim_template(name, device_request(GPU_CLASS, selector)))
        cluster.create(with_claims(pod(name, gpus=0, queue="default-queue"), templates=[name]))

    cluster.wait_for_phase("Running", "by-name", "by-memory", within_s=30)

    assert "not the devices that its ResourceClaims ask for" in says(leeboard, "nothing", "NoNodeFits")
    bound = cluster.bound_pods()
    assert (bound["by-name"], bound["by-memory"]) == (large, small)


def test_claim_made_by_hand_is_shared_paid_once_and_outlives_its_pods(cluster: Api, leeboard: Deployed) -> None:
    node = add_node(cluster, 2)
    labels = {"kai.scheduler/queue": "default-queue"}
    cluster.create(resource_claim("mine", device_request(count=2), labels=labels))
    cluster.create_all(
        with_claims(pod(name, gpus=0, queue="default-queue"), claims=["mine"]) for name in ("one", "two")
    )
    cluster.wait_for_phase("Running", "one", "two", within_s=30)

    cluster.create(claiming("other", queue="default-queue"))
    says(leeboard, "other", "NoNodeFits")
    assert f"(1 GPU of DeviceClass {GPU_CLASS})" in seen(leeboard, "why/default/other")["why"]["sentence"]
    assert held(leeboard, "default-queue") == 2
    assert holders(leeboard, node) == [("mine", ("one", "two"))] * 2
    for name in ("one", "two"):
        cluster.delete_now(f"{DEFAULT_PODS}/{name}")

    cluster.wait_for_phase("Running", "other", within_s=30)


def test_pod_waits_until_its_claim_exists(cluster: Api, leeboard: Deployed) -> None:
    add_node(cluster, 1)
    cluster.create(with_claims(pod("early", gpus=0, queue="default-queue"), claims=["late"]))
    assert "ResourceClaim 'late'" in says(leeboard, "early", "NotConsidered")

    cluster.create(resource_claim("late", labels={"kai.scheduler/queue": "default-queue"}))

    cluster.wait_for_phase("Running", "early", within_s=30)


@pytest.mark.skipif(not HAS_DEVICE_FEATURES, reason="this version of Kubernetes has no extended resources of classes")
def test_pods_that_name_nvidia_gpu_run_on_nodes_of_both_kinds(cluster: Api, leeboard: Deployed) -> None:
    dra = add_node(cluster, 2)
    plugin = f"plugin{next(_numbers):03}"
    cluster.create(gpu_node(plugin, gpus=2))
    cluster.create_all(pod(f"n{index}", gpus=1, queue="default-queue") for index in range(4))
    cluster.wait_for_phase("Running", *(f"n{index}" for index in range(4)), within_s=30)

    assert sorted(cluster.bound_pods().values()) == sorted([dra, dra, plugin, plugin])
    cluster.create(claiming("fifth", queue="default-queue"))
    says(leeboard, "fifth", "NoNodeFits")
    assert held(leeboard, "default-queue") == 4

    (first, *_) = (name for name, node in cluster.bound_pods().items() if node == dra)
    cluster.delete_now(f"{DEFAULT_PODS}/{first}")
    cluster.wait_for_phase("Running", "fifth", within_s=30)


@pytest.mark.skipif(not HAS_DEVICE_FEATURES, reason="this version of Kubernetes has no extended resources of classes")
def test_gang_that_names_nvidia_gpu_starts_where_a_class_stands_for_it(cluster: Api, leeboard: Deployed) -> None:
    add_node(cluster, 2)
    cluster.create(gpu_node(f"plugin{next(_numbers):03}", gpus=2))

    cluster.create_all(gang("both", size=4, queue="default-queue"))

    cluster.wait_for_phase("Running", *(f"both-{index}" for index in range(4)), within_s=30)
    assert held(leeboard, "default-queue") == 4


@pytest.mark.skipif(not HAS_DEVICE_FEATURES, reason="this version of Kubernetes has no partitions of devices")
def test_partitions_of_a_gpu_are_counted(cluster: Api, leeboard: Deployed) -> None:
    node = f"dra{next(_numbers):03}"
    cluster.create(gpu_node(node, gpus=0))
    devices, counters = partitioned_gpu(node)
    publish(cluster, resource_slices(node, devices, counter_sets=[counters]))
    selector = f"device.attributes['{DRIVER}'].profile.startsWith('1g')"
    cluster.create(resource_claim_template("small", device_request(MIG_CLASS, selector)))
    parts = [with_claims(pod(f"m{index}", gpus=0, queue="default-queue"), templates=["small"]) for index in range(8)]

    cluster.create_all(parts)

    eventually(lambda: len(cluster.bound_pods()), until=lambda number: number == 7, within_s=30, what="seven run")
    (waits,) = {f"m{index}" for index in range(8)} - cluster.bound_pods().keys()
    says(leeboard, waits, "NoNodeFits")
    assert held(leeboard, "default-queue") == 7
    cluster.create(claiming("whole", queue="default-queue"))
    says(leeboard, "whole", "NoNodeFits")

    cluster.empty(PODS)
    cluster.create(claiming("whole-again", queue="default-queue"))
    cluster.wait_for_phase("Running", "whole-again", within_s=30)


@pytest.mark.skipif(not HAS_DEVICE_FEATURES, reason="this version of Kubernetes has no taints of devices")
def test_tainted_device_is_left_alone_until_its_taint_is_gone(cluster: Api, leeboard: Deployed) -> None:
    node = add_node(cluster, 1)
    cluster.create(device_taint_rule("sick", key="sick", effect="NoSchedule", pool=node))
    cluster.create(claiming("careful", queue="default-queue"))
    says(leeboard, "careful", "NoNodeFits")

    cluster.delete(f"{TAINT_RULES}/sick")

    cluster.wait_for_phase("Running", "careful", within_s=30)


def test_gang_over_claims_survives_a_kill_of_leeboard(cluster: Api, leeboard: Deployed) -> None:
    for _ in range(2):
        add_node(cluster, 4)
    members = [claiming(f"g-{index}", queue="default-queue", gang="g") for index in range(8)]
    cluster.create_all([pod_group("g", min_member=8, queue="default-queue"), *members])
    eventually(lambda: given(cluster), within_s=30, what="a claim is allocated", every_s=0.005)

    leeboard.bed.kill("leeboard")
    leeboard.start_leeboard()

    cluster.wait_for_phase("Running", *(f"g-{index}" for index in range(8)), within_s=60)
    leeboard.wait_until_ready()
    eventually(
        lambda: held(leeboard, "default-queue"), until=lambda gpus: gpus == 8, within_s=20, what="eight GPUs are paid"
    )


def test_books_equal_the_allocations_after_mixed_load(cluster: Api, leeboard: Deployed) -> None:
    for number in range(3):
        add_node(cluster, 4, model=(H100, L40S)[number % 2])
    # Neither borrows, so no pod is evicted: nothing would create it again.
    cluster.create_all([queue("left", deserved=12), queue("right", deserved=12)])
    chance = Random(24)
    for number in range(60):
        where = chance.choice(["left", "right"])
        seconds = {RUN_FOR: f"{chance.choice([1, 2, 3])}s"}
        cluster.create(claiming(f"x{number}", chance.choice([1, 1, 2, 4]), queue=where, annotations=seconds))

    eventually(
        lambda: {one["metadata"]["name"]: one["status"]["phase"] for one in cluster.items(DEFAULT_PODS)},
        until=lambda phases: len(phases) == 60 and set(phases.values()) == {"Succeeded"},
        within_s=300,
        what="all pods have run",
    )
    eventually(
        lambda: (held(leeboard, "left"), held(leeboard, "right"), given(cluster)),
        until=lambda seen: seen == (0, 0, []),
        within_s=60,
        what="nothing is held or allocated",
    )
