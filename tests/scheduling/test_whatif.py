"""Victims that are not needed stay where they run, whatever keeps other pods off their nodes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.model.decision import Action
from app.model.names import NodeName
from app.model.pod import Near
from app.model.podgroup import PodGroup
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.scheduling.preemption.whatif import WhatIf
from tests import given

ASKS = given.pod("asks").group


def running(name: str, on: str, created_at: float = 0.0) -> PodGroup:
    return given.group(
        running=[given.placed(given.pod(name, gpus=2, gang=name), on)], min_member=1, created_at=created_at
    )


def withheld(state: WhatIf) -> WhatIf:
    state.board.withhold([NodeName("a")])
    return state


def state_of(group: PodGroup, *, cordoned: bool) -> WhatIf:
    nodes = [given.node(name, gpus=2, labels={"host": name}, unschedulable=cordoned and name == "a") for name in "ab"]
    return WhatIf(given.snapshot(nodes, [given.queue("q")], [group]), Policy().strategy)


CLOSED = pytest.mark.parametrize(
    ("cordoned", "close"), [(True, lambda state: state), (False, withheld)], ids=["cordoned", "withheld"]
)


@CLOSED
def test_an_evicted_pod_stays_on_a_node_that_takes_no_other_pods(
    *, cordoned: bool, close: Callable[[WhatIf], WhatIf]
) -> None:
    group = running("r", "a")
    state = close(state_of(group, cordoned=cordoned))
    state.evict(group, group.placed, Action.PREEMPT, ASKS)

    state.reprieve()

    assert state.evictions() == ()


@CLOSED
def test_a_moved_pod_stays_on_a_node_that_takes_no_other_pods(
    *, cordoned: bool, close: Callable[[WhatIf], WhatIf]
) -> None:
    group = running("r", "a")
    state = close(state_of(group, cordoned=cordoned))
    state.evict(group, group.placed, Action.PREEMPT, ASKS)
    (one,) = group.placed
    taken = Assignment(given.pod("asks", gpus=2), state.snapshot.nodes.index[NodeName("a")], (), later=True)
    state.board.take([taken])
    state.resettle(replace(state.as_it_is(group), pending=(one.pod,)), (one.pod,))
    assert [each.moves_to for each in state.evictions()] == ["b"]

    state.board.let_go([taken])
    state.bring_home(ASKS)

    assert state.evictions() == ()


def test_a_pod_does_not_stay_beside_a_pod_whose_anti_affinity_excludes_it() -> None:
    group = given.group(running=[given.placed(given.pod("r", labels={"app": "x"}), "a")], min_member=1)
    state = state_of(group, cordoned=True)
    state.evict(group, group.placed, Action.PREEMPT, ASKS)
    away = given.pod("asks", near=(Near(topology_key="host", labels=(("app", "x"),), apart=True),))
    column = state.snapshot.nodes.index[NodeName("a")]
    state.board.take([Assignment(away, column, (), later=True)])
    state.reprieve()

    assert [each.pod for each in state.evictions()] == ["uid-r"]


def test_a_pod_on_a_cordoned_node_stays_when_a_stale_gang_gives_its_queue_room_below_the_limit() -> None:
    waits = given.pod("s1", gpus=2, gang="s")
    stale = replace(
        given.group(waits, running=[given.placed(given.pod("s0", gpus=2, gang="s"), "b")], min_member=2),
        stale_since=0.0,
    )
    low = running("low", "a", created_at=9.0)
    urgent = given.group(given.pod("urgent", gpus=2), priority=90)
    nodes = [given.node("a", gpus=2, unschedulable=True), given.node("b", gpus=4)]

    made = plan(given.snapshot(nodes, [given.queue("q", limit=4)], [stale, low, urgent]), now=100.0)

    assert [start.group for start in made.starts] == [urgent.key]
    assert [(each.pod, each.action) for each in made.evictions] == [("uid-s0", Action.EVICT_STALE)]


@pytest.mark.parametrize("cordoned", [False, True])
def test_a_pod_of_a_gang_stays_on_its_cordoned_node_while_another_moves(*, cordoned: bool) -> None:
    members = [given.placed(given.pod(f"g{on}", gpus=2, gang="g"), on) for on in "ab"]
    gang = given.group(running=members, min_member=2, created_at=9.0)
    urgent = given.group(given.pod("urgent", gpus=4), priority=90)
    nodes = [given.node("a", gpus=2, unschedulable=cordoned), given.node("b", gpus=4), given.node("c", gpus=2)]

    made = plan(given.snapshot(nodes, [given.queue("q")], [gang, urgent]), now=100.0)

    assert [start.group for start in made.starts] == [urgent.key]
    assert [(each.pod, each.moves_to) for each in made.evictions] == [("uid-gb", "c")]
