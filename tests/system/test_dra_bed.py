"""Tests of dynamic resource allocation in the bed, without Leeboard: the stock kube-scheduler allocates and frees."""

import pytest

from tests.system.api import PODS, RUN_FOR, Api, Object, gpu_node
from tests.system.api import pod as pod_of
from tests.system.dra_driver import (
    ADMIN_NAMESPACE_LABEL,
    CLAIMS,
    GPU_CLASS,
    H100,
    L40S,
    MIG_CLASS,
    SLICES,
    claim,
    claim_names,
    device_classes,
    device_request,
    device_taint_rule,
    devices_of,
    partitioned_gpu,
    publish,
    resource_claim,
    resource_claim_template,
    resource_slices,
    shareable,
    tainted,
    users_of,
    whole_gpus,
    with_claims,
)
from tests.system.features import HAS_DEVICE_FEATURES, WAITS_FOR_WHOLE_POOLS
from tests.system.waiting import eventually

beta_features = pytest.mark.skipif(not HAS_DEVICE_FEATURES, reason="Kubernetes has this off by default before 1.36")
TAINT = "example.com/unhealthy"
TOLERATED = [{"key": TAINT, "operator": "Exists"}]


@pytest.fixture(autouse=True)
def _classes(api: Api) -> None:
    """Install the classes of the driver."""
    api.create_all(device_classes())


def node(api: Api, name: str) -> None:
    """Add a node whose GPUs no device plugin reports."""
    api.create(gpu_node(name, gpus=0))


def pod(name: str, *, gpus: int = 0, namespace: str = "default") -> Object:
    """Build a pod of the default scheduler."""
    return pod_of(name, gpus=gpus, scheduler="default-scheduler", namespace=namespace)


def read(api: Api, name: str) -> Object:
    """Read a pod."""
    return api.get(f"/api/v1/namespaces/default/pods/{name}")


def delete(api: Api, name: str) -> None:
    """Delete a pod as a user does."""
    api.delete(f"/api/v1/namespaces/default/pods/{name}")


def run(api: Api, *pods: Object) -> None:
    """Create pods and wait until they run."""
    api.create_all(pods)
    for one in pods:
        metadata = one["metadata"]
        api.wait_for_phase("Running", metadata["name"], within_s=20, namespace=metadata["namespace"])


def wait_until_unschedulable(api: Api, name: str) -> None:
    """Wait until kube-scheduler has refused a pod."""
    eventually(
        lambda: [one["reason"] for one in read(api, name)["status"].get("conditions", []) if one["status"] == "False"],
        until=lambda reasons: "Unschedulable" in reasons,
        within_s=20,
        what=f"{name} is refused",
    )


def wait_until_free(api: Api, name: str) -> None:
    """Wait until a claim is neither allocated nor reserved."""
    eventually(
        lambda: claim(api, name),
        until=lambda seen: seen is not None and not devices_of(seen) and not users_of(seen),
        within_s=20,
        what=f"claim {name} is free",
    )


def devices(api: Api, name: str) -> list[tuple[str, str]]:
    """Return the devices of a claim that exists."""
    found = claim(api, name)
    assert found is not None
    return devices_of(found)


def test_a_template_gives_a_pod_a_claim_that_is_deleted_when_the_pod_ends(api: Api) -> None:
    node(api, "d-template")
    publish(api, resource_slices("d-template", whole_gpus("d-template", 2)))
    api.create(resource_claim_template("two", device_request(count=2)))

    run(api, with_claims(pod("p"), templates=["two"]))
    made = claim_names(read(api, "p"))["two"]
    found = claim(api, made)

    assert found is not None
    assert sorted(devices_of(found)) == [("d-template", "gpu-0"), ("d-template", "gpu-1")]
    assert users_of(found) == ["p"]
    assert found["status"]["reservedFor"][0]["uid"] == read(api, "p")["metadata"]["uid"]
    api.patch("/api/v1/namespaces/default/pods/p", {"metadata": {"annotations": {RUN_FOR: "1ms"}}})
    eventually(lambda: api.items(CLAIMS), until=lambda left: not left, within_s=30, what="the claim is deleted")
    api.wait_for_phase("Succeeded", "p", within_s=20)


def test_a_claim_by_hand_stays_and_is_free_after_its_pod(api: Api) -> None:
    node(api, "d-hand")
    publish(api, resource_slices("d-hand", whole_gpus("d-hand", 1)))
    api.create(resource_claim("mine"))

    run(api, with_claims(pod("p"), claims=["mine"]))
    assert devices(api, "mine") == [("d-hand", "gpu-0")]
    delete(api, "p")

    wait_until_free(api, "mine")


def test_a_shared_claim_is_free_after_its_last_pod(api: Api) -> None:
    node(api, "d-shared")
    publish(api, resource_slices("d-shared", whole_gpus("d-shared", 1)))
    api.create_all([resource_claim("ours"), resource_claim_template("own")])
    run(api, *(with_claims(pod(name), claims=["ours"]) for name in ("first", "second")))
    api.create(with_claims(pod("third"), templates=["own"]))
    wait_until_unschedulable(api, "third")

    delete(api, "first")
    left = eventually(
        lambda: claim(api, "ours") or {},
        until=lambda seen: users_of(seen) == ["second"],
        within_s=20,
        what="the claim is no longer reserved for the first pod",
    )
    assert devices_of(left) == [("d-shared", "gpu-0")]

    delete(api, "second")
    api.wait_for_phase("Running", "third", within_s=20)


def test_selectors_choose_the_model(api: Api) -> None:
    for name, model in (("d-h100", H100), ("d-l40s", L40S)):
        node(api, name)
        publish(api, resource_slices(name, whole_gpus(name, 1, model)))
    small = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) < 0"
    hopper = "device.attributes['gpu.nvidia.com'].productName.contains('H100')"
    wanted = {"small": small, "hopper": hopper}
    api.create_all(resource_claim(name, device_request(GPU_CLASS, selector)) for name, selector in wanted.items())

    run(api, *(with_claims(pod(name), claims=[name]) for name in wanted))

    assert devices(api, "small") == [("d-l40s", "gpu-0")]
    assert devices(api, "hopper") == [("d-h100", "gpu-0")]


def test_admin_access_takes_a_device_that_is_in_use(api: Api) -> None:
    node(api, "d-admin")
    publish(api, resource_slices("d-admin", whole_gpus("d-admin", 1)))
    labels = {ADMIN_NAMESPACE_LABEL: "true"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "watchers", "labels": labels}})
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "watchers"}})
    every = device_request(count=None, adminAccess=True)
    api.create_all([resource_claim("used"), resource_claim("watched", every, namespace="watchers")])
    run(api, with_claims(pod("user"), claims=["used"]))

    run(api, with_claims(pod("watcher", namespace="watchers"), claims=["watched"]))

    found = claim(api, "watched", namespace="watchers")
    assert found is not None
    assert devices_of(found) == devices(api, "used") == [("d-admin", "gpu-0")]
    assert found["status"]["allocation"]["devices"]["results"][0]["adminAccess"] is True


@pytest.mark.skipif(not WAITS_FOR_WHOLE_POOLS, reason="Kubernetes 1.34 gives away devices of incomplete pools")
def test_a_pool_counts_when_it_is_complete(api: Api) -> None:
    node(api, "d-whole")
    first, last = resource_slices("d-whole", whole_gpus("d-whole", 3), per_slice=2)
    publish(api, [first])
    api.create(resource_claim("two", device_request(count=2)))
    api.create(with_claims(pod("two"), claims=["two"]))
    wait_until_unschedulable(api, "two")

    publish(api, [last])

    api.wait_for_phase("Running", "two", within_s=20)


def test_a_pool_counts_in_its_newest_generation(api: Api) -> None:
    node(api, "d-newest")
    publish(api, resource_slices("d-newest", whole_gpus("d-newest", 3), per_slice=2))
    api.create_all([resource_claim("two", device_request(count=2)), resource_claim("more", device_request(count=2))])
    run(api, with_claims(pod("two"), claims=["two"]))
    api.create(with_claims(pod("more"), claims=["more"]))
    wait_until_unschedulable(api, "more")

    publish(api, resource_slices("d-newest", whole_gpus("d-newest", 4), generation=2))

    api.wait_for_phase("Running", "more", within_s=20)
    assert not set(devices(api, "two")) & set(devices(api, "more"))
    assert [one["spec"]["pool"]["generation"] for one in api.items(SLICES)] == [2]


@beta_features
def test_the_extended_resource_name_of_a_class_makes_a_claim(api: Api) -> None:
    node(api, "d-extended")
    publish(api, resource_slices("d-extended", whole_gpus("d-extended", 2)))

    run(api, pod("p", gpus=2))

    (made,) = api.items(CLAIMS)
    status = read(api, "p")["status"]["extendedResourceClaimStatus"]
    assert status["resourceClaimName"] == made["metadata"]["name"]
    assert made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    assert sorted(devices_of(made)) == [("d-extended", "gpu-0"), ("d-extended", "gpu-1")]
    assert users_of(made) == ["p"]
    delete(api, "p")
    eventually(lambda: api.items(CLAIMS), until=lambda left: not left, within_s=30, what="the claim is deleted")


@beta_features
def test_a_gpu_is_not_given_away_whole_while_a_part_of_it_is_used(api: Api) -> None:
    node(api, "d-parts")
    parts, counters = partitioned_gpu("d-parts")
    publish(api, resource_slices("d-parts", parts, counter_sets=[counters]))
    half = device_request(MIG_CLASS, "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'")
    api.create_all([resource_claim("half", half), resource_claim("whole")])
    run(api, with_claims(pod("half"), claims=["half"]))
    assert devices(api, "half") == [("d-parts", "gpu-0-3g-0")]

    api.create(with_claims(pod("whole"), claims=["whole"]))
    wait_until_unschedulable(api, "whole")
    delete(api, "half")

    api.wait_for_phase("Running", "whole", within_s=20)
    assert devices(api, "whole") == [("d-parts", "gpu-0")]


@beta_features
def test_two_claims_share_the_memory_of_a_device_that_allows_it(api: Api) -> None:
    node(api, "d-capacity")
    publish(api, resource_slices("d-capacity", [shareable(one) for one in whole_gpus("d-capacity", 1)]))
    most = device_request(capacity={"requests": {"memory": "50Gi"}})
    rest = device_request(capacity={"requests": {"memory": "30Gi"}})
    api.create_all([resource_claim("most", most), resource_claim("rest", rest), resource_claim("more", most)])

    run(api, *(with_claims(pod(name), claims=[name]) for name in ("most", "rest")))
    api.create(with_claims(pod("more"), claims=["more"]))

    wait_until_unschedulable(api, "more")
    assert devices(api, "most") == devices(api, "rest") == [("d-capacity", "gpu-0")]


@beta_features
def test_only_who_tolerates_a_taint_gets_the_device(api: Api) -> None:
    node(api, "d-taint")
    publish(api, resource_slices("d-taint", [tainted(one, key=TAINT) for one in whole_gpus("d-taint", 1)]))
    api.create_all([resource_claim("healthy"), resource_claim("any", device_request(tolerations=TOLERATED))])

    api.create(with_claims(pod("healthy"), claims=["healthy"]))
    wait_until_unschedulable(api, "healthy")

    run(api, with_claims(pod("any"), claims=["any"]))


@beta_features
def test_a_taint_rule_ends_the_pods_of_its_device(api: Api) -> None:
    node(api, "d-rule")
    publish(api, resource_slices("d-rule", whole_gpus("d-rule", 1)))
    api.create(resource_claim("mine"))
    run(api, with_claims(pod("p"), claims=["mine"]))

    api.create(device_taint_rule("broken", key=TAINT, effect="NoExecute", pool="d-rule", device="gpu-0"))

    eventually(lambda: api.items(PODS), until=lambda left: not left, within_s=20, what="the pod is evicted")
    wait_until_free(api, "mine")
    api.create(with_claims(pod("next"), claims=["mine"]))
    wait_until_unschedulable(api, "next")
