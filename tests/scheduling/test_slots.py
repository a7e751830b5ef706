"""The bound on moves refuses only pods that have no places together."""

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.pod import Placed
from app.scheduling.placement.slots import Slots
from app.scheduling.placement.state import Timing
from app.scheduling.policy import DEFAULT_POLICY
from app.scheduling.preemption.whatif import WhatIf
from tests import given
from tests.scheduling.worlds import World, worlds


def placed(name: str, node: str, gpus: int) -> Placed:
    return given.placed(given.pod(name, gpus=gpus), node)


def slots(free: dict[str, int]) -> Slots:
    nodes = [given.node(name, gpus=gpus) for name, gpus in free.items()]
    return Slots(WhatIf(given.snapshot(nodes, [given.queue("q")], []), DEFAULT_POLICY.strategy).board.stock)


def test_two_pods_of_three_gpus_do_not_fit_on_nodes_with_five_and_two_free_gpus() -> None:
    three = given.pod("three", gpus=3)

    assert slots({"a": 5, "b": 2}).may_hold([three], [])
    assert not slots({"a": 5, "b": 2}).may_hold([three, three], [])


def test_a_terminating_pod_makes_slots_beside_free_gpus() -> None:
    three, gone = given.pod("three", gpus=3), placed("gone", "b", 1)

    assert slots({"a": 5, "b": 2}).may_hold([three, three], [gone])


@settings(max_examples=150)
@for_all(worlds, st.data())
def test_pods_that_fit_after_evictions_are_not_refused(cluster: World, data: st.DataObject) -> None:
    snapshot = cluster.snapshot()
    state = WhatIf(snapshot, DEFAULT_POLICY.strategy)
    running = [one for group in snapshot.running.values() for one in group.placed]
    gone = data.draw(st.lists(st.sampled_from(running), unique_by=lambda one: one.pod.uid)) if running else []
    board = state.board.copy()
    for one in gone:
        board.give_back(one)

    found = []
    for pod in [pod for group in snapshot.groups.values() for pod in group.pending] + [one.pod for one in gone]:
        seat = board.find(pod, timing=Timing.LATER)
        if seat is not None:
            board.stock.take(seat)
            found.append(pod)

    assert state.slots().may_hold(found, gone)
