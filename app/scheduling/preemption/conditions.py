"""Decides whether a change since the last plan could help a search that found nothing then.

More room on a node can help; less room cannot. A change in what a queue holds or is entitled to can help that queue's
own searches, and every reclaim search. A change in what is owed can help the searches that found victims whose room is
owed. A change of a queue or of a running PodGroup can help every search, because both say which pods are safe. A new,
grown or moved running PodGroup, and labels that an affinity may name, can also help every search. Changes that are not
checked, such as DRA claims of running pods, are missed for at most `RELEARN_S`.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from app.model.decision import Action
from app.model.memory import Conditions, PlanMemory, Searched
from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.resources import GPU, GPU_MILLI
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.preemption.likeness import likeness_of
from app.scheduling.preemption.prospects import most as most_free
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import quantities

RELEARN_S = 60.0
"""After this time a search is repeated, whatever is remembered of it."""


def conditions(  # noqa: PLR0913 - what decides whether searches can succeed
    state: WhatIf,
    seats: Iterable[Assignment] = (),
    *,
    claimed: bool = False,
    kept_for: GroupKey | None = None,
    owed: PodGroup | None = None,
    losers: frozenset[QueueName] = frozenset(),
    runtimes_s: Collection[float] = (),
    now: float = 0.0,
) -> Conditions:
    """Return the conditions of a state; `seats` are the places of preemptible PodGroups that start in this plan."""
    stock, most = state.board.stock, most_free(state).copy()
    for seat in seats:
        most[:, seat.column] += np.array(stock.taken(seat.pod), dtype=np.int64)
        if seat.pod.sharing is not None:
            most[GPU, seat.column] += GPU_MILLI * seat.pod.sharing.devices
    return Conditions(
        nodes=state.snapshot.nodes,
        topologies=state.snapshot.topologies,
        future=stock.future.copy(),
        most=most,
        parts=stock.devices.free_parts(),
        queues={name: _standing(state, name) for name in state.ledger.accounts},
        rules=state.snapshot.queues,
        running=state.snapshot.running,
        claimed=claimed,
        kept_for=kept_for,
        withheld=state.board.withheld,
        owed=(None if owed is None else _owed(state, owed), losers),
        changes_at=_next_end(state, runtimes_s, now),
    )


def _standing(state: WhatIf, name: QueueName) -> Hashable:
    line = state.ledger.ancestors(name)
    held = tuple(
        (*each.allocated, *each.non_preemptible, *each.deserved, *each.limit, *quantities(state.share_of(each.name)))
        for each in line
    )
    return held, line[0].queue.priority


def _owed(state: WhatIf, group: PodGroup) -> Hashable:
    pods, request = state.next_of(group)
    return group.key, likeness_of(state.board, group), len(pods), request, _standing(state, group.queue)


def _next_end(state: WhatIf, runtimes_s: Collection[float], now: float) -> float:
    """Return when the next min-runtime ends that still protects a PodGroup."""
    started = np.array(
        [group.started_at for group in state.snapshot.running.values() if group.started_at is not None],
        dtype=np.float64,
    )
    ends = (started + each for each in dict.fromkeys(runtimes_s) if each > 0)
    return min((float(each[each > now].min(initial=inf)) for each in ends), default=inf)


def still_true(memory: PlanMemory, now_are: Conditions, now: float) -> PlanMemory:
    """Return the memory without failed searches that may succeed now."""
    before = memory.conditions
    is_old = before is None or now >= before.changes_at or not 0 <= now - memory.since < RELEARN_S
    if before is None or is_old or _has_more_room(before, now_are) or _has_other_rules(before, now_are):
        return replace(
            memory, searched={action: _forgetful(each) for action, each in memory.searched.items()}, since=now
        )
    if before.owed != now_are.owed:
        memory = replace(memory, searched={action: _but_for_owed(each) for action, each in memory.searched.items()})
    changed = [name for name, each in now_are.queues.items() if before.queues.get(name) != each]
    searched = {action: _without(each, changed, action) for action, each in memory.searched.items()}
    if Action.CONSOLIDATE in searched and before.claimed and not now_are.claimed:
        searched[Action.CONSOLIDATE] = _forgetful(searched[Action.CONSOLIDATE])
    return replace(memory, searched=searched)


def _without(known: Searched, changed: Sequence[QueueName], action: str) -> Searched:
    if not changed:
        return known
    if action == Action.RECLAIM:
        return _forgetful(known)
    queues = set(changed)
    in_vain, shallow = (
        {likeness: pods for likeness, pods in each.items() if likeness[0] not in queues}
        for each in (known.in_vain, known.shallow)
    )
    return replace(known, in_vain=in_vain, shallow=shallow)


def _but_for_owed(known: Searched) -> Searched:
    """Return the remembered searches except those that found victims whose room was owed to another PodGroup."""
    in_vain = {likeness: pods for likeness, pods in known.in_vain.items() if likeness not in known.owed}
    return replace(known, in_vain=in_vain, owed=frozenset())


def _forgetful(known: Searched) -> Searched:
    return replace(known, in_vain={}, shallow={})


def _has_more_room(before: Conditions, after: Conditions) -> bool:
    if before.nodes.nodes is not after.nodes.nodes or before.future.shape != after.future.shape:
        return True
    if before.withheld is not None and (after.withheld is None or (before.withheld & ~after.withheld).any()):
        return True
    return before.topologies != after.topologies or any(
        bool((now > then).any())
        for then, now in ((before.future, after.future), (before.most, after.most), (before.parts, after.parts))
    )


def _has_other_rules(before: Conditions, after: Conditions) -> bool:
    if before.kept_for != after.kept_for or (before.rules is not after.rules and before.rules != after.rules):
        return True
    return any(_may_help(before.running.get(key), now) for key, now in after.running.items())


def _may_help(then: PodGroup | None, now: PodGroup) -> bool:
    """Return whether a running group can help now that could not before; the passing of time is not considered."""
    if then is now:
        return False
    if now.preemptible and (then is None or _rules_of(then) != _rules_of(now) or not _pods(now) <= _pods(then)):
        return True
    return not _neighbours(now) <= (set() if then is None else _neighbours(then))


def _pods(group: PodGroup) -> set[Hashable]:
    """Return what decides whether, and from which nodes, pods of a running group may be evicted."""
    return {(one.pod.uid, one.node, one.pod.bare) for one in group.placed}


def _neighbours(group: PodGroup) -> set[Hashable]:
    """Return what decides which pods may run beside the pods of a running group."""
    named = ((one, one.pod.labels or {}) for one in group.placed if one.pod.labels is not None or one.pod.near)
    return {(one.pod.uid, one.node, tuple(sorted(labels.items())), one.pod.near) for one, labels in named}


def _rules_of(group: PodGroup) -> Hashable:
    """Return what decides whether pods of a running group may be evicted."""
    minima = tuple((leaf.name, leaf.min_member) for leaf in group.tree.leaves())
    return group.queue, group.priority, group.preemptible, group.evicted_whole, minima
