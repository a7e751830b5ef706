"""Keeps room for the missing pods of partially bound gangs during one plan, so that other PodGroups do not use it.

Room is kept only for a gang that may soon be completed, only within the fair share of its queue, and never from a queue
below its deserved share: such a queue finds its places as if no room were kept.
"""

from collections.abc import Callable, Mapping, Sequence

from app.model.names import GroupKey
from app.model.pod import Pod, claims_of, once_milli
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, Resources
from app.scheduling.placement.emptied import Emptied
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.rivals import Rivals
from app.scheduling.placement.state import Timing
from app.scheduling.preemption.victims import charge_at
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.quota import least_charge
from app.scheduling.queues.shared_claims import with_milli

Seats = tuple[Assignment, ...]


class Keeping:
    """The room that is kept in one plan. `keep`, `start` and `aside` change it and the state."""

    def __init__(self, state: WhatIf, rivals: Rivals) -> None:
        """Start without kept room."""
        self._state = state
        self._rivals = rivals
        self._snapshot = state.snapshot
        self.seats: dict[GroupKey, Seats] = {}
        """By gang: the places for its missing pods; empty where there is no room now."""

    def may_be_completed(self, group: PodGroup, chunk: Sequence[Pod]) -> bool:
        """Whether the missing pods could start on an otherwise empty cluster, within what the queue may have.

        The missing pods have to fit beside what the gang holds and within the limits, and the whole gang within the
        fair share.
        """
        state = self._state
        if state.check(group, chunk) is not None:
            return False
        if not state.shares:
            state.divide()
        if not state.ledger.is_within_alone(group, self._whole(group, chunk), state.shares):
            return False
        return Emptied(self._snapshot).has_places(group, chunk)

    def _whole(self, group: PodGroup, chunk: Sequence[Pod]) -> Resources:
        """Return what a queue pays that holds nothing but the whole gang."""
        placed = (charge_at(self._snapshot, one) for one in group.placed)
        claims = claims_of((*chunk, *(one.pod for one in group.placed)))
        missing = (least_charge(pod, self._snapshot.nodes) for pod in chunk)
        return with_milli(sum((*placed, *missing), NOTHING), once_milli(claims))

    def keep(self, group: PodGroup, pods: Sequence[Pod]) -> None:
        """Keep places for the pods that find any, within the queue's fair share."""
        self._rivals.forget(group.key)
        others = (seats for key, seats in self.seats.items() if self._snapshot.groups[key].queue == group.queue)
        total, kept = self._state.request(group, [seat.pod for seats in others for seat in seats]), list[Assignment]()
        for pod in pods:
            total += self._state.request(group, (pod,))
            if not self._state.ledger.is_within(group, total, self._state.shares):
                break
            kept += self._state.board.keep((pod,))
            self.seats[group.key] = tuple(kept)
        if group.key in self.seats:
            self._rivals.note(group.key, kept)

    def start(self, group: PodGroup, chunk: Sequence[Pod]) -> Seats | None:
        """Start pods together. If needed, use room kept for gangs that have lower precedence."""
        if not self.seats:
            return self._state.start(group, chunk, timing=Timing.NOW_OR_LATER)
        own = self._own(group)
        self._let_go(own)
        seats = self._start_ahead(group, chunk)
        if seats is None:
            self._take_again(own)
        elif own:
            self._rivals.forget(group.key)
        return seats

    def _start_ahead(self, group: PodGroup, chunk: Sequence[Pod]) -> Seats | None:
        seats = self._state.start(group, chunk, timing=Timing.NOW_OR_LATER)
        behind = self._behind(group, chunk) if seats is None else {}
        given = [seat for seats in behind.values() for seat in seats]
        if not given or not self._state.board.may_gain(chunk, given):
            return seats
        self._let_go(behind)
        seats = self._state.start(group, chunk, timing=Timing.NOW_OR_LATER)
        if seats is None:
            # Take the same places again. Other places might be the group's own, which are free at this moment.
            self._take_again(behind)
        else:
            self._keep_again(behind)
        return seats

    def aside(self, group: PodGroup, chunk: Sequence[Pod], find: Callable[[], WhatIf | None]) -> WhatIf | None:
        """Find places for a group and adopt them. Meanwhile no room is kept for the group or from it."""
        own = self._own(group)
        behind = self._behind(group, chunk) if self.seats else {}
        self._let_go(own | behind)
        found = find()
        if found is not None:
            self._state.adopt(found)
        self._keep_again(behind if found is not None else own | behind)
        return found

    def _own(self, group: PodGroup) -> dict[GroupKey, Seats]:
        return {group.key: self.seats[group.key]} if group.key in self.seats else {}

    def _behind(self, group: PodGroup, chunk: Sequence[Pod]) -> dict[GroupKey, Seats]:
        """Return the room kept for gangs of other queues, if the group's queue is below its deserved share."""
        request, groups, ledger = self._state.request(group, chunk), self._snapshot.groups, self._state.ledger
        return {
            key: seats
            for key, seats in self.seats.items()
            if seats and ledger.is_below_deserved(group, request, beside=groups[key].queue)
        }

    def _let_go(self, kept: Mapping[GroupKey, Seats]) -> None:
        for key, seats in kept.items():
            self._state.board.let_go(seats)
            del self.seats[key]

    def _take_again(self, kept: Mapping[GroupKey, Seats]) -> None:
        """Keep the released places again."""
        for key, seats in kept.items():
            self._state.board.take(seats)
            self.seats[key] = seats

    def _keep_again(self, kept: Mapping[GroupKey, Seats]) -> None:
        for key, seats in kept.items():
            if not seats:
                # Room that becomes free is still kept for this gang first.
                self.seats[key] = ()
            self.keep(self._snapshot.groups[key], [seat.pod for seat in seats])
