"""What makes the victim searches of two PodGroups end alike: everything of the groups that the answer depends on.

Groups whose pods are all alike, and not narrowed by anything of their own, share what is known. Any other group is like
itself alone, as long as its tree of sub-groups, its pods and the nodes that are refused to them stay as they are.
"""

from collections.abc import Hashable

from app.model.memory import Likeness, Traits
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.snapshot import Snapshot
from app.scheduling.placement.state import PlacementState, shape_of
from app.scheduling.queues.order import next_chunk


def likeness_of(board: PlacementState, group: PodGroup) -> Likeness:
    """Return it, but for the number of pods: what is known of few holds for more."""
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
    """Return what decides where a pod may sit, and with which others."""
    labels = None if pod.labels is None else tuple(sorted(pod.labels.items()))
    refused = frozenset(snapshot.refused.get(pod.uid, ()))
    claims = tuple((claim, snapshot.claimed.get(claim.key)) for claim in pod.claims)
    return shape_of(pod), pod.subgroup, labels, pod.near, claims, refused
