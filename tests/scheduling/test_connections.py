"""The node of a pod with several GPUs depends on the connections between the idle devices of each node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.layout import Layout
from app.model.resources import GPU, GPU_MILLI, Amounts
from app.model.snapshot import Snapshot
from app.scheduling.placement.connections import Connections, loss
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Timing
from app.scheduling.planner.planner import scores
from app.scheduling.policy import Policy
from app.settings import PlacementStrategy
from tests import given
from tests.scheduling.machines import layout, machine, mask

BINPACK, SPREAD = PlacementStrategy.BINPACK, PlacementStrategy.SPREAD
VOLTA, HOPPER, PCIE = machine("dgx1-v100"), machine("hgx-h100"), machine("8x-pcie")
UNKNOWN = None

Cluster = Mapping[str, tuple[Layout | None, Sequence[int]]]
"""By node: how its devices are connected, and which of them are idle."""


def cluster(nodes: Cluster, *, free: Mapping[str, int] | None = None) -> Snapshot:
    """Build nodes of eight GPUs; the number of free GPUs is that of idle ones, or as in `free`."""
    made = [given.node(name, gpus=8, layout=each) for name, (each, _) in sorted(nodes.items())]
    idle = [mask(idle) for _, (_, idle) in sorted(nodes.items())]
    snapshot = given.snapshot(made, [given.queue("q")], [], idle_devices=np.array(idle, dtype=np.int64))
    for column, (name, (_, devices)) in enumerate(sorted(nodes.items())):
        snapshot.free[GPU, column] = GPU_MILLI * (free or {}).get(name, len(devices))
    return snapshot


def chosen(snapshot: Snapshot, *, gpus: int, strategy: PlacementStrategy = BINPACK) -> str | None:
    seat = PlacementState(snapshot, Strategy(strategy)).find(given.pod("p", gpus=gpus))
    return None if seat is None else snapshot.nodes.nodes[seat.column].name


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_a_pod_with_two_gpus_is_placed_where_they_share_two_nvlinks(strategy: PlacementStrategy) -> None:
    # On a, 0 and 5 have no NVLink; on b, 0 and 1 have one; on c, 0 and 3 have two.
    nodes = {"a": (VOLTA, [0, 5]), "b": (VOLTA, [0, 1]), "c": (VOLTA, [0, 3])}

    assert chosen(cluster(nodes), gpus=2, strategy=strategy) == "c"
    assert chosen(cluster({name: nodes[name] for name in "ab"}), gpus=2, strategy=strategy) == "b"


def test_good_connections_rank_before_a_fuller_node() -> None:
    assert chosen(cluster({"empty": (VOLTA, range(8)), "fuller": (VOLTA, [0, 1, 6])}), gpus=2) == "empty"


@pytest.mark.parametrize(("strategy", "best"), [(BINPACK, "fuller"), (SPREAD, "empty")])
@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_behind_nvswitch_all_sets_are_equal_so_the_strategy_decides(
    gpus: int, strategy: PlacementStrategy, best: str
) -> None:
    # The PCIe paths differ: 0 and 1 share a switch, and 0 and 7 do not.
    nodes = {"empty": (HOPPER, range(8)), "fuller": (HOPPER, [0, 2, 5, 7])}

    assert chosen(cluster(nodes), gpus=gpus, strategy=strategy) == best


def test_without_nvlink_anywhere_the_pcie_paths_decide() -> None:
    assert chosen(cluster({"a": (PCIE, [0, 7]), "b": (PCIE, [0, 1])}), gpus=2) == "b"


def test_any_nvlink_ranks_before_no_nvlink() -> None:
    assert chosen(cluster({"a": (PCIE, [0, 1]), "b": (VOLTA, [0, 1, 2])}), gpus=2) == "b"


def test_a_pod_with_one_gpu_fills_nodes_regardless_of_their_connections() -> None:
    assert chosen(cluster({"a": (VOLTA, [0, 3]), "b": (VOLTA, [5])}), gpus=1) == "b"


@pytest.mark.parametrize("gpus", [1, 2, 7])
def test_nodes_without_an_agent_are_compared_as_if_there_were_no_agents(gpus: int) -> None:
    fuller = dict.fromkeys("abc", 8) | {"b": gpus}
    silent = cluster(dict.fromkeys("abc", (UNKNOWN, [])), free=fuller)

    assert chosen(silent, gpus=gpus) == "b"


def test_a_node_without_an_agent_does_not_rank_below_the_best_node() -> None:
    nodes: Cluster = {"silent": (UNKNOWN, []), "well": (VOLTA, range(8)), "badly": (VOLTA, [0, 5])}

    assert chosen(cluster(nodes, free={"silent": 4}), gpus=2) == "silent"


def test_the_next_pods_of_a_gang_are_placed_where_good_connections_are_left() -> None:
    # On a, one pod takes 0 and 3: the remaining devices, 1 and 6, have no NVLink.
    snapshot = cluster({"a": (VOLTA, [0, 1, 3, 6]), "b": (VOLTA, range(8))})
    pods = [given.pod(f"p{index}", gpus=2, gang="g") for index in range(5)]

    seats = PlacementState(snapshot, Strategy(BINPACK)).place(pods)

    assert seats is not None
    assert [snapshot.nodes.nodes[seat.column].name for seat in seats] == ["a", "b", "b", "b", "b"]


def test_devices_that_the_agent_has_not_reported_as_used_yet_are_assumed_as_chosen_by_leeboard() -> None:
    # Four devices remain on each node: on a the rest without its best pair, 6 and 7; on b the other quad.
    nodes = {"a": (VOLTA, [0, 1, 4, 5, 6, 7]), "b": (VOLTA, range(8))}

    assert chosen(cluster(nodes, free={"a": 4, "b": 4}), gpus=4) == "b"


def test_a_node_with_fewer_idle_than_free_devices_is_scored_by_its_best_set() -> None:
    # The agent of b has not reported yet which pods have ended.
    assert chosen(cluster({"a": (VOLTA, [0, 5]), "b": (VOLTA, [2])}, free={"b": 3}), gpus=2) == "b"
    assert chosen(cluster({"a": (VOLTA, [0, 1]), "b": (PCIE, [2])}, free={"b": 2}), gpus=2) == "a"


def test_a_pod_that_waits_for_terminating_pods_is_scored_by_the_whole_machine() -> None:
    snapshot = cluster({"a": (PCIE, []), "b": (VOLTA, [])})
    snapshot.free[GPU] = 8000

    seat = PlacementState(snapshot, Strategy()).find(given.pod("p", gpus=8), timing=Timing.LATER)

    assert seat is not None
    assert seat.column == 1


def test_prioritize_scores_the_best_connected_node_highest() -> None:
    snapshot = cluster({"a": (VOLTA, [0, 5]), "b": (VOLTA, [0, 1]), "c": (VOLTA, [0, 3]), "d": (VOLTA, [1])})
    pod = given.pod("p", gpus=2)

    found = scores(snapshot, pod, [node.name for node in snapshot.nodes.nodes], Policy())

    assert found.tolist() == [1, 6, 10, 0]


@pytest.mark.parametrize(
    ("on", "size", "idle", "lost"),
    [
        (VOLTA, 2, range(8), 0),
        (VOLTA, 2, [0, 1], 500),  # one NVLink of two
        (VOLTA, 2, [0, 5], 1000 * 1001 + 1000),
        (VOLTA, 4, [0, 1, 4, 5], 333 * 1001 + 333),  # two of six pairs without; 6 NVLinks of 9
        (VOLTA, 8, range(8), 428 * 1001),  # 12 of 28 pairs without, as always
        (HOPPER, 4, [0, 3, 5, 6], 0),
        (PCIE, 2, [0, 1], 1000 * 1001),
        (PCIE, 2, [0, 7], 1000 * 1001 + 800),  # 10 of 50
        (VOLTA, 9, range(8), 0),
    ],
)
def test_pairs_without_nvlink_count_before_the_gap_to_the_best_set(
    on: Layout, size: int, idle: Sequence[int], lost: int
) -> None:
    assert loss(on, size, mask(idle), len(idle)) == lost


def test_a_machine_of_64_devices_is_scored_by_all_of_them() -> None:
    large = layout([200 if one // 2 == other // 2 and one != other else 0 for other in range(64)] for one in range(64))
    nodes = [given.node("a", gpus=64, layout=large), given.node("b", gpus=64, layout=large)]
    idle = np.array([mask([61, 63]), mask([62, 63])], dtype=np.uint64).view(np.int64)
    snapshot = given.snapshot(nodes, [], [], idle_devices=idle)
    snapshot.free[GPU] = 2000

    assert chosen(snapshot, gpus=2) == "b"


# What is remembered ---------------------------------------------------------------------------------------------------


kinds_of_nodes = st.lists(
    st.tuples(st.sampled_from([VOLTA, HOPPER, PCIE, UNKNOWN]), st.sets(st.integers(0, 7))), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@for_all(kinds_of_nodes, st.sampled_from([1, 65]), st.data())
def test_connection_losses_after_every_change_equal_those_of_checking_each_node(
    kinds: list[tuple[Layout | None, set[int]]], times: int, data: st.DataObject
) -> None:
    nodes = kinds * times
    snapshot = cluster({f"n{index:03}": (kind, sorted(idle)) for index, (kind, idle) in enumerate(nodes)})
    connections, free = Connections(snapshot), snapshot.free[GPU].copy()

    for _ in range(6):
        size = data.draw(st.sampled_from([2, 3]))
        assert steps(connections.losses(size, free), len(nodes)) == [
            0 if kind is None else loss(kind, size, mask(idle), max(min(int(gpus) // GPU_MILLI, len(idle)), 0))
            for (kind, idle), gpus in zip(nodes, free, strict=True)
        ]
        column = data.draw(st.one_of(st.none(), st.integers(0, len(kinds) - 1)))
        free[slice(None) if column is None else column] = data.draw(st.sampled_from([-1000, 2000, 4000]))


def steps(losses: Amounts | None, nodes: int) -> list[int]:
    return [0] * nodes if losses is None else [int(each) >> 40 for each in losses]


def test_a_node_table_gives_new_answers_after_other_devices_became_idle() -> None:
    snapshot = cluster({"a": (VOLTA, [0, 5]), "b": (VOLTA, [0, 1]), "c": (UNKNOWN, [])}, free={"c": 0})
    before = chosen(snapshot, gpus=2)

    def then(*devices: Sequence[int]) -> str | None:
        idle = np.array([*map(mask, devices), 0], dtype=np.int64)
        return chosen(replace(snapshot, idle_devices=idle), gpus=2)

    assert before == "b"
    assert then([0, 3], [0, 1]) == "a"
    assert then([0, 3], [0, 1]) == "a"
    assert then([0, 1], [1, 2]) == "b"
    assert then([0, 5], [0, 5]) == "a"


def test_the_cache_of_node_kinds_is_bounded() -> None:
    snapshot = cluster(dict.fromkeys("ab", (machine("dgx2-v100"), [0])))

    for idle in range(1, 2000):
        devices = np.array([idle, 1], dtype=np.int64)
        assert Connections(replace(snapshot, idle_devices=devices)).losses(2, snapshot.free[GPU]) is not None

    machines = snapshot.nodes.memo.get("machines")
    assert machines is not None
    assert len(machines.kinds) <= 1024
