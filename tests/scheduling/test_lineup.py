"""The comparison of all nodes at once against a check of one node after the other."""

from collections.abc import Container, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from app.model.names import NodeName, QueueName
from app.model.pod import Placed, Pod
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.rows import are_alike
from app.scheduling.preemption import prospects
from app.scheduling.preemption.lineup import Lineup
from app.scheduling.preemption.named import AtOnce, OneByOne
from app.scheduling.preemption.noderoom import NodeRoom
from app.scheduling.preemption.victims import Safety, VictimBatch, Victims
from app.scheduling.preemption.whatif import WhatIf
from loadtest.crowds import crowded


def begun(seed: int) -> tuple[WhatIf, Random]:
    random = Random(seed)
    snapshot = crowded(12, waiting=30, seed=seed)
    running = dict(snapshot.running)
    for key, group in running.items():
        if random.random() < 0.2:
            running[key] = replace(group, min_member=1)
    state = WhatIf(replace(snapshot, running=running), Strategy())
    state.divide()
    return state, random


def may_settle(state: WhatIf, room: NodeRoom, one: Placed) -> bool:
    shares = one.pod.sharing is not None and bool(room.repackable[state.snapshot.nodes.index[one.node]])
    return shares or room.finds_place(one.pod)


def one_by_one(
    state: WhatIf, lineup: Lineup, room: NodeRoom, pods: Sequence[Pod], losing: Container[QueueName]
) -> list[tuple[int, NodeName, list[int]]]:
    found = []
    by_node: dict[NodeName, list[int]] = {}
    taken = {id(chunk) for chunk in room.again}

    def may_leave(chunk: VictimBatch, node: NodeName) -> bool:
        on_node = [one for one in chunk.placed if one.node == node]
        is_lost = chunk.group.queue in losing or not are_alike(chunk.placed)
        return is_lost or all(may_settle(state, room, one) for one in on_node)

    named = [lineup.chunk(number) for number in range(lineup.count)]
    for number, chunk in enumerate(named):
        for node in dict.fromkeys(one.node for one in chunk.placed if id(chunk) not in taken):
            if not may_leave(chunk, node):
                continue
            here = by_node.setdefault(node, [])
            here.append(number)
            chunks = [named[each] for each in here]
            leaving = (*room.again, *lineup.with_spare(chunks, taken))
            moved = [one.pod for each in leaving if each.group.queue not in losing for one in each.placed]
            has_slots = state.slots().may_hold((*pods, *moved), [one for each in leaving for one in each.placed])
            if room.may_do(node, chunks) and has_slots:
                found.append((number, node, list(here)))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_one_comparison_finds_the_same_as_a_check_of_each_node(seed: int) -> None:
    state, random = begun(seed)
    losing = {queue for queue in state.roster.queues if random.random() < 0.5}
    victims = Victims(state.roster, {}, lambda _: Safety.NONE, ledger=state.ledger, shares=state.shares)
    lineup = OneByOne(victims, state.evictable, losing)
    while lineup.extend():
        pass
    named = [lineup.chunk(number) for number in range(lineup.count)]
    asking = [group for group in state.snapshot.groups.values() if len(group.pending) <= 4]
    spots = more = 0
    for group in random.sample(asking, 8):
        again = random.sample(named, random.choice((0, 0, 2)))
        room = NodeRoom(state, group, group.pending, again)
        expected = one_by_one(state, lineup, room, group.pending, losing)
        numbers = {id(chunk): number for number, chunk in enumerate(named)}
        found = [
            (spot.number, spot.node, [numbers[id(chunk)] for chunk in spot.chunks])
            for spot in lineup.spots(room, group.pending, state.slots(), again, 0)
        ]
        # More may be found, in the same order: the caller checks further.
        assert [each for each in found if each in expected] == expected
        spots, more = spots + len(expected), more + len(found) - len(expected)
    assert 20 < spots > 4 * more


def lone(seed: int) -> WhatIf:
    """Build a cluster whose pods have whole GPUs and whose PodGroups are evicted as a whole."""
    snapshot = crowded(12, waiting=30, seed=seed)
    running = {
        key: group for key, group in snapshot.running.items() if not any(one.pod.sharing for one in group.placed)
    }
    state = WhatIf(replace(snapshot, running=running, shared={}), Strategy())
    state.divide()
    return state


@pytest.mark.parametrize("seed", range(6))
def test_podgroups_evicted_as_a_whole_are_lined_up_at_once_in_the_order_of_victims(seed: int) -> None:
    state = lone(seed)
    victims = Victims(state.roster, {}, lambda _: Safety.NONE, ledger=state.ledger, shares=state.shares)
    losing = set(list(state.roster.queues)[::2])
    named = OneByOne(victims, state.evictable, losing)
    while named.extend():
        pass
    preemptible = np.array([group.preemptible for group in state.snapshot.running.values()])
    at_once = AtOnce(prospects.in_line(state, preemptible), state.evictable, state.roster, losing)

    every = range(named.count)
    assert at_once.count == named.count > 20
    assert [at_once.chunk(each).group.key for each in every] == [named.chunk(each).group.key for each in every]
    for group in list(state.snapshot.groups.values())[:10]:
        room, slots = NodeRoom(state, group, group.pending, ()), state.slots()
        assert list(at_once.spots(room, group.pending, slots, (), 0)) == list(
            named.spots(room, group.pending, slots, (), 0)
        )
