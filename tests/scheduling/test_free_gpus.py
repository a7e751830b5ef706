"""How many GPUs are free, where, and which part of them typical pods cannot use."""

from dataclasses import replace

from app.model.node import Node
from app.model.occupancy import FreeGpus
from app.model.pod import Pod
from app.scheduling.explain.free_gpus import free_gpus
from tests import given


def counted(*nodes: Node, running: dict[str, Pod] | None = None, typical: Pod | None = None) -> FreeGpus:
    groups = [given.group(running=[given.placed(pod, on)]) for on, pod in (running or {}).items()]
    snapshot = given.snapshot(nodes, [given.queue("q")], groups)
    return free_gpus(replace(snapshot, mix=given.mix([typical]) if typical else None))


def test_nodes_are_counted_by_their_free_gpus() -> None:
    nodes = [given.node(name, gpus=4) for name in "abc"]

    found = counted(*nodes, running={"a": given.pod("p", gpus=3), "b": given.pod("o", gpus=4)})

    assert found == FreeGpus(nodes={0: 1, 1: 1, 2: 0, 3: 0, 4: 1})


def test_nodes_without_gpus_and_nodes_that_take_no_pods_are_not_counted() -> None:
    cordoned = given.node("cordoned", gpus=8, unschedulable=True)

    assert counted(given.node("cpu", gpus=0), cordoned).nodes == {}
    assert counted(cordoned, given.node("a", gpus=1)).nodes == {0: 0, 1: 1}


def test_single_free_gpus_are_of_no_use_to_pods_of_eight() -> None:
    apart = counted(
        *(given.node(name, gpus=8) for name in "ab"),
        running={"a": given.pod("p", gpus=4), "b": given.pod("o", gpus=4)},
        typical=given.pod("typical", gpus=8),
    )
    together = counted(
        *(given.node(name, gpus=8) for name in "ab"),
        running={"a": given.pod("p", gpus=8)},
        typical=given.pod("typical", gpus=8),
    )

    assert (apart.unusable_ratio, together.unusable_ratio) == (1.0, 0.0)


def test_gpus_without_cpu_beside_them_are_of_little_use() -> None:
    starved = counted(given.node("a", gpus=8, cpu=1), typical=given.pod("typical", cpu=8))
    fed = counted(given.node("a", gpus=8, cpu=256), typical=given.pod("typical", cpu=8))

    assert fed.unusable_ratio is not None
    assert starved.unusable_ratio is not None
    assert fed.unusable_ratio < 0.01
    assert starved.unusable_ratio > 0.4


def test_a_full_cluster_is_not_fragmented() -> None:
    full = counted(given.node("a", gpus=1), running={"a": given.pod("p")}, typical=given.pod("typical"))

    assert full == FreeGpus(nodes={0: 1}, unusable_ratio=0.0)
