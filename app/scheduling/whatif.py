"""A plan in the making: the board, the queues' accounts, and who has left or moved so far; a copy is a what-if."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from app.model.decision import Action, Eviction, Share
from app.model.names import GroupKey, PodUid, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot
from app.scheduling import gang
from app.scheduling.board import Board, Seat, Strategy, Timing
from app.scheduling.fairshare import fair_shares
from app.scheduling.quota import Ledger
from app.scheduling.victims import Roster, charge_at


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that the plan makes leave its place."""

    group: PodGroup
    """As it was before the plan."""
    placed: Placed
    action: Action
    beneficiary: GroupKey | None
    seat: Seat | None = None
    """Where there is room for it in its place; None when there is none."""


class WhatIf:
    """What one plan knows; `start` and `evict` change it."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Begin with the cluster as it is."""
        self.snapshot = snapshot
        self.board = Board(snapshot, strategy)
        self.ledger = Ledger(snapshot)
        self.shares: dict[QueueName, Share] = {}
        self.leaving: dict[PodUid, Leaving] = {}
        self.changed: dict[GroupKey, PodGroup] = {}
        """The running groups that are no longer as they are in the snapshot."""
        self.seated: tuple[Seat, ...] = ()
        """The places that were found last for the group that asks."""
        self.all_seated: tuple[Seat, ...] = ()
        """These and those found before."""

    @cached_property
    def roster(self) -> Roster:
        """Who may ever have to leave; shared with all copies."""
        return Roster(self.snapshot)

    def divide(self) -> None:
        """Work out the fair shares; who only asks about one pod needs none."""
        self.shares = fair_shares(self.snapshot)

    def copy(self) -> Self:
        """Return a what-if of this one."""
        twin = copy(self)
        twin.detach()
        return twin

    def detach(self) -> None:
        """Share nothing that changes with the one that this was copied from."""
        self.board, self.ledger = self.board.copy(), self.ledger.copy()
        self.leaving, self.changed = dict(self.leaving), dict(self.changed)

    def adopt(self, other: Self) -> None:
        """Become what a copy has become; whoever reads this ledger sees it."""
        self.board.adopt(other.board)
        self.ledger.adopt(other.ledger)
        self.leaving, self.changed = other.leaving, other.changed

    def running(self) -> Iterable[PodGroup]:
        """Yield the groups that hold places, without the pods that leave."""
        for key, group in self.snapshot.running.items():
            yield self.changed.get(key, group)

    def request(self, pods: Iterable[Pod]) -> Resources:
        """Return what a queue is asked to pay for pods that have no node yet."""
        memory_mib = self.snapshot.nodes.smallest_device_mib
        return _sum(pod.charge(memory_mib) for pod in pods)

    def start(self, group: PodGroup, pods: Sequence[Pod], *, timing: Timing) -> tuple[Seat, ...] | None:
        """Place pods that start together and charge their queue, or change nothing and return None."""
        seats = gang.place(self.board, group, pods, timing=timing)
        if seats is not None:
            self.ledger.charge(group, self._charge(seats))
        return seats

    def _charge(self, seats: Iterable[Seat]) -> Resources:
        memory = self.snapshot.nodes.device_memory_mib
        return _sum(seat.pod.charge(int(memory[seat.column])) for seat in seats)

    def evict(self, group: PodGroup, leaving: Iterable[Placed], action: Action, beneficiary: GroupKey | None) -> None:
        """Have pods of a running group leave their places."""
        now = self.changed.get(group.key, group)
        original = self.snapshot.running.get(group.key, group)
        for placed in leaving:
            self.board.give_back(placed)
            self.ledger.refund(group, charge_at(self.snapshot, placed))
            self.leaving[placed.pod.uid] = Leaving(original, placed, action, beneficiary)
        self.changed[group.key] = replace(
            now, placed=tuple(one for one in now.placed if one.pod.uid not in self.leaving)
        )

    def seat(self, seats: tuple[Seat, ...]) -> None:
        """Note the places that were found for the group that asks."""
        self.seated, self.all_seated = seats, self.all_seated + seats

    def resettle(self, seats: Iterable[Seat]) -> None:
        """Give pods that leave the places that were found for them; one that got its own back does not leave."""
        for seat in seats:
            each = self.leaving[seat.pod.uid]
            if self._is_own(each.placed, seat):
                del self.leaving[seat.pod.uid]
                now = self.changed[each.group.key]
                self.changed[each.group.key] = replace(now, placed=(*now.placed, each.placed))
            else:
                self.leaving[seat.pod.uid] = replace(each, seat=seat)

    def bring_home(self, beneficiary: GroupKey) -> None:
        """Let pods stay that were to move, but whose own places turned out not to be needed; parts of devices move."""
        for each in [one for one in self.leaving.values() if one.beneficiary == beneficiary]:
            column, pod = self.snapshot.nodes.index.get(each.placed.node), each.placed.pod
            is_simple = pod.sharing is None and not pod.claims
            if each.seat is None or column is None or not is_simple or not self.board.later_allowed(pod, column):
                continue
            self.board.leave(each.seat)
            home = Seat(pod, column, (), later=True)
            self.board.take(home)
            self.resettle([home])

    def _is_own(self, placed: Placed, seat: Seat) -> bool:
        here = self.snapshot.nodes.nodes[seat.column].name == placed.node
        return here and set(seat.devices) == set(placed.devices)

    def evictions(self) -> tuple[Eviction, ...]:
        """Return who leaves, as the plan states it."""
        return tuple(self._eviction(each) for each in self.leaving.values())

    def _eviction(self, each: Leaving) -> Eviction:
        target = None if each.seat is None else self.board.placement(each.seat)
        return Eviction(
            pod=each.placed.pod.uid,
            group=each.group.key,
            node=each.placed.node,
            action=each.action,
            beneficiary=each.beneficiary,
            moves_to=target.node if target else None,
            devices=target.devices if target else (),
        )


def _sum(amounts: Iterable[Resources]) -> Resources:
    # Most sums are of one pod.
    first, *more = (*amounts, NOTHING)
    return sum(more[:-1], first) if more else first
