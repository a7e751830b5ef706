"""The bound that prunes searches refuses only where no eviction could help."""

from hypothesis import given as for_all
from hypothesis import settings

from app.model.decision import Action
from app.scheduling.placement import gang
from app.scheduling.placement.state import Timing
from app.scheduling.policy import DEFAULT_POLICY
from app.scheduling.preemption import prospects
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import next_chunk
from tests import given
from tests.scheduling.worlds import World, worlds


@settings(max_examples=150)
@for_all(worlds)
def test_the_bound_does_not_refuse_a_podgroup_that_fits_after_all_possible_evictions(cluster: World) -> None:
    snapshot = cluster.snapshot()
    state = WhatIf(snapshot, DEFAULT_POLICY.strategy)
    empty = state.copy()
    for group in snapshot.running.values():
        if group.preemptible:
            empty.evict(group, group.placed, Action.RECLAIM, None)

    for group in snapshot.groups.values():
        pods = next_chunk(group)
        if pods and gang.place(empty.board.copy(), group, pods, timing=Timing.LATER):
            assert prospects.may_suffice(state, pods)


def test_no_victims_are_searched_if_non_preemptible_pods_leave_too_little_on_every_node() -> None:
    firm = [given.placed(given.pod(f"f{node}"), node) for node in ("n0", "n1")]
    soft = [given.placed(given.pod(f"s{node}"), node) for node in ("n0", "n1")]
    groups = [
        *(given.group(running=[one], min_member=1, preemptible=False) for one in firm),
        *(given.group(running=[one], min_member=1) for one in soft),
    ]
    nodes = [given.node(name, gpus=2) for name in ("n0", "n1")]
    state = WhatIf(given.snapshot(nodes, [given.queue("q")], groups), DEFAULT_POLICY.strategy)
    one, two = given.pod("one"), given.pod("two", gpus=2)

    assert prospects.may_suffice(state, [one, one])
    assert not prospects.may_suffice(state, [one, one, one])
    assert not prospects.may_suffice(state, [two])
