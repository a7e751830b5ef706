"""The decoder of nodes, queues, PodGroups and priority classes."""

from pathlib import Path

import pytest

from app.cluster import decode
from app.cluster.decode.policy import CPU_SCALE, GPU_SCALE, MAX_LEVELS, MEMORY_SCALE
from app.cluster.decode.subgroups import MAX_MEMBERS, MAX_SUB_GROUPS
from app.model.names import GroupKey, QueueName
from app.model.node import Taint
from app.model.podgroup import PodSet, SubGroup, TopologyConstraint
from app.model.priority import PriorityClass
from app.model.quantity import MAX_QUEUE_AMOUNT, MAX_WEIGHT
from app.model.queue import UNGOVERNED, Entitlement
from app.model.resources import UNLIMITED, Resources
from app.model.topology import Topology
from tests.cluster.raw import GIB, Raw, metadata, pod_group, queue

RACK, HOST = {"topology": "t", "requiredTopologyLevel": "rack"}, {"topology": "t", "preferredTopologyLevel": "host"}
IN_RACK, ON_HOST = TopologyConstraint("t", required="rack"), TopologyConstraint("t", preferred="host")


def topology(*labels: str) -> Raw:
    return {"metadata": metadata(), "spec": {"levels": [{"nodeLabel": label} for label in labels]}}


def test_excessive_extended_resources_of_a_node_are_cut_and_its_devices_are_first() -> None:
    many = {f"vendor.example/{number}": "1" for number in range(50_000)} | {"nvidia.com/mig-1g.5gb": "7"}

    seen = decode.node({"metadata": {"name": "n", "uid": "u"}, "status": {"allocatable": many}})

    assert (len(seen.scalars), dict(seen.scalars)["nvidia.com/mig-1g.5gb"]) == (128, 7)
    assert seen.problem == "it has 50001 extended resources, so nothing is placed on it; have at most 128"


def test_labels_that_nodes_have_in_common_are_one_object() -> None:
    one, other = (decode.node({"metadata": metadata() | {"labels": {"zone": "a-" * 2}}}) for _ in range(2))

    assert next(iter(one.labels.values())) is next(iter(other.labels.values()))


def test_extended_resources_of_a_node_are_read_without_the_built_in_ones() -> None:
    amounts = {"nvidia.com/mig-1g.5gb": "7", "rdma/hca": "0", "a.b/c": "2", "hugepages-2Mi": "1Gi", "pods": "9"}
    others = {"nvidia.com/gpu": "1", "kubernetes.io/x": "1", "x.kubernetes.io/y": "1"}

    seen = decode.node({"metadata": {"name": "n", "uid": "u"}, "status": {"allocatable": amounts | others}})

    assert (seen.scalars, seen.problem) == ((("a.b/c", 2), ("nvidia.com/mig-1g.5gb", 7)), "")


def test_an_unreadable_extended_resource_makes_the_node_unschedulable() -> None:
    seen = decode.node({"metadata": {"name": "n", "uid": "u"}, "status": {"allocatable": {"a.b/c": "many"}}})

    assert seen.problem.startswith("allocatable 'a.b/c' cannot be read: 'many' is not")


@pytest.mark.parametrize(
    ("label", "mib"),
    [("81559", 81500), ("99", 0), ("1048575", 1048500), (str(80 << 30), 81900), ("many", 0), ("-1", 0), (None, 0)],
)
def test_the_gpu_memory_of_a_node_is_read_as_in_kai(label: str | None, mib: int) -> None:
    labels = {} if label is None else {"nvidia.com/gpu.memory": label}

    assert decode.node({"metadata": {"name": "n", "uid": "u", "labels": labels}}).device_memory_mib == mib


@pytest.mark.parametrize(
    ("labels", "shares"),
    [
        ({}, True),
        ({"nvidia.com/gpu.replicas": "1"}, True),
        ({"nvidia.com/gpu.replicas": "0"}, True),
        ({"nvidia.com/gpu.replicas": "4"}, False),
        ({"nvidia.com/gpu.replicas": "many"}, False),
        ({"node-role.kubernetes.io/mig-enabled": "true"}, False),
    ],
)
def test_gpus_that_are_partitioned_or_oversubscribed_are_not_shared(labels: dict[str, str], shares: bool) -> None:  # noqa: FBT001 - an expectation
    assert decode.node({"metadata": {"name": "n", "uid": "u", "labels": labels}}).shares_devices is shares


def test_a_node_is_read() -> None:
    seen = decode.node(
        {
            "metadata": {"name": "n1", "uid": "u", "labels": {"a": "b"}},
            "spec": {
                "unschedulable": True,
                "taints": [{"key": "gpu", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}],
            },
            "status": {
                "allocatable": {"cpu": "64", "memory": "1Gi", "nvidia.com/gpu": "8", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )

    assert seen.allocatable == Resources(cpu_milli=64_000, memory_bytes=GIB, gpu_milli=8000, pods=110)
    assert (seen.labels, seen.taints) == ({"a": "b"}, (Taint("gpu"),))
    assert (seen.ready, seen.unschedulable, seen.problem) == (True, True, "")


def test_a_node_without_a_ready_condition_or_with_wrong_amounts_takes_no_pods() -> None:
    seen = decode.node({"metadata": {"name": "n", "uid": "u"}, "status": {"allocatable": {"cpu": "many"}}})

    assert not seen.ready
    assert seen.problem.startswith("allocatable cpu cannot be read: 'many' is not")


def test_the_units_and_defaults_of_a_queue_are_those_of_kai() -> None:
    gpu, memory = {"quota": 1.5, "limit": -1, "overQuotaWeight": 2}, {"limit": 1000}

    seen = decode.queue(queue(gpu=gpu, memory=memory))

    assert seen.gpu_milli == Entitlement(deserved=1500, limit=UNLIMITED, over_quota_weight_micro=2_000_000)
    assert seen.memory_bytes == Entitlement(deserved=0, limit=10**9, over_quota_weight_micro=0)
    assert seen.cpu_milli == UNGOVERNED
    assert (seen.priority, seen.parent, seen.problem) == (100, None, "")


def test_minus_one_is_unlimited_and_a_limit_of_zero_is_zero() -> None:
    seen = decode.queue(queue(cpu={"quota": -1, "limit": 0}, gpu={}))

    assert (seen.cpu_milli.deserved, seen.cpu_milli.limit) == (UNLIMITED, 0)
    assert seen.gpu_milli.limit == UNLIMITED


@pytest.mark.parametrize("spec", [{}, {"resources": None}, {"parentQueue": "p"}])
def test_a_queue_without_resources_gets_the_message_of_kai(spec: Raw) -> None:
    seen = decode.queue({"metadata": {"name": "q", "uid": "u"}, "spec": spec})

    assert seen.problem.startswith("resources must be specified: write spec.resources with gpu, cpu and memory")


def test_an_invalid_number_of_a_queue_is_reported_with_its_field() -> None:
    problem = decode.queue(queue(gpu={"quota": "4"})).problem

    assert problem.startswith("spec.resources.gpu.quota cannot be read: '4' is not a number")


def test_a_podgroup_is_read() -> None:
    seen = decode.pod_group(
        pod_group(minMember=4, queue="q", priorityClassName="build", preemptibility="non-preemptible")
    )

    assert (seen.key, seen.uid, seen.queue, seen.min_member) == (GroupKey("team", "it"), "u1", QueueName("q"), 4)
    assert (seen.priority_classes, seen.preemptible, seen.created_at, seen.problem) == (("build",), False, 100.0, "")


def test_a_podgroup_without_a_minimum_is_no_gang() -> None:
    assert [decode.pod_group(pod_group(**spec)).min_member for spec in ({}, {"minMember": 0})] == [1, 1]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"minMember": -1}, "out of range"),
        ({"minMember": "4"}, "not an integer"),
        ({"preemptibility": "maybe"}, "write preemptible or non-preemptible"),
        ({"topologyConstraint": {"requiredTopologyLevel": "rack"}}, "write the name of a Topology beside it"),
    ],
)
def test_a_podgroup_with_impossible_settings_is_a_problem(spec: Raw, problem: str) -> None:
    assert problem in decode.pod_group(pod_group(**spec)).problem


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("250ms", 0.25), ("1ns", 0.001), ("0", 0)]
)
def test_the_min_runtimes_of_a_queue_are_read(text: str, seconds: float) -> None:
    seen = decode.queue({"metadata": {"name": "q", "uid": "u"}, "spec": {"resources": {}, "preemptMinRuntime": text}})

    assert (seen.preempt_min_runtime_s, seen.reclaim_min_runtime_s, seen.problem) == (seconds, None, "")


@pytest.mark.parametrize(
    "text", ["", "30", "-1s", "+1s", "1 s", "s", "1h30", "1e3s", ".5s", "\u0661s", "90000h", 30, []]
)
def test_a_min_runtime_that_is_no_duration_is_a_problem(text: object) -> None:
    seen = decode.queue({"metadata": {"name": "q", "uid": "u"}, "spec": {"resources": {}, "reclaimMinRuntime": text}})

    assert seen.reclaim_min_runtime_s is None
    assert seen.problem.startswith("spec.reclaimMinRuntime cannot be read: ")


def test_sub_groups_are_read_as_a_tree_whose_leaves_are_pod_sets() -> None:
    seen = decode.pod_group(
        pod_group(
            minMember=99,
            topologyConstraint=RACK,
            subGroups=[
                {"name": "decode", "minMember": 7, "topologyConstraint": HOST},
                {"name": "leaders", "parent": "decode"},
                {"name": "workers", "parent": "decode", "minMember": 4, "topologyConstraint": HOST},
                {"name": "prefill", "minMember": 2},
            ],
        )
    )

    workers = PodSet(name="workers", min_member=4, topology=ON_HOST)
    assert (seen.problem, seen.min_member) == ("", 7)
    assert seen.root == SubGroup(
        topology=IN_RACK,
        groups=(SubGroup(name="decode", topology=ON_HOST, pod_sets=(PodSet(name="leaders"), workers)),),
        pod_sets=(PodSet(name="prefill", min_member=2),),
    )


def test_a_podgroup_with_only_a_topology_is_one_pod_set() -> None:
    whole = decode.pod_group(pod_group(minMember=4, topologyConstraint=RACK))

    assert whole.root == SubGroup(topology=IN_RACK, pod_sets=(PodSet(min_member=4),))
    assert [decode.pod_group(pod_group(**spec)).root for spec in ({}, {"topologyConstraint": {"topology": "t"}})] == [
        None,
        None,
    ]


@pytest.mark.parametrize(("least", "read"), [((1, 0), (1, 0)), ((0, 0), (1, 1)), ((None, 0), (1, 0))])
def test_a_sub_group_may_have_a_minimum_of_zero_beside_another_with_a_minimum(
    least: tuple[int | None, ...], read: tuple[int, ...]
) -> None:
    parts = [{"name": name, "minMember": one} for name, one in zip("ab", least, strict=True)]

    found = decode.pod_group(pod_group(subGroups=parts))

    assert found.root == SubGroup(
        pod_sets=tuple(PodSet(name=name, min_member=one) for name, one in zip("ab", read, strict=True))
    )
    assert (found.min_member, found.problem) == (sum(read), "")


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([{"minMember": 1}], "a sub-group has no name; give every item"),
        ([{"name": "a"}, {"name": "a"}], "sub-group 'a' is listed twice; give every item of spec.subGroups a name"),
        ([{"name": "a", "parent": "b"}], "sub-group 'a' has parent 'b', which is not listed; add it, or change it"),
        ([{"name": "a", "parent": "a"}], "its parents form a circle; change the parent of one of them"),
        ([{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}], "its parents form a circle; change the parent"),
        ([{"name": f"{n}", "parent": f"{n + 1}" if n < 17 else ""} for n in range(18)], "is more than 16 deep"),
        ([{"name": f"{n}"} for n in range(257)], "has 257 items; write at most 256"),
        ([{"name": "a", "minMember": "2"}], "minMember of sub-group 'a' cannot be read"),
    ],
)
def test_sub_groups_that_are_no_tree_are_a_problem(parts: list[Raw], problem: str) -> None:
    assert problem in decode.pod_group(pod_group(subGroups=parts)).problem


def test_a_topology_is_read() -> None:
    assert decode.topology(topology("zone", "rack")) == Topology(name="it", levels=("zone", "rack"))


def test_a_topology_level_may_have_an_alias() -> None:
    levels = [{"nodeLabel": "zone", "alias": "row"}, {"nodeLabel": "rack", "alias": ""}]

    seen = decode.topology({"metadata": metadata(), "spec": {"levels": levels}})

    assert (seen.aliases, seen.problem) == ({"row": "zone"}, "")


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [
        (("row", "row"), "spec.levels uses an alias twice; give every level an alias of its own"),
        (("rack", ""), "spec.levels has the alias 'rack', which is a nodeLabel; write another alias"),
    ],
)
def test_an_alias_names_one_level_only(aliases: tuple[str, str], problem: str) -> None:
    levels = [{"nodeLabel": label, "alias": alias} for label, alias in zip(("zone", "rack"), aliases, strict=True)]

    assert decode.topology({"metadata": metadata(), "spec": {"levels": levels}}).problem == problem


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([], "spec.levels has 0 items; list 1 to 16, the widest first"),
        ([f"level-{number}" for number in range(17)], "spec.levels has 17 items"),
        (["rack", "rack"], "lists a nodeLabel twice; list every level once"),
        (["rack", ""], "a level has no nodeLabel; write the key of a node label"),
    ],
)
def test_an_unusable_topology_is_a_problem(labels: list[str], problem: str) -> None:
    assert problem in decode.topology(topology(*labels)).problem


def test_a_priority_class_is_read() -> None:
    seen = decode.priority_class({"metadata": {"name": "train", "uid": "u"}, "value": 50})

    assert seen == PriorityClass(name="train", value=50)


def test_the_decoder_has_the_bounds_of_the_crds() -> None:
    crds = Path(__file__).parents[2] / "deploy" / "leeboard" / "files" / "crds"
    queues, groups, topologies = ((crds / f"{kind}.yaml").read_text() for kind in ("queues", "podgroups", "topologies"))

    for scale in (GPU_SCALE, CPU_SCALE, MEMORY_SCALE):
        assert f"<= {MAX_QUEUE_AMOUNT // scale}.0)" in queues
    assert f"self <= {MAX_WEIGHT}.0" in queues
    assert f"self <= {MAX_MEMBERS}\n" in groups
    assert f"maxItems: {MAX_SUB_GROUPS}\n" in groups
    assert f"maxItems: {MAX_LEVELS}\n" in topologies
