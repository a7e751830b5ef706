"""The placement state: what is free while one plan is made, and which pods take it."""

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Constraint, Pod
from app.model.resources import CPU, GPU
from app.model.snapshot import Snapshot
from app.scheduling.placement import gang
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Timing
from app.settings import PlacementStrategy
from tests import given

BINPACK, SPREAD = PlacementStrategy.BINPACK, PlacementStrategy.SPREAD
EAST = Constraint(node_selector=(("zone", "east"),))

Refused = Mapping[PodUid, frozenset[NodeName]]


def cluster(*nodes: Node, refused: Refused | None = None) -> Snapshot:
    return given.snapshot(nodes, [], [], refused=refused or {})


def place(board: PlacementState, *pods: Pod) -> dict[str, str] | None:
    """Place pods that start together, and return the node of each."""
    seats = board.place(pods)
    if seats is None:
        return None
    return {one.pod.removeprefix("uid-"): one.node for one in map(board.placement, seats)}


def test_a_pod_takes_what_it_requests_from_the_best_node() -> None:
    snapshot = cluster(given.node("a", gpus=8), given.node("b", gpus=4))
    board = PlacementState(snapshot, Strategy(BINPACK))

    assert place(board, given.pod("p", gpus=3, cpu=2)) == {"p": "b"}
    assert board.stock.free[[CPU, GPU]].tolist() == [[64_000, 62_000], [8000, 1000]]
    assert np.array_equal(snapshot.free, snapshot.nodes.allocatable)


def test_a_gang_that_cannot_be_placed_leaves_the_placement_state_unchanged() -> None:
    board = PlacementState(cluster(given.node("a", gpus=4), given.node("b", gpus=2)), Strategy(BINPACK))
    before = board.stock.free.copy()

    assert place(board, *(given.pod(f"p{index}", gpus=2) for index in range(4))) is None
    assert np.array_equal(board.stock.free, before)


def test_a_gang_is_placed_with_its_largest_pods_first_when_its_own_order_fails() -> None:
    # With strategy spread, the two small pods placed first would each take a node from the large one.
    board = PlacementState(cluster(given.node("a", gpus=2), given.node("b", gpus=2)), Strategy(SPREAD))
    group = given.group(*(given.pod(name, gpus=gpus, gang="g") for name, gpus in (("s", 1), ("t", 1), ("large", 2))))

    seats = gang.place(board, group, group.pending, timing=Timing.NOW_OR_LATER)

    assert seats is not None
    assert {seat.pod.name: seat.column for seat in seats} == {"large": 0, "s": 1, "t": 1}


def test_the_nominated_node_is_chosen_before_a_better_node_while_it_has_room() -> None:
    board = PlacementState(cluster(given.node("a", gpus=1), given.node("b", gpus=8)), Strategy(BINPACK))

    assert place(board, given.pod("p", gpus=8, nominated="b")) == {"p": "b"}
    assert place(board, given.pod("late", gpus=1, nominated="b")) == {"late": "a"}
    assert place(board, given.pod("lost", gpus=0, nominated="gone")) == {"lost": "a"}


def test_a_node_that_kube_scheduler_refused_for_a_pod_is_not_chosen_for_that_pod() -> None:
    pods = [given.pod("p"), given.pod("q")]
    board = PlacementState(
        cluster(given.node("a"), refused={pods[0].uid: frozenset([NodeName("a")])}), Strategy(BINPACK)
    )

    assert board.eligible(pods[0]).tolist() == [False]
    assert place(board, pods[0]) is None
    assert place(board, *pods) is None
    assert place(board, pods[1]) == {"q": "a"}


def test_a_pod_without_a_place_does_not_exclude_pods_that_request_less_or_other_nodes() -> None:
    board = PlacementState(
        cluster(given.node("a", gpus=2), given.node("b", gpus=1, labels={"zone": "east"})), Strategy(BINPACK)
    )

    assert place(board, given.pod("p", gpus=2, constraint=EAST)) is None
    assert place(board, *(given.pod(f"p{index}", gpus=1) for index in range(4))) is None
    assert place(board, *(given.pod(f"p{index}", gpus=1) for index in range(3))) == {"p0": "b", "p1": "a", "p2": "a"}


def test_a_failed_gang_of_unlike_pods_says_nothing_about_gangs_of_like_pods() -> None:
    board = PlacementState(cluster(given.node("a", gpus=2)), Strategy(BINPACK))

    assert place(board, given.pod("p"), given.pod("q", constraint=EAST)) is None
    assert place(board, given.pod("p"), given.pod("q", gpus=0, cpu=65)) is None
    assert place(board, given.pod("p"), given.pod("q")) == {"p": "a", "q": "a"}


def test_counting_places_and_choosing_a_node_take_nothing() -> None:
    board = PlacementState(cluster(given.node("a", gpus=2), given.node("b", gpus=1)), Strategy(BINPACK))
    before = board.stock.free.copy()

    _, left = board.seated([given.pod(f"p{index}", gpus=1) for index in range(5)])
    assert 5 - len(left) == 3
    assert board.choose(given.pod("p"), np.array([True, True])) == "b"
    assert board.choose(given.pod("p"), np.array([True, False])) == "a"
    assert board.choose(given.pod("p"), np.array([False, False])) is None
    assert np.array_equal(board.stock.free, before)


class SlowBoard:
    """The plain twin: it checks every node again for each pod, and remembers no failure."""

    def __init__(self, nodes: Sequence[Node], refused: Refused, strategy: PlacementStrategy) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.free = {node.name: node.allocatable for node in nodes}
        self.refused, self.strategy = refused, strategy

    def place(self, pods: Sequence[Pod]) -> dict[str, str] | None:
        before, placed = dict(self.free), {}
        for pod in pods:
            open_to = [name for name in self.nodes if self.may_go(pod, name)]
            if not open_to:
                self.free = before
                return None
            best = pod.nominated if pod.nominated in open_to else min(open_to, key=lambda name: self.cost(pod, name))
            self.free[best] -= pod.request
            placed[pod.name] = str(best)
        return placed

    def may_go(self, pod: Pod, name: NodeName) -> bool:
        left = (self.free[name] - pod.request).amounts
        in_zone = not pod.constraint.node_selector or self.nodes[name].labels == {"zone": "east"}
        return in_zone and name not in self.refused.get(pod.uid, ()) and min(left) >= 0

    def cost(self, pod: Pod, name: NodeName) -> tuple[bool, int, str]:
        sign, free = 1 if self.strategy is BINPACK else -1, self.free[name]
        if pod.request.gpu_milli:
            return False, sign * free.gpu_milli, name
        return self.nodes[name].allocatable.gpu_milli > 0, sign * free.cpu_milli, name


nodes_ = st.lists(st.tuples(st.integers(0, 4), st.integers(2, 6), st.booleans()), min_size=1, max_size=3).map(
    lambda sizes: [
        given.node(f"n{index}", gpus=gpus, cpu=cpu, labels={"zone": "east"} if east else {})
        for index, (gpus, cpu, east) in enumerate(sizes)
    ]
)
templates = st.tuples(
    st.integers(0, 2),
    st.integers(1, 2),
    st.sampled_from([Constraint(), Constraint(), EAST]),
    st.sampled_from([None, None, "n0", "n1"]),
)
gangs = st.lists(st.lists(st.tuples(templates, st.integers(1, 4)), min_size=1, max_size=2), max_size=8).map(
    lambda crowd: [
        [
            given.pod(f"g{gang}-{part}-{index}", gpus=gpus, cpu=cpu, constraint=constraint, nominated=nominated)
            for part, ((gpus, cpu, constraint, nominated), count) in enumerate(parts)
            for index in range(count)
        ]
        for gang, parts in enumerate(crowd)
    ]
)
refusals = st.dictionaries(
    st.sampled_from([PodUid(f"uid-g{gang}-0-0") for gang in range(8)]), st.just(frozenset([NodeName("n0")])), max_size=2
)


@settings(deadline=None)
@for_all(nodes_, gangs, refusals, st.sampled_from(PlacementStrategy))
def test_gangs_are_placed_as_by_a_check_of_each_node_for_each_pod(
    nodes: list[Node], gangs: list[list[Pod]], refused: Refused, strategy: PlacementStrategy
) -> None:
    fast, slow = (
        PlacementState(cluster(*nodes, refused=refused), Strategy(strategy)),
        SlowBoard(nodes, refused, strategy),
    )

    assert [place(fast, *gang) for gang in gangs] == [slow.place(gang) for gang in gangs]
    assert fast.stock.free.T.tolist() == [list(free.amounts) for free in slow.free.values()]
