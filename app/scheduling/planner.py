"""Decides for all waiting PodGroups at once: whose turn it is, who starts where, and why the others wait.

1. shares: what every queue may expect of the cluster
2. turns: the PodGroups in the order of queues, priority and age
3. each in turn: may it exist, may its queue hold it, is there room for it as a whole
4. what it was owed starts together; what it has beyond that starts pod by pod, in turn with the others
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from app.model.decision import Plan, Start
from app.model.names import GroupKey, NodeName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.reason import Refusal
from app.model.resources import NOTHING, Amounts, Resources
from app.model.snapshot import Mask, Snapshot
from app.scheduling import explain, score
from app.scheduling.board import Board
from app.scheduling.fairshare import fair_shares
from app.scheduling.order import Turns, next_chunk
from app.scheduling.quota import Ledger
from app.settings import PlacementStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a person may choose about planning."""

    placement: PlacementStrategy = PlacementStrategy.BINPACK


DEFAULT_POLICY = Policy()


@dataclass(slots=True)
class _Outcome:
    """What has been decided so far in one plan."""

    starts: list[Start] = field(default_factory=list)
    refusals: dict[GroupKey, Refusal] = field(default_factory=dict)


def plan(snapshot: Snapshot, policy: Policy = DEFAULT_POLICY) -> Plan:
    """Decide for every waiting PodGroup of the snapshot."""
    ledger = Ledger(snapshot)
    board = Board(snapshot, policy.placement)
    return _plan_in_turn(snapshot, Turns(snapshot, ledger, fair_shares(snapshot)), ledger, board)


def plan_some(snapshot: Snapshot, candidates: Collection[GroupKey], policy: Policy = DEFAULT_POLICY) -> Plan:
    """Decide for the candidates alone, when nobody else who waits could use what is free."""
    waiting = {key: snapshot.groups[key] for key in candidates if key in snapshot.groups}
    narrowed = replace(snapshot, groups=waiting)
    ledger = Ledger(narrowed)
    board = Board(narrowed, policy.placement)
    if len(waiting) == 1:
        return _plan_alone(narrowed, ledger, board)
    return _plan_in_turn(narrowed, Turns(narrowed, ledger, fair_shares(snapshot)), ledger, board)


def place_one(
    snapshot: Snapshot, pod: Pod, offered: Collection[NodeName], policy: Policy = DEFAULT_POLICY
) -> NodeName | None:
    """Return the best of the offered nodes that has room for the pod, None when none has."""
    board = Board(snapshot, policy.placement)
    return board.choose(pod, board.allowed(pod) & snapshot.nodes.mask(offered))


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
    board = Board(snapshot, policy.placement)
    fitting = board.allowed(pod) & snapshot.nodes.mask(offered)
    refusal = group.refusal or Ledger(snapshot).check(group, pod.request)
    return Rating(refusal=refusal, fitting=fitting, scores=score.scores(board.costs(pod), fitting))


def _plan_alone(snapshot: Snapshot, ledger: Ledger, board: Board) -> Plan:
    # Nobody to be ordered among: the fair shares, which only order, need not be divided.
    outcome = _Outcome()
    rest: PodGroup | None = next(iter(snapshot.groups.values()))
    while rest is not None:
        rest = _take_turn(rest, ledger, board, outcome)
    return _plan_of(snapshot, outcome)


def _plan_in_turn(snapshot: Snapshot, turns: Turns, ledger: Ledger, board: Board) -> Plan:
    outcome = _Outcome()
    while (group := turns.pop()) is not None:
        rest = _take_turn(group, ledger, board, outcome)
        if rest is not None:
            turns.push(rest)
    return _plan_of(snapshot, outcome)


def _take_turn(group: PodGroup, ledger: Ledger, board: Board, outcome: _Outcome) -> PodGroup | None:
    """Decide the group's next chunk; return what is left of the group when it may ask again in this plan."""
    chunk = next_chunk(group)
    refusal = group.refusal or _start(group, chunk, ledger, board, outcome)
    if refusal is not None:
        outcome.refusals[group.key] = refusal
        return None
    rest = group.pending[len(chunk) :]
    return replace(group, pending=rest, active=group.active + len(chunk)) if rest else None


def _start(group: PodGroup, chunk: tuple[Pod, ...], ledger: Ledger, board: Board, outcome: _Outcome) -> Refusal | None:
    request = total_request(chunk)
    refusal = ledger.check(group, request)
    if refusal is not None:
        return refusal
    placements = board.place(chunk)
    if placements is None:
        return explain.no_room(chunk, board)
    ledger.charge(group, request)
    outcome.starts.append(Start(group=group.key, placements=placements))
    return None


def total_request(pods: Collection[Pod]) -> Resources:
    """Return what the pods ask for together."""
    return sum((pod.request for pod in pods), NOTHING)


def _plan_of(snapshot: Snapshot, outcome: _Outcome) -> Plan:
    return Plan(snapshot_version=snapshot.version, starts=tuple(outcome.starts), refusals=outcome.refusals)
