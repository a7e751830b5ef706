"""Devices of DRA in the cache: what nodes have, what pods with claims take, and what their queues pay."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.cluster import decode
from app.cluster.decode.demand import GPU_RESOURCE
from app.cluster.state.cache import ClusterCache
from app.model.dra import DeviceClass
from app.model.names import NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.resources import GPU
from app.scheduling.placement import fit
from tests import given
from tests.cluster.dra_objects import (
    A100,
    DRIVER,
    H100,
    Raw,
    claim,
    device_class,
    gpu,
    partitioned,
    request,
    resource_slice,
)

CLASS = device_class("gpu.example.com", f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'")
MIG_CLASS = device_class("mig.example.com", f"device.attributes['{DRIVER}'].type == 'mig'")


class Cluster:
    """A cache that is fed with objects as the watches are."""

    def __init__(self, *nodes: str) -> None:
        self.cache = ClusterCache()
        self.cache.apply_queue(given.queue("q"))
        for name in nodes:
            self.cache.apply_node(given.node(name, gpus=0))
        self.show_class(CLASS)

    def show_class(self, raw: Raw) -> None:
        self.cache.follow_claims(self.cache.claims.put_class(decode.device_class(raw)))

    def show_slice(self, raw: Raw) -> None:
        self.cache.follow_claims(self.cache.claims.put_slice(decode.resource_slice(raw)))

    def show_claim(self, raw: Raw) -> None:
        self.cache.follow_claims(self.cache.claims.put_claim(decode.resource_claim(raw)))

    def end_claim(self, raw: Raw) -> None:
        self.cache.follow_claims(self.cache.claims.drop_claim(decode.resource_claim(raw).key))

    def show_pod(self, name: str, *claims: str, on: str | None = None, gpus: int = 0, **more: Any) -> Pod:
        node = None if on is None else NodeName(on)
        self.cache.apply_pod(given.pod(name, gpus=gpus, claim_names=claims, node=node, **more))
        found = self.cache.pods.get(PodUid(f"uid-{name}"))
        assert found is not None
        return found

    def free(self, node: str) -> int:
        snapshot = self.cache.snapshot()
        return int(snapshot.free[GPU, snapshot.nodes.index[NodeName(node)]])

    def free_later(self, node: str) -> int:
        snapshot = self.cache.snapshot()
        column = snapshot.nodes.index[NodeName(node)]
        releasing = 0 if snapshot.releasing is None else int(snapshot.releasing[GPU, column])
        return int(snapshot.free[GPU, column]) + releasing

    def paid(self) -> int:
        usage = self.cache.snapshot().usage.get(QueueName("q"))
        return 0 if usage is None else usage.allocated.gpu_milli

    def asked(self) -> int:
        """Return what the pods of the queue hold and wait for."""
        usage = self.cache.snapshot().usage.get(QueueName("q"))
        return 0 if usage is None else usage.requested.gpu_milli

    def fitting(self, pod: Pod) -> Sequence[str]:
        table = self.cache.snapshot().nodes
        mask = fit.eligible(pod.constraint, table)
        return [node.name for node, fits in zip(table.nodes, mask, strict=True) if fits]


@pytest.fixture
def two_models() -> Cluster:
    """Run a node with four A100, one with two H100, and one without devices."""
    cluster = Cluster("a", "h", "none")
    cluster.show_slice(resource_slice("a", [gpu(f"gpu-{number}") for number in range(4)]))
    cluster.show_slice(resource_slice("h", [gpu(f"gpu-{number}", H100) for number in range(2)]))
    return cluster


def test_nodes_have_the_devices_of_their_slices(two_models: Cluster) -> None:
    assert [two_models.free(node) for node in ("a", "h", "none")] == [4000, 2000, 0]
    assert two_models.cache.snapshot().total.gpu_milli == 6000


def test_pod_with_a_claim_asks_for_gpus_and_pays_for_them(two_models: Cluster) -> None:
    two_models.show_claim(claim("c", request("gpu.example.com", count=2), owner="uid-p"))

    waiting = two_models.show_pod("p", "c")

    assert (waiting.request.gpu_milli, waiting.charge(1).gpu_milli) == (2000, 2000)
    assert two_models.fitting(waiting) == ["a", "h"]


@pytest.mark.parametrize(
    ("expressions", "count", "nodes"),
    [
        ([f"device.attributes['{DRIVER}'].productName == '{H100}'"], 1, ["h"]),
        ([f"device.attributes['{DRIVER}'].productName.lowerAscii().matches('^.*a100$')"], 1, ["a"]),
        ([f"device.capacity['{DRIVER}'].memory.compareTo(quantity('100Gi')) > 0"], 1, ["h"]),
        ([], 3, ["a"]),
        ([], 5, []),
        (["false"], 1, []),
        # Not understood: the nodes of the class are possible, and kube-scheduler decides.
        (["[1, 2].exists(x, x == 1)"], 1, ["a", "h"]),
        # Names one device; no model tells.
        ([f"device.attributes['{DRIVER}'].uuid == 'GPU-gpu-0'"], 1, ["a", "h"]),
    ],
)
def test_request_accepts_the_nodes_whose_devices_match(
    two_models: Cluster, expressions: Sequence[str], count: int, nodes: Sequence[str]
) -> None:
    two_models.show_claim(claim("c", request("gpu.example.com", *expressions, count=count), owner="uid-p"))

    waiting = two_models.show_pod("p", "c")

    assert two_models.fitting(waiting) == nodes
    assert waiting.charge(1).gpu_milli == 1000 * count


def test_devices_are_held_from_allocation_to_release(two_models: Cluster) -> None:
    asked = request("gpu.example.com", count=2)
    unallocated, allocated = (claim("c", asked, owner="uid-p", on=on, devices=["gpu-0", "gpu-1"]) for on in ("", "a"))
    two_models.show_claim(unallocated)
    two_models.show_pod("p", "c")
    seen = [two_models.free("a")]

    two_models.show_claim(allocated)
    pinned = two_models.show_pod("p", "c")
    seen.append(two_models.free("a"))
    assert two_models.fitting(pinned) == ["a"]
    assert (pinned.request.gpu_milli, pinned.charge(1).gpu_milli) == (0, 2000)

    two_models.show_pod("p", "c", on="a")
    seen.append(two_models.free("a"))
    assert two_models.paid() == 2000

    two_models.show_pod("p", "c", on="a", deleting=True)
    assert (two_models.free("a"), two_models.free_later("a")) == (2000, 4000)

    two_models.cache.delete_pod(PodUid("uid-p"))
    seen.append(two_models.free("a"))
    assert two_models.free_later("a") == 4000

    two_models.end_claim(allocated)
    assert [*seen, two_models.free("a")] == [4000, 2000, 2000, 2000, 4000]
    assert two_models.paid() == 0


def test_claim_of_an_unknown_pod_holds_its_devices(two_models: Cluster) -> None:
    two_models.show_claim(claim("c", request("gpu.example.com"), owner="uid-gone", on="h", devices=["gpu-1"]))

    assert (two_models.free("h"), two_models.free_later("h")) == (1000, 2000)


def test_pod_waits_for_a_claim_that_is_not_seen_yet(two_models: Cluster) -> None:
    assert two_models.show_pod("p", "c").lacks_claim == "'c'"

    two_models.show_claim(claim("c", request("gpu.example.com"), owner="uid-p"))

    found = two_models.cache.pods.get(PodUid("uid-p"))
    assert found is not None
    assert (found.lacks_claim, found.request.gpu_milli) == ("", 1000)


def test_shared_claim_holds_its_devices_once(two_models: Cluster) -> None:
    labels = {"kai.scheduler/queue": "q"}
    asked = request("gpu.example.com", count=2)
    two_models.show_claim(claim("c", asked, labels=labels, on="a", devices=["gpu-0", "gpu-1"]))
    for name in ("p", "o"):
        two_models.show_pod(name, "c", on="a")

    assert two_models.free("a") == 2000
    assert two_models.cache.snapshot().claimed == {given.claim_key("default/c"): (NodeName("a"), 2)}

    for name in ("p", "o"):
        two_models.cache.delete_pod(PodUid(f"uid-{name}"))
    assert (two_models.free("a"), two_models.free_later("a")) == (2000, 4000)


def test_admin_access_takes_nothing_and_costs_nothing(two_models: Cluster) -> None:
    two_models.show_claim(claim("c", request("gpu.example.com", adminAccess=True), owner="uid-p"))
    assert two_models.show_pod("p", "c").charge(1).gpu_milli == 0

    results = {"adminAccess": True}
    two_models.show_claim(
        claim(
            "c", request("gpu.example.com", adminAccess=True), owner="uid-p", on="a", devices=["gpu-0"], results=results
        )
    )
    two_models.show_pod("p", "c", on="a")

    assert (two_models.free("a"), two_models.paid()) == (4000, 0)


def test_all_devices_cost_what_the_largest_node_has(two_models: Cluster) -> None:
    two_models.show_claim(claim("c", request("gpu.example.com", allocationMode="All"), owner="uid-p"))

    waiting = two_models.show_pod("p", "c")

    assert (waiting.charge(1).gpu_milli, two_models.fitting(waiting)) == (4000, ["a"])


def test_first_available_costs_the_dearest_choice_and_takes_the_smallest(two_models: Cluster) -> None:
    choices = [
        {"name": "big", "deviceClassName": "gpu.example.com", "count": 3},
        {"name": "small", "deviceClassName": "gpu.example.com", "count": 1},
    ]
    two_models.show_claim(claim("c", {"name": "r", "firstAvailable": choices}, owner="uid-p"))

    waiting = two_models.show_pod("p", "c")

    assert (waiting.request.gpu_milli, waiting.charge(1).gpu_milli) == (1000, 3000)
    assert two_models.fitting(waiting) == ["a", "h"]


def test_class_that_does_not_exist_costs_by_its_name_and_fits_nowhere(two_models: Cluster) -> None:
    two_models.show_claim(claim("c", request("other-gpu", count=2), owner="uid-p"))

    waiting = two_models.show_pod("p", "c")

    assert (waiting.charge(1).gpu_milli, two_models.fitting(waiting)) == (2000, [])


def test_devices_that_are_no_gpus_are_left_to_kube_scheduler(two_models: Cluster) -> None:
    two_models.show_class(device_class("nic.example.com", "device.driver == 'nic.example.com'"))
    two_models.show_slice(resource_slice("a", [{"name": "nic-0"}], driver="nic.example.com"))
    two_models.show_claim(claim("c", request("nic.example.com"), owner="uid-p"))

    waiting = two_models.show_pod("p", "c")

    assert (waiting.charge(1).gpu_milli, two_models.fitting(waiting)) == (0, ["a", "h", "none"])


@pytest.mark.parametrize("taints", [[{"key": "k", "effect": "NoSchedule"}], [{"key": "k", "effect": "NoExecute"}]])
def test_tainted_device_is_not_free(taints: list[Raw]) -> None:
    cluster = Cluster("a")
    cluster.show_slice(resource_slice("a", [gpu("gpu-0", taints=taints), gpu("gpu-1")]))

    assert cluster.free("a") == 1000


def test_taint_rule_closes_the_devices_that_it_selects(two_models: Cluster) -> None:
    spec = {"deviceSelector": {"driver": DRIVER, "pool": "a"}, "taint": {"key": "k", "effect": "NoSchedule"}}
    rule = decode.device_taint_rule({"metadata": {"name": "r", "uid": "u"}, "spec": spec})

    two_models.cache.follow_claims(two_models.cache.claims.put_rule(rule))
    closed = two_models.free("a"), two_models.free("h")
    two_models.cache.follow_claims(two_models.cache.claims.drop_rule("r"))

    assert (closed, two_models.free("a")) == ((0, 2000), 4000)


def test_only_the_newest_complete_generation_of_a_pool_counts() -> None:
    cluster = Cluster("a")
    cluster.show_slice(resource_slice("a", [gpu("gpu-0"), gpu("gpu-1")]))
    seen = [cluster.free("a")]
    cluster.show_slice(resource_slice("a", [gpu("gpu-0")], named="first", generation=2, resourceSliceCount=2))
    seen.append(cluster.free("a"))
    cluster.show_slice(
        resource_slice("a", [gpu("gpu-1"), gpu("gpu-2")], named="second", generation=2, resourceSliceCount=2)
    )
    seen.append(cluster.free("a"))
    cluster.show_slice(resource_slice("a", [gpu("gpu-0")], named="second", generation=2, resourceSliceCount=2))

    assert [*seen, cluster.free("a")] == [2000, 0, 3000, 0]


def test_partitions_pay_their_slices_and_break_their_gpu() -> None:
    cluster = Cluster("a")
    cluster.show_class(MIG_CLASS)
    (first, counters), (second, more) = partitioned("gpu-0"), partitioned("gpu-1")
    cluster.show_slice(resource_slice("a", [*first, *second], counters=[counters, more]))
    profile = f"dra:{DRIVER}/1g.10gb"
    snapshot = cluster.cache.snapshot()
    assert (cluster.free("a"), snapshot.scalars[profile].tolist()) == (2000, [14])

    cluster.show_claim(claim("c", request("mig.example.com"), owner="uid-p"))
    waiting = cluster.show_pod("p", "c")
    assert (waiting.request.gpu_milli, waiting.scalars, waiting.charge(1).gpu_milli) == (0, ((profile, 1),), 1000)

    cluster.show_claim(claim("c", request("mig.example.com"), owner="uid-p", on="a", devices=["gpu-0-mig-3"]))
    cluster.show_pod("p", "c", on="a")

    snapshot = cluster.cache.snapshot()
    assert (cluster.free("a"), snapshot.scalars[profile].tolist(), cluster.paid()) == (1000, [13], 1000)

    cluster.show_claim(claim("w", request("gpu.example.com"), owner="uid-w", on="a", devices=["gpu-1"]))
    cluster.show_pod("w", "w", on="a")
    assert (cluster.free("a"), cluster.cache.snapshot().scalars[profile].tolist()) == (0, [6])


def test_shared_capacity_costs_its_share() -> None:
    cluster = Cluster("a")
    cluster.show_slice(resource_slice("a", [gpu("gpu-0", allowMultipleAllocations=True)]))
    cluster.show_claim(claim("c", request("gpu.example.com", capacity={"requests": {"memory": "20Gi"}}), owner="uid-p"))
    assert cluster.show_pod("p", "c").charge(1).gpu_milli == 250

    results = {"consumedCapacity": {"memory": "40Gi"}, "shareID": "s"}
    cluster.show_claim(
        claim("c", request("gpu.example.com"), owner="uid-p", on="a", devices=["gpu-0"], results=results)
    )
    cluster.show_pod("p", "c", on="a")

    assert (cluster.free("a"), cluster.paid()) == (500, 500)


def test_extended_resource_of_a_class_reaches_devices_without_a_plugin(two_models: Cluster) -> None:
    def is_open() -> bool:
        node = two_models.cache.nodes.get(NodeName("a"))
        assert node is not None
        return not node.by_claim_only

    before = is_open()
    two_models.show_class(CLASS | {"spec": {**CLASS["spec"], "extendedResourceName": "nvidia.com/gpu"}})

    assert (before, is_open()) == (False, True)
    special = claim("x", owner="uid-p", on="a", devices=["gpu-0"])
    special["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    two_models.show_claim(special)
    two_models.show_pod("p", gpus=1, on="a")
    assert (two_models.free("a"), two_models.paid()) == (3000, 1000)


def test_implicit_name_of_a_class_is_a_request_of_the_class(two_models: Cluster) -> None:
    waiting = two_models.show_pod("p", scalars=(("deviceclass.resource.kubernetes.io/gpu.example.com", 2),))

    assert (waiting.scalars, waiting.request.gpu_milli, two_models.fitting(waiting)) == ((), 2000, ["a", "h"])


def test_gpus_of_a_device_plugin_are_not_counted_twice() -> None:
    cluster = Cluster()
    cluster.cache.apply_node(given.node("a", gpus=4))
    cluster.show_slice(resource_slice("a", [gpu(f"gpu-{number}") for number in range(4)]))

    assert cluster.free("a") == 4000


def test_devices_that_disappear_are_gone_and_come_back(two_models: Cluster) -> None:
    two_models.cache.follow_claims(two_models.cache.claims.drop_slice(f"a-{DRIVER}"))
    gone = two_models.free("a")
    two_models.show_slice(resource_slice("a", [gpu("gpu-0")]))

    assert (gone, two_models.free("a")) == (0, 1000)


def test_order_of_pods_claims_and_devices_does_not_matter(two_models: Cluster) -> None:
    late = Cluster("a", "h", "none")
    late.show_pod("p", "c", on="a")
    late.show_claim(claim("c", request("gpu.example.com"), owner="uid-p", on="a", devices=["gpu-0"]))
    late.show_slice(resource_slice("a", [gpu(f"gpu-{number}") for number in range(4)]))
    late.show_slice(resource_slice("h", [gpu(f"gpu-{number}", H100) for number in range(2)]))
    two_models.show_claim(claim("c", request("gpu.example.com"), owner="uid-p", on="a", devices=["gpu-0"]))
    two_models.show_pod("p", "c", on="a")

    assert [late.free("a"), late.paid()] == [two_models.free("a"), two_models.paid()] == [3000, 1000]


def test_object_that_is_read_in_an_older_version_means_the_same() -> None:
    slice_v1 = resource_slice("a", [gpu("gpu-0")])
    stated = slice_v1["spec"]["devices"][0]
    basic = {"name": stated["name"], "basic": {key: value for key, value in stated.items() if key != "name"}}
    beta = slice_v1 | {"spec": {**slice_v1["spec"], "devices": [basic]}}
    asked = claim("c", request("gpu.example.com", count=2))
    flat = asked | {
        "spec": {
            "devices": {"requests": [{"name": "r", "deviceClassName": "gpu.example.com", "selectors": [], "count": 2}]}
        }
    }

    assert decode.resource_slice(beta) == decode.resource_slice(slice_v1)
    assert decode.resource_claim(flat) == decode.resource_claim(asked)


# What a change affects ------------------------------------------------------------------------------------------------


def test_change_of_a_class_affects_only_what_asks_for_it(two_models: Cluster) -> None:
    claims = two_models.cache.claims
    for name in ("p", "o"):
        two_models.show_claim(claim(f"c-{name}", request("gpu.example.com"), owner=f"uid-{name}"))
        two_models.show_pod(name, f"c-{name}")
    other = device_class("other.example.com", "device.driver == 'other.example.com'")

    unrelated = claims.put_class(decode.device_class(other))
    same = claims.put_class(gpu_class(f"device.driver == '{DRIVER}'"))
    narrower = claims.put_class(gpu_class(product(H100)))

    for followed in (unrelated, same):
        assert (followed.nodes, list(followed.claims), list(followed.pods)) == ((), [], [])
    assert [str(key) for key in narrower.claims] == ["default/c-p", "default/c-o"]
    assert list(narrower.pods) == ["uid-p", "uid-o"]


def test_new_model_affects_only_claims_that_may_get_it(two_models: Cluster) -> None:
    for name, product_ in (("any", None), ("h", H100), ("a", A100)):
        selectors = [] if product_ is None else [product(product_)]
        two_models.show_claim(claim(name, request("gpu.example.com", *selectors), owner=f"uid-{name}"))
        two_models.show_pod(name, name)
    more = [gpu(f"gpu-{number}", H100) for number in range(2)]
    newer = [*more, gpu("gpu-2", H100, capacity={"memory": {"value": "200Gi"}})]

    followed = two_models.cache.claims.put_slice(decode.resource_slice(resource_slice("h", newer)))

    assert (list(followed.nodes), [str(key) for key in followed.claims]) == (["h"], ["default/h"])
    assert list(followed.pods) == ["uid-h"]


def test_class_that_gives_gpus_by_name_affects_the_nodes_and_the_pods_that_name_it(two_models: Cluster) -> None:
    two_models.show_pod("named", scalars=(("deviceclass.resource.kubernetes.io/gpu.example.com", 1),))
    two_models.show_pod("other", scalars=(("deviceclass.resource.kubernetes.io/other-gpu", 1),))
    claims = two_models.cache.claims

    by_name = claims.put_class(
        decode.device_class(device_class("gpu.example.com", product(H100), extended=GPU_RESOURCE))
    )

    assert (sorted(by_name.nodes), by_name.has_other_names) == (["a", "h"], True)
    assert set(by_name.pods) == {"uid-named", "uid-other"}


def product(name: str) -> str:
    return f"device.attributes['{DRIVER}'].productName == '{name}'"


def gpu_class(expression: str, *, extended: str = "") -> DeviceClass:
    return decode.device_class(device_class("gpu.example.com", expression, extended=extended))
