"""What comes of it when pods leave: who finds another place, whose gang is torn, who is lost."""

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
"""Nobody who asks others to leave starts before they have left."""


def resettle(state: WhatIf, turns: Turns, asking: PodGroup | None = None) -> bool:
    """Give everybody in turn a place, as far as there is room; return whether the one that asks has got its places."""
    while (group := turns.pop()) is not None:
        is_asking = asking is not None and group.key == asking.key
        chunk = group.pending if is_asking else next_chunk(group)
        # Of a torn gang, those who are owed may not be there: nobody else of it starts without them.
        may = chunk and state.ledger.check(group, state.request(chunk)) is None
        if is_asking:
            seats = state.start(group, chunk, timing=LATER) if may else None
            if seats is None:
                return False
            state.seat(seats)
        elif may and (rest := state.resettle(group, chunk)) is not None and rest.pending:
            turns.push(rest)
    return True


def homeless(chunks: Iterable[VictimBatch], state: WhatIf) -> list[PodGroup]:
    """Return the groups that lost pods as groups that wait for them."""
    pending: dict[GroupKey, tuple[Pod, ...]] = {}
    for chunk in chunks:
        key, lost = chunk.group.key, lost_of(chunk, state)
        pods = (one.pod for one in chunk.placed if one.pod.uid in lost)
        pending[key] = (*pods, *pending.get(key, ()))
    return [replace(state.changed[key], pending=pods, refusal=None) for key, pods in pending.items()]


def is_touched(chunk: VictimBatch, after: WhatIf, before: WhatIf) -> bool:
    """Return whether somebody of the chunk does not stay where he was before."""
    uids = (one.pod.uid for one in chunk.placed)
    return any(uid in after.leaving and after.leaving[uid] is not before.leaving.get(uid) for uid in uids)


def lost_of(chunk: VictimBatch, after: WhatIf) -> set[PodUid]:
    """Return the pods of a chunk that have no place any more."""
    leaving = ((one.pod.uid, after.leaving.get(one.pod.uid)) for one in chunk.placed)
    return {uid for uid, left in leaving if left is not None and left.seat is None}


def is_torn(group: PodGroup, before: WhatIf) -> bool:
    """Whether some of a gang would run on without its minimum, which it had before."""
    if not group.placed or gang.is_whole(group):
        return False
    return gang.is_whole(before.changed.get(group.key, before.snapshot.running[group.key]))


def as_it_is(group: PodGroup, state: WhatIf) -> PodGroup:
    """Return a waiting group with its running pods where this plan has moved them."""
    now = state.changed.get(group.key)
    return group if now is None else replace(group, placed=now.placed)


def has_lost(group: PodGroup, state: WhatIf) -> bool:
    """Whether pods of it leave in this plan: it asks again when it knows what it has left."""
    before = state.snapshot.running.get(group.key)
    return before is not None and len(group.placed) < len(before.placed)


def with_seats(group: PodGroup, state: WhatIf) -> PodGroup:
    """Return the group with the places that were found for it last."""
    nodes = state.snapshot.nodes.nodes
    seats = tuple(Placed(pod=seat.pod, node=nodes[seat.column].name, devices=seat.devices) for seat in state.seated)
    return replace(group, placed=group.placed + seats)
