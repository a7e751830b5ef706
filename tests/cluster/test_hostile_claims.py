"""Claims that a tenant writes to get devices for nothing, to hold what is free, or to make work."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.cluster import decode
from app.model.names import PodUid
from app.model.pod import Pod
from tests.cluster.dra_objects import DRIVER, H100, claim, device_class, gpu, request, resource_slice
from tests.cluster.test_device_claims import Cluster

CLASS = "gpu.example.com"
SPECIAL = {"resource.kubernetes.io/extended-resource-claim": "true"}


@pytest.fixture
def cluster() -> Cluster:
    """Run a node with four GPUs of one model, and one with four of another."""
    made = Cluster("a", "h")
    made.show_slice(resource_slice("a", [gpu(f"gpu-{number}") for number in range(4)]))
    made.show_slice(resource_slice("h", [gpu(f"gpu-{number}", H100) for number in range(4)]))
    return made


def four(**more: Any) -> dict[str, Any]:
    return claim("c", request(CLASS, count=4), on="a", devices=[f"gpu-{number}" for number in range(4)], **more)


def test_many_requests_of_many_claims_are_few_conditions(cluster: Cluster) -> None:
    names = [f"c{number}" for number in range(32)]
    for number, name in enumerate(names):
        requests = [request(CLASS, count=1 + number * 32 + each, name=f"r{each}") for each in range(32)]
        cluster.show_claim(claim(name, *requests, owner="uid-p"))

    waiting = cluster.show_pod("p", *names)

    assert waiting.constraint.size <= 8
    assert waiting.charge(1).gpu_milli == 1000 * sum(range(1, 1025))


def test_several_requests_fit_on_each_node_that_has_the_devices(cluster: Cluster) -> None:
    requests = [request(CLASS, count=count, name=f"r{count}") for count in (1, 2, 3)]
    cluster.show_claim(claim("c", *requests, owner="uid-p"))

    assert cluster.fitting(cluster.show_pod("p", "c")) == ["a", "h"]


def test_claim_of_a_pod_that_is_gone_is_held_by_another_pod_that_uses_it(cluster: Cluster) -> None:
    cluster.show_claim(four(owner="uid-p"))
    for name in ("p", "b"):
        cluster.show_pod(name, "c", on="a")
    cluster.cache.delete_pod(PodUid("uid-p"))

    assert (cluster.free("a"), cluster.free_later("a")) == (0, 0)


@pytest.mark.parametrize("annotations", [{}, SPECIAL])
def test_claim_is_not_free_because_it_names_a_pod_of_others_as_its_owner(
    cluster: Cluster, annotations: Mapping[str, str]
) -> None:
    stolen = four(owner="uid-p", namespace="evil")
    stolen["metadata"]["annotations"] = dict(annotations)
    cluster.show_claim(stolen)
    cluster.show_pod("p", on="a", gpus=0)

    assert cluster.free("a") == 0


@pytest.mark.parametrize("owner", ["", "uid-p"])
def test_annotation_of_extended_resources_makes_no_claim_free(cluster: Cluster, owner: str) -> None:
    asked = claim("c", request(CLASS, count=4), owner=owner, labels={"kai.scheduler/queue": "q"})
    asked["metadata"]["annotations"] = SPECIAL
    cluster.show_claim(asked)
    cluster.show_pod("p", "c")
    waiting = cluster.asked()
    held = four(owner=owner, labels={"kai.scheduler/queue": "q"})
    held["metadata"]["annotations"] = SPECIAL
    cluster.show_claim(held)
    cluster.show_pod("p", "c", on="a")

    assert (waiting, cluster.free("a"), cluster.paid()) == (4000, 0, 4000)


def test_excessive_owners_keep_no_allocation(cluster: Cluster) -> None:
    cluster.show_claim(four())
    released = claim("c", request(CLASS, count=4))
    released["metadata"]["ownerReferences"] = [{"kind": "ConfigMap", "name": "x", "uid": str(n)} for n in range(300)]

    cluster.show_claim(released)

    assert (cluster.free("a"), cluster.free_later("a")) == (4000, 4000)


def test_allocation_of_a_claim_with_a_problem_counts(cluster: Cluster) -> None:
    odd = request(CLASS, count=4, capacity={"requests": {"memory": "1e30"}})
    cluster.show_claim(claim("c", odd, owner="uid-p"))
    waiting = cluster.show_pod("p", "c")
    cluster.show_claim(claim("c", odd, owner="uid-p", on="a", devices=[f"gpu-{number}" for number in range(4)]))

    assert waiting.problem.startswith("ResourceClaim 'c': capacity cannot be read")
    assert cluster.free("a") == 0


@pytest.mark.parametrize(
    "selector",
    [
        f"has(device.attributes['{DRIVER}'].uuid)",
        f"'uuid' in device.attributes['{DRIVER}']",
        "'x.org' in device.attributes",
    ],
)
@pytest.mark.parametrize("name", [CLASS, "fast.example.com"])
def test_selector_on_what_no_model_has_is_paid(cluster: Cluster, name: str, selector: str) -> None:
    cluster.show_class(device_class("fast.example.com", f"device.driver == '{DRIVER}'"))
    cluster.show_claim(claim("c", request(name, selector, count=4), owner="uid-p"))

    waiting = cluster.show_pod("p", "c")

    assert (waiting.charge(1).gpu_milli, cluster.fitting(waiting)) == (4000, ["a", "h"])


def test_request_that_no_device_fulfils_is_paid_by_its_class(cluster: Cluster) -> None:
    cluster.show_class(device_class("fast.example.com", f"device.driver == '{DRIVER}'"))
    cluster.show_claim(claim("c", request("fast.example.com", "false", count=2), owner="uid-p"))

    assert cluster.show_pod("p", "c").charge(1).gpu_milli == 2000


def asks(pod: Pod) -> tuple[int, Sequence[tuple[str, int]]]:
    return pod.request.gpu_milli, pod.scalars


def test_class_that_comes_after_the_pod_counts(cluster: Cluster) -> None:
    before = asks(cluster.show_pod("p", scalars=(("example.com/gpu", 2),)))
    cluster.show_class(device_class("late.example.com", f"device.driver == '{DRIVER}'", extended="example.com/gpu"))
    found = cluster.cache.pods.get(PodUid("uid-p"))
    assert found is not None
    during = asks(found)
    cluster.cache.follow_claims(cluster.cache.claims.drop_class("late.example.com"))
    after = cluster.cache.pods.get(PodUid("uid-p"))
    assert after is not None

    assert (before, during, asks(after)) == ((0, (("example.com/gpu", 2),)), (2000, ()), (0, (("example.com/gpu", 2),)))


def test_all_devices_follow_the_size_of_the_largest_node(cluster: Cluster) -> None:
    cluster.show_claim(claim("c", request(CLASS, allocationMode="All"), owner="uid-p"))
    cluster.show_pod("p", "c")
    cluster.show_slice(resource_slice("a", [gpu(f"gpu-{number}") for number in range(6)]))

    found = cluster.cache.pods.get(PodUid("uid-p"))
    assert found is not None
    assert found.charge(1).gpu_milli == 6000


def test_pod_that_names_a_claim_twice_uses_it_once(cluster: Cluster) -> None:
    named = [{"name": each, "resourceClaimName": "c"} for each in "xy"]
    metadata = {"name": "p", "namespace": "default", "uid": "u"}
    found = decode.pod(
        {"metadata": metadata, "spec": {"resourceClaims": named}}, profiles=frozenset({"default-scheduler"})
    )
    assert found.claim_names == ("c",)

    cluster.show_claim(four())
    cluster.show_pod("p", "c", "c", on="a")
    cluster.cache.delete_pod(PodUid("uid-p"))

    assert (cluster.free("a"), cluster.free_later("a")) == (0, 4000)
