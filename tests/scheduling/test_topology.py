"""Topology: which sets of nodes keep pods together, in which order they are tried, and why there is none."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.model.names import NodeName
from app.model.node import Node
from app.model.podgroup import TopologyConstraint
from app.model.reason import Reason, Refusal
from app.model.resources import GPU, UNLIMITED
from app.model.snapshot import Mask, NodeTable
from app.model.topology import Topology
from app.scheduling.placement.topology import STEPS, NodeSets, Subtree, fitting_counts, node_sets, same_domains
from tests import given

ZONE, RACK = "zone", "rack"
TOPOLOGIES = {"dc": Topology(name="dc", levels=(ZONE, RACK))}


def node(name: str, zone: str | None = "z1", rack: str | None = None, *, gpus: int = 2) -> Node:
    places = {ZONE: zone, RACK: rack}
    return given.node(name, gpus=gpus, labels={key: value for key, value in places.items() if value})


CLUSTER = (
    node("a", "z1", "r1"),
    node("b", "z1", "r1"),
    node("c", "z1", "r2"),
    node("d", "z2", "r3"),
    node("e", "z2", "r3"),
    node("f", "z2", "r4", gpus=4),
)


def subtree(  # noqa: PLR0913  # a builder: each test says one or two of them
    nodes: Sequence[Node],
    pods: Sequence[int] = (1,),
    *,
    required: str = "",
    preferred: str = "",
    within: str = "",
    occupied: str = "",
) -> tuple[Subtree, NodeTable]:
    """Build pods of this number of GPUs each; `within` and `occupied` name nodes by letters; no `within` is all."""
    table = NodeTable.of(nodes)
    asked = np.array([given.pod("p", gpus=gpus).request.amounts for gpus in pods], dtype=np.int64)
    mask = table.mask(one.name for one in nodes if one.name in within) if within else table.takes_work
    wanted = Subtree(
        constraint=TopologyConstraint("dc", required=required, preferred=preferred),
        asked=asked,
        counts=fitting_counts(asked, table.allocatable),
        free=table.allocatable,
        within=mask,
        occupied=table.mask(one.name for one in nodes if one.name in occupied),
    )
    return wanted, table


def spelled(mask: Mask, table: NodeTable) -> str:
    return "".join(table.nodes[column].name for column in np.flatnonzero(mask))


def tried(nodes: Sequence[Node], pods: Sequence[int] = (1,), **more: str) -> str:
    """Return the sets in the order in which they are tried."""
    wanted, table = subtree(nodes, pods, **more)
    answer = node_sets(wanted, table, TOPOLOGIES)
    assert isinstance(answer, NodeSets), answer
    return " ".join(spelled(mask, table) for mask in answer)


def refused(nodes: Sequence[Node], pods: Sequence[int] = (1,), **more: str) -> Refusal:
    wanted, table = subtree(nodes, pods, **more)
    answer = node_sets(wanted, table, TOPOLOGIES)
    assert isinstance(answer, Refusal), answer
    return answer


def steps(nodes: Sequence[Node], pods: Sequence[int], **more: str) -> dict[str, int]:
    wanted, table = subtree(nodes, pods, **more)
    answer = node_sets(wanted, table, TOPOLOGIES)
    assert isinstance(answer, NodeSets)
    assert answer.steps is not None
    return {each.name: int(step) for each, step in zip(table.nodes, answer.steps, strict=True)}


@pytest.mark.parametrize(
    ("pods", "sets"),
    [
        ((1,), "c ab de f"),  # c is tightest; the rest has 4 GPUs each: by zone (z1 is tighter than z2), then by name
        ((1, 1, 1), "ab de f"),
        ((3,), "f"),
        ((2, 2), "ab de f"),
    ],
)
def test_domains_of_the_required_level_are_tried_tightest_first(pods: tuple[int, ...], sets: str) -> None:
    assert tried(CLUSTER, pods, required=RACK) == sets


@pytest.mark.parametrize(
    ("pods", "sets"),
    [
        ((1, 1, 1), "ab de f abc def"),
        ((2, 2, 2), "abc def"),
        ((2, 2, 2, 1), "def"),
    ],
)
def test_the_preferred_level_is_tried_before_the_required_one(pods: tuple[int, ...], sets: str) -> None:
    assert tried(CLUSTER, pods, required=ZONE, preferred=RACK) == sets


def test_without_a_required_level_the_whole_cluster_is_tried_last() -> None:
    assert tried(CLUSTER, (2, 2, 2), preferred=RACK) == "abc def abcdef"
    assert tried(CLUSTER, (2, 2, 2, 2, 2), preferred=RACK) == "abcdef"


def test_a_preferred_level_wider_than_the_required_one_has_no_effect() -> None:
    assert tried(CLUSTER, (3,), required=RACK, preferred=ZONE) == "f"


def test_a_domain_is_identified_by_the_wider_labels_too() -> None:
    nodes = (node("a", "z1", "r1"), node("b", "z2", "r1"))
    assert tried(nodes, required=RACK) == "a b"


def test_new_pods_stay_in_the_domain_of_the_pods_placed_before() -> None:
    assert tried(CLUSTER, required=RACK, occupied="d") == "de"
    assert tried(CLUSTER, required=ZONE, preferred=RACK, occupied="d") == "de f def"
    assert refused(CLUSTER, (3,), required=RACK, occupied="d").sentence == (
        "The only domain of level rack in which it already runs, z2/r3, has no room for 1 pod."
    )


def test_new_pods_are_free_to_use_any_domain_under_a_preferred_level_alone() -> None:
    assert tried(CLUSTER, preferred=RACK, occupied="d") == "c ab de f abc def abcdef"


def test_a_pod_set_stays_on_the_nodes_of_its_parent() -> None:
    assert tried(CLUSTER, required=RACK, within="bcd") == "d b c"


def test_a_node_without_the_label_is_in_no_domain() -> None:
    nodes = (node("a", "z1", "r1"), node("b", "z1"), node("c", None, "r1"))
    assert tried(nodes, required=RACK) == "a"
    assert tried(nodes, required=ZONE) == "ab"
    assert tried(nodes, preferred=RACK) == "a ab abc"
    assert refused(nodes, required=RACK, within="bc").sentence == (
        "No node that it may use is in a domain of level rack."
    )


def test_unlike_pods_are_bounded_by_the_sum_of_their_requests() -> None:
    # Two pods of 1 GPU fit on each node, but 1 + 2 GPUs do not fit on c.
    assert tried(CLUSTER, (1, 2), required=RACK) == "ab de f"


def test_an_nvlink_domain_is_a_level_like_any_other() -> None:
    clique = "nvidia.com/gpu.clique"
    cliques = {"a": "c.0", "b": "c.0", "c": "c.1"}
    nodes = [given.node(name, gpus=2, labels={ZONE: "z1", clique: value}) for name, value in cliques.items()]
    wanted, table = subtree(nodes, (2, 2), required=clique)

    answer = node_sets(wanted, table, {"dc": Topology(name="dc", levels=(ZONE, clique))})

    assert repr(answer) == "<NodeSets z1/c.0>"


def test_nodes_of_the_roomiest_preferred_domain_are_first_inside_a_set() -> None:
    # No rack has room for five pods: they spread over the roomiest racks, so that they use few of them.
    assert steps(CLUSTER, (1, 1, 1, 1, 1), required=ZONE, preferred=RACK) == {
        "c": 2,
        "a": 5,
        "b": 5,
        "d": 7,
        "e": 7,
        "f": STEPS,
    }


def test_without_a_preferred_level_no_node_is_first() -> None:
    wanted, table = subtree(CLUSTER, required=RACK)
    answer = node_sets(wanted, table, TOPOLOGIES)
    assert isinstance(answer, NodeSets)
    assert answer.steps is None


def test_a_refusal_names_the_domain_that_comes_closest() -> None:
    assert refused(CLUSTER, (2, 2, 2), required=RACK) == Refusal(
        reason=Reason.GANG_DOES_NOT_FIT,
        sentence=(
            "Of 4 domains of level rack, none has room for 3 pods together: the best, z1/r1, has room for at most 2."
        ),
        details={"topology": "dc", "level": RACK, "best": "z1/r1", "domains": 4, "fitting": 2, "needed": 3},
    )
    assert refused(CLUSTER, (2,) * 8, preferred=RACK).sentence == (
        "All nodes that it may use have room for at most 7 of 8 pods together."
    )
    assert refused((), preferred=RACK).sentence == "No node that it may use has room for 1 pod."
    assert refused(CLUSTER, (9,), required=RACK).sentence == "Of 4 domains of level rack, none has room for 1 pod."


@pytest.mark.parametrize(
    ("constraint", "sentence"),
    [
        (TopologyConstraint("moon", RACK), "Topology moon does not exist; create it, or name another one."),
        (
            TopologyConstraint("dc"),
            "The topology constraint names no level of topology dc; write a required or a preferred one.",
        ),
        (TopologyConstraint("dc", "row"), "Topology dc has no level row; write one of its levels: zone, rack."),
        (TopologyConstraint("dc", RACK, "row"), "Topology dc has no level row; write one of its levels: zone, rack."),
        (TopologyConstraint("bad", RACK), "Topology bad cannot be used: it has no levels."),
    ],
)
def test_an_unusable_topology_is_refused_as_invalid(constraint: TopologyConstraint, sentence: str) -> None:
    wanted, table = subtree(CLUSTER)
    topologies = TOPOLOGIES | {"bad": Topology(name="bad", problem="it has no levels.")}

    answer = node_sets(replace(wanted, constraint=constraint), table, topologies)

    assert isinstance(answer, Refusal)
    assert (answer.reason, answer.sentence) == (Reason.POD_GROUP_IS_INVALID, sentence)


def test_a_level_may_be_named_by_its_alias() -> None:
    named = {"dc": replace(TOPOLOGIES["dc"], aliases={"row": RACK})}
    wanted, table = subtree(CLUSTER, (1, 1), required=RACK)
    by_alias = replace(wanted, constraint=TopologyConstraint("dc", required="row"))

    sets = [node_sets(one, table, named) for one in (wanted, by_alias)]

    assert repr(sets[0]) == repr(sets[1])
    by_label, same = (TopologyConstraint("dc", required=level) for level in (RACK, "row"))
    masks = [same_domains(NodeName("a"), [one], table, named) for one in (by_label, same)]
    assert [spelled(mask, table) for mask in masks] == ["ab", "ab"]


def test_a_refusal_without_a_level_names_the_aliases_too() -> None:
    named = {"dc": replace(TOPOLOGIES["dc"], aliases={"row": RACK})}
    wanted, table = subtree(CLUSTER)

    answer = node_sets(replace(wanted, constraint=TopologyConstraint("dc", "aisle")), table, named)

    assert isinstance(answer, Refusal)
    assert answer.sentence == "Topology dc has no level aisle; write one of its levels: zone, rack, row."


# The slow, plain twin -----------------------------------------------------------------------------------------------

AMOUNTS = st.integers(0, 3)
CAPACITIES = st.integers(-1, 4)
LABELS = st.sampled_from(["1", "2", None])


def most_that_fit(asked: Sequence[tuple[int, ...]], free: Sequence[Sequence[int]]) -> int:
    """Try every way to put some of the pods on the nodes; return the largest number of placed pods."""
    if not asked:
        return 0
    first, *rest = asked
    best = most_that_fit(rest, free)
    for column, here in enumerate(free):
        if all(amount == 0 or amount <= left for amount, left in zip(first, here, strict=True)):
            taken = [left - amount for left, amount in zip(here, first, strict=True)]
            best = max(best, 1 + most_that_fit(rest, [*free[:column], taken, *free[column + 1 :]]))
    return best


@for_all(
    asked=st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=4),
    free=st.lists(st.tuples(CAPACITIES, CAPACITIES), min_size=1, max_size=3),
)
def test_the_bound_is_never_below_the_number_that_really_fits(
    asked: list[tuple[int, int]], free: list[tuple[int, int]]
) -> None:
    counts = fitting_counts(np.array(asked, dtype=np.int64).reshape(-1, 2), np.array(free, dtype=np.int64).T)

    really = [most_that_fit(asked, [each]) for each in free]

    assert all(counts >= really)
    if len(set(asked)) == 1:
        assert counts.tolist() == really


def test_many_pods_that_request_what_no_node_has_fit_nowhere() -> None:
    asked = np.full((3, 1), UNLIMITED, dtype=np.int64)

    assert fitting_counts(asked, np.array([[4000]])).tolist() == [0]


@st.composite
def subtrees(draw: st.DrawFn) -> tuple[Subtree, NodeTable]:
    size = draw(st.integers(1, 5))
    nodes = [node(f"n{index}", draw(LABELS), draw(LABELS)) for index in range(size)]
    asked = np.array(draw(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=3)), dtype=np.int64)
    free = np.array([draw(st.tuples(CAPACITIES, CAPACITIES)) for _ in nodes], dtype=np.int64).T
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, dtype=np.bool_))
    levels = draw(st.sampled_from([(RACK, ""), (ZONE, ""), ("", RACK), ("", ZONE), (ZONE, RACK), (RACK, ZONE)]))
    wanted = Subtree(
        constraint=TopologyConstraint("dc", *levels),
        asked=asked,
        counts=fitting_counts(asked, free),
        free=free,
        within=draw(mask),
        occupied=draw(mask),
    )
    return wanted, NodeTable.of(nodes)


def domains(level: str, table: NodeTable) -> list[Mask]:
    """Return the domains of one level, from a loop over the nodes."""
    keys = {ZONE: (ZONE,), RACK: (ZONE, RACK)}[level]
    paths = [tuple(each.labels.get(key, "") for key in keys) for each in table.nodes]
    known = sorted({path for path in paths if all(path)})
    return [np.array([path == one for path in paths], dtype=np.bool_) for one in known]


def may_hold(domain: Mask, wanted: Subtree) -> bool:
    columns = np.flatnonzero(domain & wanted.within)
    free = [tuple(int(amount) for amount in wanted.free[:, column]) for column in columns]
    asked = [tuple(int(amount) for amount in pod) for pod in wanted.asked]
    return most_that_fit(asked, free) == len(asked)


def answered(answer: NodeSets | Refusal) -> list[Mask]:
    return list(answer) if isinstance(answer, NodeSets) else []


@for_all(case=subtrees())
def test_every_set_is_one_domain_of_a_requested_level(case: tuple[Subtree, NodeTable]) -> None:
    wanted, table = case
    required, preferred = wanted.constraint.required, wanted.constraint.preferred

    possible = {(wanted.within & one).tobytes() for one in domains(required or ZONE, table)}
    if preferred == RACK:
        possible |= {(wanted.within & one).tobytes() for one in domains(RACK, table)}
    if not required:
        possible.add(wanted.within.tobytes())

    assert {one.tobytes() for one in answered(node_sets(wanted, table, TOPOLOGIES))} <= possible


@for_all(case=subtrees())
def test_sets_of_a_required_level_are_never_mixed(case: tuple[Subtree, NodeTable]) -> None:
    wanted, table = case
    if not wanted.constraint.required:
        return
    whole = domains(wanted.constraint.required, table)
    for one in answered(node_sets(wanted, table, TOPOLOGIES)):
        around = [each for each in whole if (one & each).any()]
        assert len(around) == 1
        assert not (one & ~around[0]).any()
        assert (around[0] & wanted.occupied).any() or not wanted.occupied.any()


@for_all(case=subtrees())
def test_no_domain_with_room_for_the_pods_is_left_out(case: tuple[Subtree, NodeTable]) -> None:
    wanted, table = case
    wanted = replace(wanted, occupied=np.zeros_like(wanted.occupied))
    required, preferred = wanted.constraint.required, wanted.constraint.preferred
    levels = {required, preferred} - {""} if (required, preferred) != (RACK, ZONE) else {RACK}

    working = [one for level in levels for one in domains(level, table) if (one & wanted.within).any()]
    working = [one for one in working if may_hold(one, wanted)]

    sets = {one.tobytes() for one in answered(node_sets(wanted, table, TOPOLOGIES))}
    assert {(one & wanted.within).tobytes() for one in working} <= sets


def tightness(domain: Mask, wanted: Subtree) -> float:
    parts = [0.0]
    for row, asked in enumerate(wanted.asked.sum(axis=0)):
        room = sum(max(0, int(wanted.free[row, column])) for column in np.flatnonzero(domain & wanted.within))
        if asked:
            parts.append(asked / room if room else float("inf"))
    return max(parts)


@for_all(case=subtrees())
def test_the_order_is_that_of_a_walk_of_the_domain_tree(case: tuple[Subtree, NodeTable]) -> None:
    wanted, table = case
    wanted = replace(wanted, constraint=TopologyConstraint("dc", preferred=RACK))

    def tightest_first(some: list[Mask]) -> list[Mask]:
        return sorted(some, key=lambda one: -tightness(one, wanted))

    zones = tightest_first(domains(ZONE, table))
    racks = [one for zone in zones for one in tightest_first([r for r in domains(RACK, table) if (r & zone).any()])]
    walk = [(one & wanted.within).tobytes() for one in (*racks, *zones, wanted.within)]

    found = [one.tobytes() for one in answered(node_sets(wanted, table, TOPOLOGIES))]
    assert found == [one for one in walk if one in found and np.frombuffer(one, dtype=np.bool_).any()]


def test_the_one_rack_with_room_is_found_among_five_thousand_nodes() -> None:
    nodes = [node(f"n{index:04}", f"z{index // 1000}", f"r{index // 10:03}", gpus=8) for index in range(5000)]
    wanted, table = subtree(nodes, (8,) * 10, required=RACK)
    wanted.free[GPU, : 10 * 499] = 0
    wanted = replace(wanted, counts=fitting_counts(wanted.asked, wanted.free))

    assert repr(node_sets(wanted, table, TOPOLOGIES)) == "<NodeSets z4/r499>"


# Other nodes a pod may use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "required", "preferred", "expected"),
    [
        ("a", RACK, "", "ab"),
        ("a", ZONE, "", "abc"),
        ("a", "", RACK, "ab"),
        ("d", ZONE, RACK, "de"),
        ("h", "", RACK, "gh"),
        ("h", RACK, "", ""),
        ("gone", RACK, "", ""),
    ],
)
def test_a_pod_stays_in_the_domain_for_which_it_was_planned(
    node: str, required: str, preferred: str, expected: str
) -> None:
    table = NodeTable.of([*CLUSTER, *(given.node(name) for name in "gh")])
    constraint = TopologyConstraint("dc", required=required, preferred=preferred)

    assert spelled(same_domains(NodeName(node), [constraint], table, TOPOLOGIES), table) == expected


def test_a_pod_uses_no_other_domain_while_its_topology_is_unusable_and_any_node_without_a_topology() -> None:
    table = NodeTable.of(CLUSTER)

    assert spelled(same_domains(NodeName("a"), [TopologyConstraint("moon", RACK)], table, TOPOLOGIES), table) == ""
    assert spelled(same_domains(NodeName("a"), [], table, TOPOLOGIES), table) == "abcdef"
