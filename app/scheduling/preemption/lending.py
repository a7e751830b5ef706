"""Decides which PodGroups borrow: their start takes their queue above its fair share, so the room may be reclaimed.

Free room goes first to PodGroups that do not borrow. While such a PodGroup finds no room, no PodGroup borrows what it
needs. This ends after ten minutes, unless other PodGroups may keep it pending for longer.
"""

from collections.abc import Container, Iterable, Mapping

from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.reason import NO_PLACE, Reason, Refusal
from app.scheduling.placement import gang
from app.scheduling.placement.state import Timing
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import quantities
from app.scheduling.queues.reclaimable import Judgement, within

MOST_OWED_S = 600.0
"""How long a PodGroup may be owed room that borrowers must not use. After that, holding room back would not help."""


def borrows(state: WhatIf, group: PodGroup) -> bool:
    """Return whether the start of the group's next pods takes its queue, or a queue above it, above its fair share.

    A queue may deserve more than its parent queue has. Then a sibling of the parent would reclaim the excess.
    """
    account, share = state.ledger.accounts.get(group.queue), state.shares.get(group.queue)
    if account is None or share is None or group.refusal is not None:
        return False
    request = state.most_of_next(group)
    if not within(quantities(share.fair_share), account.allocated, quantities(request)):
        return True
    return account.queue.parent is not None and not state.ledger.is_within(group, request, state.shares)


def first_owed(
    state: WhatIf, waiting: Iterable[PodGroup], refusals: Mapping[GroupKey, Refusal], given_up: Container[GroupKey]
) -> GroupKey | None:
    """Return the first of these groups that stays within its queue's fair share and lacks only room.

    Groups in `given_up` are skipped: room was already kept for them for long.
    """
    for group in waiting:
        refusal = refusals.get(group.key)
        is_without_room = refusal is not None and refusal.reason in NO_PLACE and refusal.may_find_victims
        if is_without_room and group.key not in given_up and not borrows(state, group):
            return group.key
    return None


def finds_room(state: WhatIf, group: PodGroup) -> bool:
    """Return whether the group's next pods find room now, without evictions."""
    chunk, _ = state.next_of(group)
    if not chunk or state.refusal_of_next(group) is not None:
        return False
    if len(chunk) == 1 and group.root is None:
        return state.board.find(chunk[0]) is not None
    return gang.place(state.board.copy(), group, chunk, timing=Timing.NOW_OR_LATER) is not None


def may_be_taken_back(state: WhatIf, group: PodGroup, owed: PodGroup) -> bool:
    """Return whether another group may reclaim the places that were found for a group, and would fit there."""
    if not is_above_share(state, group.queue):
        return False
    pods, _ = state.next_of(owed)
    judgement = Judgement(state.ledger, state.shares, owed, quantities(state.most_request(owed, pods)))
    held = quantities(state.freed_by(group, [seat.pod for seat in state.seated]))
    if not judgement.may_begin() or not judgement.reclaimable({group.queue: [held]}):
        return False
    board = state.board.copy()
    board.let_go(state.seated)
    board.is_closed = False
    return gang.place(board, owed, pods, timing=Timing.LATER) is not None


def is_above_share(state: WhatIf, queue: QueueName) -> bool:
    """Return whether a queue holds more than its fair share of any resource."""
    return not within(quantities(state.share_of(queue)), state.ledger.accounts[queue].allocated)


def losers(state: WhatIf) -> frozenset[QueueName]:
    """Return the queues that lose pods in the plan; moved pods are not lost."""
    return frozenset(each.group.queue for each in state.leaving.values() if each.seat is None)


def refusal(group: PodGroup) -> Refusal:
    """Return why a group does not start while pods of its queue are evicted for other queues."""
    queue = group.queue
    sentence = (
        f"Queue {queue} gets no more than its fair share now, because pods of it are evicted for other PodGroups."
    )
    return Refusal(reason=Reason.NO_NODE_FITS, sentence=sentence, details={"lent": 0})
