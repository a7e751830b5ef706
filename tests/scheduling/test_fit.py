"""Fit: on which nodes a pod may run at all, and where it has room."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.names import NodeName
from app.model.node import Node, Taint
from app.model.pod import ANYWHERE, NODE_NAME_FIELD, Constraint, Operator, Requirement, Term, Toleration
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Mask, NodeTable
from app.scheduling.placement import fit
from tests import given

T = TypeVar("T")

NODES = (
    given.node("a", labels={"zone": "east", "cores": "8"}),
    given.node("b", labels={"zone": "west", "cores": "16"}),
    given.node("c", labels={"cores": "many"}),
)


def names(mask: Mask, nodes: Iterable[Node]) -> str:
    return "".join(node.name for node, fits in zip(nodes, mask, strict=True) if fits)


def eligible(constraint: Constraint, nodes: Iterable[Node] = NODES) -> str:
    table = NodeTable.of(nodes)
    return names(fit.eligible(constraint, table), table.nodes)


def requiring(*terms: Term) -> Constraint:
    return Constraint(terms=terms)


ZONE_EAST = Requirement("zone", Operator.IN, ("east",))
HAS_ZONE = Requirement("zone", Operator.EXISTS)
MANY_CORES = Requirement("cores", Operator.GT, ("8",))


@pytest.mark.parametrize(
    ("requirement", "nodes"),
    [
        (Requirement("zone", Operator.IN, ("east", "north")), "a"),
        (Requirement("zone", Operator.IN, ("north",)), ""),
        (Requirement("zone", Operator.NOT_IN, ("east",)), "bc"),
        (Requirement("zone", Operator.EXISTS), "ab"),
        (Requirement("zone", Operator.DOES_NOT_EXIST), "c"),
        (Requirement("nobody", Operator.EXISTS), ""),
        (Requirement("cores", Operator.GT, ("8",)), "b"),
        (Requirement("cores", Operator.GT, ("-1",)), "ab"),
        (Requirement("cores", Operator.LT, ("16",)), "a"),
        (Requirement("cores", Operator.LT, ("1_000",)), ""),
        (Requirement("cores", Operator.GT, ("1" * 19,)), ""),
        (Requirement("cores", Operator.GT, ()), ""),
        (Requirement("cores", Operator.LT, ("16", "32")), ""),
        (Requirement(NODE_NAME_FIELD, Operator.IN, ("b",)), "b"),
        (Requirement(NODE_NAME_FIELD, Operator.NOT_IN, ("b",)), "ac"),
    ],
    ids=repr,
)
def test_a_requirement_selects_nodes_as_kubernetes_does(requirement: Requirement, nodes: str) -> None:
    assert eligible(requiring((requirement,))) == nodes


def test_labels_and_bounds_are_compared_as_kubernetes_reads_integers() -> None:
    largest = (1 << 63) - 1
    shown = {"a": "+6", "b": "0" * 20 + "6", "c": str(largest), "d": str(largest + 1), "e": "six", "f": "-6"}
    nodes = [given.node(name, labels={"cores": text}) for name, text in shown.items()]

    def beyond(operator: Operator, bound: str) -> str:
        return eligible(requiring((Requirement("cores", operator, (bound,)),)), nodes)

    assert (beyond(Operator.GT, "5"), beyond(Operator.LT, "007")) == ("abc", "abf")
    assert (beyond(Operator.GT, str(largest - 1)), beyond(Operator.LT, str(largest))) == ("c", "abf")
    assert (beyond(Operator.GT, str(largest + 1)), beyond(Operator.LT, str(largest + 1))) == ("", "")


@pytest.mark.parametrize(
    ("constraint", "nodes"),
    [
        (ANYWHERE, "abc"),
        (requiring((HAS_ZONE, MANY_CORES)), "b"),
        (requiring((ZONE_EAST,), (MANY_CORES,)), "ab"),
        (requiring(()), ""),
        (requiring(), ""),
        (requiring((), (ZONE_EAST,)), "a"),
        (Constraint(node_selector=(("zone", "west"), ("cores", "16"))), "b"),
        (Constraint(node_selector=(("zone", "west"),), terms=((ZONE_EAST,),)), ""),
    ],
    ids=repr,
)
def test_requirements_of_a_term_all_hold_and_one_term_is_enough(constraint: Constraint, nodes: str) -> None:
    assert eligible(constraint) == nodes


TAINTED = (
    given.node("a"),
    given.node("b", taints=(Taint("gpu", "yes"),)),
    given.node("c", taints=(Taint("gpu", "yes", "NoExecute"), Taint("team", "red"))),
)


@pytest.mark.parametrize(
    ("tolerations", "nodes"),
    [
        ([], "a"),
        ([Toleration("gpu", "Equal", "yes")], "ab"),
        ([Toleration("gpu", "Equal", "no")], "a"),
        ([Toleration("gpu", "Exists")], "ab"),
        ([Toleration("gpu", "Exists", effect="NoExecute")], "a"),
        ([Toleration("gpu", "Exists"), Toleration("team", "Equal", "red")], "abc"),
        ([Toleration("gpu", "Exists"), Toleration("team", "Equal", "red", "NoExecute")], "ab"),
        ([Toleration(operator="Exists")], "abc"),
        ([Toleration(operator="Exists", effect="NoSchedule")], "ab"),
        ([Toleration(value="yes")], "a"),
        ([Toleration("gpu", "Gt", "yes")], "a"),
    ],
    ids=repr,
)
def test_every_taint_needs_a_toleration(tolerations: list[Toleration], nodes: str) -> None:
    assert eligible(Constraint(tolerations=tuple(tolerations)), TAINTED) == nodes


def test_a_cordoned_node_takes_only_pods_that_tolerate_the_cordon() -> None:
    nodes = [given.node("a"), given.node("b", unschedulable=True)]

    assert eligible(ANYWHERE, nodes) == "a"
    assert eligible(Constraint(tolerations=(Toleration(fit.UNSCHEDULABLE.key, "Exists"),)), nodes) == "ab"


def test_a_node_that_is_not_ready_or_not_readable_takes_no_pods() -> None:
    nodes = [given.node("a", ready=False), given.node("b", problem="its memory is not a quantity"), given.node("c")]

    assert eligible(Constraint(tolerations=(Toleration(operator="Exists"),)), nodes) == "c"


def test_a_cluster_without_nodes_is_no_special_case() -> None:
    assert eligible(replace(requiring((HAS_ZONE,)), node_selector=(("zone", "east"),)), []) == ""


def test_an_answer_is_cached_in_its_node_table_only() -> None:
    table = NodeTable.of(NODES)

    assert fit.eligible(ANYWHERE, table) is fit.eligible(ANYWHERE, table)
    assert eligible(ANYWHERE, NODES[:2]) == "ab"


def test_the_mask_cache_is_bounded_although_tenants_choose_the_requirements() -> None:
    table = NodeTable.of(NODES)

    for number in range(2 * fit.MOST_REMEMBERED):
        fit.eligible(Constraint(node_selector=((f"label-{number}", ""),)), table)

    assert len(table.memo) <= fit.MOST_REMEMBERED


def test_only_requested_resources_are_compared() -> None:
    overcommitted = np.array([[-1, 2000], [0, 0], [1000, 500], [1, 1]], dtype=np.int64)

    assert fit.room(Resources(gpu_milli=1000, pods=1).amounts, overcommitted).tolist() == [True, False]
    assert fit.room(Resources(cpu_milli=2000).amounts, overcommitted).tolist() == [False, True]
    assert fit.room(NOTHING.amounts, overcommitted).tolist() == [True, True]


texts = st.sampled_from(["x", "3", "5"])
keys = st.sampled_from(["k", "l", NODE_NAME_FIELD])
effects = st.sampled_from(["NoSchedule", "NoExecute"])
taint_keys = st.sampled_from(["k", fit.UNSCHEDULABLE.key])
operators = st.sampled_from(["Equal", "Exists", "Lt"])


def few(each: st.SearchStrategy[T], most: int = 2) -> st.SearchStrategy[tuple[T, ...]]:
    return st.just(()) | st.lists(each, max_size=most).map(tuple)


requirements = st.builds(Requirement, keys, st.sampled_from(Operator), few(texts | st.sampled_from(["n0", "n1"])))
constraints = st.builds(
    Constraint,
    node_selector=few(st.tuples(st.sampled_from("kl"), texts), 1),
    terms=st.none() | few(few(requirements)),
    tolerations=few(st.builds(Toleration, st.just("") | taint_keys, operators, texts, st.just("") | effects)),
)
anywhere = st.builds(
    Node,
    name=st.just(NodeName("n")),
    labels=st.dictionaries(st.sampled_from("kl"), texts),
    taints=few(st.builds(Taint, taint_keys, texts, effects), 1),
    unschedulable=st.booleans(),
    ready=st.sampled_from([True, True, False]),
)
clusters = st.lists(anywhere, max_size=4).map(
    lambda nodes: [replace(node, name=NodeName(f"n{index}")) for index, node in enumerate(nodes)]
)


@settings(deadline=None)
@for_all(constraints, clusters)
def test_eligible_nodes_are_those_found_by_a_check_of_each_node(constraint: Constraint, nodes: list[Node]) -> None:
    assert eligible(constraint, nodes) == "".join(node.name for node in nodes if slow(constraint, node))


@settings(deadline=None)
@for_all(constraints, clusters)
def test_a_check_of_one_node_equals_the_check_of_all(constraint: Constraint, nodes: list[Node]) -> None:
    assert [fit.takes(node, constraint) for node in nodes] == [slow(constraint, node) for node in nodes]


def slow(constraint: Constraint, node: Node) -> bool:
    taints = [*node.taints, *([fit.UNSCHEDULABLE] if node.unschedulable else [])]
    return (
        node.ready
        and all(node.labels.get(key) == value for key, value in constraint.node_selector)
        and (
            constraint.terms is None
            or any(term and all(holds(each, node) for each in term) for term in constraint.terms)
        )
        and all(any(tolerates(each, taint) for each in constraint.tolerations) for taint in taints)
    )


def holds(requirement: Requirement, node: Node) -> bool:
    label = (node.labels | {NODE_NAME_FIELD: node.name}).get(requirement.key)  # type: ignore[operator] # a dict here
    match requirement.operator:
        case Operator.IN:
            return label in requirement.values
        case Operator.NOT_IN:
            return label not in requirement.values
        case Operator.EXISTS:
            return label is not None
        case Operator.DOES_NOT_EXIST:
            return label is None
    numbers = {"3": 3, "5": 5, "-5": -5}
    if label not in numbers or len(requirement.values) != 1 or requirement.values[0] not in numbers:
        return False
    difference = numbers[label] - numbers[requirement.values[0]]
    return difference > 0 if requirement.operator is Operator.GT else difference < 0


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    same_effect = toleration.effect in ("", taint.effect)
    if toleration.operator == "Exists":
        return same_effect and toleration.key in ("", taint.key)
    return same_effect and (toleration.operator, toleration.key, toleration.value) == ("Equal", taint.key, taint.value)


def test_a_table_does_not_cache_the_answer_to_a_long_requirement() -> None:
    table, many = NodeTable.of(NODES), tuple(f"zone-{number}" for number in range(1000))
    short, long = requiring((ZONE_EAST,)), requiring((Requirement("zone", Operator.IN, (*many, "east")),))

    assert names(fit.eligible(short, table), NODES) == names(fit.eligible(long, table), NODES) == "a"
    assert short in table.memo
    assert long not in table.memo
