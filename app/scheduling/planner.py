"""Decides for all waiting PodGroups at once: whose turn it is, who starts where, who has to leave, why the others wait.

1. shares: what every queue may expect of the cluster
2. allocate: the PodGroups in the order of their turns; what each is owed starts together, the rest pod by pod
3. consolidate, reclaim, preempt: for those who found no room, in this order, the least disruptive first
4. stale gangs, which lost pods and do not get them back, leave what they hold: before 3 if nobody waits to complete
   them, so that nobody is evicted for room or shares that are about to be free
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from app.model.decision import Action, Plan, Start
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.reason import NO_PLACE, Refusal
from app.model.resources import Amounts
from app.model.snapshot import Mask, Snapshot
from app.scheduling import explain, score
from app.scheduling.aims import Consolidate, Preempt, Reclaim, Sparing
from app.scheduling.board import Board, Strategy, Timing
from app.scheduling.budget import Budget
from app.scheduling.minruntime import Protection
from app.scheduling.order import Turns, is_torn, next_chunk
from app.scheduling.quota import Ledger
from app.scheduling.rivals import Rivals
from app.scheduling.search import Aim, Search
from app.scheduling.stock import Seat
from app.scheduling.topology import same_domains
from app.scheduling.whatif import WhatIf
from app.settings import PlacementStrategy, ResolveMethod

ALL_ACTIONS = tuple(Action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a person may choose about planning."""

    placement: PlacementStrategy = PlacementStrategy.BINPACK
    """Of nodes."""
    sharing: PlacementStrategy = PlacementStrategy.BINPACK
    """Of devices in shared use."""
    actions: tuple[Action, ...] = ALL_ACTIONS
    stale_grace_s: float = 60.0
    """For how long a gang that says nothing itself may hold less than its minimum before all of it has to leave."""
    preempt_min_runtime_s: float = 0.0
    """For queues that say nothing themselves, as the next."""
    reclaim_min_runtime_s: float = 0.0
    reclaim_resolve_method: ResolveMethod = ResolveMethod.LCA
    """Which queue's reclaim min-runtime counts where several on the line state one."""
    ageing_s: float | None = None
    """From this age on the first PodGroup that finds no room has nodes withheld for it; None: nobody's age counts."""
    most_whatifs: int = 5000
    """How many possible plans one plan may look at before it is taken as it is; a search has a fifth of them."""

    @property
    def strategy(self) -> Strategy:
        """Both strategies of placement."""
        return Strategy(self.placement, self.sharing)

    def grace_s(self, stated: float | None) -> float:
        """Return for how long a gang may be stale that states this itself, or nothing."""
        return self.stale_grace_s if stated is None else stated


DEFAULT_POLICY = Policy()


def plan(snapshot: Snapshot, policy: Policy = DEFAULT_POLICY, *, now: float = 0.0) -> Plan:
    """Decide for every waiting PodGroup of the snapshot; `now` is in seconds since the epoch."""
    made = _Pass(snapshot, policy)
    # Not in `plan_some`, which is made while kube-scheduler waits: fifty thousand running pods take milliseconds.
    made.rivals.look_into(snapshot.running.values())
    made.state.divide()
    if Action.ALLOCATE in policy.actions:
        made.allocate(Turns(snapshot, made.state.ledger, made.state.shares), now)
    else:
        made.waiting = dict(snapshot.groups)
    if snapshot.running:
        made.end_stale(now, made.cannot_be_completed)
        made.make_room(now)
        made.end_stale(now, made.is_incomplete)
    return made.result()


def plan_some(
    snapshot: Snapshot,
    candidates: Collection[GroupKey],
    policy: Policy = DEFAULT_POLICY,
    *,
    withheld: Collection[NodeName] = (),
) -> Plan:
    """Decide for the candidates alone, when nobody else who waits could use what is free; nobody has to leave.

    `withheld` are the nodes that the last plan keeps for a PodGroup that has waited for long.
    """
    waiting = {key: snapshot.groups[key] for key in candidates if key in snapshot.groups}
    made = _Pass(replace(snapshot, groups=waiting), policy)
    made.state.board.withhold(withheld)
    if len(waiting) == 1:
        made.allocate_alone()
        return made.result()
    made.state.divide()
    made.allocate(Turns(made.state.snapshot, made.state.ledger, made.state.shares))
    return made.result()


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
    board = Board(snapshot, policy.strategy)
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
    board = Board(snapshot, policy.strategy)
    fitting = board.allowed(pod) & snapshot.nodes.mask(offered)
    charge = pod.charge(snapshot.nodes.smallest_device_mib)
    refusal = group.refusal or Ledger(snapshot).check(group, charge)
    return Rating(refusal=refusal, fitting=fitting, scores=score.scores(board.costs(pod), fitting))


@dataclass(slots=True)
class _Pass:
    """One plan in the making."""

    snapshot: Snapshot
    policy: Policy
    state: WhatIf = field(init=False)
    starts: list[Start] = field(default_factory=list)
    refusals: dict[GroupKey, Refusal] = field(default_factory=dict)
    waiting: dict[GroupKey, PodGroup] = field(default_factory=dict)
    """Who found no room, as it is now."""
    withheld: tuple[NodeName, ...] = ()
    kept: dict[GroupKey, tuple[Seat, ...]] = field(default_factory=dict)
    """What room there is for the rest of gangs that are bound in part."""
    rivals: Rivals = field(init=False)
    """For explaining alone."""
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.state = WhatIf(self.snapshot, self.policy.strategy)
        self.rivals = Rivals(self.snapshot, self.policy.strategy)
        self.budget = Budget(self.policy.most_whatifs)

    # Allocating -----------------------------------------------------------------------------------------------------

    def allocate_alone(self) -> None:
        """Take turns with one group: nobody to be ordered among, so fair shares need not be divided."""
        rest: PodGroup | None = next(iter(self.snapshot.groups.values()))
        while rest is not None:
            rest = self._take_turn(rest)

    def allocate(self, turns: Turns, now: float | None = None) -> None:
        """Give every group its turns; `now` tells who has waited for long."""
        while (group := turns.pop()) is not None:
            rest = self._take_turn(group)
            if rest is not None:
                turns.push(rest)
            elif now is not None and not self.withheld and self._has_aged(group, now):
                self._withhold(group)

    def _has_aged(self, group: PodGroup, now: float) -> bool:
        if self.policy.ageing_s is None or now - group.created_at < self.policy.ageing_s:
            return False
        refusal = self.refusals.get(group.key)
        return refusal is not None and refusal.reason in NO_PLACE and not refusal.exceeds_cluster

    def _withhold(self, group: PodGroup) -> None:
        """Keep nodes for a group that has waited for long: whoever comes after it in this plan goes elsewhere.

        As in EASY backfill, one group at a time. The nodes are those that will be empty soonest, so that the next plan
        chooses the same.
        """
        self.withheld = self.state.board.soonest_empty(next_chunk(group))
        self.state.board.withhold(self.withheld)

    def _take_turn(self, group: PodGroup) -> PodGroup | None:
        """Decide the group's next chunk; return what is left of the group when it may ask again in this plan."""
        chunk = next_chunk(group)
        if not chunk and group.refusal is None:
            return None  # those who are owed are not there, which whoever formed the group should have said
        refusal = group.refusal or self.state.ledger.check(group, self.state.request(chunk))
        seats = None if refusal else self.state.start(group, chunk, timing=Timing.NOW_OR_LATER)
        if seats is None:
            self.refusals[group.key] = refusal or explain.no_room(group, chunk, self.state.board, self.rivals)
            self.waiting[group.key] = group
            if is_torn(group):
                self._keep_room(group, chunk)
            return None
        if any(seat.later for seat in seats):
            self._hold(group, seats)
            return None
        self._note(group, seats)
        if len(chunk) == len(group.pending):
            return None
        return self._rest(group, seats)

    def _keep_room(self, group: PodGroup, chunk: Sequence[Pod]) -> None:
        """Let nobody start where the rest of a gang could that is bound in part, unless its queue must not pay for it.

        It is soon completed or, as a stale one, gone.
        """
        if self.state.ledger.check(group, self.state.request(chunk)) is None:
            self.kept[group.key] = self.state.board.keep(chunk)
            self.rivals.note(group.key, self.kept[group.key])

    def _note(self, group: PodGroup, seats: Sequence[Seat], action: Action = Action.ALLOCATE) -> None:
        later = any(seat.later for seat in seats)
        placements = tuple(self.state.board.placement(seat) for seat in seats)
        self.starts.append(Start(group=group.key, placements=placements, awaits_release=later, action=action))
        self.rivals.note(group.key, seats)

    def _hold(self, group: PodGroup, seats: Sequence[Seat]) -> None:
        """Start those who have room now when their pod sets reach their minima without the others, else nobody."""
        now = [seat for seat in seats if not seat.later]
        if not self._is_enough(group, now, seats):
            seats, now = [self.state.board.postpone(seat) for seat in seats], []
        if now:
            self._note(group, now)
        self._note(group, [seat for seat in seats if seat.later])

    def _is_enough(self, group: PodGroup, now: Sequence[Seat], seats: Sequence[Seat]) -> bool:
        held = group.held()
        for seat in now:
            name = group.pod_set(seat.pod)
            held[name] = held.get(name, 0) + 1
        waiting = {group.pod_set(seat.pod) for seat in seats if seat.later}
        return all(held.get(leaf.name, 0) >= leaf.min_member for leaf in group.tree.leaves() if leaf.name in waiting)

    def _rest(self, group: PodGroup, seats: Sequence[Seat]) -> PodGroup:
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
        reclaim = Reclaim(protection.from_reclaim)
        aims: tuple[Aim, ...] = (Consolidate(self._claimed(reclaim)), reclaim, Preempt(protection.from_preempt))
        chosen = [aim for aim in aims if aim.action in policy.actions]
        for aim in chosen:
            if not self.budget.is_over:
                self._pursue(aim)
        if chosen:
            self._say_why_nobody_leaves()

    def _say_why_nobody_leaves(self) -> None:
        said: dict[tuple[object, str], Refusal] = {}
        for key, group in self.waiting.items():
            refusal = self.refusals.get(key)
            if refusal is None or refusal.reason not in NO_PLACE or group.queue not in self.state.shares:
                continue
            # Ten thousand pods of one template wait for one cause.
            like = self._likeness(group) or key, refusal.sentence
            if like not in said:
                request = self.state.request(next_chunk(group))
                account, share = self.state.ledger.accounts[group.queue], self.state.shares[group.queue]
                said[like] = explain.nobody_leaves(refusal, account, share, request)
            self.refusals[key] = said[like]

    def _claimed(self, reclaim: Reclaim) -> bool:
        """Whether anybody waits for what is owed to its queue: it would take back what is handed out beyond."""
        if Action.RECLAIM not in self.policy.actions:
            return False
        asked = set[object]()
        for group in self.waiting.values():
            likeness = self._likeness(group)
            if self._may_ask(group) and (likeness is None or likeness not in asked):
                asked.add(likeness)
                if reclaim.may_begin(self.state, group, next_chunk(group)):
                    return True
        return False

    def _pursue(self, aim: Aim) -> None:
        state, hopeless, growing = self.state, set[object](), dict[QueueName, int]()
        turns = Turns(self.snapshot, state.ledger, state.shares, [g for g in self.waiting.values() if self._may_ask(g)])
        while (group := turns.pop()) is not None and not self.budget.is_over:
            likeness = self._likeness(group)
            # Who goes on growing in the next plan would have those leave again who came after it in this one.
            if likeness in hopeless or group.priority < growing.get(group.queue, group.priority):
                continue
            kept = self.kept.pop(group.key, None)
            if kept:
                state.board.let_go(kept)
            found = self._search(group, aim)
            if found is None and kept is not None:
                self.kept[group.key] = state.board.keep(seat.pod for seat in kept)
            if found is None:
                hopeless |= {likeness} - {None}
                continue
            hopeless.clear()
            state.adopt(found)
            del self.waiting[group.key]
            self.refusals.pop(group.key, None)
            self._note(group, found.seated, aim.action)
            if len(found.seated) < len(group.pending):
                growing.setdefault(group.queue, group.priority)

    def _search(self, group: PodGroup, aim: Aim) -> WhatIf | None:
        """Look for victims among those whom no disruption budget guards, and only then among all."""
        guarded = self.snapshot.guarded
        if guarded:
            found = Search(self.state, group, Sparing(aim, guarded), self.budget.part()).solve()
            if found is not None:
                return found
        return Search(self.state, group, aim, self.budget.part()).solve()

    def _may_ask(self, group: PodGroup) -> bool:
        refusal = self.refusals.get(group.key, group.refusal)
        return refusal is None or refusal.may_find_victims

    def _likeness(self, group: PodGroup) -> object:
        """Return what makes two groups' searches end alike; None for a group like no other."""
        chunk = next_chunk(group)
        is_plain = chunk and group.root is None and not group.placed
        shape = self.state.board.common_shape(chunk) if is_plain else None
        if shape is None:
            return None
        return group.queue, group.priority, group.preemptible, shape, len(chunk)

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
        for group in map(self.state.as_it_is, over):
            if group.placed and is_lost(group):
                self.state.evict(group, group.placed, Action.EVICT_STALE, None)

    def cannot_be_completed(self, group: PodGroup) -> bool:
        """Whether nobody waits who could complete the gang: what it holds is free for others at once."""
        return group.key not in self.snapshot.groups

    def is_incomplete(self, group: PodGroup) -> bool:
        """Whether the plan has not completed the gang: what it is owed starts together or not at all."""
        return all(start.group != group.key for start in self.starts)

    def result(self) -> Plan:
        """Return what was decided."""
        return Plan(
            snapshot_version=self.snapshot.version,
            starts=tuple(self.starts),
            evictions=self.state.evictions(),
            refusals=self.refusals,
            withheld=self.withheld,
            kept_for=frozenset(self.kept),
            unfinished=self.budget.spent,
        )
