"""Forms a PodGroup from its object and its pods: who is ready to start, who is missing, why it cannot be planned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from app.model.names import GroupKey, PodUid, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.reason import Reason, Refusal

DEFAULT_CLASS = "train"
"""KAI's priority class for whoever names none, or one that does not exist."""

BUILT_IN_CLASSES: Mapping[str, int] = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
"""KAI's priority classes and values, known even where the objects are not installed."""

PREEMPTIBLE_BELOW = 100
"""KAI: a priority of 100 or more is non-preemptible unless set otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The pods of one group, sorted by what they can do now."""

    pods: Collection[Pod]
    held: frozenset[PodUid]
    """Those with a place: promised, binding or bound."""
    stuck: Collection[PodUid]
    """Those that kube-scheduler's own filters accept nowhere, although there seemed to be room."""
    succeeded: int = 0

    def ready(self) -> tuple[Pod, ...]:
        """Return the pods that can start, in the order in which they do."""
        ready = (pod for pod in self.pods if pod.uid not in self.held and self._can_start(pod))
        return tuple(sorted(ready, key=lambda pod: (-pod.task_priority, pod.created_at, pod.name)))

    def active(self) -> int:
        """Return how many pods have a place and keep it: to its gang, a pod that is being deleted is gone already."""
        return sum(pod.uid in self.held and not pod.deleting for pod in self.pods)

    def waits(self) -> bool:
        """Whether any pod has no place yet."""
        return any(pod.uid not in self.held and not pod.deleting for pod in self.pods)

    def _can_start(self, pod: Pod) -> bool:
        return not (pod.gated or pod.deleting or pod.problem or pod.uid in self.stuck)


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a group's pods are charged and ordered."""

    queue: QueueName
    priority: int
    preemptible: bool


def terms(spec: GroupSpec | None, pod: Pod, classes: Mapping[str, int]) -> Terms:
    """Return the terms of a group from its object, else from one of its pods (KAI's rules, `podgrouper`)."""
    spec = spec or _spec_of_pod(pod)
    priority = _priority(spec, pod, classes)
    return Terms(spec.queue or pod.queue, priority, _preemptible(spec, pod, priority))


def form(
    key: GroupKey, spec: GroupSpec | None, members: Members, on: Terms, set_aside: Refusal | None = None
) -> PodGroup:
    """Return the group as the planner sees it; `refusal` is set when it cannot be planned whatever is free."""
    first = min(members.pods, key=lambda pod: (pod.created_at, pod.name))
    spec = spec or _spec_of_pod(first)
    group = PodGroup(
        key=key,
        queue=on.queue,
        priority=on.priority,
        preemptible=on.preemptible,
        min_member=spec.min_member,
        created_at=spec.created_at,
        pending=members.ready(),
        active=members.active(),
        succeeded=members.succeeded,
    )
    refusal = _object_problem(key, spec, members) or _missing_members(group, members) or set_aside
    return group if refusal is None else replace(group, refusal=refusal)


def _spec_of_pod(pod: Pod) -> GroupSpec:
    """Return what stands in for a PodGroup object: a pod alone needs none, a named one that is missing is a problem."""
    problem = f"PodGroup {pod.group} does not exist" if pod.names_group else ""
    return GroupSpec(key=pod.group, min_member=1, created_at=pod.created_at, problem=problem)


def _priority(spec: GroupSpec, pod: Pod, classes: Mapping[str, int]) -> int:
    for name in (spec.priority_class, pod.priority_class):
        value = classes.get(name, BUILT_IN_CLASSES.get(name))
        if name and value is not None:
            return value
    return classes.get(DEFAULT_CLASS, BUILT_IN_CLASSES[DEFAULT_CLASS])


def _preemptible(spec: GroupSpec, pod: Pod, priority: int) -> bool:
    for explicit in (spec.preemptible, pod.explicit_preemptible):
        if explicit is not None:
            return explicit
    return priority < PREEMPTIBLE_BELOW


def _object_problem(key: GroupKey, spec: GroupSpec, members: Members) -> Refusal | None:
    if not spec.problem:
        return None
    exists = spec.uid != ""
    reason = Reason.POD_GROUP_IS_INVALID if exists else Reason.POD_GROUP_DOES_NOT_EXIST
    return Refusal(
        reason=reason, sentence=f"{spec.problem}.", details={"podgroup": repr(key), "pods": len(members.pods)}
    )


def _missing_members(group: PodGroup, members: Members) -> Refusal | None:
    """Say why fewer pods are ready than are owed: unreadable, refused, or not there (KAI's NotReady text)."""
    if len(group.pending) >= group.owed:
        return None
    for pod in members.pods:
        if pod.problem:
            return Refusal(reason=Reason.INVALID_REQUEST, sentence=f"Pod {pod.name}: {pod.problem}.")
    for pod in members.pods:
        if pod.uid in members.stuck:
            sentence = f"The scheduler's own filters accept pod {pod.name} on no node; see its PodScheduled condition."
            return Refusal(reason=Reason.REFUSED_BY_SCHEDULER, sentence=sentence)
    exist = members.succeeded + sum(not pod.deleting for pod in members.pods)
    gated = sum(pod.gated for pod in members.pods)
    sentence = f"Waiting for {group.min_member} pods, currently {exist} exist, {gated} are gated."
    details = {"minMember": group.min_member, "exist": exist, "gated": gated}
    return Refusal(reason=Reason.MEMBERS_MISSING, sentence=sentence, details=details)
