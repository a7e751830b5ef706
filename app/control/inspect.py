"""Tells what is known, decided and waited for: to health checks, metrics and the read API. Changes nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.cluster.cache import ClusterCache
from app.cluster.reservations import State
from app.control.activity import Activity
from app.control.feed import Feed
from app.control.planning import Planning
from app.model.decision import Share
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.question import Check
from app.model.reason import Reason, Refusal
from app.scheduling.fairshare import fair_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """One pod and where it stands."""

    pod: Pod
    state: str
    """Held, Awaiting, Promised, Binding, Bound or Releasing."""
    node: NodeName | None = None
    refusal: Refusal | None = None


class Inspect:
    """Read-only views, computed when asked."""

    def __init__(self, cache: ClusterCache, feed: Feed, planning: Planning, activity: Activity) -> None:
        """Hold the parts."""
        self._cache = cache
        self._feed = feed
        self._planning = planning
        self._activity = activity

    def readiness(self) -> Sequence[Check]:
        """Return every condition of being ready."""
        return (self._activity.check(), *self._feed.checks())

    def is_ready(self) -> bool:
        """Whether all of them hold: we are active, and what we see is whole and fresh."""
        return all(check.passed for check in self.readiness())

    def queues(self) -> Mapping[QueueName, Share]:
        """Return every queue's share of the cluster as it is now."""
        return fair_shares(self._cache.snapshot())

    def version(self) -> tuple[int, int]:
        """Return what changes whenever `waiting_by_key` does."""
        return self._planning.version

    def waiting(self) -> Sequence[tuple[PodGroup, Refusal | None]]:
        """Return the groups with pods that have no place, and why."""
        return list(self.waiting_by_key().values())

    def waiting_by_key(self) -> Mapping[GroupKey, tuple[PodGroup, Refusal | None]]:
        """Return the groups with pods that have no place, and why, by their key."""
        refusals = self._planning.refusals
        return {key: (group, refusals.get(key)) for key, group in self._cache.waiting().items()}

    def promises(self) -> Mapping[str, int]:
        """Return how many reservations are in each state."""
        return Counter(held.state.value for held in self._cache.reservations)

    def pod(self, namespace: str, name: str) -> KnownPod | None:
        """Return what is known of one pod."""
        found = (pod for pod in self._cache.pods() if pod.namespace == namespace and pod.name == name)
        pod = next(found, None)
        return None if pod is None else self._known(pod)

    def _known(self, pod: Pod) -> KnownPod:
        if pod.node is not None:
            return KnownPod(pod=pod, state="Releasing" if pod.deleting else "Bound", node=pod.node)
        held = self._cache.reservations.get(pod.uid)
        if held is not None:
            why = _room_is_being_freed(held.node) if held.state is State.AWAITING else None
            return KnownPod(pod=pod, state=held.state.value, node=held.node, refusal=why)
        return KnownPod(pod=pod, state="Held", refusal=self._why(pod))

    def _why(self, pod: Pod) -> Refusal | None:
        if pod.problem:
            return Refusal(reason=Reason.INVALID_REQUEST, sentence=f"{pod.problem}.")
        return self._planning.refusals.get(pod.group)


def _room_is_being_freed(node: NodeName) -> Refusal:
    sentence = f"Its room on node {node} is held for it until the pods have left that are still in it."
    return Refusal(reason=Reason.WAITING_FOR_VICTIMS, sentence=sentence, details={"node": node})
