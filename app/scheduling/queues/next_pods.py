"""What the pods of a group that start next cost their queue, apart from the claims that they share with other pods."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.model.pod import Pod, ResourceClaim, claims_of
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, Resources
from app.model.snapshot import NodeTable
from app.scheduling.queues.order import next_chunk
from app.scheduling.queues.quota import is_by_memory, least_charge, most_charge


@dataclass(frozen=True, slots=True)
class NextPods:
    """The pods of a group that start next."""

    group: PodGroup
    pods: tuple[Pod, ...]
    least: Resources
    most: Resources
    claims: tuple[ResourceClaim, ...]
    """The claims that they share, as often as pods use them."""

    @staticmethod
    def of(group: PodGroup, nodes: NodeTable) -> "NextPods":
        """Choose the pods, and add up what they cost."""
        pods = next_chunk(group)
        least = least_of(pods, nodes)
        most = most_of(pods, nodes) if any(map(is_by_memory, pods)) else least
        return NextPods(group, pods, least, most, claims_of(pods))


def least_of(pods: Iterable[Pod], nodes: NodeTable) -> Resources:
    """Return the least that a queue may have to pay for pods that have no node yet."""
    return summed(least_charge(pod, nodes) for pod in pods)


def most_of(pods: Iterable[Pod], nodes: NodeTable) -> Resources:
    """Return the most that a queue may have to pay for pods that have no node yet."""
    return summed(most_charge(pod, nodes) for pod in pods)


def summed(amounts: Iterable[Resources]) -> Resources:
    """Return the sum."""
    # Most sums are of one pod.
    first, *more = (*amounts, NOTHING)
    return sum(more[:-1], first) if more else first
