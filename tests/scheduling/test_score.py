"""Score: which of the nodes with room is best for a pod."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.names import NodeName
from app.model.node import Node
from app.model.pod import Sharing
from app.model.resources import CPU, GPU, Amounts
from app.scheduling.placement import score
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.settings import PlacementStrategy
from tests import given

BINPACK, SPREAD = PlacementStrategy.BINPACK, PlacementStrategy.SPREAD

Free = dict[str, tuple[int, int]]
"""Free GPUs and cores by node."""


def costs(compared: int, free: Free, strategy: PlacementStrategy, nodes: Sequence[Node] = ()) -> dict[str, int]:
    snapshot = given.snapshot(nodes or [given.node(name) for name in free], [], [])
    for name, (gpus, cores) in free.items():
        column = snapshot.nodes.index[NodeName(name)]
        snapshot.free[[GPU, CPU], column] = gpus * 1000, cores * 1000
    pod = given.pod("p", gpus=1 if compared == GPU else 0)
    found = PlacementState(snapshot, Strategy(strategy)).costs(pod).tolist()
    return {node.name: cost for node, cost in zip(snapshot.nodes.nodes, found, strict=True)}


def order(compared: int, free: Free, strategy: PlacementStrategy, nodes: Sequence[Node] = ()) -> str:
    found = costs(compared, free, strategy, nodes)
    return "".join(sorted(found, key=found.__getitem__))


@pytest.mark.parametrize(("strategy", "best_first"), [(BINPACK, "bca"), (SPREAD, "abc")])
def test_nodes_are_ordered_by_free_gpus_then_by_name_for_a_pod_with_gpus(
    strategy: PlacementStrategy, best_first: str
) -> None:
    free = {"a": (8, 1), "b": (1, 64), "c": (1, 8)}

    assert order(GPU, free, strategy) == best_first


@pytest.mark.parametrize(("strategy", "best_first"), [(BINPACK, "acb"), (SPREAD, "bca")])
def test_nodes_are_ordered_by_free_cpu_for_a_pod_without_gpus(strategy: PlacementStrategy, best_first: str) -> None:
    free = {"a": (8, 1), "b": (1, 64), "c": (1, 8)}

    assert order(CPU, free, strategy) == best_first


@pytest.mark.parametrize(
    "more",
    [
        {"sharing": Sharing(portion_ppm=500_000)},
        {"scalars": (("nvidia.com/mig-1g.10gb", 1),)},
        {"claims": (given.claim("default/c", "gpu.nvidia.com", 1),)},
    ],
)
def test_a_pod_that_requests_gpus_in_another_form_is_ordered_by_gpus(more: dict[str, object]) -> None:
    assert score.axis(given.pod("p", gpus=0, **more)) == GPU  # type: ignore[arg-type] # free-form by design
    assert score.axis(given.pod("p", gpus=0, scalars=(("example.com/fpga", 1),))) == CPU


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_a_pod_without_gpus_is_placed_on_a_node_with_gpus_only_when_no_other_has_room(
    strategy: PlacementStrategy,
) -> None:
    nodes = [given.node("a", gpus=8), given.node("b", gpus=0), given.node("c", gpus=8)]
    free = {"a": (0, 1), "b": (0, 32), "c": (8, 64)}

    assert order(CPU, free, strategy, nodes)[0] == "b"
    assert order(GPU, free, BINPACK, nodes) == "abc"


@pytest.mark.parametrize("strategy", PlacementStrategy)
@pytest.mark.parametrize(
    "gpus",
    [
        {"scalars": (("nvidia.com/mig-1g.10gb", 7),)},
        {"scalars": (("amd.com/gpu", 8),)},
        {"scalars": (("habana.ai/gaudi", 8),)},
        {"device_memory_mib": 80_000},
        {"names_gpus": True},
    ],
    ids=["mig", "other vendor", "no GPU", "device plugin restarts", "all are sick"],
)
def test_a_pod_without_gpus_avoids_nodes_with_gpus_of_any_kind(
    strategy: PlacementStrategy, gpus: dict[str, Any]
) -> None:
    nodes = [given.node("a", gpus=0, **gpus), given.node("b", gpus=0), given.node("c", gpus=0, **gpus)]
    snapshot = given.snapshot(nodes, [given.queue("q")], [])
    pods = [given.group(given.pod(f"p{number}", gpus=0, cpu=24)) for number in range(3)]

    found = plan(replace(snapshot, groups={one.key: one for one in pods}), Policy(placement=strategy))

    # Two pods fit on the node without GPUs; the third uses another, since no other node without GPUs has room.
    assert [one.node for start in found.starts for one in start.placements][:2] == ["b", "b"]
    assert len(found.starts) == len(pods)


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_an_overcommitted_resource_counts_as_full(strategy: PlacementStrategy) -> None:
    found = costs(GPU, {"a": (-3, -1), "b": (0, 0)}, strategy)

    assert found["a"] == found["b"]


def test_of_equal_nodes_the_first_by_name_is_best() -> None:
    assert score.best(amounts(7, 3, 3, 9), np.array([True, True, True, True])) == 1
    assert score.best(amounts(7, 3, 3, 9), np.array([True, False, True, True])) == 2
    assert score.best(amounts(7, 3), np.array([False, False])) is None


@pytest.mark.parametrize(
    ("found", "allowed", "scores"),
    [
        ([5], [True], [10]),
        ([5, 5], [True, True], [10, 10]),
        ([9, 5], [True, True], [1, 10]),
        ([30, 10, 20], [True, True, True], [1, 10, 6]),
        ([30, 10, 20], [True, False, True], [1, 0, 10]),
        ([1, 2], [False, False], [0, 0]),
        ([], [], []),
    ],
)
def test_scores_decrease_evenly_from_the_best_to_the_worst_node(
    found: list[int], allowed: list[bool], scores: list[int]
) -> None:
    assert score.scores(amounts(*found), np.array(allowed, dtype=np.bool_)).tolist() == scores


@settings(deadline=None)
@for_all(st.lists(st.tuples(st.integers(-3, 1 << 62), st.booleans()), max_size=40))
def test_scores_keep_the_order_of_the_costs_and_separate_ten_values(nodes: list[tuple[int, bool]]) -> None:
    allowed = np.array([fits for _, fits in nodes], dtype=np.bool_)

    scores = score.scores(amounts(*(cost for cost, _ in nodes)), allowed)

    by_cost = dict(sorted((nodes[column][0], int(scores[column])) for column in np.flatnonzero(allowed)))
    steps = list(by_cost.values())
    assert [by_cost[cost] if fits else 0 for cost, fits in nodes] == scores.tolist()
    assert steps == sorted(steps, reverse=True)
    assert set(steps) <= set(range(1, 11))
    assert len(set(steps)) == min(len(steps), 10)


def amounts(*values: int) -> Amounts:
    return np.array(values, dtype=np.int64)
