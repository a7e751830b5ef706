"""Decides for all pending PodGroups together: their order, what starts where, what is evicted, why others stay pending.

1. shares: what every queue may expect of the cluster
2. `allocate`: the PodGroups in the order of their turns; missing pods start together, the rest pod by pod
3. `make_room` (consolidate, reclaim, preempt): for PodGroups that found no room, the least disruptive action first
4. `stale` gangs, which lost pods that are not replaced, are evicted. This is done before 3 if no pending pod completes
   them, so that no pod is evicted for room or shares that become free anyway. Otherwise it is done last
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from app.model.decision import Action, Plan
from app.model.memory import NO_MEMORY, PlanMemory
from app.model.names import GroupKey, NodeName
from app.model.pod import Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.reason import Refusal
from app.model.resources import CPU, Amounts
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
"""For how many other PodGroups `plan_some` finds out whether they can run at all (about 10 us each, once per change).
"""


def plan(
    snapshot: Snapshot, policy: Policy = DEFAULT_POLICY, *, now: float = 0.0, memory: PlanMemory = NO_MEMORY
) -> Plan:
    """Decide for every pending PodGroup of the snapshot. `now` is in seconds since the epoch.

    `memory` is that of the previous plan: failed searches are not repeated, and interrupted searches continue.
    """
    snapshot = judged(snapshot)
    draft = PlanDraft(snapshot, policy, memory, now=now)
    # Not in `plan_some`, for which kube-scheduler waits: reading fifty thousand running pods takes milliseconds.
    draft.rivals.look_into(snapshot.running.values())
    draft.state.divide()
    allocation = Allocation(draft)
    if Action.ALLOCATE in policy.actions:
        allocation.allocate(Turns(snapshot, draft.state.ledger, draft.state.shares))
        allocation.lend(holds_back=policy.borrow_last and bool(snapshot.running))
    else:
        draft.waiting = dict(snapshot.groups.items())
    if snapshot.running:
        stale.end_stale(draft, stale.cannot_be_completed)
        allocation.open_what_is_owed()
        RoomMaking(draft).make_room()
        allocation.lend_the_rest()
        stale.end_stale(draft, stale.is_incomplete)
    return _result(draft)


def plan_some(  # noqa: PLR0913 - the candidates, and what the previous plan keeps
    snapshot: Snapshot,
    candidates: Collection[GroupKey],
    policy: Policy = DEFAULT_POLICY,
    *,
    withheld: Collection[NodeName] = (),
    aged: GroupKey | None = None,
    now: float = 0.0,
    memory: PlanMemory = NO_MEMORY,
) -> Plan:
    """Decide for the candidates only, when no other pending PodGroup could use what is free. No pod is evicted.

    `withheld` are the nodes that the last plan keeps for `aged`, an aged PodGroup, or for another cause. `now` is in
    seconds since the epoch. `memory` is that of the last `plan`.
    """
    kept_for = None if aged is None else snapshot.groups.get(aged)
    waiting = {key: group for key in candidates if (group := snapshot.groups.get(key)) is not None}
    are_all = judges_all(waiting.values(), len(snapshot.groups))
    snapshot = judged(snapshot, None if are_all else waiting)
    waiting = {key: snapshot.groups[key] for key in waiting}
    draft = PlanDraft(replace(snapshot, groups=waiting), policy, memory, now=now)
    draft.state.board.withhold(withheld, is_owed=aged is None)
    allocation = Allocation(draft)
    if kept_for is not None:
        allocation.keep_for(kept_for, withheld)
    if len(waiting) == 1:
        allocation.allocate_alone()
    else:
        draft.state.divide()
        allocation.allocate(Turns(draft.state.snapshot, draft.state.ledger, draft.state.shares))
        allocation.lend()
    return _result(draft, judges_all=are_all)


def judges_all(candidates: Collection[PodGroup], waiting: int) -> bool:
    """Return whether `plan_some` finds out for all pending PodGroups, not only the candidates, if they can run."""
    # Fair shares depend on all pending PodGroups. A single group needs none.
    is_alone = len(candidates) == 1 and not any(map(is_torn, candidates))
    return not is_alone and waiting - len(candidates) <= MOST_BYSTANDERS


def move_one(  # noqa: PLR0913 - one question: the pod, its node and the offered nodes
    snapshot: Snapshot,
    pod: Pod,
    node: NodeName,
    offered: Collection[NodeName],
    policy: Policy = DEFAULT_POLICY,
    *,
    constraints: Sequence[TopologyConstraint] = (),
    spares_gpus: bool = False,
) -> NodeName | None:
    """Return the best offered node with room for the pod in place of its own node. Return None when none has room.

    The node is in the same domains as the pod's own node, for the topology constraints given here. `spares_gpus`: a pod
    that uses no GPU does not move from a node without GPUs to a node with GPUs.
    """
    board = PlacementState(snapshot, policy.strategy)
    allowed = board.allowed(pod) & snapshot.nodes.mask(offered)
    if constraints:
        allowed &= same_domains(node, constraints, snapshot.nodes, snapshot.topologies)
    column = snapshot.nodes.index.get(node)
    if spares_gpus and score.axis(pod) == CPU and column is not None and not snapshot.nodes.has_gpus[column]:
        allowed &= ~snapshot.nodes.has_gpus
    return board.choose(pod, allowed)


def fitting(snapshot: Snapshot, group: PodGroup, pod: Pod, policy: Policy = DEFAULT_POLICY) -> Mask | Refusal:
    """Return the nodes with room for a pod that does not exist yet, shape [node]; nothing is decided.

    Return a refusal when the pod of this group could not start on any node.
    """
    refusal = group.refusal or QueueLedger(snapshot).check(group, least_charge(pod, snapshot.nodes), pod.claims)
    return refusal or PlacementState(snapshot, policy.strategy).allowed(pod)


def scores(snapshot: Snapshot, pod: Pod, offered: Collection[NodeName], policy: Policy = DEFAULT_POLICY) -> Amounts:
    """Score the offered nodes for a pod, relative to each other, shape [node]: 0 (no room) to 10 (best)."""
    board = PlacementState(snapshot, policy.strategy)
    return score.scores(board.costs(pod), board.allowed(pod) & snapshot.nodes.mask(offered))


def _result(draft: PlanDraft, *, judges_all: bool = True) -> Plan:
    """Return the decisions of the plan."""
    for key, lost in draft.snapshot.unsatisfiable.items():
        # The group's other pods started, or are pending for another reason.
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
        judges_all=judges_all,
        whatifs=draft.whatifs,
        memory=remembered(draft),
    )
