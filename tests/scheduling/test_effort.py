"""The estimate of the work for a decision, before the decision is made."""

from dataclasses import replace

import pytest

from app.model.pod import Constraint, Near, Operator, Requirement
from app.model.podgroup import PodGroup, SubGroup, TopologyConstraint
from app.model.resources import Resources
from app.model.snapshot import NodeTable
from app.model.topology import Topology
from app.scheduling.placement import effort, fit, topology
from tests import given

KEYS = tuple(f"key-{number}" for number in range(16))
TOPOLOGIES = {"t": Topology(name="t", levels=("rack",)), "deep": Topology(name="deep", levels=KEYS)}
NOT_IN = tuple(
    (Requirement(KEYS[number % 16], Operator.NOT_IN, tuple(f"x{number}-{value}" for value in range(16))),)
    for number in range(256)
)
PLAIN = given.group(given.pod("plain"))
LONG = given.group(given.pod("long", constraint=Constraint(terms=NOT_IN)))
NEAR = Near((("app", "web"),), "zone", apart=True)
APART = given.group(given.pod("apart", near=(NEAR,) * 4, labels={"app": "web"}))
RACK = SubGroup(topology=TopologyConstraint("t", required="rack"))


def table(nodes: int) -> NodeTable:
    labels = [{"rack": f"r{number // 2}", **dict.fromkeys(KEYS, f"v{number}")} for number in range(nodes)]
    return NodeTable.of(given.node(f"n{number}", labels=each) for number, each in enumerate(labels))


def in_a_rack(group: PodGroup) -> PodGroup:
    root = replace(RACK, pod_sets=given.group(*group.pending).tree.pod_sets)
    return replace(group, root=root)


def unlike(pods: int) -> PodGroup:
    asked = [Resources(cpu_milli=1 + number, gpu_milli=1000, pods=1) for number in range(pods)]
    return given.group(*(replace(given.pod(f"u{n}", gang="u"), request=each) for n, each in enumerate(asked)))


def is_small(*groups: PodGroup, nodes: int, neighbours: int = 0, queues: int = 1, keeps: bool = False) -> bool:
    cluster = table(nodes), TOPOLOGIES
    return effort.is_small(groups, *cluster, neighbours=neighbours, queues=queues, keeps=keeps)


def test_plain_pods_cost_little_in_a_cluster_of_any_size() -> None:
    gang = given.group(*(given.pod(f"m{number}", gang="m") for number in range(100)))

    assert is_small(PLAIN, gang, nodes=15_000)
    assert is_small(*[PLAIN] * effort.FEW_GROUPS, nodes=5_000)
    assert not is_small(*[PLAIN] * (effort.FEW_GROUPS + 1), nodes=1)


@pytest.mark.parametrize(("queues", "small"), [(1_000, True), (10_000, False)])
def test_dividing_the_cluster_among_many_queues_costs_much(queues: int, *, small: bool) -> None:
    torn = given.group(given.pod("rest", gang="t"), min_member=2, active=1)

    assert is_small(PLAIN, nodes=100, queues=queues)
    assert is_small(PLAIN, PLAIN, nodes=100, queues=queues) is small
    assert is_small(torn, nodes=100, queues=queues) is small
    assert is_small(PLAIN, nodes=100, queues=queues, keeps=True) is small
    # A plan for no PodGroup divides too.
    assert is_small(nodes=100, queues=queues) is small


def test_one_plain_pod_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "estimate", None)

    assert is_small(PLAIN, nodes=1)


def test_requirements_are_counted_for_each_node() -> None:
    assert is_small(LONG, nodes=10)
    assert not is_small(LONG, nodes=5_000)


def test_requirements_with_a_cached_answer_are_not_counted() -> None:
    nodes, asked = table(500), Constraint(node_selector=tuple((key, "v1") for key in KEYS))
    before = effort.of_constraints([asked], nodes)
    fit.eligible(asked, nodes)

    assert before > effort.of_constraints([asked], nodes) == 0


def test_the_first_read_of_a_label_is_counted() -> None:
    nodes, first, second = table(500), *(Constraint(node_selector=(("rack", each),)) for each in ("r1", "r2"))
    before = effort.of_constraints([first], nodes)
    fit.eligible(second, nodes)

    assert effort.of_constraints([first], nodes) == before - effort.COLUMN * 500


def test_affinity_terms_are_counted_for_each_pod_that_they_may_select() -> None:
    assert is_small(APART, nodes=500, neighbours=50)
    assert not is_small(APART, nodes=500, neighbours=5_000)
    assert is_small(PLAIN, nodes=500, neighbours=5_000)


def test_every_combination_of_pod_shapes_is_counted() -> None:
    assert is_small(unlike(4), nodes=500)
    assert not is_small(*[unlike(8)] * 8, nodes=5_000)


@pytest.mark.parametrize(("nodes", "small"), [(20, True), (500, False)])
def test_domains_are_counted_for_each_pod_that_is_tried_there(*, nodes: int, small: bool) -> None:
    gang = in_a_rack(given.group(*(given.pod(f"m{number}", gang="m") for number in range(8))))

    assert is_small(gang, nodes=nodes) is small


def test_topology_levels_are_counted_until_the_nodes_are_divided_once() -> None:
    nodes, deep = table(2_000), TopologyConstraint("deep", preferred=KEYS[-1])
    before = effort.of_levels([deep], nodes, TOPOLOGIES)
    topology.sums_by_domain(nodes.allocatable[0], TopologyConstraint("deep", required=KEYS[-1]), nodes, TOPOLOGIES)

    assert before > effort.MOST_AT_ONCE
    assert effort.of_levels([deep], nodes, TOPOLOGIES) == 0


def test_the_estimate_of_many_long_pods_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[Constraint]()
    monkeypatch.setattr(effort, "_columns", lambda one: {looked.append(one)})  # type: ignore[func-returns-value] # only that it was called counts
    several = [Constraint(terms=NOT_IN[: 200 + number]) for number in range(50)]

    assert effort.of_constraints(several, table(500)) > effort.MOST_AT_ONCE
    assert len(looked) <= 1


def test_what_another_thread_finds_out_counts_only_once_its_result_is_there() -> None:
    nodes, deep = table(2_000), TopologyConstraint("deep", required=KEYS[-1])
    asked = Constraint(node_selector=tuple((key, "v1") for key in KEYS))
    before = effort.of_constraints([asked], nodes), effort.of_levels([deep], nodes, TOPOLOGIES)
    fit.eligible(Constraint(node_selector=(("rack", "r1"),)), nodes)  # the table has an index of labels already

    apart = nodes.apart()
    topology.sums_by_domain(apart.allocatable[0], deep, apart, TOPOLOGIES)
    fit.eligible(asked, apart)
    meanwhile = effort.of_constraints([asked], nodes), effort.of_levels([deep], nodes, TOPOLOGIES)
    nodes.learn(apart)

    assert meanwhile == before
    assert (effort.of_constraints([asked], nodes), effort.of_levels([deep], nodes, TOPOLOGIES)) == (0, 0)
