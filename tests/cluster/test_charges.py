"""Charges: what pods hold and request, summed on nodes, in queues and outside all queues."""

from collections.abc import Iterable, Mapping

import numpy as np
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.cluster.ledger.charge import Charge, Hold
from app.cluster.ledger.charges import Charges
from app.cluster.ledger.nodes import allocatable_scalars
from app.model.names import NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.resources import NOTHING, Amounts, Resources
from app.model.snapshot import NodeTable, Usage
from tests import given

N1, N2, Q, R = NodeName("n1"), NodeName("n2"), QueueName("q"), QueueName("r")
NODES = given.node("n1"), given.node("n2")
X, Y = PodUid("x"), PodUid("y")


def gpus(count: int) -> Resources:
    return Resources(gpu_milli=count * 1000, pods=1)


def use(found: Charges, table: NodeTable) -> None:
    found.use_table(table, allocatable_scalars(table))


def charges(*nodes: Node, **charged: Charge) -> Charges:
    found = Charges()
    use(found, NodeTable.of(nodes or NODES))
    for uid, charge in charged.items():
        found.set(PodUid(uid), charge)
    return found


def free_gpus(found: Charges) -> list[int]:
    return [int(amount) // 1000 for amount in found.free()[2]]


def test_a_pod_without_a_node_is_only_requested() -> None:
    found = charges(x=Charge(gpus(2), None, Q))

    assert found.usage() == {Q: Usage(requested=gpus(2))}
    assert free_gpus(found) == [8, 8]


def test_a_pod_with_a_node_is_allocated_there_and_in_its_queue() -> None:
    found = charges(x=Charge(gpus(2), N1, Q), y=Charge(gpus(1), N1, Q, preemptible=False))

    both = gpus(2) + gpus(1)
    assert found.usage() == {Q: Usage(allocated=both, allocated_non_preemptible=gpus(1), requested=both)}
    assert [node.allocatable - found.free_on(node) for node in NODES] == [both, NOTHING]
    assert free_gpus(found) == [5, 8]


def test_a_new_charge_replaces_the_old_one() -> None:
    found = charges(x=Charge(gpus(2), N1, Q, preemptible=False))

    found.set(X, Charge(gpus(3), N2, R))

    assert found.get(X) == Charge(gpus(3), N2, R)
    assert found.usage() == {R: Usage(allocated=gpus(3), requested=gpus(3))}
    assert free_gpus(found) == [8, 5]


def test_a_queue_whose_pods_are_all_gone_is_forgotten() -> None:
    # Queue names are labels that tenants write: empty sums would accumulate for ever.
    found = charges(x=Charge(gpus(1), N1, Q), y=Charge(gpus(1), None, R))

    found.set(X, None)
    found.set(Y, None)

    assert (found.usage(), found.get(X)) == ({}, None)


def test_a_returned_sum_does_not_change_later() -> None:
    found = charges(x=Charge(gpus(1), N1, Q))
    usage, free = found.usage(), found.free()

    found.set(Y, Charge(gpus(2), N1, Q))

    assert usage == {Q: Usage(allocated=gpus(1), requested=gpus(1))}
    assert (free[2] // 1000).tolist() == [7, 8]


def test_a_node_may_be_added_after_its_pods_and_deleted_before_them() -> None:
    found = charges(given.node("n2"), x=Charge(gpus(2), N1, Q))
    assert free_gpus(found) == [8]

    use(found, NodeTable.of([given.node("n1")]))
    assert free_gpus(found) == [6]

    found.set(X, None)
    assert free_gpus(found) == [8]


def test_an_overcommitted_node_has_a_negative_free_amount() -> None:
    assert free_gpus(charges(given.node("n1", gpus=1), x=Charge(gpus(3), N1, Q))) == [-2]


def test_only_pods_without_a_queue_on_schedulable_nodes_reduce_the_capacity() -> None:
    # The capacity of a node that is not ready is not divided: subtracting its pods from the rest would count them
    # twice.
    nodes = given.node("n1"), given.node("n2", ready=False)

    found = charges(*nodes, x=Charge(gpus(1), N1, None), y=Charge(gpus(2), N2, None), z=Charge(gpus(4), N1, Q))

    assert found.divided() == NODES[0].allocatable - gpus(1)


def test_what_is_divided_follows_the_pods_without_a_queue_and_the_nodes() -> None:
    found = charges(*NODES, x=Charge(gpus(1), N1, None))
    seen = [found.divided()]

    found.set(Y, Charge(gpus(2), N1, None))
    seen.append(found.divided())
    found.set(PodUid("x"), None)
    seen.append(found.divided())
    use(found, NodeTable.of(NODES[:1]))
    seen.append(found.divided())

    one, both = NODES[0].allocatable, NODES[0].allocatable + NODES[1].allocatable
    assert seen == [both - gpus(1), both - gpus(1) - gpus(2), both - gpus(2), one - gpus(2)]


pods = st.dictionaries(
    st.sampled_from([PodUid(name) for name in "abcd"]),
    st.builds(
        Charge,
        st.builds(gpus, st.integers(0, 3)),
        st.sampled_from([None, N1, N2]),
        st.sampled_from([None, Q, R]),
        hold=st.sampled_from(Hold),
        scalars=st.sampled_from([(), (("x/y", 1),), (("only.pods/z", 1), ("x/y", 2))]),
    )
    | st.none(),
)
tables = st.sampled_from([[], ["n1"], ["n1", "n2"]]).map(
    lambda names: NodeTable.of(given.node(name, scalars=(("x/y", 3),)) for name in names)
)


@settings(deadline=None)
@for_all(st.lists(st.tuples(pods, tables)))
def test_sums_equal_those_added_up_from_scratch(steps: list[tuple[dict[PodUid, Charge | None], NodeTable]]) -> None:
    found, known = Charges(), dict[PodUid, Charge]()
    for changes, table in steps:
        use(found, table)
        for uid, charge in changes.items():
            found.set(uid, charge)
        known = {uid: one for uid, one in (known | changes).items() if one}

        assert [Resources.of(column) for column in found.free().T] == [
            node.allocatable - total(one for one in known.values() if one.node == node.name) for node in table.nodes
        ]
        assert found.usage() == {queue: usage(queue, known) for queue in {one.queue for one in known.values()} if queue}
        held = [[one for one in known.values() if one.node == node.name] for node in table.nodes]
        leaving = [[one for one in here if one.hold is Hold.LEAVING] for here in held]
        assert released(found, table) == [total(here) for here in leaving]
        assert scalars(found.free_scalars(), table) == [3 - count(here) for here in held]
        assert scalars(found.releasing_scalars(), table) == [count(here) for here in leaving]


def released(found: Charges, table: NodeTable) -> list[Resources]:
    releasing = found.releasing()
    return [NOTHING for _ in table.nodes] if releasing is None else [Resources.of(column) for column in releasing.T]


def scalars(amounts: Mapping[str, Amounts], table: NodeTable) -> list[int]:
    assert amounts.keys() <= {"x/y"}
    return [int(amount) for amount in amounts.get("x/y", np.zeros(len(table.nodes)))]


def count(found: Iterable[Charge]) -> int:
    return sum(dict(one.scalars).get("x/y", 0) for one in found)


def usage(queue: QueueName, known: Mapping[PodUid, Charge]) -> Usage:
    mine = [one for one in known.values() if one.queue == queue]
    held = [one for one in mine if one.node]
    return Usage(
        allocated=total(held),
        allocated_non_preemptible=total(one for one in held if not one.preemptible),
        requested=total(mine),
    )


def total(found: Iterable[Charge]) -> Resources:
    return sum((one.request for one in found), NOTHING)
