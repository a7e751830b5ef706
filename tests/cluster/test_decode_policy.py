"""What the decoder makes of nodes, queues, PodGroups and priority classes."""

from pathlib import Path

import pytest

from app.cluster import decode
from app.cluster.decode.policy import CPU_SCALE, GPU_SCALE, MAX_MEMBERS, MEMORY_SCALE
from app.model.names import GroupKey, QueueName
from app.model.node import Taint
from app.model.priority import PriorityClass
from app.model.quantity import MAX_QUEUE_AMOUNT, MAX_WEIGHT
from app.model.queue import UNGOVERNED, Entitlement
from app.model.resources import UNLIMITED, Resources
from tests.cluster.raw import GIB, Raw, pod_group, queue


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


def test_a_node_without_a_ready_condition_or_with_odd_amounts_takes_no_work() -> None:
    seen = decode.node({"metadata": {"name": "n", "uid": "u"}, "status": {"allocatable": {"cpu": "many"}}})

    assert not seen.ready
    assert seen.problem.startswith("allocatable cpu cannot be read: 'many' is not")


def test_a_queues_units_and_defaults_are_kais() -> None:
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
def test_a_queue_without_resources_is_told_so_in_kais_words(spec: Raw) -> None:
    seen = decode.queue({"metadata": {"name": "q", "uid": "u"}, "spec": spec})

    assert seen.problem.startswith("resources must be specified: write spec.resources with gpu, cpu and memory")


def test_a_queues_odd_number_names_its_field() -> None:
    problem = decode.queue(queue(gpu={"quota": "4"})).problem

    assert problem.startswith("spec.resources.gpu.quota cannot be read: '4' is not a number")


def test_a_pod_group_is_read() -> None:
    seen = decode.pod_group(
        pod_group(minMember=4, queue="q", priorityClassName="build", preemptibility="non-preemptible")
    )

    assert (seen.key, seen.uid, seen.queue, seen.min_member) == (GroupKey("team", "it"), "u1", QueueName("q"), 4)
    assert (seen.priority_class, seen.preemptible, seen.created_at, seen.problem) == ("build", False, 100.0, "")


def test_a_pod_group_without_a_minimum_is_no_gang() -> None:
    assert [decode.pod_group(pod_group(**spec)).min_member for spec in ({}, {"minMember": 0})] == [1, 1]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"minMember": -1}, "out of range"),
        ({"minMember": "4"}, "not an integer"),
        ({"preemptibility": "maybe"}, "write preemptible or non-preemptible"),
        ({"topologyConstraint": {"requiredTopologyLevel": "rack"}}, "not available yet"),
    ],
)
def test_a_pod_group_that_cannot_be_kept_to_is_a_problem(spec: Raw, problem: str) -> None:
    assert problem in decode.pod_group(pod_group(**spec)).problem


def test_a_priority_class_is_read() -> None:
    seen = decode.priority_class({"metadata": {"name": "train", "uid": "u"}, "value": 50})

    assert seen == PriorityClass(name="train", value=50)


def test_the_crds_bounds_are_the_decoders() -> None:
    crds = Path(__file__).parents[2] / "deploy" / "crds"
    queues, groups = (crds / "queues.yaml").read_text(), (crds / "podgroups.yaml").read_text()

    for scale in (GPU_SCALE, CPU_SCALE, MEMORY_SCALE):
        assert f"<= {MAX_QUEUE_AMOUNT // scale}.0)" in queues
    assert f"self <= {MAX_WEIGHT}.0" in queues
    assert f"self <= {MAX_MEMBERS}\n" in groups
