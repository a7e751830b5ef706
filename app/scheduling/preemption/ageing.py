"""Keeps nodes for a PodGroup that has been pending for long, and decides which other PodGroups may still use them.

As in EASY backfill, nodes are kept for one PodGroup at a time: for the oldest that its queue's fair share allows.
Everything follows from creation times and from running pods, so a restart changes nothing.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf

import numpy as np

from app.model.memory import KeptIdle
from app.model.names import GroupKey, NodeName, QueueName
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import GPU, QUOTA_AXES
from app.scheduling.preemption.lending import borrows
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.order import is_torn, next_chunk
from app.scheduling.queues.reclaimable import within

START_WITHIN_S = 600.0
"""Only a pod that is known to end in time may start on kept nodes: within this time of the creation of the PodGroup
they are kept for, or before the known end of the last pod that runs there.
"""

MOST_ASKED = 64
"""How many PodGroups are tried before their turn."""

MOST_IDLE = 0.02
"""The rate at which the debt of idle time is paid back, as a part of the cluster."""

LONGEST_PAUSE_S = 300.0
"""After nodes were kept: how long other PodGroups may use all nodes, at most, before nodes are kept for the next one.
"""


def oldest(state: WhatIf, before: float) -> Iterator[PodGroup]:
    """Yield the PodGroups created before that time whose start their queue's fair share can allow, the oldest first.

    Of the same age, a partially bound gang comes first. Groups that only grow beyond their minimum are already running.
    """
    # No properties here: this reads every pending PodGroup.
    aged = [
        group
        for group in state.snapshot.groups.values()
        if group.created_at <= before and group.refusal is None and is_below_minimum(group) and state.next_of(group)[0]
    ]
    ordered = sorted(aged, key=lambda group: (-group.priority, group.created_at, not group.placed, group.key))
    allowed = (group for group in ordered if _is_ever_allowed(state, group))
    return islice(allowed, MOST_ASKED)


def is_below_minimum(group: PodGroup) -> bool:
    """Return whether the group has not started, or is only partially bound."""
    return not group.placed or group.owed > 0


class Precedence:
    """Decides which PodGroups may start before their turn, by what the queues hold now."""

    def __init__(self, state: WhatIf) -> None:
        """Keep the state; nothing is computed yet."""
        self._state = state

    def allows(self, group: PodGroup) -> bool:
        """Return whether its queue's share allows the group to start, and no other queue deserves the room."""
        if borrows(self._state, group):
            return False
        asked = quantities(self._state.next_of(group)[1])
        return not any(self._is_taken_back(group.queue, asked, *other) for other in self._asked.items())

    def completes(self, group: PodGroup) -> bool:
        """Return whether a partially bound gang may be completed before other PodGroups start.

        Otherwise its queue would take what other queues are owed, and lose the whole gang when these queues reclaim it.
        """
        if not group.placed or group.owed == 0:
            return False
        is_considered = group.refusal is None or is_torn(group)
        return is_considered and self.allows(replace(group, refusal=None))

    def _is_taken_back(
        self, queue: QueueName, asked: Quantities, other: QueueName, requests: Iterable[Quantities]
    ) -> bool:
        """Return whether one queue requests more than it deserves, and another queue deserves one of its requests."""
        parting = self._state.ledger.parting(queue, other)
        if parting is None:
            return False
        mine, theirs = parting
        if within(mine.deserved, mine.allocated, asked):
            return False
        return any(within(theirs.deserved, theirs.allocated, request) for request in requests)

    @cached_property
    def _asked(self) -> Mapping[QueueName, Collection[Quantities]]:
        """The next requests of each queue's PodGroups, without duplicates: they are compared again after each start."""
        found = dict[QueueName, dict[Quantities, None]]()
        for group in self._state.snapshot.groups.values():
            if group.refusal is None:
                found.setdefault(group.queue, {})[quantities(self._state.next_of(group)[1])] = None
        return found


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes that are kept for one PodGroup."""

    group: PodGroup
    nodes: Collection[NodeName]
    until: float
    """Seconds since the epoch: PodGroups that are known to end before this time may use the nodes."""
    now: float

    @staticmethod
    def of(state: WhatIf, group: PodGroup, nodes: Collection[NodeName], now: float) -> "Kept":
        """Compute until when other PodGroups may use the nodes."""
        names, until = set(nodes), group.created_at + START_WITHIN_S
        for each in state.snapshot.running.values():
            for one in each.placed:
                if one.node in names and one.pod.runs_at_most_s is not None and each.started_at is not None:
                    until = max(until, each.started_at + one.pod.runs_at_most_s)
        return Kept(group, nodes, until, now)

    def is_closed_to(self, state: WhatIf, other: PodGroup) -> bool:
        """Return whether a PodGroup may not use the nodes now, nor take from the rest of the queue's share."""
        if other.key == self.group.key or self._ends_in_time(other):
            return False
        if other.queue == self.group.queue:
            return (-other.priority, other.created_at) > (-self.group.priority, self.group.created_at)
        if _is_deserved(state, other, beside=self.group.queue):
            return False
        return borrows(state, other) or self._is_within_share(state)

    def needs_share_of(self, state: WhatIf, other: PodGroup) -> bool:
        """Return whether a PodGroup would use a part of its queue's fair share that the group needs."""
        if other.queue != self.group.queue:
            return False
        share, account = state.shares[self.group.queue], state.ledger.accounts[self.group.queue]
        both = quantities(state.most_of_next(self.group) + state.most_of_next(other))
        return not within(quantities(share.fair_share), account.allocated, both)

    def _is_within_share(self, state: WhatIf) -> bool:
        """Return whether the queue's remaining share covers what is kept free for the group.

        Share that the queue's own pods still hold does not justify taking from the share of other queues.
        """
        if not borrows(state, self.group):
            return True
        share, account = state.shares[self.group.queue], state.ledger.accounts[self.group.queue]
        free = np.maximum(state.board.stock.future[:, state.snapshot.nodes.columns(self.nodes)], 0).sum(axis=1)
        request = quantities(state.most_of_next(self.group))
        cpu, memory, gpu = (min(asked, int(free[axis])) for axis, asked in zip(QUOTA_AXES, request, strict=True))
        return within(quantities(share.fair_share), account.allocated, (cpu, memory, gpu))

    def _ends_in_time(self, other: PodGroup) -> bool:
        for pod in next_chunk(other):  # Computed for every pending PodGroup; usually the first pod decides.
            if pod.runs_at_most_s is None or self.now + pod.runs_at_most_s > self.until:
                return False
        return True


def carried(known: KeptIdle, waiting: Container[GroupKey], now: float) -> KeptIdle:
    """Return the cost of keeping nodes up to now, and the pending groups for which nodes were kept in vain."""
    elapsed_s = max(0.0, now - known.at)
    debt_s = max(0.0, known.debt_s + (known.part - MOST_IDLE) * elapsed_s)
    in_vain = frozenset(key for key in known.in_vain if debt_s and key in waiting)
    return replace(known, debt_s=debt_s, at=now, in_vain=in_vain)


def changes_at(known: KeptIdle, now: float) -> float:
    """Return when the answer changes without any event, in seconds since the epoch."""
    if known.group is not None:
        return known.until
    return known.pause_until if known.pause_until > now else inf


def may_keep(known: KeptIdle, group: PodGroup, now: float) -> bool:
    """Return whether nodes may be kept for the group: they already are, or the cost so far is paid back.

    The wait for that is at most `LONGEST_PAUSE_S`, except for a group for which nodes were kept in vain.
    """
    if known.group == group.key:
        return now < known.until
    is_pause_over = known.group is None and now >= known.pause_until and group.key not in known.in_vain
    return known.debt_s <= 0 or is_pause_over


def ended(known: KeptIdle, now: float) -> KeptIdle:
    """Return the state after nodes are no longer kept for any group."""
    if known.group is None:
        return known
    in_vain = known.in_vain | ({known.group} if now >= known.until else frozenset())
    pause_until = now + min(known.debt_s / MOST_IDLE, LONGEST_PAUSE_S)
    return replace(known, group=None, part=0.0, in_vain=in_vain, pause_until=pause_until)


def cost(known: KeptIdle, state: WhatIf, kept: Kept, *, is_wanted: bool) -> KeptIdle:
    """Return the cost of keeping nodes from now on; `is_wanted`: other PodGroups are pending that might use them."""
    free, is_new = idle_part(state, kept), known.group != kept.group.key
    found = replace(known, group=kept.group.key, part=free if is_wanted else 0.0)
    if is_new or free > known.most:
        return replace(found, most=free, until=max(kept.until, kept.now + START_WITHIN_S))
    return found


def idle_part(state: WhatIf, kept: Kept) -> float:
    """Return how much the group can use of what is idle on the kept nodes, as a part of the cluster."""
    asked = quantities(state.next_of(kept.group)[1])
    axis, most = next((each for each in zip(QUOTA_AXES[::-1], asked[::-1], strict=True) if each[1]), (GPU, 0))
    free = np.maximum(state.board.stock.future[axis, state.snapshot.nodes.columns(kept.nodes)], 0).sum()
    whole = state.snapshot.total.amounts[axis]
    return min(int(free), most) / whole if whole else 0.0


def refusal(group: PodGroup) -> Refusal:
    """Return the refusal of a group whose queue reserves its remaining share for a PodGroup pending for long."""
    sentence = (
        f"Queue {group.queue} reserves the rest of its fair share for a PodGroup that is ahead of this one and "
        "has waited for a long time."
    )
    return Refusal(reason=Reason.NO_NODE_FITS, sentence=sentence, details={"kept": 0})


def _is_ever_allowed(state: WhatIf, group: PodGroup) -> bool:
    account, share = state.ledger.accounts.get(group.queue), state.shares.get(group.queue)
    if account is None or share is None or state.ledger.standing(group) is not None:
        return False
    return within(quantities(share.fair_share), (0, 0, 0), quantities(state.most_of_next(group)))


def _is_deserved(state: WhatIf, group: PodGroup, *, beside: QueueName) -> bool:
    """Return whether a group's queue deserves the group's request, compared with another queue."""
    parting = state.ledger.parting(group.queue, beside)
    if parting is None or group.refusal is not None:
        return False
    mine, _ = parting
    return within(mine.deserved, mine.allocated, quantities(state.next_of(group)[1]))
