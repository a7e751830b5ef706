"""Explains in numbers why pods found no room. It is called once for each refusal, and not for pods that fit.

`lacks` says what a node lacks; `unevicted` says why no pod is evicted.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.model.pod import Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.reason import NO_PLACE, Reason, Refusal
from app.model.resources import AXES, GPU, GPU_MILLI, QUOTA_AXES, Amounts
from app.model.sentence import as_clause, joined, say
from app.model.snapshot import PART, Mask, parts_of
from app.scheduling.explain.lacks import UNDIVIDED, of, part_text
from app.scheduling.placement import fit, gang
from app.scheduling.placement.exclusions import refused
from app.scheduling.placement.labels import labels_of
from app.scheduling.placement.rivals import ReservedRoom, Rivals
from app.scheduling.placement.state import PlacementState, Timing
from app.scheduling.queues.wording import amount_text

MOST_RENEWED = 200
"""How often a plan recomputes why pods of one shape find no room after other pods have started (about 200 us each)."""


def no_room(group: PodGroup, pods: Sequence[Pod], board: PlacementState, rivals: Rivals) -> Refusal:
    """Return why these pods of the group, which start together, do not fit into the free room.

    Equal pods share the explanation until a pod takes room: ten thousand equal pods may wait for one cause.
    """
    apart = gang.refusal(board, group, pods)
    shape = board.common_shape(pods) if apart is None else None
    if shape is None:
        return _behind(_cause(group, pods, board, rivals, apart), group, pods, rivals)
    # A group that was already served is not told that it is behind other PodGroups, or behind itself.
    key = (len(pods), shape, rivals.has_served(group.key), board.is_closed)
    seen, known = board.explained.get(key, (-1, None))
    if known is not None and (seen == board.stock.changes or board.renewed >= MOST_RENEWED):
        return known
    board.renewed += known is not None
    found = _behind(_cause(group, pods, board, rivals, apart), group, pods, rivals)
    board.explained[key] = board.stock.changes, found
    return found


def may_fit_when_open(group: PodGroup, pods: Sequence[Pod], board: PlacementState) -> bool:
    """Return whether the pods may find room if no nodes are withheld from them. False is certain."""
    with board.opened():
        if gang.refusal(board, group, pods) is not None:
            return False
        # The search in domains has a budget for each PodGroup, and nothing is placed here.
        is_searched_in_domains = group.root is not None and any(group.root.constrained())
        return is_searched_in_domains or gang.place(board.copy(), group, pods, timing=Timing.NOW_OR_LATER) is not None


def _cause(
    group: PodGroup, pods: Sequence[Pod], board: PlacementState, rivals: Rivals, apart: Refusal | None
) -> Refusal:
    """Explain; `apart` is the refusal of the topology. Withheld nodes are a cause only for pods that may fit there.

    Nodes are withheld for some minutes, and again later: a PodGroup that does not fit there has the same cause always.
    """
    if board.closes_nodes and not may_fit_when_open(group, pods, board):
        with board.opened():
            return _cause(group, pods, board, rivals, gang.refusal(board, group, pods))
    return _explain(pods, board, rivals) if apart is None else _no_domain(apart, pods, board, rivals.promises)


def _behind(refusal: Refusal, group: PodGroup, pods: Sequence[Pod], rivals: Rivals) -> Refusal:
    """Put first that PodGroups earlier in the order take the room, if the pods would start without them."""
    ahead = rivals.ahead(group, pods)
    if not ahead:
        return refusal
    others = "1 PodGroup ahead of it takes" if ahead == 1 else f"{ahead} PodGroups ahead of it take"
    said = as_clause(refusal.sentence)
    return replace(
        refusal,
        sentence=say("{others} the room that it needs; {said}", others=others, said=said),
        details={**refusal.details, "behind": ahead},
    )


def _no_domain(refusal: Refusal, pods: Sequence[Pod], board: PlacementState, promises: ReservedRoom) -> Refusal:
    """Add a cause if no domain takes any of the pods, or if there is no domain. No eviction would change either."""
    if refusal.details.get("fitting") != 0:
        return refusal
    if refusal.details["domains"]:
        each = of(pods[0], board, promises)
        said = joined(refusal.sentence, each.words)
        return replace(refusal, sentence=said, details={**each.details, **refusal.details})
    level = str(refusal.details["level"])
    if not level or _has_label(level, board):
        return refusal
    return replace(
        refusal,
        sentence=f"No node has the label {level} of its topology level; label the nodes, or name another level.",
    )


def _has_label(key: str, board: PlacementState) -> bool:
    return bool(labels_of(board.snapshot.nodes).column(key).values)


def _explain(pods: Sequence[Pod], board: PlacementState, rivals: Rivals) -> Refusal:
    refused_everywhere = _refused_everywhere(pods, board)
    if refused_everywhere is not None:
        return refused_everywhere
    if len(pods) == 1:
        return _no_node(pods[0], board, rivals.promises)
    return _no_place_for_all(pods, board, rivals.promises)


def _refused_everywhere(pods: Sequence[Pod], board: PlacementState) -> Refusal | None:
    """Return the refusal if the scheduler's own filters refuse all nodes that a pod may use. No eviction would help."""
    for pod in pods:
        if pod.uid in board.snapshot.refused and pod.sharing is None and not board.eligible(pod).any():
            open_to_it, mask = fit.eligible(pod.constraint, board.snapshot.nodes), refused(pod, board)
            # Another node that is closed for another reason, such as affinity to a pod, may open when that pod is
            # deleted.
            if open_to_it.any() and not (open_to_it & ~mask).any():
                return _refused_by_scheduler(pod, int(open_to_it.sum()))
    return None


def _refused_by_scheduler(pod: Pod, nodes: int) -> Refusal:
    which = "the only node" if nodes == 1 else f"all {nodes} nodes"
    said = pod.said.because or "its condition PodScheduled says why"
    return Refusal(
        reason=Reason.REFUSED_BY_SCHEDULER,
        sentence=f"The filters of kube-scheduler refuse {which} that pod {pod.name} may use: {said}.",
        details={"pod": pod.name, "refused": nodes},
    )


def fits_nowhere_now(pod: Pod, board: PlacementState) -> Refusal:
    """Return why no node holds the pod while some nodes take no pods; the board has no pods on it."""
    lacking = of(pod, board, ReservedRoom(board.snapshot, ()))
    # The numbers are those of empty nodes, so the sentence has to say so.
    head = "No node could hold the pod now, even when empty" if board.eligible(pod).any() else "No node has room"
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=say("{head}: {lacking}.", head=head, lacking=lacking.words),
        details={**lacking.details, "even_when_empty": 0},
    )


def together_later(refusal: Refusal, nodes: int) -> Refusal:
    """Add that so many nodes, which might help, take no pods now."""
    return replace(refusal, sentence=joined(refusal.sentence, f"{_take_pods(nodes)} now"))


def beside_residents(refusal: Refusal) -> Refusal:
    """Add that DaemonSet pods and mirror pods are subtracted; the pods would fit without them."""
    said = "DaemonSet pods and static pods stay on their nodes, so what they request is not free"
    return replace(refusal, sentence=joined(refusal.sentence, said))


def _take_pods(nodes: int) -> str:
    return "1 node takes no pods" if nodes == 1 else f"{nodes} nodes take no pods"


def never_fits(pod: Pod, board: PlacementState) -> Refusal:
    """Return why no node could hold the pod; the board has no pods on it."""
    nodes = board.snapshot.nodes
    allocatable = nodes.allocatable
    if not fit.room(pod.request.amounts, allocatable).any():
        return _too_large(pod, allocatable)
    if pod.sharing is not None and not _divisible(pod.sharing, board).any():
        return _indivisible(pod.sharing, board)
    lacking = of(pod, board, ReservedRoom(board.snapshot, ()))
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=say("No node could hold the pod even when empty: {lacking}.", lacking=lacking.words),
        details={**lacking.details, "even_when_empty": 0},
    )


def never_together(group: PodGroup, pods: Sequence[Pod], most: int, board: PlacementState) -> Refusal:
    """Return that the nodes, without other pods, hold at most `most` of the pods that start together.

    Running pods of the same gang that these pods complete are counted as well.
    """
    there = len(group.placed) if group.owed else 0
    together = "run together" if there else "start together"
    everywhere = all(board.eligible(pod).all() for pod in board.unlike(pods))
    nodes = "all nodes" if everywhere else "the nodes that its pods may use"
    held = f"hold at most {there + most} of {there + len(pods)} pods that {together}"
    sentence = f"Even empty, {nodes} together {held}."
    details = {"even_when_empty": there + most, "needed": there + len(pods)}
    return Refusal(reason=Reason.GANG_DOES_NOT_FIT, sentence=sentence, details=details)


def never_in_a_domain(refusal: Refusal, pods: Sequence[Pod], board: PlacementState) -> Refusal:
    """Add to a topology refusal, judged on a board without pods, that no eviction would change it."""
    if refusal.reason not in NO_PLACE:
        return refusal
    told = _no_domain(refusal, pods, board, ReservedRoom(board.snapshot, ()))
    return replace(told, details={"even_when_empty": refusal.details.get("fitting", 0), **told.details})


def _too_large(pod: Pod, allocatable: Amounts) -> Refusal:
    largest = allocatable.max(axis=1)
    axis = next((axis for axis, asked in enumerate(pod.request.amounts) if asked > largest[axis]), None)
    cause = "no node has all requested resources" if axis is None else _capacity(pod, axis, int(largest[axis]))
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=f"No node could hold the pod even when empty: {cause}.",
        details={"nodes": allocatable.shape[1], "even_when_empty": 0},
    )


def _capacity(pod: Pod, axis: int, most: int) -> str:
    asked = pod.request.amounts[axis]
    if axis not in QUOTA_AXES:
        return f"{asked} {AXES[axis]} requested, the largest node has {most}"
    return f"{amount_text(axis, asked)} requested, the largest node has {amount_text(axis, most).partition(' ')[0]}"


def _divisible(sharing: Sharing, board: PlacementState) -> Mask:
    """Return the nodes that could give these parts if all their GPUs were idle, shape [node]."""
    nodes = board.snapshot.nodes
    has_enough: Mask = nodes.allocatable[GPU] >= sharing.devices * GPU_MILLI
    return nodes.shares_devices & has_enough & _large_enough(sharing, board)


def _large_enough(sharing: Sharing, board: PlacementState) -> Mask:
    sizes, numbers = np.unique(board.snapshot.nodes.device_memory_mib, return_inverse=True)
    # There are few sizes, even with many nodes.
    fitting = [parts_of(sharing, size) <= size * PART for size in map(int, sizes)]
    return np.array(fitting, dtype=np.bool_)[numbers]


def _indivisible(sharing: Sharing, board: PlacementState) -> Refusal:
    nodes = board.snapshot.nodes
    shared: Mask = nodes.shares_devices & (nodes.allocatable[GPU] > 0)
    suited: Mask = shared & _large_enough(sharing, board)
    if not shared.any():
        cause = f"no node has GPUs that can be shared ({UNDIVIDED})"
    elif not suited.any():
        cause = f"{part_text(sharing)} requested, the largest GPU has {nodes.device_memory_mib[shared].max()} MiB"
    else:
        most = int(nodes.allocatable[GPU][suited].max()) // GPU_MILLI
        cause = f"parts of {sharing.devices} GPUs requested, no node with suitable GPUs has more than {most}"
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=f"No node could hold the pod even when empty: {cause}.",
        details={"nodes": len(nodes.nodes), "even_when_empty": 0},
    )


def _no_place_for_all(pods: Sequence[Pod], board: PlacementState, promises: ReservedRoom) -> Refusal:
    trial, left = board.seated(pods)
    fitting = len(pods) - len(left)
    if not left:
        sentence = f"All {fitting} pods find room, but not with each sub-group inside one topology domain."
        return Refusal(reason=Reason.GANG_DOES_NOT_FIT, sentence=sentence, details={"fitting": fitting})
    stuck = next((pod for pod in left if not board.allowed(pod).any()), None)
    lacking = of(stuck, board, promises) if stuck else of(left[0], trial, promises)
    return Refusal(
        reason=Reason.GANG_DOES_NOT_FIT,
        sentence=say(
            "{some} of {pods} pods that start together {find} room now; {which}, {lacking}.",
            some=f"Only {fitting}" if fitting else "None",
            find="find" if fitting else "finds",
            pods=len(pods),
            which=_for_whom(pods, stuck, board),
            lacking=lacking.words,
        ),
        details={"fitting": fitting, "needed": len(pods), **lacking.details},
    )


def _for_whom(pods: Sequence[Pod], stuck: Pod | None, board: PlacementState) -> str:
    # Equal pods share the sentence, also across PodGroups, so it names no pod.
    if stuck is None:
        return "for the next pod"
    return "for each of them" if board.common_shape(pods) is not None else f"for pod {stuck.name}"


def _no_node(pod: Pod, board: PlacementState, promises: ReservedRoom) -> Refusal:
    lacking = of(pod, board, promises)
    sentence = say("No node has room: {lacking}.", lacking=lacking.words)
    return Refusal(reason=Reason.NO_NODE_FITS, sentence=sentence, details=lacking.details)
