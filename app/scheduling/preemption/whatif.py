"""A plan under construction: placement state, queue accounts, evictions and moves so far. A copy is a what-if."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from app.model.decision import Action, Eviction, Share
from app.model.names import GroupKey, PodUid, QueueName
from app.model.pod import Placed, Pod, ResourceClaim, claims_of
from app.model.podgroup import PodGroup
from app.model.reason import Refusal
from app.model.resources import NOTHING, Amounts, Resources
from app.model.snapshot import Mask, Snapshot
from app.scheduling.copies import Common, Copied, Owned, Value
from app.scheduling.placement import gang
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.ranks import Strategy, Where
from app.scheduling.placement.slots import Slots
from app.scheduling.placement.state import PlacementState, Timing
from app.scheduling.preemption.evictable import Evictable, Scope
from app.scheduling.preemption.foremost import Foremost
from app.scheduling.preemption.victims import VictimCandidates, charge_at
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.order import next_chunk
from app.scheduling.queues.pod_costs import least_of, most_of, summed
from app.scheduling.queues.quota import QueueLedger, is_by_memory, least_charge
from app.scheduling.queues.shared_claims import with_milli

MOST_SIZES = 4
"""How many GPU sizes are tried one after the other; the smallest size is one of them."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that the plan evicts or moves."""

    group: PodGroup
    """The group before the plan."""
    placed: Placed
    action: Action
    beneficiary: GroupKey | None
    seat: Assignment | None = None
    """The place to which the pod moves; None when the pod is lost."""


_Next = tuple[PodGroup, tuple[Pod, ...], Resources, Resources, tuple[ResourceClaim, ...]]
"""A group and its pods that start next: the least and the most that they cost, and the claims that they share."""


@dataclass(slots=True)
class Prospects:
    """The latest results of `prospects` for one plan, each with the free resources for which it is valid."""

    places: tuple[object, Mask | None] = None, None
    """For which shapes of pods there is room."""
    most: tuple[object, Mapping[tuple[Scope, ...], Amounts]] = None, MappingProxyType({})
    line: Foremost | None = None


class WhatIf(Copied):
    """The state of one plan; `start` and `evict` change it."""

    snapshot: Value[Snapshot]
    board: Owned[PlacementState]
    ledger: Owned[QueueLedger]
    shares: Value[Mapping[QueueName, Share]]
    leaving: Owned[dict[PodUid, Leaving]]
    changed: Owned[dict[GroupKey, PodGroup]]
    """The running groups that differ from the snapshot; pods that move are at their new places."""
    growing: Owned[dict[GroupKey, None]]
    """The running groups of which more pods start in this plan. Evicting pods of such a group might leave only the new
    pods.
    """
    seated: Value[tuple[Assignment, ...]]
    """The places that were found last for the asking group."""
    all_seated: Value[tuple[Assignment, ...]]
    """These places and the places found before."""
    too_dear: Value[Refusal | None]
    """Why the queue may not pay for the places that were found last; None if there were none, or if it may pay."""
    prospects: Common[Prospects]
    _slots: Common[tuple[object, Slots | None]]
    _next: Common[dict[GroupKey, _Next]]
    _roster: Common[VictimCandidates | None]
    _evictable: Common[Evictable | None]

    def __init__(self, snapshot: Snapshot, strategy: Strategy) -> None:
        """Begin with the current state of the cluster."""
        self.snapshot = snapshot
        self.board = PlacementState(snapshot, strategy)
        self.ledger = QueueLedger(snapshot)
        self.shares, self.leaving, self.changed, self.growing = {}, {}, {}, {}
        self.seated, self.all_seated, self.too_dear = (), (), None
        self.prospects, self._slots = Prospects(), (None, None)
        self._next, self._roster, self._evictable = {}, None, None

    @property
    def roster(self) -> VictimCandidates:
        """The groups that may ever be evicted; shared with all copies."""
        if self._roster is None:
            self._roster = VictimCandidates(self.snapshot)
        return self._roster

    @property
    def evictable(self) -> Evictable:
        """What evictable pods hold, in the state of the plan; shared with all copies."""
        if self._evictable is None:
            self._evictable = Evictable(self.snapshot, self.board.stock)
        return self._evictable

    def slots(self) -> Slots:
        """Return how many pods of each size fit on nodes now."""
        (seen, found), stock = self._slots, self.board.stock
        if found is None or seen != (stock, stock.changes):
            found = Slots(stock)
            self._slots = (stock, stock.changes), found
        return found

    def divide(self) -> None:
        """Compute the fair shares; questions about one pod do not need them."""
        self.shares = fair_shares(self.snapshot)

    def share_of(self, queue: QueueName) -> Resources:
        """Return the queue's fair share."""
        share = self.shares.get(queue)
        return NOTHING if share is None else share.fair_share

    def adopt(self, spent: Self) -> None:
        """Take over the state of a copy, which must not be used after that; `Turns` on this ledger see the change."""
        self.ledger.take_over(spent.ledger)
        spent.ledger = self.ledger
        self.take_over(spent)

    def as_it_is(self, running: PodGroup) -> PodGroup:
        """Return a running group without the pods that are evicted."""
        return self.changed.get(running.key, running)

    def next_of(self, group: PodGroup) -> tuple[tuple[Pod, ...], Resources]:
        """Return the pods that start next, and the least that their queue may have to pay for them (for limits)."""
        _, pods, least, _, claims = self._next_known(group)
        return pods, self.ledger.total(group, least, claims) if claims else least

    def most_of_next(self, group: PodGroup) -> Resources:
        """Return the most that the queue may have to pay for these pods; fair shares and turns use the most."""
        *_, most, claims = self._next_known(group)
        return self.ledger.total(group, most, claims) if claims else most

    def refusal_of_next(self, group: PodGroup) -> Refusal | None:
        """Return why the group's queue may not pay for the pods that start next; None when it may."""
        _, _, least, _, claims = self._next_known(group)
        return self.ledger.check(group, least, claims)

    def _next_known(self, group: PodGroup) -> _Next:
        """Return these pods, both charges and the claims, computed once while the group does not change."""
        found = self._next.get(group.key)
        if found is None or found[0] is not group:
            pods, nodes = next_chunk(group), self.snapshot.nodes
            is_one = len(pods) == 1
            least = least_charge(pods[0], nodes) if is_one else least_of(pods, nodes)
            most = most_of(pods, nodes) if any(map(is_by_memory, pods)) else least
            claims = pods[0].claims if is_one else claims_of(pods)
            found = self._next[group.key] = group, pods, least, most, claims
        return found

    def request(self, group: PodGroup, pods: Sequence[Pod]) -> Resources:
        """Return the least that a queue may have to pay for pods that have no node yet; limits use the least."""
        return self.ledger.total(group, least_of(pods, self.snapshot.nodes), claims_of(pods))

    def most_request(self, group: PodGroup, pods: Sequence[Pod]) -> Resources:
        """Return the most that a queue may have to pay for these pods (used to decide what other queues lose)."""
        return self.ledger.total(group, most_of(pods, self.snapshot.nodes), claims_of(pods))

    def check(self, group: PodGroup, pods: Sequence[Pod]) -> Refusal | None:
        """Return why the group's queue may not pay for these pods even at the least; None when it may."""
        return self.ledger.check(group, least_of(pods, self.snapshot.nodes), claims_of(pods))

    def check_most(self, group: PodGroup, pods: Sequence[Pod]) -> Refusal | None:
        """Return why the group's queue may not pay the most that these pods may cost; None when it may."""
        return self.ledger.check(group, most_of(pods, self.snapshot.nodes), claims_of(pods))

    def over_quota(self, group: PodGroup, pods: Sequence[Pod]) -> Refusal | None:
        """Return why the non-preemptible quota does not allow these pods; None when it does."""
        return self.ledger.over_quota(group, least_of(pods, self.snapshot.nodes), claims_of(pods))

    def freed_by(self, group: PodGroup, pods: Sequence[Pod]) -> Resources:
        """Return the least that the group's queue no longer pays when these of its pods lose their places again."""
        freed_milli, _ = self.ledger.claims.copy().remove(group, claims_of(pods))
        return with_milli(least_of(pods, self.snapshot.nodes), -freed_milli)

    def start(self, group: PodGroup, pods: Sequence[Pod], *, timing: Timing) -> tuple[Assignment, ...] | None:
        """Place pods that start together and charge their queue, or change nothing and return None."""
        seats = self._place(group, pods, timing)
        if seats is not None and group.key in self.snapshot.running:
            self.growing[group.key] = None
        return seats

    def resettle(self, group: PodGroup, pods: Sequence[Pod]) -> PodGroup | None:
        """Give evicted pods other places; return the group with these places, or change nothing and return None.

        A pod that gets its own place back is not evicted. If its node takes no new pods, the pod keeps its own place.
        So does a pod without a controller: nobody creates it again for another place, so it is lost without its own.
        """
        home = self._fixed_homes(pods)
        staying = tuple(self.leaving[seat.pod.uid].placed for seat in home)
        rest = _without(pods, (one.pod for one in staying)) if home else pods
        seats = self._place(replace(group, placed=(*group.placed, *staying)), rest, Timing.LATER) if rest else ()
        if home and seats is None:
            self.board.let_go(home)
        elif home:
            self.ledger.charge(group, self._charge(home))
        if seats is None:
            return None
        come = tuple(self._settled(seat) for seat in (*home, *seats))
        now = self.changed[group.key]
        self.changed[group.key] = replace(now, placed=(*now.placed, *come))
        lost = [one for one in come if one.pod.bare and one.pod.uid in self.leaving]
        if lost:
            left = self.leaving[lost[0].pod.uid]
            self.evict(left.group, lost, left.action, left.beneficiary)
            come = tuple(one for one in come if one not in lost)
        return replace(group, placed=(*group.placed, *come), pending=_without(group.pending, pods))

    def _fixed_homes(self, pods: Sequence[Pod]) -> tuple[Assignment, ...]:
        """Take the own places of pods without a controller, and of pods whose nodes take no new pods like them."""
        found = list[Assignment]()
        for pod in pods:
            home = self._home(self.leaving[pod.uid], self.board)
            if home is not None and (pod.bare or not self.board.eligible(pod)[home.column]):
                self.board.take((home,))
                found.append(home)
        return tuple(found)

    def _settled(self, seat: Assignment) -> Placed:
        each = self.leaving[seat.pod.uid]
        if self._is_own(each.placed, seat):
            del self.leaving[seat.pod.uid]
            return each.placed
        self.leaving[seat.pod.uid] = replace(each, seat=seat)
        return Placed(pod=seat.pod, node=self.snapshot.nodes.nodes[seat.column].name, devices=seat.devices)

    def _place(self, group: PodGroup, pods: Sequence[Pod], timing: Timing) -> tuple[Assignment, ...] | None:
        self.too_dear = None
        if any(map(is_by_memory, pods)) and self.ledger.bounds_gpus(group):
            seats = self._place_within_quota(group, pods, timing)
        else:
            seats = gang.place(self.board, group, pods, timing=timing)
        if seats is not None:
            self.ledger.charge(group, self._charge(seats), claims_of(pods))
        return seats

    def _place_within_quota(
        self, group: PodGroup, pods: Sequence[Pod], timing: Timing
    ) -> tuple[Assignment, ...] | None:
        """Place pods that request GPU memory where the queue may pay for them: a part of a larger GPU costs less.

        The largest GPUs are tried first, then smaller GPUs as well.
        """
        memory_mib = self.snapshot.nodes.device_memory_mib
        sizes = np.unique(memory_mib[self.board.open_to_any(pods)])[::-1].tolist()
        for least in (*sizes[: MOST_SIZES - 1], *sizes[MOST_SIZES - 1 :][-1:]):
            board = self.board.copy()
            seats = gang.place(board, group, pods, timing=timing, where=Where(memory_mib >= least))
            refusal = None if seats is None else self.ledger.check(group, self._charge(seats), claims_of(pods))
            self.too_dear = refusal or self.too_dear
            if seats is not None and refusal is None:
                self.board = board
                return seats
        return None

    def _charge(self, seats: Iterable[Assignment]) -> Resources:
        """Return what these pods cost, without shared claims."""
        memory = self.snapshot.nodes.device_memory_mib
        return summed(seat.pod.charge(int(memory[seat.column])) for seat in seats)

    def evict(self, group: PodGroup, leaving: Iterable[Placed], action: Action, beneficiary: GroupKey | None) -> None:
        """Evict pods of a running group; a pod that was to move loses its new place."""
        # A chunk names its group without the chunks before it, which may stay.
        original = self.snapshot.running.get(group.key, group)
        now = self.changed.get(group.key, original)
        gone = set[PodUid]()
        for placed in leaving:
            before = self.leaving.get(placed.pod.uid)
            self.board.give_back(placed)
            self.ledger.refund(group, charge_at(self.snapshot, placed), placed.pod.claims)
            first = before.placed if before else placed
            self.leaving[placed.pod.uid] = Leaving(original, first, action, beneficiary)
            gone.add(placed.pod.uid)
        self.changed[group.key] = replace(now, placed=tuple(one for one in now.placed if one.pod.uid not in gone))

    def evict_torn(self, keys: Iterable[GroupKey], action: Action, beneficiary: GroupKey) -> None:
        """Evict moved pods whose gang loses its minimum: they would run alone."""
        for key in keys:
            group = self.changed[key]
            moved = [one for one in group.placed if one.pod.uid in self.leaving]
            if moved and not gang.is_whole(group):
                self.evict(group, moved, action, beneficiary)

    def seat(self, seats: tuple[Assignment, ...]) -> None:
        """Record the places that were found for the asking group."""
        self.seated, self.all_seated = seats, self.all_seated + seats

    def bring_home(self, beneficiary: GroupKey) -> None:
        """Let pods stay that were to move but whose own places are not needed; pods with device parts still move."""
        for each in [one for one in self.leaving.values() if one.beneficiary == beneficiary]:
            pod, home = each.placed.pod, self._home(each, self.board)
            if each.seat is None or home is None:
                continue
            self.board.move(each.seat, to=home)
            del self.leaving[pod.uid]
            now = self.changed[each.group.key]
            stay = (each.placed if one.pod.uid == pod.uid else one for one in now.placed)
            self.changed[each.group.key] = replace(now, placed=tuple(stay))

    def _home(self, leaving: Leaving, board: PlacementState) -> Assignment | None:
        """Return a pod's own place if it has room there after the evictions; None for parts of devices and claims."""
        column, pod = self.snapshot.nodes.index.get(leaving.placed.node), leaving.placed.pod
        is_simple = pod.sharing is None and not pod.claims
        if column is None or not is_simple or not board.may_stay(pod, column):
            return None
        return Assignment(pod, column, (), later=True)

    def reprieve(self) -> None:
        """Let lost pods stay whose places have become free for another reason; gangs as a whole."""
        lost = dict[GroupKey, list[Leaving]]()
        for each in reversed(self.leaving.values()):
            if each.seat is None and each.action is not Action.EVICT_STALE:
                lost.setdefault(each.group.key, []).append(each)
        for key, pods in lost.items():
            if not self._stay(pods) and gang.is_whole(self.changed[key]):
                for each in pods:
                    self._stay([each])

    def _stay(self, lost: Sequence[Leaving]) -> bool:
        """Let these pods of a group stay in their places if all of them have room and the group is then whole."""
        group, now = lost[0].group, self.changed[lost[0].group.key]
        after = replace(now, placed=(*now.placed, *(each.placed for each in lost)))
        request, board = summed(charge_at(self.snapshot, each.placed) for each in lost), self.board.copy()
        claims = claims_of(each.placed.pod for each in lost)
        if not gang.is_whole(after) or self.ledger.check(group, request, claims) is not None:
            return False
        for each in lost:
            home = self._home(each, board)
            if home is None:
                return False
            board.take((home,))
        self.board = board
        self.ledger.charge(group, request, claims)
        self.changed[group.key] = after
        for each in lost:
            del self.leaving[each.placed.pod.uid]
        return True

    def _is_own(self, placed: Placed, seat: Assignment) -> bool:
        here = self.snapshot.nodes.nodes[seat.column].name == placed.node
        return here and set(seat.devices) == set(placed.devices)

    def evictions(self) -> tuple[Eviction, ...]:
        """Return the evictions of the plan."""
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


def _without(pending: Sequence[Pod], started: Iterable[Pod]) -> tuple[Pod, ...]:
    gone = {pod.uid for pod in started}
    return tuple(pod for pod in pending if pod.uid not in gone)
