"""Finds PodGroups that can never run: an empty cluster does not hold them, or a limit alone forbids them.

They take no part in the order of turns, in fair share, in reserving room and in victim search; their refusal is
reported at once. Only certain cases count (see `emptied`): a PodGroup that is not found here may still fit nowhere.

The answers are remembered in the table of nodes while nodes, labels, DaemonSets, Topologies and queues do not change.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from app.model.names import GroupKey, QueueName
from app.model.pod import Pod, claims_of, once_milli
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import NOTHING, QUOTA_AXES, UNLIMITED, Amounts, Resources
from app.model.snapshot import Growing, NodeTable, Snapshot, Unsatisfiable
from app.model.topology import Topology
from app.scheduling.explain import refusals
from app.scheduling.placement import domains, effort, gang
from app.scheduling.placement.emptied import MOST_REMEMBERED, Emptied, most_together, remembered
from app.scheduling.placement.state import PlacementState, shape_of
from app.scheduling.preemption.victims import charge_at
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.order import PASSING, next_chunk
from app.scheduling.queues.quota import empty_line, is_by_memory, least_charge, most_charge
from app.scheduling.queues.shared_claims import with_milli
from app.scheduling.queues.wording import amount_text

SPARE_ENTRIES = 20_000
"""How many answers of PodGroups that are no longer pending may be remembered, beside as many as are pending."""

UNKNOWN = Refusal(reason=Reason.DECIDING, sentence="")
"""Marks an answer that is not remembered."""

NO_PODS = Refusal(reason=Reason.QUEUE_IS_NOT_A_LEAF, sentence="")
"""Marks a queue that takes no pods; the ledger gives the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    asked: PodGroup
    judged: PodGroup
    """The PodGroup with its refusal. If it can start without the pods that can never run: the PodGroup without these
    pods.
    """
    lost: Unsatisfiable | None
    """None when all its pods can run."""
    overstated: Resources = NOTHING
    """By how much the request of the pods that can run is overstated (`Snapshot.overstated`)."""


def judged(snapshot: Snapshot, keys: Collection[GroupKey] | None = None) -> Snapshot:
    """Return the snapshot with a refusal on each PodGroup that can never run; the others keep only pods that can run.

    Only the PodGroups with these keys are judged; without keys, all pending PodGroups.
    """
    return _judged(snapshot, keys, _known(snapshot))


def _judged(snapshot: Snapshot, keys: Collection[GroupKey] | None, known: "_Known") -> Snapshot:
    emptied = Emptied(snapshot)
    groups, lost, overstated = dict[GroupKey, PodGroup](), dict[GroupKey, Unsatisfiable](), dict[QueueName, Resources]()
    asked = snapshot.groups if keys is None else {key: snapshot.groups[key] for key in keys if key in snapshot.groups}
    for key, group in asked.items():
        answer = known.groups.get(key)
        if answer is None or answer.asked is not group:
            answer = _with_costs(_judge(group, snapshot, emptied, known), snapshot.nodes)
            if keys is None:
                # Not for chosen keys: single pods are created and deleted often, and nothing removes their answers.
                known.groups[key] = answer
        if answer.lost is not None:
            groups[key], lost[key] = answer.judged, answer.lost
        if answer.overstated is not NOTHING:
            overstated[group.queue] = overstated.get(group.queue, NOTHING) + answer.overstated
    if not lost and not overstated:
        return snapshot
    return replace(snapshot, groups=dict(snapshot.groups.items()) | groups, unsatisfiable=lost, overstated=overstated)


def judged_at_once(snapshot: Snapshot, keys: Collection[GroupKey] | None = None) -> Snapshot:
    """Do the work of `judged` on the event loop: only for PodGroups that are remembered or take little work.

    The other PodGroups count as able to run until a plan has judged them.
    """
    known, left = _known(snapshot), effort.MOST_AT_ONCE
    chosen = dict[GroupKey, PodGroup]()
    for key in snapshot.groups if keys is None else keys:
        group, answer = snapshot.groups.get(key), known.groups.get(key)
        if group is None or (left < effort.POD and answer is None):
            continue
        if answer is None or answer.asked is not group:
            if effort.POD * len(group.pending) > left:
                continue
            work = effort.of_judging(group, snapshot.nodes, snapshot.topologies)
            if work > left:
                continue
            left -= work
        chosen[key] = group
    found = _judged(replace(snapshot, groups=chosen), None if keys is None else chosen, known)
    return replace(found, groups=dict(snapshot.groups.items()) | dict(found.groups.items()))


@dataclass(frozen=True, slots=True, eq=False)
class _Known(Growing):
    """What is remembered while nodes, queues and Topologies do not change."""

    queues: Mapping[QueueName, Queue]
    topologies: Mapping[str, Topology]
    residents: Amounts | None
    groups: dict[GroupKey, _Answer] = field(default_factory=dict)
    alone: dict[Hashable, Refusal | None] = field(default_factory=dict)
    """Answers of single-pod PodGroups, by everything that the answer depends on: there are tens of thousands of such
    pods.
    """

    def apart(self) -> Self:
        """Return the same answers."""
        return replace(self, groups=dict(self.groups), alone=dict(self.alone))

    def learn(self, other: Self) -> None:
        """Take over the answers to the same questions."""
        if self.queues is other.queues and self.topologies is other.topologies and self.residents is other.residents:
            self.groups.update(other.groups)
            self.alone.update(other.alone)

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether the remembered answers are valid for the snapshot."""
        are_same = self.queues is snapshot.queues and self.topologies is snapshot.topologies
        return are_same and self.residents is snapshot.residents


def _known(snapshot: Snapshot) -> _Known:
    """Return the remembered answers; empty ones after a change, or if too many answers are of deleted groups."""
    memo = snapshot.nodes.memo
    known: _Known | None = memo.get("unsatisfiable")
    if known is None or not known.is_of(snapshot) or len(known.groups) > 2 * len(snapshot.groups) + SPARE_ENTRIES:
        known = _Known(snapshot.queues, snapshot.topologies, snapshot.residents)
        memo.remember("unsatisfiable", known)
    return known


def _judge(group: PodGroup, snapshot: Snapshot, emptied: Emptied, known: _Known) -> _Answer:
    if group.refusal is not None and group.refusal.reason not in PASSING:
        return _Answer(group, group, None)
    if len(group.pending) == 1 and group.root is None and not group.placed:
        return _judge_alone(group, snapshot, emptied, known)
    if empty_line(snapshot.queues, group.queue) is None:
        return _Answer(group, group, _lost(group, group.pending, None, snapshot))  # the ledger gives the reason
    impossible = _impossible(group.pending, emptied)
    can_run = _without(group, impossible) if impossible else group
    refusal = _refusal(can_run, snapshot, emptied)
    if refusal is not None:
        return _Answer(group, replace(group, refusal=refusal), _lost(group, group.pending, refusal, snapshot))
    if can_run is group:
        return _Answer(group, group, None)
    refusal = _fits_nowhere(emptied.plain(impossible[0]), emptied.board, emptied)
    return _Answer(group, can_run, _lost(group, impossible, refusal, snapshot))


def _with_costs(answer: _Answer, nodes: NodeTable) -> _Answer:
    """Return the answer with how much its pods are overstated if charged by the smallest GPU of the cluster."""
    refusal = None if answer.lost is None else answer.lost.refusal
    is_lost = answer.lost is not None and (refusal is None or refusal is answer.judged.refusal)
    by_memory = [] if is_lost else [pod for pod in answer.judged.pending if is_by_memory(pod)]
    less = sum((_less(pod, nodes) for pod in by_memory), NOTHING)
    return replace(answer, overstated=less) if less.gpu_milli else answer


def _less(pod: Pod, nodes: NodeTable) -> Resources:
    there = pod.charge(nodes.smallest_device_mib).gpu_milli
    return Resources(gpu_milli=there - most_charge(pod, nodes).gpu_milli)


def _judge_alone(group: PodGroup, snapshot: Snapshot, emptied: Emptied, known: _Known) -> _Answer:
    question = group.queue, group.preemptible, group.min_member, shape_of(group.pending[0]), group.pending[0].claims
    refusal = known.alone.get(question, UNKNOWN)
    if refusal is UNKNOWN:
        if len(known.alone) >= MOST_REMEMBERED:
            known.alone.clear()
        takes_pods = empty_line(snapshot.queues, group.queue) is not None
        refusal = _refusal(group, snapshot, emptied) if takes_pods else NO_PODS
        if not group.pending[0].constraint.is_long:
            known.alone[question] = refusal
    if refusal is None:
        return _Answer(group, group, None)
    if refusal is NO_PODS:
        return _Answer(group, group, _lost(group, group.pending, None, snapshot))
    return _Answer(group, replace(group, refusal=refusal), _lost(group, group.pending, refusal, snapshot))


def _impossible(pods: Sequence[Pod], emptied: Emptied) -> list[Pod]:
    """Return the pods that no node could hold; pods of one shape are judged once."""
    found, last, may = list[Pod](), None, True
    for pod in pods:
        shape = shape_of(pod)
        if shape != last:
            last, may = shape, emptied.may_hold(pod)
        if not may:
            found.append(pod)
    return found


def _without(group: PodGroup, impossible: Sequence[Pod]) -> PodGroup:
    """Return the group without these pods if it can start without them, else the unchanged group."""
    gone = {pod.uid for pod in impossible}
    without = replace(group, pending=tuple(pod for pod in group.pending if pod.uid not in gone))
    can_start = without.pending and len(next_chunk(without)) >= without.owed
    return without if can_start else group


def _refusal(group: PodGroup, snapshot: Snapshot, emptied: Emptied) -> Refusal | None:
    chunk = next_chunk(group)
    return _beyond_limit(group, chunk, snapshot) or _beyond_nodes(group, chunk, emptied) if chunk else None


def _lost(group: PodGroup, pods: Sequence[Pod], refusal: Refusal | None, snapshot: Snapshot) -> Unsatisfiable:
    device_mib = snapshot.nodes.smallest_device_mib
    request = sum((pod.charge(device_mib) for pod in pods), NOTHING)
    return Unsatisfiable(queue=group.queue, request=request, refusal=refusal, claims=claims_of(pods))


# Nodes ----------------------------------------------------------------------------------------------------------------


def _beyond_nodes(group: PodGroup, chunk: Sequence[Pod], emptied: Emptied) -> Refusal | None:
    pods = [emptied.plain(pod) for pod in chunk]
    apart = emptied.most_apart(chunk)
    if apart < len(chunk):
        # The group's running pods keep their distance from these pods as well.
        return refusals.never_together(group, pods, max(apart - len(group.placed), 0), emptied.board)
    if group.placed or (group.root is not None and any(group.root.constrained())):
        return _no_room(group, pods, emptied)
    if len(pods) == 1 and emptied.may_hold(pods[0]):
        return None
    numbers = dict[object, int]()
    for pod in pods:
        shape = shape_of(pod)
        numbers[shape] = numbers.get(shape, 0) + 1
    # Plans are also made in a thread, so another thread may clear the memory between two lines.
    known, question = remembered("no room when empty", emptied.nodes), tuple(numbers.items())
    found: Refusal | None = known.get(question, UNKNOWN)
    if found is UNKNOWN:
        found = _no_room(group, pods, emptied)
        if not any(pod.constraint.is_long for pod in pods):
            known[question] = found
    return found


def _no_room(group: PodGroup, pods: Sequence[Pod], emptied: Emptied) -> Refusal | None:
    board, mended = emptied.beside(group), emptied.mended
    lost = next((pod for pod in board.unlike(pods) if not emptied.may_hold(pod)), None)
    if lost is not None:
        return _fits_nowhere(lost, board, emptied)
    refusal, bare = _not_together(group, pods, board), emptied.without_residents
    if refusal is not None and bare is not None and _not_together(group, pods, bare.beside(group)) is None:
        return refusals.beside_residents(refusal)
    if refusal is None or mended is None or _not_together(group, pods, mended.beside(group)) is not None:
        return refusal
    return refusals.together_later(refusal, emptied.out)


def _fits_nowhere(pod: Pod, board: PlacementState, emptied: Emptied) -> Refusal:
    """Return why no node holds the pod.

    The refusal is not permanent if a node that takes no pods now might hold the pod, or if there are no nodes.
    """
    mended = emptied.mended
    if not emptied.nodes.nodes or (mended is not None and mended.may_hold(pod)):
        return refusals.fits_nowhere_now(pod, board)
    bare, refusal = emptied.without_residents, refusals.never_fits(pod, board)
    return refusals.beside_residents(refusal) if bare is not None and bare.may_hold(pod) else refusal


def _not_together(group: PodGroup, pods: Sequence[Pod], board: PlacementState) -> Refusal | None:
    apart = gang.refusal(board, group, pods)
    if apart is not None:
        return refusals.never_in_a_domain(apart, pods, board)
    crowded = domains.refusal(board, group, pods)
    if crowded is not None:
        return crowded
    most = most_together(pods, board)
    return None if most >= len(pods) else refusals.never_together(group, pods, most, board)


# Limits ---------------------------------------------------------------------------------------------------------------


def _beyond_limit(group: PodGroup, chunk: Sequence[Pod], snapshot: Snapshot) -> Refusal | None:
    """Return a refusal if the pods, with running pods that they complete, exceed a limit or quota of an empty queue.

    All queues from the group's queue up to the root are checked.
    """
    completed = group.placed if group.owed else ()
    own = sum((least_charge(pod, snapshot.nodes) for pod in chunk), NOTHING)
    asked = quantities(with_milli(own, once_milli(claims_of((*chunk, *(one.pod for one in completed))))))
    held = quantities(sum((charge_at(snapshot, one) for one in completed), NOTHING))
    for account in empty_line(snapshot.queues, group.queue) or ():
        axis = _first_over(account.limit, asked, held)
        if axis is not None:
            needs, most = amount_text(axis, asked[axis] + held[axis]), amount_text(axis, account.limit[axis])
            sentence = f"It needs {needs} to start, and the limit of queue {account.name} is {most}; ask for less."
            details: dict[str, int | str] = {
                "limit": most,
                "requested": needs,
                "queue": account.name,
                "even_when_empty": 0,
            }
            return Refusal(reason=Reason.OVER_LIMIT, sentence=sentence, details=details)
        axis = None if group.preemptible else _first_over(account.deserved, asked, held)
        if axis is not None:
            needs, most = amount_text(axis, asked[axis] + held[axis]), amount_text(axis, account.deserved[axis])
            sentence = (
                f"It needs {needs} to start and is not preemptible, and queue {account.name} deserves {most}; "
                "make the workload preemptible, or ask for less."
            )
            details = {"deserved": most, "requested": needs, "queue": account.name, "even_when_empty": 0}
            return Refusal(reason=Reason.NON_PREEMPTIBLE_OVER_QUOTA, sentence=sentence, details=details)
    return None


def _first_over(most: Sequence[int], asked: Quantities, held: Quantities) -> int | None:
    """Return the first requested axis on which both together exceed `most`."""
    over = (axis for axis in QUOTA_AXES if asked[axis] > 0 and asked[axis] + held[axis] > most[axis] != UNLIMITED)
    return next(over, None)
