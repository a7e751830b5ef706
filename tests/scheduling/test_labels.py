"""The labels of nodes as columns: a requirement of a tenant costs nothing unless nodes have its label."""

import numpy as np

from app.cluster.decode.whereabouts import MOST_KEYS, MOST_REQUIREMENTS
from app.cluster.ledger.nodes import Nodes
from app.model.node import Node
from app.model.pod import Constraint, Operator, Requirement
from app.model.snapshot import NodeTable
from app.scheduling.placement import fit
from app.scheduling.placement.labels import labels_of
from tests import given
from tests.cluster.steps import steps


def table(size: int) -> NodeTable:
    nodes = NodeTable.of(given.node(f"n{number:03}", labels={"cores": str(number)}) for number in range(size))
    fit.eligible(Constraint(node_selector=(("cores", "1"),)), nodes)
    return nodes


def unknown(operator: Operator) -> Constraint:
    return Constraint(terms=tuple((Requirement(f"k{number}", operator, ("1",)),) for number in range(100)))


def test_a_label_that_no_node_has_costs_the_same_in_a_large_cluster_as_in_a_small_one() -> None:
    small, large = table(30), table(300)

    for operator in Operator:
        asked = unknown(operator)
        assert steps(lambda: fit.eligible(asked, large)) == steps(lambda: fit.eligible(asked, small))  # noqa: B023 # at once


def test_values_that_are_compared_are_parsed_once_for_any_number_of_comparisons() -> None:
    nodes = table(300)
    above = [Constraint(terms=((Requirement("cores", Operator.GT, (str(bound),)),),)) for bound in (1, 297)]

    first, second = (steps(lambda: fit.eligible(one, nodes)) for one in above)  # noqa: B023 # at once

    assert second < first / 10
    assert np.flatnonzero(fit.eligible(above[1], nodes)).tolist() == [298, 299]


def test_label_columns_survive_a_node_change_that_keeps_the_labels() -> None:
    nodes = Nodes()
    for number in range(3):
        nodes.put(given.node(f"n{number}", labels={"zone": "east"}))
    before = labels_of(nodes.table())

    nodes.put(given.node("n1", labels={"zone": "east"}, ready=False))
    assert labels_of(nodes.table()) is before

    nodes.put(Node(name=given.node("n1").name, labels={"zone": "west"}))
    assert labels_of(nodes.table()).column("zone").values.keys() == {"east", "west"}


def test_the_largest_number_of_labels_that_a_pod_may_name_costs_a_few_steps_a_node() -> None:
    keys = [f"key-{number}" for number in range(MOST_KEYS)]
    asked = tuple(
        Requirement(keys[number % MOST_KEYS], Operator.GT, (str(number),)) for number in range(MOST_REQUIREMENTS)
    )
    # Like host names, some labels differ on each node.
    rows = ({key: str(at if n < 2 else at % 7) for n, key in enumerate(keys)} for at in range(2_000))
    nodes = NodeTable.of(given.node(f"n{at}", labels=row) for at, row in enumerate(rows))

    assert steps(lambda: fit.eligible(Constraint(terms=(asked,)), nodes)) < 24 * MOST_KEYS * len(nodes.nodes)
