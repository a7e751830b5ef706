"""What pods that have no node yet cost their queue together, apart from the claims that they share."""

from collections.abc import Iterable

from app.model.pod import Pod
from app.model.resources import NOTHING, Resources
from app.model.snapshot import NodeTable
from app.scheduling.queues.quota import least_charge, most_charge


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
