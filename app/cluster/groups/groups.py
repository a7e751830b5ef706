"""Forms a PodGroup from its object and its pods: ready pods, missing pods, and why the group cannot be planned."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from app.cluster.decode.pods import SUBGROUP_LABEL
from app.cluster.groups.terms import GroupTerms, spec_of_pod
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Placed, Pod
from app.model.podgroup import GroupSpec, PodGroup, PodSet
from app.model.reason import Reason, Refusal
from app.model.spelling import hint_among

NAMES_SHOWN = 10
"""Sub-groups that a message names: a PodGroup of hundreds must not fill its own status."""

NOBODY: Mapping[str, int] = {}
NEVER: Mapping[PodUid, float] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """The node of a pod, bound or reserved."""

    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices of which the pod has a part there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The pods of one group, sorted by their state."""

    pods: Collection[Pod]
    places: Mapping[PodUid, Place]
    """The places of the pods that have one: promised, binding or bound."""
    stuck: Container[PodUid]
    """Pods for which kube-scheduler's own filters refuse all nodes, although Leeboard found room."""
    overlooked: Container[PodUid] = ()
    """Pods that kube-scheduler did not send while they had a place."""
    succeeded: Mapping[str, int] = field(default_factory=lambda: NOBODY)
    """Pods that have succeeded, by pod set."""
    started: Mapping[PodUid, float] = field(default_factory=lambda: NEVER)
    """The time since which pods run, in seconds since the epoch, as far as it is known."""
    gpus_unknown: str = ""
    """The message for pods that request GPUs while it is unknown which GPUs work; empty when that is known."""

    def ready(self) -> tuple[Pod, ...]:
        """Return the pods that can start, in the order of their start."""
        return _ordered(pod for pod in self.pods if pod.uid not in self.places and self._can_start(pod))

    def placed(self) -> tuple[Placed, ...]:
        """Return the pods that have a place and keep it: for its gang, a pod that is being deleted is gone already."""
        staying = _ordered(pod for pod in self.pods if pod.uid in self.places and not pod.deleting)
        there = ((pod, self.places[pod.uid]) for pod in staying)
        return tuple(Placed(pod=pod, node=place.node, devices=place.devices) for pod, place in there)

    def started_at(self) -> float | None:
        """Return the earliest start of the bound pods that are not being deleted; None when no start is known."""
        if not self.started:
            return None
        running = (pod.uid for pod in self.pods if pod.node is not None and not pod.deleting)
        return min((self.started[uid] for uid in running if uid in self.started), default=None)

    def last_bound_at(self) -> float:
        """Return the latest start of the bound pods, or creation where no start is known; 0 when none is bound."""
        bound = (pod for pod in self.pods if pod.node is not None and not pod.deleting)
        return max((self.started.get(pod.uid, pod.created_at) for pod in bound), default=0.0)

    def waiting(self) -> list[Pod]:
        """Return the pods that have no place yet and may still get one."""
        return [pod for pod in self.pods if pod.uid not in self.places and not pod.deleting]

    def _can_start(self, pod: Pod) -> bool:
        if pod.uid in self.stuck or pod.uid in self.overlooked:
            return False
        return not (pod.gated or pod.deleting or pod.problem or pod.ungrouped or pod.lacks_claim)


WHAT_TO_CHECK = (
    "kube-scheduler runs, and that its configuration has a profile for the pod's schedulerName and names Leeboard as an"
    " extender"
)


def _ordered(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(sorted(pods, key=lambda pod: (-pod.task_priority, pod.created_at, pod.name)))


def form(
    key: GroupKey, spec: GroupSpec | None, members: Members, on: GroupTerms, set_aside: Refusal | None = None
) -> PodGroup:
    """Return the group for the planner; `refusal` is set when pods are pending and none can start, whatever is free."""
    # 1. its object, or the substitute for it  2. its pods  3. why its pending pods cannot start
    spec = spec or spec_of_pod(min(members.pods, key=lambda pod: (pod.created_at, pod.name)))
    if spec.root is not None and not has_sub_groups(spec):
        members = _without_sub_groups(members)
    group = PodGroup(
        key=key,
        queue=on.queue,
        priority=on.priority,
        preemptible=on.preemptible,
        min_member=spec.min_member,
        root=spec.root,
        created_at=spec.created_at,
        pending=members.ready(),
        placed=members.placed(),
        succeeded=members.succeeded,
        started_at=members.started_at(),
        stale_grace_s=spec.stale_grace_s,
        evicted_whole=spec.evicted_whole,
    )
    if not members.waiting():
        return group
    refusal = (
        _unknown_owner(members)
        or _unknown_gpus(members)
        or _object_problem(key, spec, members)
        or _lost_member(group, members)
    )
    refusal = refusal or _missing_members(group, members)
    refusal = refusal or set_aside
    if refusal is None:
        return group
    if refusal.reason in {Reason.NOT_CONSIDERED, Reason.REFUSED_BY_SCHEDULER} and is_bound_in_part(group):
        # They start later: until then the planner keeps room for them.
        group = replace(group, pending=replace(members, stuck=(), overlooked=()).ready())
    return replace(group, refusal=refusal)


def is_stale(group: PodGroup) -> bool:
    """Whether a started gang has fewer members than a minimum, and no replacement of the lost members is under way.

    A gang with a pod that has succeeded is ending, not broken (KAI, rule 15).
    """
    if not group.placed or any(group.succeeded.values()) or not group.owed:
        return False
    return all(one.pod.node is not None for one in group.placed)


def is_bound_in_part(group: PodGroup) -> bool:
    """Whether some pods of a gang are bound, but fewer than its minimum, whatever is reserved for its other pods."""
    bound = tuple(one for one in group.placed if one.pod.node is not None)
    return bool(bound) and replace(group, placed=bound).owed > 0


def has_sub_groups(spec: GroupSpec) -> bool:
    """Whether the object divides its pods; a root that only states a topology does not divide them."""
    return spec.root is not None and any(leaf.name for leaf in spec.root.leaves())


def _without_sub_groups(members: Members) -> Members:
    """Return the members without sub-group labels, for a group that has no sub-groups."""
    pods = [replace(pod, subgroup="") if pod.subgroup else pod for pod in members.pods]
    return replace(members, pods=pods)


def _unknown_owner(members: Members) -> Refusal | None:
    """Return the refusal while the owners of a pod are unknown: alone, the pod might start without its gang."""
    sentence = next((pod.ungrouped for pod in _ordered(pod for pod in members.waiting() if pod.ungrouped)), "")
    return Refusal(reason=Reason.OWNER_UNKNOWN, sentence=sentence) if sentence else None


def _unknown_gpus(members: Members) -> Refusal | None:
    """Return the refusal while it is unknown which GPUs work: an unhealthy GPU would count as free."""
    if members.gpus_unknown and any(pod.asks_for_gpus for pod in members.waiting()):
        return Refusal(reason=Reason.DECIDING, sentence=members.gpus_unknown)
    return None


def _object_problem(key: GroupKey, spec: GroupSpec, members: Members) -> Refusal | None:
    if spec.suspended:
        # This is stated before anything that is missing: the owner creates no pods while it is suspended.
        return Refusal(reason=Reason.OWNER_SUSPENDED, sentence=spec.suspended)
    if not spec.problem:
        return None
    exists = spec.uid != "" or spec.derived
    reason = Reason.POD_GROUP_IS_INVALID if exists else Reason.POD_GROUP_DOES_NOT_EXIST
    # What is derived from an owner, or missing, names its object itself.
    of = f"PodGroup {key.name} is not valid: " if spec.uid and not spec.derived else ""
    details: dict[str, int | str] = {"podgroup": repr(key), "pods": len(members.pods)}
    return Refusal(reason=reason, sentence=f"{of}{spec.problem}.", details=details)


def _lost_member(group: PodGroup, members: Members) -> Refusal | None:
    """Return the refusal for a pending pod that belongs to no pod set: it can never start; the user must see why."""
    if group.root is None:
        return None
    names = sorted(leaf.name for leaf in group.root.leaves())
    lost = next(iter(_ordered(pod for pod in members.waiting() if group.pod_set(pod) not in names)), None)
    if lost is None:
        return None
    more = len(names) - NAMES_SHOWN
    shown = ", ".join([*names[:NAMES_SHOWN], *([f"and {more} more"] if more > 0 else [])])
    wrong = f"names {lost.subgroup}, which its PodGroup does not have" if lost.subgroup else "is missing"
    hint = hint_among(names, lost.subgroup) or f"write one of {shown}."
    sentence = f"Pod {lost.name} is in no sub-group, because its label {SUBGROUP_LABEL} {wrong}; {hint}"
    return Refusal(reason=Reason.INVALID_REQUEST, sentence=sentence, details={"pod": lost.name, "subGroups": shown})


def _missing_members(group: PodGroup, members: Members) -> Refusal | None:
    """Return why fewer pods are ready than are needed: unreadable, refused, or missing (KAI's NotReady text)."""
    short = _short(group)
    if short is None:
        return None
    mine = [pod for pod in members.pods if group.pod_set(pod) == short.name and not pod.deleting]
    waiting = _ordered(pod for pod in mine if pod.uid not in members.places)
    return _unable(waiting, members) or _too_few(group, short, mine, members)


def _unable(pods: Collection[Pod], members: Members) -> Refusal | None:
    """Return which of the pods cannot be read, or otherwise which pod kube-scheduler refuses everywhere."""
    for pod in pods:
        if pod.problem:
            return Refusal(reason=Reason.INVALID_REQUEST, sentence=f"Pod {pod.name}: {pod.problem}.")
    for pod in pods:
        if cause := overlooked(pod, is_overlooked=pod.uid in members.overlooked):
            return cause
    for pod in pods:
        if pod.uid in members.stuck:
            said = f": {pod.said.because}" if pod.said.because else "; its condition PodScheduled says why"
            sentence = f"The filters of kube-scheduler accept pod {pod.name} on no node{said}."
            return Refusal(reason=Reason.REFUSED_BY_SCHEDULER, sentence=sentence, details={"pod": pod.name})
    return None


def overlooked(pod: Pod, *, is_overlooked: bool) -> Refusal | None:
    """Return why a pod gets no place because kube-scheduler does not send it; None if kube-scheduler does."""
    if pod.lacks_claim:
        claim = f"ResourceClaim {pod.lacks_claim}"
        sentence = f"Pod {pod.name} waits for {claim}, which does not exist; create what is missing."
    elif is_overlooked:
        asked = f"No call of kube-scheduler came for pod {pod.name} while a node was reserved for it"
        sentence = f"{asked}; check that {WHAT_TO_CHECK}."
    else:
        return None
    return Refusal(reason=Reason.NOT_CONSIDERED, sentence=sentence, details={"pod": pod.name})


def _too_few(group: PodGroup, short: PodSet, pods: Collection[Pod], members: Members) -> Refusal:
    exist = members.succeeded.get(short.name, 0) + len(pods)
    gated = sum(pod.gated for pod in pods)
    details: dict[str, int | str] = {"minMember": short.min_member, "exist": exist, "gated": gated}
    if short.name:
        details["subGroup"] = short.name
    others = _others_missing(group, short, members)
    also = f"; also missing: {', '.join(others)}" if others else ""
    what, to_do = _incomplete(short, exist, gated)
    return Refusal(reason=Reason.MEMBERS_MISSING, sentence=f"{what}{also}; {to_do}.", details=details)


def _incomplete(short: PodSet, exist: int, gated: int) -> tuple[str, str]:
    """Return what is the matter with the pods of a pod set, and what has to be done."""
    of = f" of sub-group {short.name}" if short.name else ""
    gate, ungate = "a scheduling gate that is not Leeboard's", "the controller that set the gate has to remove it"
    held = f"{gated} {'is' if gated == 1 else 'are'} held by {gate}"
    if exist < short.min_member:
        which = f"{exist} of {short.min_member}" if exist else f"none of {short.min_member}"
        which = f"{which} pods{of}" if short.min_member > 1 else f"no pod{of}"
        exists = "exist" if exist > 1 else "exists"
        also = f", and {held}" if gated else ""
        return f"The gang is incomplete: {which} {exists}{also}", "the controller of these pods has to create the rest"
    if exist == 1:
        return f"The only pod{of} is held by {gate}", ungate
    return f"The gang is incomplete: of {exist} pods{of}, {held}", ungate


def _others_missing(group: PodGroup, said: PodSet, members: Members) -> list[str]:
    """Return the names of the other sub-groups that lack pods."""
    if group.root is None:
        return []
    there = Counter(group.pod_set(pod) for pod in members.pods if not pod.deleting)
    there.update(members.succeeded)
    leaves = [leaf for leaf in group.root.leaves() if leaf.name != said.name]
    lacking = [
        f"{leaf.min_member - there[leaf.name]} of sub-group {leaf.name}"
        for leaf in leaves
        if there[leaf.name] < leaf.min_member
    ]
    more = len(lacking) - NAMES_SHOWN
    return [*lacking[:NAMES_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _short(group: PodGroup) -> PodSet | None:
    """Return the first pod set with fewer ready pods than it needs (KAI judges each pod set alone)."""
    if group.root is None:
        return None if len(group.pending) >= group.owed else PodSet(min_member=group.min_member)
    there = Counter(group.pod_set(pod) for pod in group.pending)
    there.update(group.held())
    return next((leaf for leaf in group.root.leaves() if there[leaf.name] < leaf.min_member), None)
