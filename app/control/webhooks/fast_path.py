"""Tells admission whether a pod that is about to be created can run now, so that it needs no gate.

A wrong yes costs kube-scheduler one refused attempt, a wrong no costs us one patch. If the answer takes long to find,
it is no, and the planner decides after the pod is created.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from app.cluster import decode
from app.cluster.admit import shape
from app.cluster.ledger.assumed_pods import Origin
from app.cluster.ledger.charge import Charge
from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.groups.grouped_pods import keeps_of
from app.control.groups.pod_grouper import PodGrouper
from app.control.leadership.readiness import Readiness
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.seam import RawObject, Resource
from app.model.snapshot import Snapshot
from app.settings import Settings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A pod that is about to be created, decoded once for all questions about it."""

    raw: RawObject
    pod: Pod
    said: GroupSpec | None
    """What the owners of the pod say about its group."""


class AdmissionFastPath:
    """Lets pods through to kube-scheduler at once. It writes nothing, but may first decide waiting groups."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        planning: Planning,
        grouper: PodGrouper,
        readiness: Readiness,
        *,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._planning = planning
        self._grouper = grouper
        self._profiles = settings.profiles
        self._keeps = keeps_of(settings)
        self._readiness = readiness
        self._clock = clock

    def look(self, raw: RawObject) -> Newcomer:
        """Read a pod, which may lack name and uid."""
        pod, said = self._grouper.rehearse(decode.asked_pod(raw, profiles=self._profiles, keeps=self._keeps))
        return Newcomer(raw, pod, said)

    def can_run_now(self, newcomer: Newcomer) -> bool:
        """Whether a managed pod without uid would get a node at once; a yes holds the room for the pod."""
        # 1. is the pod eligible  2. does no group wait undecided  3. what would the planner decide, with the assumed
        # pods charged 4. assume this pod too
        if self._readiness.freshness.failure():
            return False
        assumed, origin, pod = self._cache.assumed, _origin(newcomer.raw), newcomer.pod
        assumed.expire(self._clock())
        # A pod that shares a device is let through only after the device is known: it may need a reservation pod first.
        # What a shared claim takes and costs depends on its other pods.
        if not pod.managed or pod.node is not None or pod.sharing is not None or pod.ungrouped or pod.claims:
            return False
        if not assumed.has_room(origin) or not self._is_settled():
            return False
        snapshot = assumed.charged_on(self._cache.snapshot())
        group = self._group(pod, newcomer.said, snapshot)
        node = self._place(snapshot, group) if group else None
        if group is None or node is None:
            return False
        # A pod that shares no GPU pays the same on every node.
        cost = pod.charge(1)
        charge = Charge(pod.request, node, group.queue, group.preemptible, scalars=pod.scalars, cost=cost)
        assumed.add(origin, charge, self._clock())
        return True

    def may_be_bound_elsewhere(self, newcomer: Newcomer) -> bool:
        """Whether kube-scheduler may bind the pod by itself: a single pod, without shared device, preemptible for good.

        A gang must be bound as a whole, and a shared device must be named at bind. Without our bind a pod gets no note
        that it is non-preemptible. A pod that needs volumes may be bound minutes after filter has answered: until we
        are asked to bind it, other pods may still get the room.
        """
        # While the owners of the pod are not known, the answer is no.
        pod = newcomer.pod
        if self._readiness.freshness.failure() or not (pod.bare or self._keeps.is_on):
            return False
        if not pod.managed or pod.problem or pod.ungrouped:
            return False
        # A PriorityClass that was created a moment ago may make the pod non-preemptible.
        return self._knows_classes(newcomer) and not self.must_be_bound_here(newcomer)

    def must_be_bound_here(self, newcomer: Newcomer) -> bool:
        """Whether something is surely lost when kube-scheduler binds the pod by itself."""
        pod = newcomer.pod
        if pod.sharing is not None or pod.names_group or shape.needs_preparation(newcomer.raw):
            return True
        is_known = not pod.ungrouped and self._knows_classes(newcomer)
        return is_known and not self._cache.groups.alone(pod, newcomer.said).preemptible

    def queue(self, newcomer: Newcomer) -> QueueName:
        """Return the queue of a single pod, from its labels and its owners."""
        return self._cache.groups.alone(newcomer.pod, newcomer.said).queue

    def owners_class(self, newcomer: Newcomer) -> str:
        """Return the priority class that the known owners of a pod name; empty for none."""
        return self._grouper.pod_owners.priority_class(newcomer.pod)

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Look at an object that a watch shows, before it is in the cache."""
        if resource is Resource.PODS and len(self._cache.assumed):
            uid = PodUid(decode.identity(raw)[1])
            if uid and self._cache.pods.get(uid) is None:
                self._cache.assumed.show(_origin(raw), uid)

    def _knows_classes(self, newcomer: Newcomer) -> bool:
        said = newcomer.said.priority_classes if newcomer.said else ()
        return all(map(self._cache.groups.specs.knows_class, (*newcomer.pod.priority_classes, *said)))

    def _is_settled(self) -> bool:
        """Whether no group has a claim to free room now: a refused group stays refused until capacity is freed."""
        coming = self._assumed_groups()
        if self._readiness.leadership.failure():
            # Another replica decides, and its reservations are not visible here: any waiting pod may have one.
            return self._cache.groups.waiting().keys() <= coming
        if self._planning.is_settled(coming):
            return True
        if not self._planning.can_decide_now():
            return False
        # An undecided pod would cause the next pod to be held, and that pod all pods after it. So decide now.
        try:
            self._planning.plan_now()
        except Exception:
            # One object that the planner cannot handle must not block the creation of other pods. The planning loop
            # tries it again.
            log.exception("planning failed")
            return False
        return self._planning.is_settled(self._assumed_groups())

    def _assumed_groups(self) -> set[GroupKey]:
        pods = map(self._cache.pods.get, self._cache.assumed.shown())
        return {pod.group for pod in pods if pod is not None}

    def _group(self, pod: Pod, said: GroupSpec | None, snapshot: Snapshot) -> PodGroup | None:
        """Return the group to plan for the pod; None for a pod that depends on other pods.

        `said` is what the owners say. A gang member is like a single pod only if the minimum of its gang runs already.
        """
        if not pod.names_group:
            return self._cache.groups.alone(pod, said)
        running, spec = snapshot.running.get(pod.group), self._cache.groups.specs.get(pod.group)
        if running is None or spec is None or spec.problem or pod.group in snapshot.groups:
            return None
        if self._cache.groups.progress.owes(pod.group) or pod.gated or pod.problem:
            return None
        return replace(running, pending=(pod,))

    def _place(self, snapshot: Snapshot, group: PodGroup) -> NodeName | None:
        plan = self._planning.rehearse(snapshot, group)
        starts = plan.starts if plan else ()
        return starts[0].placements[0].node if starts and not starts[0].awaits_release else None


def _origin(raw: RawObject) -> Origin:
    metadata = raw.get("metadata") or {}
    return str(metadata.get("namespace")), str(metadata.get("generateName") or metadata.get("name"))
