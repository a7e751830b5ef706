"""Decides for all waiting PodGroups at once: whose turn it is, who starts where, who has to leave, why the others wait.

1. shares: what every queue may expect of the cluster
2. `allocate`: the PodGroups in the order of their turns; what each is owed starts together, the rest pod by pod
3. `make_room` (consolidate, reclaim, preempt): for those who found no room, the least disruptive first
4. `stale` gangs, which lost pods and do not get them back, leave what they hold: before 3 if nobody waits to complete
   them, so that nobody is evicted for room or shares that are about to be free; else whoever fits beside stays
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from app.model.decision import Action, Plan
from app.model.memory import NO_MEMORY, PlanMemory
from app.model.names import GroupKey, NodeName
from app.model.pod import Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.reason import Refusal
from app.model.resources import Amounts
from app.model.snapshot import Mask, Snapshot
from app.scheduling.explain.unsatisfiable import judged
from app.scheduling.placement import score
from app.scheduling.placement.state import PlacementState
from app.scheduling.placement.topology import same_domains
from app.scheduling.planner import stale
from app.scheduling.planner.allocate import Allocation
from app.scheduling.planner.draft import PlanDraft
from app.scheduling.planner.make_room import RoomMaking
from app.scheduling.planner.remember import remembered
from app.scheduling.policy import DEFAULT_POLICY, Policy
from app.scheduling.queues.order import Turns, is_torn
from app.scheduling.queues.quota import QueueLedger, least_charge

MOST_BYSTANDERS = 2000
"""Of how many other PodGroups `plan_some` finds out whether they can run at all (some 10 us each, once a change)."""


def plan(
    snapshot: Snapshot, policy: Policy = DEFAULT_POLICY, *, now: float = 0.0, memory: PlanMemory = NO_MEMORY
) -> Plan:
    """Decide for every waiting PodGroup of the snapshot; `now` is in seconds since the epoch.

    `memory` is that of the plan before: searches that were in vain are not repeated, interrupted ones continue.
    """
    snapshot = judged(snapshot)
    draft = PlanDraft(snapshot, policy, memory, now=now)
    # Not in `plan_some`, which is made while kube-scheduler waits: fifty thousand running pods take milliseconds.
    draft.rivals.look_into(snapshot.running.values())
    draft.state.divide()
    allocation = Allocation(draft)
    if Action.ALLOCATE in policy.actions:
        allocation.allocate(Turns(snapshot, draft.state.ledger, draft.state.shares))
        allocation.lend(holds_back=policy.borrow_last and bool(snapshot.running))
    else:
        draft.waiting = dict(snapshot.groups)
    if snapshot.running:
        stale.end_stale(draft, stale.cannot_be_completed)
        allocation.open_what_is_owed()
        RoomMaking(draft).make_room()
        allocation.lend_the_rest()
        stale.end_stale(draft, stale.is_incomplete)
    return _result(draft)


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
    draft = PlanDraft(replace(snapshot, groups=waiting), policy, memory, now=now)
    draft.state.board.withhold(withheld, is_owed=aged is None)
    allocation = Allocation(draft)
    if kept_for is not None:
        allocation.keep_for(kept_for, withheld)
    if len(waiting) == 1:
        allocation.allocate_alone()
        return _result(draft)
    draft.state.divide()
    allocation.allocate(Turns(draft.state.snapshot, draft.state.ledger, draft.state.shares))
    allocation.lend()
    return _result(draft)


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


def _result(draft: PlanDraft) -> Plan:
    """Return what was decided."""
    for key, lost in draft.snapshot.unsatisfiable.items():
        # The others of its pods started, or wait for another reason.
        if lost.refusal is not None and key in draft.snapshot.groups:
            draft.refusals.setdefault(key, lost.refusal)
    return Plan(
        snapshot_version=draft.snapshot.version,
        starts=tuple(draft.starts),
        evictions=draft.state.evictions(),
        refusals=draft.refusals,
        withheld=draft.withheld,
        aged=None if draft.kept_nodes is None else draft.kept_nodes.group.key,
        kept_for=frozenset(draft.keeping.seats),
        unfinished=draft.unfinished,
        whatifs=draft.whatifs,
        memory=remembered(draft),
    )
