"""Packing by expected use: a pod goes where the GPUs that stay free remain most useful."""

from dataclasses import replace

import numpy as np
import pytest

from app.model.node import Node
from app.model.pod import Pod, Sharing
from app.model.resources import MAX_AMOUNT
from app.model.snapshot import PART, SharedDevice, Snapshot
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.score import PER_LOSS, WRONG_KIND
from app.scheduling.placement.state import PlacementState
from app.settings import Packing, PlacementStrategy
from tests import given

HALF = Sharing(portion_ppm=500_000)
TYPICAL = [given.pod(f"t{number}", gpus=1, cpu=8) for number in range(4)]


def snapshot(*nodes: Node, typical: list[Pod] = TYPICAL) -> Snapshot:
    return replace(given.snapshot(nodes, [], []), mix=given.mix(typical))


def chosen(snapshot: Snapshot, pod: Pod, strategy: Strategy | None = None) -> str:
    seats = PlacementState(snapshot, strategy or Strategy()).place([pod])
    return snapshot.nodes.nodes[seats[0].column].name if seats else ""


def test_a_pod_without_gpus_goes_where_cpu_is_left_over_not_where_gpus_lack_it() -> None:
    nodes = snapshot(given.node("short", gpus=4, cpu=32), given.node("wide", gpus=4, cpu=96))
    pod = given.pod("p", gpus=0, cpu=8)

    assert chosen(nodes, pod) == "wide"
    assert chosen(nodes, pod, Strategy(packing=Packing.BEST_FIT)) == "short"
    assert chosen(replace(nodes, mix=None), pod) == "short"


def test_a_pod_with_much_cpu_goes_to_the_node_with_much_cpu_per_gpu() -> None:
    nodes = snapshot(given.node("short", gpus=4, cpu=32), given.node("wide", gpus=8, cpu=256))

    assert chosen(nodes, given.pod("p", gpus=1, cpu=30)) == "wide"
    assert chosen(nodes, given.pod("p", gpus=1, cpu=1)) == "short"


def test_memory_counts_as_cpu_does() -> None:
    large = [replace(pod, request=replace(pod.request, memory_bytes=100 * given.GIB)) for pod in TYPICAL]
    node = given.node("a", gpus=4)
    small = replace(node, allocatable=replace(node.allocatable, memory_bytes=420 * given.GIB))
    nodes = snapshot(small, given.node("b", gpus=4), typical=large)
    pod = given.pod("p", gpus=0, cpu=1)

    assert chosen(nodes, replace(pod, request=replace(pod.request, memory_bytes=64 * given.GIB))) == "b"


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_a_pod_without_gpus_still_prefers_a_node_without_gpus(strategy: PlacementStrategy) -> None:
    nodes = snapshot(given.node("gpus", gpus=4, cpu=96), given.node("none", gpus=0, cpu=16))

    assert chosen(nodes, given.pod("p", gpus=0, cpu=8), Strategy(strategy)) == "none"


def test_the_fullest_node_is_best_where_nothing_is_lost() -> None:
    nodes = snapshot(given.node("a", gpus=0, cpu=64), given.node("b", gpus=0, cpu=64), given.node("gpus"))
    nodes.free[0, 1] -= 32_000

    assert chosen(nodes, given.pod("p", gpus=0, cpu=8)) == "b"


def with_shared(*left: tuple[str, int]) -> Snapshot:
    """Return nodes of two GPUs, on each of which one is shared and has so many thousandths left."""
    nodes = [given.node(name, gpus=2, device_memory_mib=1000) for name, _ in left]
    made = snapshot(*nodes, typical=[*TYPICAL * 25, given.pod("h", gpus=0, cpu=4, sharing=HALF)])
    made.free[2] -= 1000
    parts = zip(nodes, left, strict=True)
    return replace(made, shared={node.name: (SharedDevice("d", each * PART),) for node, (_, each) in parts})


def test_a_half_fills_the_half_that_is_left_not_another_gpu() -> None:
    nodes = with_shared(("a", 400), ("b", 700), ("c", 500))

    assert chosen(nodes, given.pod("p", gpus=0, sharing=HALF)) == "c"


def test_a_small_part_takes_a_rest_that_no_typical_pod_can_use() -> None:
    nodes = with_shared(("a", 500), ("b", 300), ("c", 900))

    assert chosen(nodes, given.pod("p", gpus=0, sharing=Sharing(portion_ppm=250_000))) == "b"


def test_a_mig_profile_goes_where_cpu_is_left_over() -> None:
    mig = (("nvidia.com/mig-1g.10gb", 7),)
    nodes = snapshot(given.node("short", gpus=0, cpu=8, scalars=mig), given.node("wide", gpus=0, cpu=96, scalars=mig))
    counts = np.array([7, 7], dtype=np.int64)
    nodes = replace(nodes, scalars={"nvidia.com/mig-1g.10gb": counts})

    assert chosen(nodes, given.pod("p", gpus=0, cpu=4, scalars=(("nvidia.com/mig-1g.10gb", 1),))) == "wide"


def test_the_precedence_of_nvlinks_and_of_nodes_without_gpus_survives_hostile_amounts() -> None:
    huge = 1 << 40
    scalars = (("amd.com/gpu", huge),)
    nodes = snapshot(given.node("a", gpus=300, cpu=1, scalars=scalars), given.node("b", gpus=1))
    nodes = replace(nodes, scalars={"amd.com/gpu": np.array([huge, -huge], dtype=np.int64)})
    pods = [
        given.pod("p", gpus=200, cpu=1),
        given.pod("q", gpus=0, cpu=1, scalars=scalars),
        given.pod("r", gpus=0, sharing=Sharing(portion_ppm=10, devices=500)),
    ]
    for pod in pods:
        costs = PlacementState(nodes, Strategy()).costs(pod) % WRONG_KIND
        assert ((costs >= 0) & (costs < PER_LOSS)).all()


def test_a_pod_with_the_largest_amounts_of_many_kinds_of_gpus_does_not_stop_the_plan() -> None:
    names = [f"example.com/gpu-{number:03}" for number in range(200)]
    scalars = tuple((name, MAX_AMOUNT) for name in names)
    nodes = replace(snapshot(given.node("a")), scalars={name: np.array([1], dtype=np.int64) for name in names})

    assert not chosen(nodes, given.pod("p", scalars=scalars))
    assert (PlacementState(nodes, Strategy()).costs(given.pod("p", scalars=scalars)) < PER_LOSS).all()


def test_devices_in_use_that_become_whole_again_count_once() -> None:
    node = given.node("a", gpus=2, device_memory_mib=1000)
    leaving = replace(snapshot(node), shared={node.name: (SharedDevice("d", 500 * PART, releasing=500 * PART),)})
    leaving.free[2] -= 1000
    leaving = replace(leaving, releasing=np.array([[0], [0], [1000], [0]], dtype=np.int64))
    pod = given.pod("p", gpus=1)

    state = PlacementState(leaving, Strategy())

    assert state.costs(pod).tolist() == PlacementState(snapshot(node), Strategy()).costs(pod).tolist()
