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
from app.model.resources import NOTHING, Amounts, Resources
from app.model.snapshot import Snapshot
from app.scheduling import gang, reach
from app.scheduling.board import Board, Strategy, Timing
from app.scheduling.fairshare import fair_shares
from app.scheduling.quota import Ledger
from app.scheduling.stock import Seat
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
        """The running groups that are no longer as they are in the snapshot; pods that move are at their new places."""
        # The changed groups as what is held by all takes them into account.
        self._counted: dict[GroupKey, PodGroup] = {}
        self.growing: set[GroupKey] = set()
        """The running groups of which more pods start in this plan: if any left, the new ones might start alone."""
        self.seated: tuple[Seat, ...] = ()
        """The places that were found last for the group that asks."""
        self.all_seated: tuple[Seat, ...] = ()
        """These and those found before."""

    @cached_property
    def roster(self) -> Roster:
        """Who may ever have to leave; shared with all copies."""
        return Roster(self.snapshot)

    @cached_property
    def _held(self) -> Amounts:
        return reach.held_by_all(self.board, self.roster)

    def may_suffice(self, pods: Sequence[Pod]) -> bool:
        """Return whether the pods might find places if everybody left who may ever have to; False is certain."""
        return reach.may_suffice(self.board, pods, self.board.stock.future + self._held_now())

    def _held_now(self) -> Amounts:
        """Return what the roster holds, shape [resource, node]: only groups that changed since the last time differ."""
        counted = self._counted
        new = [key for key, now in self.changed.items() if now is not counted.get(key, self.snapshot.running.get(key))]
        new = [key for key in new if key in self.snapshot.running and self.changed[key].preemptible]
        if new:
            before = [one for key in new for one in counted.get(key, self.snapshot.running[key]).placed]
            now = [one for key in new for one in self.changed[key].placed]
            self._held = self._held + reach.held(self.board, now) - reach.held(self.board, before)
            counted.update((key, self.changed[key]) for key in new)
        return self._held

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
        self.leaving, self.changed, self.growing = dict(self.leaving), dict(self.changed), set(self.growing)
        self._counted = dict(self._counted)

    def adopt(self, other: Self) -> None:
        """Become what a copy has become; whoever reads this ledger sees it."""
        self.board.adopt(other.board)
        self.ledger.adopt(other.ledger)
        self.leaving, self.changed, self.growing = other.leaving, other.changed, other.growing

    def as_it_is(self, running: PodGroup) -> PodGroup:
        """Return a running group without the pods that leave."""
        return self.changed.get(running.key, running)

    def request(self, pods: Iterable[Pod]) -> Resources:
        """Return what a queue is asked to pay for pods that have no node yet."""
        memory_mib = self.snapshot.nodes.smallest_device_mib
        return _sum(pod.charge(memory_mib) for pod in pods)

    def start(self, group: PodGroup, pods: Sequence[Pod], *, timing: Timing) -> tuple[Seat, ...] | None:
        """Place pods that start together and charge their queue, or change nothing and return None."""
        seats = self._place(group, pods, timing)
        if seats is not None and group.key in self.snapshot.running:
            self.growing.add(group.key)
        return seats

    def resettle(self, group: PodGroup, pods: Sequence[Pod]) -> PodGroup | None:
        """Give pods that leave other places; return the group with them in it, or change nothing and return None.

        One that gets its own place back does not leave.
        """
        seats = self._place(group, pods, Timing.LATER)
        if seats is None:
            return None
        come = tuple(self._settled(seat) for seat in seats)
        now = self.changed[group.key]
        self.changed[group.key] = replace(now, placed=(*now.placed, *come))
        return replace(group, placed=(*group.placed, *come), pending=_without(group.pending, pods))

    def _settled(self, seat: Seat) -> Placed:
        each = self.leaving[seat.pod.uid]
        if self._is_own(each.placed, seat):
            del self.leaving[seat.pod.uid]
            return each.placed
        self.leaving[seat.pod.uid] = replace(each, seat=seat)
        return Placed(pod=seat.pod, node=self.snapshot.nodes.nodes[seat.column].name, devices=seat.devices)

    def _place(self, group: PodGroup, pods: Sequence[Pod], timing: Timing) -> tuple[Seat, ...] | None:
        seats = gang.place(self.board, group, pods, timing=timing)
        if seats is not None:
            self.ledger.charge(group, self._charge(seats))
        return seats

    def _charge(self, seats: Iterable[Seat]) -> Resources:
        memory = self.snapshot.nodes.device_memory_mib
        return _sum(seat.pod.charge(int(memory[seat.column])) for seat in seats)

    def evict(self, group: PodGroup, leaving: Iterable[Placed], action: Action, beneficiary: GroupKey | None) -> None:
        """Have pods of a running group leave their places; one that was to move has lost its new place then."""
        # A chunk names its group without the chunks before it, which need not leave.
        original = self.snapshot.running.get(group.key, group)
        now = self.changed.get(group.key, original)
        gone = set[PodUid]()
        for placed in leaving:
            before = self.leaving.get(placed.pod.uid)
            self.board.give_back(placed)
            self.ledger.refund(group, charge_at(self.snapshot, placed))
            first = before.placed if before else placed
            self.leaving[placed.pod.uid] = Leaving(original, first, action, beneficiary)
            gone.add(placed.pod.uid)
        self.changed[group.key] = replace(now, placed=tuple(one for one in now.placed if one.pod.uid not in gone))

    def evict_torn(self, keys: Iterable[GroupKey], action: Action, beneficiary: GroupKey) -> None:
        """Have pods not move after all whose gang loses its minimum: they would run alone."""
        for key in keys:
            group = self.changed[key]
            moved = [one for one in group.placed if one.pod.uid in self.leaving]
            if moved and not gang.is_whole(group):
                self.evict(group, moved, action, beneficiary)

    def seat(self, seats: tuple[Seat, ...]) -> None:
        """Note the places that were found for the group that asks."""
        self.seated, self.all_seated = seats, self.all_seated + seats

    def bring_home(self, beneficiary: GroupKey) -> None:
        """Let pods stay that were to move, but whose own places turned out not to be needed; parts of devices move."""
        for each in [one for one in self.leaving.values() if one.beneficiary == beneficiary]:
            column, pod = self.snapshot.nodes.index.get(each.placed.node), each.placed.pod
            is_simple = pod.sharing is None and not pod.claims
            if each.seat is None or column is None or not is_simple or not self.board.later_allowed(pod, column):
                continue
            self.board.move(each.seat, to=Seat(pod, column, (), later=True))
            del self.leaving[pod.uid]
            now = self.changed[each.group.key]
            stay = (each.placed if one.pod.uid == pod.uid else one for one in now.placed)
            self.changed[each.group.key] = replace(now, placed=tuple(stay))

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


def _without(pending: Sequence[Pod], started: Iterable[Pod]) -> tuple[Pod, ...]:
    gone = {pod.uid for pod in started}
    return tuple(pod for pod in pending if pod.uid not in gone)
