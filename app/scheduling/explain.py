"""Says in numbers why pods found no room; called once a refusal, never on the way of those that fit.

What a node lacks is told by `lacks`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.model.decision import Share
from app.model.pod import Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import AXES, GPU, GPU_MILLI, QUOTA_AXES, Amounts, Resources
from app.model.snapshot import PART, Mask, parts_of
from app.scheduling import fit, gang
from app.scheduling.board import Board
from app.scheduling.exclusions import refused
from app.scheduling.lacks import UNDIVIDED, of, part_text
from app.scheduling.quota import Account, amount_text, quantities
from app.scheduling.rivals import Promises, Rivals
from app.scheduling.topology import fitting_counts


def no_room(group: PodGroup, pods: Sequence[Pod], board: Board, rivals: Rivals) -> Refusal:
    """Return why these pods of the group, which start together, do not fit into what is free.

    Pods of one template get the explanation of the first of them: ten thousand equal pods wait for one cause.
    """
    apart = gang.refusal(board, group, pods)
    if apart is not None:
        return _behind(_no_domain(apart, pods, board, rivals), group, pods, rivals)
    shape = board.common_shape(pods)
    if shape is None:
        return _behind(_explain(pods, board, rivals), group, pods, rivals)
    # Of a group that was served already it is not told that it is behind others, or behind itself.
    key = (len(pods), shape, rivals.has_served(group.key))
    if key not in board.explained:
        board.explained[key] = _behind(_explain(pods, board, rivals), group, pods, rivals)
    return board.explained[key]


def _behind(refusal: Refusal, group: PodGroup, pods: Sequence[Pod], rivals: Rivals) -> Refusal:
    """Say first that others came before, where the pods would start but for them."""
    ahead = 0 if refusal.exceeds_cluster else rivals.ahead(group, pods)
    if not ahead:
        return refusal
    others = "1 PodGroup that takes" if ahead == 1 else f"{ahead} PodGroups that take"
    said = refusal.sentence
    return replace(
        refusal,
        sentence=f"It is behind {others} the room it would find: {said[:1].lower()}{said[1:]}",
        details={**refusal.details, "behind": ahead},
    )


def _no_domain(refusal: Refusal, pods: Sequence[Pod], board: Board, rivals: Rivals) -> Refusal:
    """Say more where no domain takes any of the pods, or there is none, which nobody who leaves would change."""
    if refusal.details.get("fitting") != 0:
        return refusal
    if refusal.details["domains"]:
        each = of(pods[0], board, rivals.promises)
        return replace(refusal, sentence=_joined(refusal, str(each)), details={**each.details, **refusal.details})
    level = str(refusal.details["level"])
    lacking = replace(refusal, details={**refusal.details, "even_when_empty": 0})
    if not level or _has_label(level, board):
        return lacking
    return replace(lacking, sentence=f"No node has the label {level} of its required topology level.")


def _has_label(key: str, board: Board) -> bool:
    nodes = board.snapshot.nodes
    found: bool | None = nodes.memo.get(("has label", key))
    if found is None:
        nodes.memo["has label", key] = found = any(key in node.labels for node in nodes.nodes)
    return found


def _explain(pods: Sequence[Pod], board: Board, rivals: Rivals) -> Refusal:
    never = _never(pods, board) or _refused_everywhere(pods, board)
    if never is not None:
        return never
    if len(pods) == 1:
        return _no_node(pods[0], board, rivals.promises)
    return _no_place_for_all(pods, board, rivals.promises)


def _refused_everywhere(pods: Sequence[Pod], board: Board) -> Refusal | None:
    """Return that the scheduler's own filters refuse all nodes to which a pod may go: nobody who leaves helps it."""
    for pod in pods:
        if pod.uid in board.snapshot.refused and pod.sharing is None and not board.eligible(pod).any():
            mask = refused(pod, board) & fit.eligible(pod.constraint, board.snapshot.nodes)
            if mask.any():
                return _refused_by_scheduler(pod, int(mask.sum()))
    return None


def _refused_by_scheduler(pod: Pod, nodes: int) -> Refusal:
    which = "the only node" if nodes == 1 else f"all {nodes} nodes"
    said = pod.said.because or "see its PodScheduled condition"
    return Refusal(
        reason=Reason.REFUSED_BY_SCHEDULER,
        sentence=f"The scheduler's own filters refuse {which} to which pod {pod.name} may go: {said}.",
        details={"pod": pod.name, "refused": nodes},
    )


def _never(pods: Sequence[Pod], board: Board) -> Refusal | None:
    """Return that all nodes could not hold the pods even if they were empty, which no share and no victim changes."""
    allocatable = board.snapshot.nodes.allocatable
    for pod in pods:
        if allocatable.size and not fit.room(pod.request.amounts, allocatable).any():
            return _too_large(pod, allocatable)
        if pod.sharing is not None and not _divisible(pod.sharing, board).any():
            return _indivisible(pod.sharing, board)
    asked = np.array([pod.request.amounts for pod in pods], dtype=np.int64)
    fitting = int(fitting_counts(asked, allocatable).sum())
    if len(pods) == 1 or fitting >= len(pods):
        return None
    sentence = f"Even empty, all nodes together hold at most {fitting} of {len(pods)} pods that start together."
    details = {"even_when_empty": fitting, "needed": len(pods)}
    return Refusal(reason=Reason.GANG_DOES_NOT_FIT, sentence=sentence, details=details)


def _too_large(pod: Pod, allocatable: Amounts) -> Refusal:
    largest = allocatable.max(axis=1)
    axis = next((axis for axis, asked in enumerate(pod.request.amounts) if asked > largest[axis]), None)
    cause = "no node has all that it asks for at once" if axis is None else _capacity(pod, axis, int(largest[axis]))
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=f"No node could hold it even when empty: {cause}.",
        details={"nodes": allocatable.shape[1], "even_when_empty": 0},
    )


def _capacity(pod: Pod, axis: int, most: int) -> str:
    asked = pod.request.amounts[axis]
    if axis == GPU:
        return f"{asked / 1000:g} GPUs asked, the largest has {most / 1000:g}"
    return f"{asked} {AXES[axis]} asked, the largest has {most}"


def _divisible(sharing: Sharing, board: Board) -> Mask:
    """Return the nodes that could give these parts if all their GPUs were idle, shape [node]."""
    nodes = board.snapshot.nodes
    has_enough: Mask = nodes.allocatable[GPU] >= sharing.devices * GPU_MILLI
    return nodes.shares_devices & has_enough & _large_enough(sharing, board)


def _large_enough(sharing: Sharing, board: Board) -> Mask:
    sizes, numbers = np.unique(board.snapshot.nodes.device_memory_mib, return_inverse=True)
    # Of few sizes, however many nodes.
    fitting = [parts_of(sharing, size) <= size * PART for size in map(int, sizes)]
    return np.array(fitting, dtype=np.bool_)[numbers]


def _indivisible(sharing: Sharing, board: Board) -> Refusal:
    nodes = board.snapshot.nodes
    shared: Mask = nodes.shares_devices & (nodes.allocatable[GPU] > 0)
    if not shared.any():
        cause = f"no node has GPUs that can be shared ({UNDIVIDED})"
    elif not (shared & _large_enough(sharing, board)).any():
        cause = f"{part_text(sharing)} asked, the largest GPU has {nodes.device_memory_mib[shared].max()} MiB"
    else:
        most = int(nodes.allocatable[GPU][shared].max()) // GPU_MILLI
        cause = f"parts of {sharing.devices} GPUs asked, no node that has such GPUs has more than {most}"
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=f"No node could hold it even when empty: {cause}.",
        details={"nodes": len(nodes.nodes), "even_when_empty": 0},
    )


def _no_place_for_all(pods: Sequence[Pod], board: Board, promises: Promises) -> Refusal:
    trial, left = board.seated(pods)
    fitting = len(pods) - len(left)
    if not left:
        sentence = f"All {fitting} pods would find room, but not with every sub-group inside one topology domain."
        return Refusal(reason=Reason.GANG_DOES_NOT_FIT, sentence=sentence, details={"fitting": fitting})
    stuck = next((pod for pod in left if not board.allowed(pod).any()), None)
    lacking = of(stuck, board, promises) if stuck else of(left[0], trial, promises)
    return Refusal(
        reason=Reason.GANG_DOES_NOT_FIT,
        sentence=(
            f"Only {fitting} of {len(pods)} pods that start together would find room now; "
            f"{_for_whom(pods, stuck, board)} {lacking}."
        ),
        details={"fitting": fitting, "needed": len(pods), **lacking.details},
    )


def _for_whom(pods: Sequence[Pod], stuck: Pod | None, board: Board) -> str:
    # Pods of one template share the sentence, also those of other PodGroups: it names none of them.
    if stuck is None:
        return "for the next one"
    return "for each of them" if board.common_shape(pods) is not None else f"for pod {stuck.name}"


def _no_node(pod: Pod, board: Board, promises: Promises) -> Refusal:
    lacking = of(pod, board, promises)
    details = dict(lacking.details)
    may_go = fit.eligible(pod.constraint, board.snapshot.nodes)
    if pod.sharing is not None and not (may_go & _divisible(pod.sharing, board)).any():
        # Those that could are not for this pod: nobody who leaves would change that.
        details["even_when_empty"] = 0
    return Refusal(reason=Reason.NO_NODE_FITS, sentence=f"No node has room: {lacking}.", details=details)


def nobody_leaves(refusal: Refusal, account: Account, share: Share, request: Resources) -> Refusal:
    """Add to a refusal for want of room why nobody has to leave for the pods."""
    if refusal.exceeds_cluster:
        return refusal
    asked, held, fair = quantities(request), account.allocated, quantities(share.fair_share)
    over = next((axis for axis in QUOTA_AXES if asked[axis] > 0 and held[axis] + asked[axis] > fair[axis]), None)
    if over is None:
        cause = "nobody may be made to leave for it: others hold what is theirs, by share, priority or min-runtime"
        return replace(refusal, sentence=_joined(refusal, cause))
    numbers = {"fair_share": fair[over], "allocated": held[over], "requested": asked[over]}
    said = {name: amount_text(over, amount) for name, amount in numbers.items()}
    cause = (
        f"queue {account.name} holds {said['allocated']} of a fair share of {said['fair_share']} "
        f"and asks for {said['requested']}, so it takes nothing back from others"
    )
    return replace(
        refusal, sentence=_joined(refusal, cause), details={**refusal.details, "queue": account.name, **said}
    )


def _joined(refusal: Refusal, cause: str) -> str:
    return f"{refusal.sentence.rstrip('.')}; {cause}."
