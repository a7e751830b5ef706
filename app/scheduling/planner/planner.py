"""Decides for all waiting PodGroups at once: whose turn it is, who starts where, who has to leave, why the others wait.

1. shares: what every queue may expect of the cluster
2. allocate: the PodGroups in the order of their turns; what each is owed starts together, the rest pod by pod
3. consolidate, reclaim, preempt: for those who found no room, in this order, the least disruptive first
4. stale gangs, which lost pods and do not get them back, leave what they hold: before 3 if nobody waits to complete
   them, so that nobody is evicted for room or shares that are about to be free; else whoever fits beside stays
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.model.decision import Action, Plan, Start
from app.model.memory import NO_MEMORY, NOT_SEARCHED, Conditions, KeptIdle, Likeness, PlanMemory, Searched
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.reason import NO_PLACE, OfVictims, Refusal
from app.model.resources import Amounts, Resources
from app.model.sentence import EVERYTHING, told
from app.model.snapshot import Mask, Snapshot
from app.scheduling.explain import refusals
from app.scheduling.explain.unevicted import Unevicted
from app.scheduling.explain.unsatisfiable import judged
from app.scheduling.placement import score
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.rivals import Rivals
from app.scheduling.placement.state import PlacementState
from app.scheduling.placement.topology import same_domains
from app.scheduling.planner.keeping import Keeping
from app.scheduling.policy import DEFAULT_POLICY, Policy
from app.scheduling.preemption import ageing, lending
from app.scheduling.preemption.budget import Budget
from app.scheduling.preemption.conditions import conditions, still_true
from app.scheduling.preemption.likeness import likeness_of
from app.scheduling.preemption.minruntime import Protection, runtimes
from app.scheduling.preemption.patience import Patience
from app.scheduling.preemption.search import Aim, VictimSearch
from app.scheduling.preemption.searches import Searches, needed
from app.scheduling.preemption.victim_policies import Consolidate, Preempt, Reclaim, Sparing
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.order import Turns, is_torn, next_chunk, turn
from app.scheduling.queues.quota import QueueLedger, least_charge

MOST_BYSTANDERS = 2000
"""Of how many other PodGroups `plan_some` finds out whether they can run at all (some 10 us each, once a change)."""

MOST_UNEVICTED = 64
"""For how many kinds of PodGroups one plan finds out why no pod is evicted: each takes a look at all running pods."""


def plan(
    snapshot: Snapshot, policy: Policy = DEFAULT_POLICY, *, now: float = 0.0, memory: PlanMemory = NO_MEMORY
) -> Plan:
    """Decide for every waiting PodGroup of the snapshot; `now` is in seconds since the epoch.

    `memory` is that of the plan before: searches that were in vain are not repeated, interrupted ones continue.
    """
    snapshot = judged(snapshot)
    made = _Pass(snapshot, policy, memory, now=now)
    # Not in `plan_some`, which is made while kube-scheduler waits: fifty thousand running pods take milliseconds.
    made.rivals.look_into(snapshot.running.values())
    made.state.divide()
    if Action.ALLOCATE in policy.actions:
        made.allocate(Turns(snapshot, made.state.ledger, made.state.shares))
        made.lend(holds_back=policy.borrow_last and bool(snapshot.running))
    else:
        made.waiting = dict(snapshot.groups)
    if snapshot.running:
        made.end_stale(now, made.cannot_be_completed)
        made.open_what_is_owed()
        made.make_room(now)
        made.lend_the_rest()
        made.end_stale(now, made.is_incomplete)
    return made.result()


def plan_some(  # noqa: PLR0913 - what is asked, and what the plan before keeps
    snapshot: Snapshot,
    candidates: Collection[GroupKey],
    policy: Policy = DEFAULT_POLICY,
    *,
    withheld: Collection[NodeName] = (),
    aged: GroupKey | None = None,
    now: float = 0.0,
    memory: PlanMemory = NO_MEMORY,
) -> Plan:
    """Decide for the candidates alone, when nobody else who waits could use what is free; nobody has to leave.

    `withheld` are the nodes that the last plan keeps for `aged`, a PodGroup that has waited for long, or for another
    cause; `now` is in seconds since the epoch, `memory` that of the last `plan`.
    """
    kept_for = None if aged is None else snapshot.groups.get(aged)
    waiting = {key: snapshot.groups[key] for key in candidates if key in snapshot.groups}
    snapshot = judged(snapshot, None if judges_all(waiting.values(), len(snapshot.groups)) else waiting)
    waiting = {key: snapshot.groups[key] for key in waiting}
    made = _Pass(replace(snapshot, groups=waiting), policy, memory, now=now)
    made.state.board.withhold(withheld, is_owed=aged is None)
    if kept_for is not None:
        made.keep_for(kept_for, withheld)
    if len(waiting) == 1:
        made.allocate_alone()
        return made.result()
    made.state.divide()
    made.allocate(Turns(made.state.snapshot, made.state.ledger, made.state.shares))
    made.lend()
    return made.result()


def judges_all(candidates: Collection[PodGroup], waiting: int) -> bool:
    """Return whether `plan_some` finds out for all that wait, and not for these alone, whether they can run at all."""
    # Fair shares depend on everybody who waits; one group alone needs none.
    is_alone = len(candidates) == 1 and not any(map(is_torn, candidates))
    return not is_alone and waiting - len(candidates) <= MOST_BYSTANDERS


def move_one(  # noqa: PLR0913 - one question, told by who asks, from where and whereto
    snapshot: Snapshot,
    pod: Pod,
    node: NodeName,
    offered: Collection[NodeName],
    policy: Policy = DEFAULT_POLICY,
    *,
    constraints: Sequence[TopologyConstraint] = (),
) -> NodeName | None:
    """Return the best of the offered nodes that has room for the pod instead of its own, None when none has.

    It stays in the domains of its own node that these constraints of its PodGroup name.
    """
    board = PlacementState(snapshot, policy.strategy)
    allowed = board.allowed(pod) & snapshot.nodes.mask(offered)
    if constraints:
        allowed &= same_domains(node, constraints, snapshot.nodes, snapshot.topologies)
    return board.choose(pod, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """How a pod that is not there yet would fare: what a what-if answers."""

    refusal: Refusal | None
    """Why it could not start, whichever node; None when it could."""
    fitting: Mask
    """Shape [node]: the offered nodes with room."""
    scores: Amounts
    """Shape [node]: 0 (no room) to 10 (best)."""


def rate(
    snapshot: Snapshot, group: PodGroup, pod: Pod, offered: Collection[NodeName], *, policy: Policy = DEFAULT_POLICY
) -> Rating:
    """Rate the offered nodes for a pod of a group, among themselves, without deciding anything."""
    board = PlacementState(snapshot, policy.strategy)
    fitting = board.allowed(pod) & snapshot.nodes.mask(offered)
    charge = least_charge(pod, snapshot.nodes)
    refusal = group.refusal or QueueLedger(snapshot).check(group, charge)
    return Rating(refusal=refusal, fitting=fitting, scores=score.scores(board.costs(pod), fitting))


@dataclass(slots=True)
class _Pass:
    """One plan in the making."""

    snapshot: Snapshot
    policy: Policy
    memory: PlanMemory = NO_MEMORY
    """Of the plan before, then of this one."""
    now: float = 0.0
    """Seconds since the epoch."""
    state: WhatIf = field(init=False)
    starts: list[Start] = field(default_factory=list)
    refusals: dict[GroupKey, Refusal] = field(default_factory=dict)
    waiting: dict[GroupKey, PodGroup] = field(default_factory=dict)
    """Who found no room, as it is now."""
    withheld: tuple[NodeName, ...] = ()
    keeping: Keeping = field(init=False)
    """What room there is for the rest of gangs that are bound in part."""
    borrowers: list[PodGroup] = field(default_factory=list)
    """Who goes above the fair share of its queue and has not been decided yet, in the order of turns."""
    kept_nodes: ageing.Kept | None = None
    """The nodes kept for a group that has waited for long."""
    kept_idle: KeptIdle = field(init=False)
    served: dict[GroupKey, PodGroup | None] = field(default_factory=dict)
    """What is left of the groups that had their turn before their time."""
    owed: GroupKey | None = None
    """The first that is owed room and has found none."""
    precedence: ageing.Precedence = field(init=False)
    rivals: Rivals = field(init=False)
    """For explaining alone."""
    seats: list[Assignment] = field(default_factory=list)
    """Those of the preemptible groups that start: others may take them in the next plan."""
    likenesses: dict[GroupKey, Likeness] = field(default_factory=dict)
    since: dict[GroupKey, tuple[float, bool]] = field(default_factory=dict)
    """What the next plan is to know of `PlanMemory.waiting_since`."""
    too_dear: set[GroupKey] = field(default_factory=set)
    """That of `Patience`."""
    held_back: set[GroupKey] = field(default_factory=set)
    """Those that might have victims, or room, but for what is owed to another."""
    whatifs: int = 0
    unfinished: bool = False

    def __post_init__(self) -> None:
        self.state = WhatIf(self.snapshot, self.policy.strategy)
        self.rivals = Rivals(self.snapshot, self.policy.strategy)
        self.keeping = Keeping(self.state, self.rivals)
        self.precedence = ageing.Precedence(self.state)
        self.kept_idle = ageing.carried(self.memory.kept_idle, self.snapshot.groups, self.now)

    # Allocating -----------------------------------------------------------------------------------------------------

    def keep_for(self, group: PodGroup, nodes: Collection[NodeName]) -> None:
        """Keep nodes, and what its queue has left of its share, for a group for which the plan before kept them."""
        self.kept_nodes, self.withheld = ageing.Kept.of(self.state, group, nodes, self.now), tuple(nodes)

    def allocate_alone(self) -> None:
        """Take turns with one group: nobody to be ordered among, so fair shares are divided for a kept share alone."""
        rest: PodGroup | None = next(iter(self.snapshot.groups.values()))
        kept = self.kept_nodes
        if kept is not None and rest is not None and (rest.placed or rest.queue == kept.group.queue):
            self.state.divide()
        while rest is not None:
            rest = self._take_turn(rest)

    def allocate(self, turns: Turns) -> None:
        """Give every group its turns but those that borrow; some come first: torn gangs, those that wait for long."""
        self._complete_torn()
        self._serve_aged()
        while (group := turns.pop()) is not None:
            if group.key in self.served:
                rest = self.served.pop(group.key)
            elif self.policy.borrow_last and lending.borrows(self.state, group):
                self.borrowers.append(group)
                continue
            else:
                rest = self._take_turn(group)
            if rest is not None:
                turns.push(rest)

    def _complete_torn(self) -> None:
        """Give gangs that hold some of their pods a turn before all others, or keep what room there is for the rest."""
        torn = [group for group in self.snapshot.groups.values() if group.placed and group.owed]
        for group in sorted(torn, key=turn):
            if self._goes_first(group):
                self.served[group.key] = self._take_turn(group)
            else:
                self._keep_room(group)

    def _goes_first(self, group: PodGroup) -> bool:
        """Whether a gang that holds some of its pods is completed before others start: briefly, where it is fair."""
        return self.policy.keeps_room_for(group, self.now) and self.precedence.completes(group)

    def _serve_aged(self) -> None:
        """Start those that have waited for long as far as there is room; keep nodes for the first that finds none."""
        if self.policy.ageing_s is None or self.kept_nodes is not None:
            return
        for group in ageing.oldest(self.state, self.now - self.policy.ageing_s):
            if group.key in self.served:
                continue
            # A PodGroup that finds room, and only may not use it yet, is not helped by empty nodes.
            is_allowed = self.precedence.allows(group)
            finds_room = self._serve(group) if is_allowed else lending.finds_room(self.state, group)
            # For the rest of a gang that is bound in part, room was kept before, as long as that may be.
            if not finds_room and not group.placed and ageing.may_keep(self.kept_idle, group, self.now):
                self._withhold(group)
                self.kept_nodes = ageing.Kept.of(self.state, group, self.withheld, self.now) if self.withheld else None
                return

    def _serve(self, group: PodGroup) -> bool:
        """Give a group its turn before its time if there is room for it; return whether there is."""
        chunk, request = self.state.next_of(group)
        seats, refusal = self._seats(group, chunk, request)
        if seats is not None:
            self.served[group.key] = self._begin(group, chunk, seats)
        elif refusal is not None and refusal is self.state.too_dear:
            self._refuse(group, refusal)
            self.served[group.key] = None
        return group.key in self.served

    def _remembered(self) -> PlanMemory:
        """Return what the next plan is to know; it is due when nodes are no longer kept."""
        kept_idle, found = self._cost_of_keeping(), self.memory.conditions
        until = ageing.changes_at(kept_idle, self.now)
        if self.owed is not None:
            until = min(until, self._is_owed_until(self.owed))
        if found is not None and until < found.changes_at:
            found = replace(found, changes_at=until)
        return replace(self.memory, kept_idle=kept_idle, conditions=found)

    def _cost_of_keeping(self) -> KeptIdle:
        kept = self.kept_nodes
        if kept is None:
            return ageing.ended(self.kept_idle, self.now)
        others = (each for key, each in self.refusals.items() if key != kept.group.key)
        return ageing.cost(self.kept_idle, self.state, kept, is_wanted=any(each.reason in NO_PLACE for each in others))

    def lend(self, *, holds_back: bool = False) -> None:
        """Give those their turns that borrow; `holds_back`: what is owed to another queue is to be decided first.

        Then only those are decided that find no room anyway.
        """
        borrowers, self.borrowers = self.borrowers, []
        if borrowers and (self.state.board.withheld is None or self.kept_nodes is not None):
            self._withhold_what_is_owed()
        for group in borrowers:
            if holds_back and self.owed is not None and lending.finds_room(self.state, group):
                self.borrowers.append(group)
            else:
                self._take_turns(group)

    def open_what_is_owed(self) -> None:
        """Let those into the nodes kept from borrowers for whom others leave."""
        if self.owed is not None and self.kept_nodes is None:
            self.state.board.withhold(())

    def lend_the_rest(self) -> None:
        """Give those their turns that were held back, but for queues from which this plan takes pods."""
        losers = lending.losers(self.state)
        if self.owed is not None:
            self._withhold_what_is_owed()
        borrowers, self.borrowers = self.borrowers, []
        turns = Turns(self.snapshot, self.state.ledger, self.state.shares, borrowers)
        while (group := turns.pop()) is not None:
            if group.queue in losers:
                self._refuse(group, lending.refusal(group))
            elif (rest := self._take_turn(group)) is not None:
                turns.push(rest)

    def _withhold_what_is_owed(self) -> None:
        """Keep nodes from borrowers for the first group that is owed room and has found none."""
        given_up = {key for key in self.memory.waiting_since if self.now >= self._is_owed_until(key)}
        self.owed = lending.first_owed(self.state, self.waiting.values(), self.refusals, given_up)
        if self.kept_nodes is not None:
            return  # One group at a time: nodes are kept for one that has waited for long.
        self.withheld = ()
        if self.owed is not None:
            self._withhold(self.waiting[self.owed])

    def _is_owed_until(self, key: GroupKey) -> float:
        """Return until when room is kept from borrowers for a group, in seconds since the epoch."""
        since, borrows = self.memory.waiting_since.get(key, (self.now, False))
        return (self.now if borrows else since) + max(lending.MOST_OWED_S, self.policy.patience_s)

    def _take_turns(self, group: PodGroup) -> None:
        rest: PodGroup | None = group
        while rest is not None:
            rest = self._take_turn(rest)

    def _close_nodes_to(self, group: PodGroup) -> None:
        if self.kept_nodes is not None:
            is_open = self._goes_first(group) or not self.kept_nodes.is_closed_to(self.state, group)
            self.state.board.is_closed = not is_open

    def _is_share_kept_from(self, group: PodGroup) -> bool:
        """Whether what its queue has left of its share is kept for another group; asked after `_close_nodes_to`."""
        kept, board = self.kept_nodes, self.state.board
        return kept is not None and board.is_closed and kept.needs_share_of(self.state, group)

    def _refuse(self, group: PodGroup, refusal: Refusal) -> None:
        self.refusals[group.key] = refusal
        self.waiting[group.key] = group

    def _withhold(self, group: PodGroup) -> None:
        """Keep nodes for a group that has waited for long: whoever comes after it in this plan goes elsewhere.

        As in EASY backfill, one group at a time. The nodes are those that will be empty soonest, so that the next plan
        chooses the same.
        """
        self.withheld = self.state.board.soonest_empty(next_chunk(group))
        self.state.board.withhold(self.withheld, is_owed=group.key == self.owed)

    def _take_turn(self, group: PodGroup) -> PodGroup | None:
        """Decide the group's next chunk; return what is left of the group when it may ask again in this plan."""
        chunk, request = self.state.next_of(group)
        if not chunk and group.refusal is None:
            return None  # those who are owed are not there, which whoever formed the group should have said
        if self.kept_nodes is not None:
            self._close_nodes_to(group)
        seats, refusal = self._seats(group, chunk, request)
        if seats is not None:
            return self._begin(group, chunk, seats)
        self._refuse(group, refusal or refusals.no_room(group, chunk, self.state.board, self.rivals))
        self._keep_room(group)
        return None

    def _keep_room(self, group: PodGroup) -> None:
        """Keep room for the rest of a gang that is bound in part, briefly and as far as that is fair."""
        if group.key in self.keeping.seats or not is_torn(group) or not self.policy.keeps_room_for(group, self.now):
            return
        chunk, _ = self.state.next_of(group)
        if self.keeping.may_be_completed(group, chunk):
            self.keeping.keep(group, chunk)

    def _seats(
        self, group: PodGroup, chunk: Sequence[Pod], request: Resources
    ) -> tuple[Sequence[Assignment] | None, Refusal | None]:
        """Take places for a group's next pods; None, and why its queue may not pay for them, or None for no room."""
        refusal = self.state.ledger.numbered(group.refusal, group, request) or self.state.ledger.check(group, request)
        if refusal is not None:
            return None, refusal
        if self.kept_nodes is not None and self._is_share_kept_from(group):
            return None, ageing.refusal(group)
        seats = self.keeping.start(group, chunk)
        return seats, self.state.too_dear if seats is None else None

    def _begin(self, group: PodGroup, chunk: Sequence[Pod], seats: Sequence[Assignment]) -> PodGroup | None:
        """Note the places of a group's next pods; return what is left of it when it may ask again in this plan."""
        if any(seat.later for seat in seats):
            self._hold(group, seats)
            return None
        self._note(group, seats)
        if len(chunk) == len(group.pending):
            return None
        return self._rest(group, seats)

    def _note(self, group: PodGroup, seats: Sequence[Assignment], action: Action = Action.ALLOCATE) -> None:
        later = any(seat.later for seat in seats)
        placements = tuple(self.state.board.placement(seat) for seat in seats)
        self.starts.append(Start(group=group.key, placements=placements, awaits_release=later, action=action))
        self.seats += seats if group.preemptible else ()
        self.rivals.note(group.key, seats)

    def _hold(self, group: PodGroup, seats: Sequence[Assignment]) -> None:
        """Start those who have room now when their pod sets reach their minima without the others, else nobody."""
        now = [seat for seat in seats if not seat.later]
        if not self._is_enough(group, now, seats):
            seats, now = [self.state.board.postpone(seat) for seat in seats], []
        if now:
            self._note(group, now)
        self._note(group, [seat for seat in seats if seat.later])

    def _is_enough(self, group: PodGroup, now: Sequence[Assignment], seats: Sequence[Assignment]) -> bool:
        held = group.held()
        for seat in now:
            name = group.pod_set(seat.pod)
            held[name] = held.get(name, 0) + 1
        waiting = {group.pod_set(seat.pod) for seat in seats if seat.later}
        return all(held.get(leaf.name, 0) >= leaf.min_member for leaf in group.tree.leaves() if leaf.name in waiting)

    def _rest(self, group: PodGroup, seats: Sequence[Assignment]) -> PodGroup:
        nodes, started = self.snapshot.nodes.nodes, {seat.pod.uid for seat in seats}
        placed = tuple(Placed(pod=seat.pod, node=nodes[seat.column].name, devices=seat.devices) for seat in seats)
        # Mostly those started that stood first: of thousands that are left, nobody is looked at then.
        left = group.pending[len(seats) :]
        if any(pod.uid not in started for pod in group.pending[: len(seats)]):
            left = tuple(pod for pod in group.pending if pod.uid not in started)
        return replace(group, pending=left, placed=group.placed + placed)

    # Making room ----------------------------------------------------------------------------------------------------

    def make_room(self, now: float) -> None:
        """Let others leave for those who wait, by every action that the policy allows."""
        policy = self.policy
        protection = Protection(self.snapshot.queues, policy, now, method=policy.reclaim_resolve_method)
        patience = Patience(policy.patience_s, now)
        if self.memory.asks_again_at > now:
            patience.asks_again_at = self.memory.asks_again_at
        sure_before = now - max(runtimes(self.snapshot.queues.values(), policy))
        reclaim = Reclaim(protection.from_reclaim, patience, sure_before)
        claimed = self._claimed(reclaim)
        patience.since = self._waiting_since(now, claimed=claimed)
        aims: tuple[Aim, ...] = (
            Consolidate(claimed, protection.from_consolidate, patience, sure_before),
            reclaim,
            Preempt(protection.from_preempt, sure_before),
        )
        chosen = [aim for aim in aims if aim.action in policy.actions]
        if not chosen:
            return
        self.too_dear = patience.too_dear
        self._pursue_all(chosen, now, claimed=claimed)
        self._remember_patience(patience)
        self._say_why_nobody_leaves(Unevicted(self.state, protection, policy.actions, now))

    def _waiting_since(self, now: float, *, claimed: bool) -> Mapping[GroupKey, float]:
        """Return since when those wait that others may leave for: those that are owed room, or all if none is."""
        before = self.memory.waiting_since
        for key, group in self.waiting.items():
            borrows = lending.borrows(self.state, group)
            if self._may_ask(group) and not (claimed and borrows):
                # What was waited for as a borrower does not count for what is owed.
                known, has_borrowed = before.get(key, (now, borrows))
                self.since[key] = known if borrows == has_borrowed else now, borrows
        return {key: since for key, (since, _) in self.since.items()}

    def _remember_patience(self, patience: Patience) -> None:
        """Have the next plan know who waits since when, and search again when one has waited for long enough."""
        found = self.memory.conditions
        if found is not None and patience.asks_again_at < found.changes_at:
            found = replace(found, changes_at=patience.asks_again_at)
        asks_again_at = patience.asks_again_at
        self.memory = replace(self.memory, waiting_since=self.since, asks_again_at=asks_again_at, conditions=found)

    def _pursue_all(self, aims: Sequence[Aim], now: float, *, claimed: bool) -> None:
        """Give each action its part of the budget and what the earlier ones have left, and remember what is found."""
        seen = self._conditions(claimed=claimed)
        known = still_true(self.memory, seen, now)
        part, left, searched = max(1, self.policy.most_whatifs // len(aims)), 0, dict[str, Searched]()
        waiting = {(self._likeness(group), len(next_chunk(group))) for group in self.waiting.values()}
        for aim in aims:
            budget, starts = Budget(part + left), len(self.starts)
            searches = Searches(part, known.searched.get(aim.action, NOT_SEARCHED))
            self._pursue(aim, searches, budget)
            left = budget.left
            self.whatifs += budget.used
            self.unfinished |= budget.spent or searches.is_unfinished
            if len(self.starts) > starts:
                # Victims may leave more room than is needed, which may help the searches of the other actions.
                before = PlanMemory(searched=searched, conditions=seen, since=now)
                to_come = replace(before, searched=known.searched)
                seen = self._conditions(claimed=claimed)
                searched = dict(still_true(before, seen, now).searched)
                known = replace(known, searched=still_true(to_come, seen, now).searched)
            searched[aim.action] = searches.frozen(waiting)
        after = self._conditions(
            self.seats, claimed=claimed, runtimes_s=runtimes(self.snapshot.queues.values(), self.policy)
        )
        self.memory = PlanMemory(searched=searched, conditions=after, since=known.since)

    def _conditions(
        self, seats: Sequence[Assignment] = (), *, claimed: bool, runtimes_s: Collection[float] = ()
    ) -> Conditions:
        kept_for = None if self.kept_nodes is None else self.kept_nodes.group.key
        owed, losers = self._owed_group(), self._losers
        return conditions(
            self.state,
            seats,
            claimed=claimed,
            kept_for=kept_for,
            owed=owed,
            losers=losers,
            runtimes_s=runtimes_s,
            now=self.now,
        )

    def _say_why_nobody_leaves(self, unevicted: Unevicted) -> None:
        causes: dict[tuple[Likeness, int, bool, bool], OfVictims] = {}
        said: dict[tuple[object, str], Refusal] = {}
        searched = self.memory.searched.values()
        for key, group in self.waiting.items():
            refusal, likeness, pods = self.refusals.get(key), self._likeness(group), len(next_chunk(group))
            if refusal is None or refusal.reason not in NO_PLACE or group.queue not in self.state.shares:
                continue
            if not refusal.exceeds_cluster and not all(each.is_in_vain(likeness, pods) for each in searched):
                continue  # It is not known yet.
            # Ten thousand pods of one template wait for one cause.
            like = likeness, pods, refusal.exceeds_cluster, "kept" in refusal.details
            if like not in causes:
                if len(causes) >= MOST_UNEVICTED:
                    continue
                causes[like] = self._of_victims(group, refusal, unevicted)
            same = like, told(refusal.sentence, EVERYTHING)
            if same not in said:
                said[same] = refusal.with_victims(causes[like])
            self.refusals[key] = said[same]

    def _of_victims(self, group: PodGroup, refusal: Refusal, unevicted: Unevicted) -> OfVictims:
        if refusal.exceeds_cluster or "kept" in refusal.details:
            return OfVictims()
        # Whatever was searched for last: the same is said of the same state.
        self._open_nodes_to(group)
        is_patient = any(self._likeness(group) in each.too_dear for each in self.memory.searched.values())
        return unevicted.why(group, next_chunk(group), patience_s=self.policy.patience_s if is_patient else 0.0)

    def _claimed(self, reclaim: Reclaim) -> bool:
        """Whether anybody waits for what is owed to its queue: it would take back what is handed out beyond."""
        if Action.RECLAIM not in self.policy.actions:
            return False
        asked = set[Likeness]()
        for group in self.waiting.values():
            likeness = self._likeness(group)
            if self._may_ask(group) and likeness not in asked:
                asked.add(likeness)
                if reclaim.may_begin(self.state, group, next_chunk(group)):
                    return True
        return False

    def _pursue(self, aim: Aim, searches: Searches, budget: Budget) -> None:
        """Search for all that are due in this cycle, then deeper for those that were cut off."""
        asking = [group for group in self.waiting.values() if self._may_ask(group)]

        def due() -> list[PodGroup]:
            return [group for group in asking if searches.is_due(self._likeness(group), len(next_chunk(group)))]

        def due_deeper() -> list[PodGroup]:
            waiting = (group for group in asking if group.key in self.waiting)
            return [group for group in waiting if searches.is_due_deeper(self._likeness(group), len(next_chunk(group)))]

        if not due():
            searches.begin_cycle()
        first = due()
        wide = searches.begin_plan([len(next_chunk(group)) for group in first], budget)
        self._search_each(aim, searches, wide, first, deep=False)
        if wide.spent:
            budget.spent = True
            searches.end_plan()
        else:
            searches.begin_cycle()
        while not budget.is_over:
            if not due_deeper():
                searches.begin_deep_cycle()
            deeper = due_deeper()
            if not deeper:
                return
            self._search_each(aim, searches, budget, deeper, deep=True)

    def _search_each(
        self, aim: Aim, searches: Searches, budget: Budget, groups: Sequence[PodGroup], *, deep: bool
    ) -> None:
        growing = dict[QueueName, int]()
        turns = Turns(self.snapshot, self.state.ledger, self.state.shares, groups)
        left = sum(needed(len(next_chunk(group))) for group in groups)
        while (group := turns.pop()) is not None:
            if budget.is_over:
                budget.spent = True
                return
            likeness, pods = self._likeness(group), len(next_chunk(group))
            due, left = left, left - needed(pods)
            is_due = searches.is_due_deeper(likeness, pods) if deep else searches.is_due(likeness, pods)
            # Who goes on growing in the next plan would have those leave again who came after it in this one.
            if not is_due or group.priority < growing.get(group.queue, group.priority):
                continue
            part = searches.deep(likeness, pods, budget) if deep else searches.wide(pods, budget, due)
            found = self._search(group, aim, part)
            if found is None and part.spent:
                searches.was_cut_off(likeness, pods, part, budget)
            elif found is None:
                too_dear, owed = group.key in self.too_dear, group.key in self.held_back
                searches.ended_in_vain(likeness, pods, too_dear=too_dear, owed=owed)
            else:
                searches.found(likeness, pods)
                self._adopt(found, group, aim)
                if len(found.seated) < len(group.pending):
                    growing.setdefault(group.queue, group.priority)

    def _adopt(self, found: WhatIf, group: PodGroup, aim: Aim) -> None:
        del self.waiting[group.key]
        self.refusals.pop(group.key, None)
        self._note(group, found.seated, aim.action)

    def _search(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Search for a group and adopt what is found."""
        self._close_nodes_to(group)
        if self._is_share_kept_from(group):
            return None
        self.held_back.discard(group.key)
        if self._open_nodes_to(group) and self.owed is not None and lending.borrows(self.state, group):
            self.held_back.add(group.key)
            return None
        return self.keeping.aside(group, next_chunk(group), lambda: self._find_fairly(group, aim, budget))

    def _find_fairly(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Find victims, unless others would take their places back."""
        found = self._find_victims(group, aim, budget)
        if found is None or not self._is_unfair(found, group):
            return found
        self.held_back.add(group.key)
        return None

    def _is_unfair(self, found: WhatIf, group: PodGroup) -> bool:
        """Whether the next plan would take the places that were found for a group, or this plan took such places."""
        owed, queue = self._owed_group(), group.queue
        if queue in self._losers and lending.is_above_share(found, queue):
            return True
        return owed is not None and lending.may_be_taken_back(found, group, owed)

    @property
    def _losers(self) -> frozenset[QueueName]:
        """The queues from which this plan takes pods: they do not borrow again in it."""
        return lending.losers(self.state) if self.policy.borrow_last else frozenset()

    def _owed_group(self) -> PodGroup | None:
        """Return the group that is owed room, as long as it waits for it."""
        return None if self.owed is None else self.waiting.get(self.owed)

    def _open_nodes_to(self, group: PodGroup) -> bool:
        """Open kept nodes to a group for which others may leave; return whether it finds room there as things are.

        If it needs no victims there, these nodes are closed to it: others are helped, whoever waits.
        """
        self.state.board.is_closed = False
        finds_room = lending.finds_room(self.state, group)
        if finds_room:
            self._close_nodes_to(group)
        return finds_room

    def _find_victims(self, group: PodGroup, aim: Aim, budget: Budget) -> WhatIf | None:
        """Look for victims among those whom no disruption budget guards, and only then among all."""
        guarded = self.snapshot.guarded
        if guarded:
            found = VictimSearch(
                self.state, group, Sparing(aim, guarded), budget.part(max(1, budget.left // 2))
            ).solve()
            if found is not None:
                return found
        return VictimSearch(self.state, group, aim, budget).solve()

    def _may_ask(self, group: PodGroup) -> bool:
        refusal = self.refusals.get(group.key, group.refusal)
        return refusal is None or refusal.may_find_victims

    def _likeness(self, group: PodGroup) -> Likeness:
        """Return what makes two groups' searches end alike, but for the number of their pods."""
        found = self.likenesses.get(group.key)
        if found is None:
            found = self.likenesses[group.key] = likeness_of(self.state.board, group)
        return found

    # Stale gangs ----------------------------------------------------------------------------------------------------

    def end_stale(self, now: float, is_lost: Callable[[PodGroup], bool]) -> None:
        """Have gangs leave that have held less than their minimum for longer than the grace, and are lost."""
        if Action.EVICT_STALE not in self.policy.actions:
            return
        stale = ((group, group.stale_since) for group in self.snapshot.running.values())
        over = [
            group
            for group, since in stale
            if since is not None and now - since >= self.policy.grace_s(group.stale_grace_s)
        ]
        lost = [group for group in map(self.state.as_it_is, over) if group.placed and is_lost(group)]
        for group in lost:
            self.state.evict(group, group.placed, Action.EVICT_STALE, None)
        if lost:
            self.state.reprieve()

    def cannot_be_completed(self, group: PodGroup) -> bool:
        """Whether nobody waits who could complete the gang: what it holds is free for others at once."""
        return group.key not in self.snapshot.groups

    def is_incomplete(self, group: PodGroup) -> bool:
        """Whether the plan has not completed the gang: what it is owed starts together or not at all."""
        return all(start.group != group.key for start in self.starts)

    def result(self) -> Plan:
        """Return what was decided."""
        for key, lost in self.snapshot.unsatisfiable.items():
            # The others of its pods started, or wait for another reason.
            if lost.refusal is not None and key in self.snapshot.groups:
                self.refusals.setdefault(key, lost.refusal)
        return Plan(
            snapshot_version=self.snapshot.version,
            starts=tuple(self.starts),
            evictions=self.state.evictions(),
            refusals=self.refusals,
            withheld=self.withheld,
            aged=None if self.kept_nodes is None else self.kept_nodes.group.key,
            kept_for=frozenset(self.keeping.seats),
            unfinished=self.unfinished,
            whatifs=self.whatifs,
            memory=self._remembered(),
        )
