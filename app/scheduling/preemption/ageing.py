"""Which nodes are kept for a PodGroup that has waited for long, and who may use them all the same.

As in EASY backfill, nodes are kept for one PodGroup at a time: for the oldest that its queue's fair share allows.
Everything follows from creation times and from what runs, so that a restart changes nothing.
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
"""Nobody starts on kept nodes who is not known to end within this time of the creation of who waits, or before the last
that runs there is known to end."""

MOST_ASKED = 64
"""PodGroups that are tried before their turn."""

MOST_IDLE = 0.02
"""The part of the cluster by which the debt of idle time is paid back."""

LONGEST_PAUSE_S = 300.0
"""For how long at most others use all nodes, after nodes were kept, before nodes are kept for the next PodGroup."""


def oldest(state: WhatIf, before: float) -> Iterator[PodGroup]:
    """Yield those created before then whose start their queue's fair share can allow, the oldest first.

    Of the same age, a gang that is bound in part comes first. What grows beyond its minimum runs already.
    """
    # No properties here: everybody who waits is looked at.
    aged = [
        group
        for group in state.snapshot.groups.values()
        if group.created_at <= before and group.refusal is None and is_below_minimum(group) and state.next_of(group)[0]
    ]
    ordered = sorted(aged, key=lambda group: (-group.priority, group.created_at, not group.placed, group.key))
    allowed = (group for group in ordered if _is_ever_allowed(state, group))
    return islice(allowed, MOST_ASKED)


def is_below_minimum(group: PodGroup) -> bool:
    """Return whether the group has not started, or is bound only in part."""
    return not group.placed or group.owed > 0


class Precedence:
    """Who may start before its turn, as far as the state is charged."""

    def __init__(self, state: WhatIf) -> None:
        """Look at nobody yet."""
        self._state = state

    def allows(self, group: PodGroup) -> bool:
        """Return whether its queue's share allows the group to start, and no one deserves the room."""
        if borrows(self._state, group):
            return False
        asked = quantities(self._state.next_of(group)[1])
        return not any(self._is_taken_back(group.queue, asked, *other) for other in self._asked.items())

    def completes(self, group: PodGroup) -> bool:
        """Return whether a gang that holds some of its pods may be completed before others start.

        Otherwise its queue would take what others are owed, and lose the whole gang when they take it back.
        """
        if not group.placed or group.owed == 0:
            return False
        is_considered = group.refusal is None or is_torn(group)
        return is_considered and self.allows(replace(group, refusal=None))

    def _is_taken_back(
        self, queue: QueueName, asked: Quantities, other: QueueName, requests: Iterable[Quantities]
    ) -> bool:
        """Return whether what one queue asks for exceeds what it deserves, and another deserves one of its requests."""
        parting = self._state.ledger.parting(queue, other)
        if parting is None:
            return False
        mine, theirs = parting
        if within(mine.deserved, mine.allocated, asked):
            return False
        return any(within(theirs.deserved, theirs.allocated, request) for request in requests)

    @cached_property
    def _asked(self) -> Mapping[QueueName, Collection[Quantities]]:
        """What the PodGroups of each queue ask for next, alike ones once: it is compared again after each start."""
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
    """Seconds since the epoch: who is known to end before may use them."""
    now: float

    @staticmethod
    def of(state: WhatIf, group: PodGroup, nodes: Collection[NodeName], now: float) -> "Kept":
        """Find out until when the nodes can be used by others."""
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
        """Return whether a PodGroup would use what the group needs of the fair share of its queue."""
        if other.queue != self.group.queue:
            return False
        share, account = state.shares[self.group.queue], state.ledger.accounts[self.group.queue]
        both = quantities(state.most_of_next(self.group) + state.most_of_next(other))
        return not within(quantities(share.fair_share), account.allocated, both)

    def _is_within_share(self, state: WhatIf) -> bool:
        """Return whether the queue has left of its share what is kept free for the group.

        What the queue's own pods still hold of its share is no reason to take from the share of others.
        """
        if not borrows(state, self.group):
            return True
        share, account = state.shares[self.group.queue], state.ledger.accounts[self.group.queue]
        free = np.maximum(state.board.stock.future[:, state.snapshot.nodes.columns(self.nodes)], 0).sum(axis=1)
        request = quantities(state.most_of_next(self.group))
        cpu, memory, gpu = (min(asked, int(free[axis])) for axis, asked in zip(QUOTA_AXES, request, strict=True))
        return within(quantities(share.fair_share), account.allocated, (cpu, memory, gpu))

    def _ends_in_time(self, other: PodGroup) -> bool:
        for pod in next_chunk(other):  # Asked for everybody who waits, and mostly the first pod tells.
            if pod.runs_at_most_s is None or self.now + pod.runs_at_most_s > self.until:
                return False
        return True


def carried(known: KeptIdle, waiting: Container[GroupKey], now: float) -> KeptIdle:
    """Return what keeping nodes has cost as of now, and which of the waiting groups they were kept for in vain."""
    elapsed_s = max(0.0, now - known.at)
    debt_s = max(0.0, known.debt_s + (known.part - MOST_IDLE) * elapsed_s)
    in_vain = frozenset(key for key in known.in_vain if debt_s and key in waiting)
    return replace(known, debt_s=debt_s, at=now, in_vain=in_vain)


def changes_at(known: KeptIdle, now: float) -> float:
    """Return when something else holds though nothing has happened, in seconds since the epoch."""
    if known.group is not None:
        return known.until
    return known.pause_until if known.pause_until > now else inf


def may_keep(known: KeptIdle, group: PodGroup, now: float) -> bool:
    """Return whether nodes may be kept for the group: they are already, or what that has cost so far is paid back.

    Nobody waits for that longer than `LONGEST_PAUSE_S`, but for a group beside which nothing has become free for long.
    """
    if known.group == group.key:
        return now < known.until
    is_pause_over = known.group is None and now >= known.pause_until and group.key not in known.in_vain
    return known.debt_s <= 0 or is_pause_over


def ended(known: KeptIdle, now: float) -> KeptIdle:
    """Return what is known when nodes are kept for nobody any more."""
    if known.group is None:
        return known
    in_vain = known.in_vain | ({known.group} if now >= known.until else frozenset())
    pause_until = now + min(known.debt_s / MOST_IDLE, LONGEST_PAUSE_S)
    return replace(known, group=None, part=0.0, in_vain=in_vain, pause_until=pause_until)


def cost(known: KeptIdle, state: WhatIf, kept: Kept, *, is_wanted: bool) -> KeptIdle:
    """Return what it costs from now on that nodes are kept; `is_wanted`: others wait who might use them."""
    free, is_new = idle_part(state, kept), known.group != kept.group.key
    found = replace(known, group=kept.group.key, part=free if is_wanted else 0.0)
    if is_new or free > known.most:
        return replace(found, most=free, until=max(kept.until, kept.now + START_WITHIN_S))
    return found


def idle_part(state: WhatIf, kept: Kept) -> float:
    """Return what stands idle on the kept nodes, and the group can use, as a part of the cluster."""
    asked = quantities(state.next_of(kept.group)[1])
    axis, most = next((each for each in zip(QUOTA_AXES[::-1], asked[::-1], strict=True) if each[1]), (GPU, 0))
    free = np.maximum(state.board.stock.future[axis, state.snapshot.nodes.columns(kept.nodes)], 0).sum()
    whole = state.snapshot.total.amounts[axis]
    return min(int(free), most) / whole if whole else 0.0


def refusal(group: PodGroup) -> Refusal:
    """Return why a group does not start whose queue needs what it has left for one that has waited for long."""
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
    """Return whether a group's queue deserves what it asks for, compared with another queue."""
    parting = state.ledger.parting(group.queue, beside)
    if parting is None or group.refusal is not None:
        return False
    mine, _ = parting
    return within(mine.deserved, mine.allocated, quantities(state.next_of(group)[1]))
