"""Computes the result of evictions: which pods find another place, which are lost, which gangs lose their minimum."""

from collections.abc import Iterable
from dataclasses import replace

from app.model.names import GroupKey, PodUid
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.scheduling.placement import gang
from app.scheduling.placement.state import Timing
from app.scheduling.preemption.victims import VictimBatch
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import Turns, next_chunk

LATER = Timing.LATER
"""A group for which pods are evicted starts only after these pods are gone."""


def resettle(state: WhatIf, turns: Turns, asking: PodGroup | None = None) -> bool:
    """Place the groups in the order of turns where there is room; return whether the asking group got its places."""
    while (group := turns.pop()) is not None:
        is_asking = asking is not None and group.key == asking.key
        chunk = group.pending if is_asking else next_chunk(group)
        # Pods that a partially bound gang still needs may be missing. Then no other pod of the gang starts.
        may = chunk and state.check(group, chunk) is None
        if is_asking:
            seats = state.start(group, chunk, timing=LATER) if may else None
            if seats is None:
                return False
            state.seat(seats)
        elif may and (rest := state.resettle(group, chunk)) is not None and rest.pending:
            turns.push(rest)
    return True


def homeless(chunks: Iterable[VictimBatch], state: WhatIf) -> list[PodGroup]:
    """Return the groups that lost pods, with the lost pods as pending pods.

    A group that is evicted whole is left out: if some of its pods got their places back, others would be evicted alone.
    """
    pending: dict[GroupKey, tuple[Pod, ...]] = {}
    for chunk in (each for each in chunks if not each.group.evicted_whole):
        key, lost = chunk.group.key, lost_of(chunk, state)
        pods = (one.pod for one in chunk.placed if one.pod.uid in lost)
        pending[key] = (*pods, *pending.get(key, ()))
    return [replace(state.changed[key], pending=pods, refusal=None) for key, pods in pending.items()]


def is_touched(chunk: VictimBatch, after: WhatIf, before: WhatIf) -> bool:
    """Return whether a pod of the chunk is no longer where it was before."""
    uids = (one.pod.uid for one in chunk.placed)
    return any(uid in after.leaving and after.leaving[uid] is not before.leaving.get(uid) for uid in uids)


def lost_of(chunk: VictimBatch, after: WhatIf) -> set[PodUid]:
    """Return the pods of a chunk that no longer have a place."""
    leaving = ((one.pod.uid, after.leaving.get(one.pod.uid)) for one in chunk.placed)
    return {uid for uid, left in leaving if left is not None and left.seat is None}


def is_torn(group: PodGroup, before: WhatIf) -> bool:
    """Whether a part of a gang would keep running below its minimum, which the gang had before."""
    if not group.placed or gang.is_whole(group):
        return False
    return gang.is_whole(before.changed.get(group.key, before.snapshot.running[group.key]))


def as_it_is(group: PodGroup, state: WhatIf) -> PodGroup:
    """Return a pending group with its running pods at the places to which this plan has moved them."""
    now = state.changed.get(group.key)
    return group if now is None else replace(group, placed=now.placed)


def has_lost(group: PodGroup, state: WhatIf) -> bool:
    """Whether pods of the group are evicted in this plan. Then the group is searched again in a later plan."""
    before = state.snapshot.running.get(group.key)
    return before is not None and len(group.placed) < len(before.placed)


def with_seats(group: PodGroup, state: WhatIf) -> PodGroup:
    """Return the group with the places that were found for it last."""
    nodes = state.snapshot.nodes.nodes
    seats = tuple(Placed(pod=seat.pod, node=nodes[seat.column].name, devices=seat.devices) for seat in state.seated)
    return replace(group, placed=group.placed + seats)
