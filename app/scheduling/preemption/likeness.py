"""Computes when the victim searches of two PodGroups end alike, from everything that the result depends on.

Groups with equal pods and without constraints of their own share what is known. Any other group is like itself only, as
long as its tree of sub-groups, its pods and the nodes refused to them do not change.
"""

from collections.abc import Hashable

from app.model.memory import Likeness, Traits
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.snapshot import Snapshot
from app.scheduling.placement.state import PlacementState, shape_of
from app.scheduling.queues.order import next_chunk


def likeness_of(board: PlacementState, group: PodGroup) -> Likeness:
    """Return the likeness of a group without the number of its pods: what fails for few pods fails for more."""
    chunk = next_chunk(group)
    is_plain = chunk and group.root is None and not group.placed
    shape = board.common_shape(chunk) if is_plain else None
    if shape is not None:
        return group.queue, group.priority, group.preemptible, shape
    pods = tuple(_traits(pod, board.snapshot) for pod in chunk)
    placed = tuple((one.pod.uid, one.node, one.devices) for one in group.placed)
    succeeded = tuple(sorted(group.succeeded.items()))
    traits = Traits((group.key, group.created_at, group.min_member, group.root, pods, placed, succeeded))
    return group.queue, group.priority, group.preemptible, traits


def _traits(pod: Pod, snapshot: Snapshot) -> Hashable:
    """Return what decides where a pod may be placed, and beside which other pods."""
    labels = None if pod.labels is None else tuple(sorted(pod.labels.items()))
    refused = frozenset(snapshot.refused.get(pod.uid, ()))
    claims = tuple((claim, snapshot.claimed.get(claim.key)) for claim in pod.claims)
    return shape_of(pod), pod.subgroup, labels, pod.near, claims, refused
