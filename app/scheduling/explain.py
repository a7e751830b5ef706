"""Says in numbers why pods found no room; called once a refusal, never on the way of those that fit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.model.decision import Share
from app.model.pod import PPM, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import AXES, GPU, QUOTA_AXES, Amounts, Resources
from app.scheduling import fit, gang
from app.scheduling.board import Board
from app.scheduling.quota import Account, amount_text, quantities
from app.scheduling.topology import fitting_counts

_NAMES = {"cpu_milli": "CPU", "memory_bytes": "memory", "gpu_milli": "GPUs", "pods": "pod slots"}


def no_room(group: PodGroup, pods: Sequence[Pod], board: Board) -> Refusal:
    """Return why these pods of the group, which start together, do not fit into what is free.

    Pods of one template get the explanation of the first of them: ten thousand equal pods wait for one cause.
    """
    apart = gang.refusal(board, group, pods)
    if apart is not None:
        return _no_domain(apart, board) if apart.details.get("domains") == 0 else apart
    shape = board.common_shape(pods)
    if shape is None:
        return _explain(pods, board)
    key = (len(pods), shape)
    if key not in board.explained:
        board.explained[key] = _explain(pods, board)
    return board.explained[key]


def _no_domain(refusal: Refusal, board: Board) -> Refusal:
    """Say that there is no domain at all, which nobody who leaves would change."""
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


def _explain(pods: Sequence[Pod], board: Board) -> Refusal:
    never = _never(pods, board)
    if never is not None:
        return never
    return _no_node(pods[0], board) if len(pods) == 1 else _no_place_for_all(pods, board)


def _never(pods: Sequence[Pod], board: Board) -> Refusal | None:
    """Return that all nodes could not hold the pods even if they were empty, which no share and no victim changes."""
    allocatable = board.snapshot.nodes.allocatable
    for pod in pods:
        if allocatable.size and not fit.room(pod.request.amounts, allocatable).any():
            return _too_large(pod, allocatable)
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


def _no_place_for_all(pods: Sequence[Pod], board: Board) -> Refusal:
    fitting = board.count_fitting(pods)
    if fitting == len(pods):
        sentence = f"All {fitting} pods would find room, but not with every sub-group inside one topology domain."
        return Refusal(reason=Reason.GANG_DOES_NOT_FIT, sentence=sentence, details={"fitting": fitting})
    stuck = next((pod for pod in pods if not board.allowed(pod).any()), None)
    cause = f"; {_lacks(stuck, board)}" if stuck else ""
    return Refusal(
        reason=Reason.GANG_DOES_NOT_FIT,
        sentence=f"Only {fitting} of {len(pods)} pods that start together would find room now{cause}.",
        details={"fitting": fitting, "needed": len(pods), **_counts(stuck or pods[0], board)},
    )


def _no_node(pod: Pod, board: Board) -> Refusal:
    return Refusal(
        reason=Reason.NO_NODE_FITS,
        sentence=f"No node has room: {_lacks(pod, board)}.",
        details=_counts(pod, board),
    )


def _lacks(pod: Pod, board: Board) -> str:
    counts = _counts(pod, board)
    parts = [f"{counts['nodes']} nodes", f"{counts['excluded']} excluded by readiness, selector, affinity or taints"]
    parts += [f"{counts[axis]} lack {_NAMES[axis]}" for axis in AXES if counts.get(axis)]
    parts += [f"{counts[name]} lack {count} of {name}" for name, count in pod.scalars if counts.get(name)]
    if pod.sharing is not None:
        parts.append(f"{counts['devices']} lack {_part(pod.sharing)}")
    if pod.request.gpu_milli:
        parts.append(
            f"{pod.request.gpu_milli / 1000:g} GPUs asked, at most {counts['most_free_gpu_milli'] / 1000:g} free"
        )
    return ", ".join(parts)


def _part(sharing: Sharing) -> str:
    part = f"{sharing.memory_mib} MiB" if sharing.memory_mib else f"{sharing.portion_ppm / PPM:g}"
    return f"{part} of a GPU free" if sharing.devices == 1 else f"{part} free of each of {sharing.devices} GPUs"


def _counts(pod: Pod, board: Board) -> dict[str, int]:
    eligible = board.eligible(pod)
    counts = {"nodes": int(eligible.size), "excluded": int(eligible.size - eligible.sum())}
    for axis, (name, amount) in enumerate(zip(AXES, pod.request.amounts, strict=True)):
        if amount > 0:
            counts[name] = int((eligible & (board.stock.free[axis] < amount)).sum())
    for name, count in pod.scalars:
        counts[name] = int((eligible & (board.stock.free_of(name) < count)).sum())
    if pod.sharing is not None:
        counts["devices"] = int((eligible & ~board.stock.has_devices(pod.sharing)).sum())
    free = board.stock.free[GPU][eligible]
    counts["most_free_gpu_milli"] = int(np.max(free, initial=0))
    return counts


def nobody_leaves(refusal: Refusal, account: Account, share: Share, request: Resources) -> Refusal:
    """Add to a refusal for want of room why nobody has to leave for the pods."""
    if "even_when_empty" in refusal.details:
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
