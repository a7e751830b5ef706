"""The action allocate: gives PodGroups their turns; PodGroups that are owed room go first, borrowing PodGroups last."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from app.model.names import GroupKey, NodeName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.reason import Refusal
from app.model.resources import Resources
from app.scheduling.explain import refusals
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.planner.draft import PlanDraft
from app.scheduling.preemption import ageing, lending
from app.scheduling.queues.order import Turns, is_torn, turn


class Allocation:
    """Starts PodGroups where there is room, without evictions."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft, self._state = draft, draft.state
        self._served: dict[GroupKey, PodGroup | None] = {}
        """The remaining pods of the groups that had their turn early."""
        self._borrowers: list[PodGroup] = []
        """The PodGroups above the fair share of their queue that are not decided yet, in the order of turns."""

    def keep_for(self, group: PodGroup, nodes: Collection[NodeName]) -> None:
        """Keep nodes, and the remaining share of its queue, for the group for which the previous plan kept them."""
        self._draft.kept_nodes = ageing.Kept.of(self._state, group, nodes, self._draft.now)
        self._draft.withheld = tuple(nodes)

    def allocate_alone(self) -> None:
        """Give turns to one group only. It needs no order, so fair shares are divided only for a kept share."""
        rest: PodGroup | None = next(iter(self._draft.snapshot.groups.values()))
        kept = self._draft.kept_nodes
        if kept is not None and rest is not None and (rest.placed or rest.queue == kept.group.queue):
            self._state.divide()
        while rest is not None:
            rest = self._take_turn(rest)

    def allocate(self, turns: Turns) -> None:
        """Give turns to every group that does not borrow; partially bound gangs and aged groups are first."""
        self._complete_torn()
        self._serve_aged()
        while (group := turns.pop()) is not None:
            if group.key in self._served:
                rest = self._served.pop(group.key)
            elif self._draft.policy.borrow_last and lending.borrows(self._state, group):
                self._borrowers.append(group)
                continue
            else:
                rest = self._take_turn(group)
            if rest is not None:
                turns.push(rest)

    def _complete_torn(self) -> None:
        """Give partially bound gangs a turn before all others, or keep the available room for their missing pods."""
        torn = [group for group in self._draft.snapshot.groups.values() if group.placed and group.owed]
        for group in sorted(torn, key=turn):
            if self._draft.goes_first(group):
                self._served[group.key] = self._take_turn(group)
            else:
                self._keep_room(group)

    def _serve_aged(self) -> None:
        """Start aged groups where there is room. Keep nodes for the first one that finds no room."""
        if self._draft.policy.ageing_s is None or self._draft.kept_nodes is not None:
            return
        for group in ageing.oldest(self._state, self._draft.now - self._draft.policy.ageing_s):
            if group.key in self._served:
                continue
            # Empty nodes do not help a PodGroup that finds room but may not use it yet.
            is_allowed = self._draft.precedence.allows(group)
            finds_room = self._serve(group) if is_allowed else lending.finds_room(self._state, group)
            # For the missing pods of a partially bound gang, room was kept earlier, as long as that is allowed.
            if not finds_room and not group.placed and ageing.may_keep(self._draft.kept_idle, group, self._draft.now):
                self._draft.withhold(group)
                if nodes := self._draft.withheld:
                    self._draft.kept_nodes = ageing.Kept.of(self._state, group, nodes, self._draft.now)
                return

    def _serve(self, group: PodGroup) -> bool:
        """Give a group its turn early if there is room. Return whether the group is decided."""
        chunk, request = self._state.next_of(group)
        seats, refusal = self._seats(group, chunk, request)
        if seats is not None:
            self._served[group.key] = self._begin(group, chunk, seats)
        elif refusal is not None and refusal is self._state.too_dear:
            self._draft.refuse(group, refusal)
            self._served[group.key] = None
        return group.key in self._served

    def lend(self, *, holds_back: bool = False) -> None:
        """Give turns to the borrowing groups. With `holds_back`, room that another queue is owed is decided first.

        Then only the borrowers that find no room anyway are decided.
        """
        borrowers, self._borrowers = self._borrowers, []
        if borrowers and (self._state.board.withheld is None or self._draft.kept_nodes is not None):
            self._withhold_what_is_owed()
        for group in borrowers:
            if holds_back and self._draft.owed is not None and lending.finds_room(self._state, group):
                self._borrowers.append(group)
            else:
                self._take_turns(group)

    def open_what_is_owed(self) -> None:
        """Open the nodes that are kept from borrowers to the groups for which pods are evicted."""
        if self._draft.owed is not None and self._draft.kept_nodes is None:
            self._state.board.withhold(())

    def lend_the_rest(self) -> None:
        """Give turns to the borrowers that were held back, except in queues from which this plan evicts pods."""
        losers = lending.losers(self._state)
        if self._draft.owed is not None:
            self._withhold_what_is_owed()
        borrowers, self._borrowers = self._borrowers, []
        turns = Turns(self._draft.snapshot, self._state.ledger, self._state.shares, borrowers)
        while (group := turns.pop()) is not None:
            if group.queue in losers:
                self._draft.refuse(group, lending.refusal(group))
            elif (rest := self._take_turn(group)) is not None:
                turns.push(rest)

    def _withhold_what_is_owed(self) -> None:
        """Keep nodes from borrowers for the first group that is owed room and has found none."""
        given_up = {
            key for key in self._draft.memory.waiting_since if self._draft.now >= self._draft.is_owed_until(key)
        }
        self._draft.owed = lending.first_owed(self._state, self._draft.waiting.values(), self._draft.refusals, given_up)
        if self._draft.kept_nodes is not None:
            return  # One group at a time: nodes are already kept for an aged group.
        self._draft.withheld = ()
        if self._draft.owed is not None:
            self._draft.withhold(self._draft.waiting[self._draft.owed])

    def _take_turns(self, group: PodGroup) -> None:
        rest: PodGroup | None = group
        while rest is not None:
            rest = self._take_turn(rest)

    def _take_turn(self, group: PodGroup) -> PodGroup | None:
        """Decide the group's next pods. Return the rest of the group if it may get another turn in this plan."""
        chunk, request = self._state.next_of(group)
        if not chunk and group.refusal is None:
            return None  # The missing pods do not exist. The component that formed the group should have reported it.
        if self._draft.kept_nodes is not None:
            self._draft.close_nodes_to(group)
        seats, refusal = self._seats(group, chunk, request)
        if seats is not None:
            return self._begin(group, chunk, seats)
        self._draft.refuse(group, refusal or refusals.no_room(group, chunk, self._state.board, self._draft.rivals))
        self._keep_room(group)
        return None

    def _keep_room(self, group: PodGroup) -> None:
        """Keep room for the missing pods of a partially bound gang, for a short time and within fairness."""
        keeping, may_keep = self._draft.keeping, self._draft.policy.keeps_room_for
        if group.key in keeping.seats or not is_torn(group) or not may_keep(group, self._draft.now):
            return
        chunk, _ = self._state.next_of(group)
        if chunk and keeping.may_be_completed(group, chunk):
            keeping.keep(group, chunk)

    def _seats(
        self, group: PodGroup, chunk: Sequence[Pod], request: Resources
    ) -> tuple[Sequence[Assignment] | None, Refusal | None]:
        """Take places for a group's next pods. If impossible, return None and the refusal, or None for no room."""
        ledger = self._state.ledger
        refusal = ledger.numbered(group.refusal, group, request)
        # Claims may add something else to what a queue holds than to the non-preemptible part.
        refusal = refusal or (ledger.check(group, request) if group.preemptible else self._state.refusal_of_next(group))
        if refusal is not None:
            return None, refusal
        if self._draft.kept_nodes is not None and self._draft.is_share_kept_from(group):
            # For a group without room, the share is no cause: it is kept for some minutes, and again later.
            may_fit = refusals.may_fit_when_open(group, chunk, self._state.board)
            return None, ageing.refusal(group) if may_fit else None
        seats = self._draft.keeping.start(group, chunk)
        return seats, self._state.too_dear if seats is None else None

    def _begin(self, group: PodGroup, chunk: Sequence[Pod], seats: Sequence[Assignment]) -> PodGroup | None:
        """Record the places of a group's next pods. Return the rest of the group if it may get another turn."""
        if any(seat.later for seat in seats):
            self._hold(group, seats)
            return None
        self._draft.note(group, seats)
        if len(chunk) == len(group.pending):
            return None
        return self._rest(group, seats)

    def _hold(self, group: PodGroup, seats: Sequence[Assignment]) -> None:
        """Start the pods that have room now if their pod sets reach their minima without the others, else no pod."""
        now = [seat for seat in seats if not seat.later]
        if not self._is_enough(group, now, seats):
            seats, now = [self._state.board.postpone(seat) for seat in seats], []
        if now:
            self._draft.note(group, now)
        self._draft.note(group, [seat for seat in seats if seat.later])

    def _is_enough(self, group: PodGroup, now: Sequence[Assignment], seats: Sequence[Assignment]) -> bool:
        held = group.held()
        for seat in now:
            name = group.pod_set(seat.pod)
            held[name] = held.get(name, 0) + 1
        waiting = {group.pod_set(seat.pod) for seat in seats if seat.later}
        return all(held.get(leaf.name, 0) >= leaf.min_member for leaf in group.tree.leaves() if leaf.name in waiting)

    def _rest(self, group: PodGroup, seats: Sequence[Assignment]) -> PodGroup:
        nodes, started = self._draft.snapshot.nodes.nodes, {seat.pod.uid for seat in seats}
        placed = tuple(Placed(pod=seat.pod, node=nodes[seat.column].name, devices=seat.devices) for seat in seats)
        # Mostly the first pods in the order started. Then the thousands of remaining pods need no check.
        left = group.pending[len(seats) :]
        if any(pod.uid not in started for pod in group.pending[: len(seats)]):
            left = tuple(pod for pod in group.pending if pod.uid not in started)
        return replace(group, pending=left, placed=group.placed + placed)
