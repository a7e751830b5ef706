"""A PodGroup: the pods that start together, and the conditions for starting them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from app.model.names import GroupKey, QueueName
from app.model.owner import OwnerRef
from app.model.pod import Placed, Pod
from app.model.reason import Refusal

FOREVER_S = inf
"""A grace period without end."""


@dataclass(frozen=True, slots=True)
class TopologyConstraint:
    """How close together pods must (`required`) or should (`preferred`) be: label keys of a Topology's levels."""

    topology: str
    """Empty in the constraint of a native PodGroup: its level is any label key of nodes, without a Topology."""
    required: str = ""
    preferred: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """A leaf of the tree of sub-groups: pods of one role. At least `min_member` of them start together, or none."""

    name: str = ""
    min_member: int = 1
    topology: TopologyConstraint | None = None

    def leaves(self) -> "Iterator[PodSet]":
        """Yield this pod set, as a tree of one leaf."""
        yield self


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGroup:
    """An inner node of the tree of sub-groups. The root is the whole PodGroup."""

    name: str = ""
    topology: TopologyConstraint | None = None
    groups: "tuple[SubGroup, ...]" = ()
    pod_sets: tuple[PodSet, ...] = ()

    def leaves(self) -> Iterator[PodSet]:
        """Yield the pod sets of the tree, those of inner groups first."""
        for group in self.groups:
            yield from group.leaves()
        yield from self.pod_sets

    def constrained(self) -> "Iterator[tuple[SubGroup | PodSet, TopologyConstraint]]":
        """Yield the parts of the tree that have a topology constraint, with the constraint, outer parts first."""
        if self.topology is not None:
            yield self, self.topology
        for group in self.groups:
            yield from group.constrained()
        for leaf in self.pod_sets:
            if leaf.topology is not None:
                yield leaf, leaf.topology

    def constraints_on(self, pod_set: str) -> Iterator[TopologyConstraint]:
        """Yield the constraints that apply to a pod set: those of the sub-groups around it and its own."""
        for part, constraint in self.constrained():
            if any(leaf.name == pod_set for leaf in part.leaves()):
                yield constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """The PodGroup object as its owner wrote it."""

    key: GroupKey
    uid: str = ""
    queue: QueueName | None = None
    min_member: int = 1
    priority_classes: tuple[str, ...] = ()
    """By name; the first that exists applies."""
    preemptible: bool | None = None
    """None means that the priority decides (below 100 is preemptible, KAI's rule)."""
    created_at: float = 0.0
    root: SubGroup | None = None
    """The sub-groups and topology; None when all pods are one pod set of `min_member` without a topology."""
    stale_grace_s: float | None = None
    """How long the group may run with fewer pods than its minimum before all its pods are evicted.

    `FOREVER_S` means that its missing pods are replaced instead; None means that the policy decides.
    """
    evicted_whole: bool = False
    """All its pods are evicted together, also those beyond its minimum."""
    owner: OwnerRef | None = None
    """The owner of the object. The object is deleted with its owner."""
    derived: bool = False
    """The spec is derived from the owners of the pods. `uid` is empty as long as no PodGroup object repeats it."""
    suspended: str = ""
    """One sentence when the owner is suspended, so that no further pods are created; empty when it is not."""
    problem: str = ""
    """One sentence for the owner when the object cannot be used; empty when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """A PodGroup with its pods, frozen for one plan. A pod without a PodGroup is a PodGroup of one."""

    key: GroupKey
    queue: QueueName
    priority: int = 0
    preemptible: bool = True
    min_member: int = 1
    """Of all pod sets together."""
    root: SubGroup | None = None
    """The sub-groups and topology; None when all pods are one pod set of `min_member` without a topology."""
    created_at: float = 0.0
    pending: tuple[Pod, ...] = ()
    """Pods without a place, in the order in which they start."""
    placed: tuple[Placed, ...] = ()
    """Pods that hold a place and keep it: reserved, being bound, or bound, and not being deleted."""
    succeeded: Mapping[str, int] = field(default_factory=dict)
    """By pod set. Succeeded pods count towards the minimum, because a gang that is ending is not a broken gang."""
    started_at: float | None = None
    """When the first of the placed pods started, in seconds since the epoch; None when none is bound."""
    stale_grace_s: float | None = None
    """The group's own limit on how long it may be stale before all its pods are evicted; None means that the policy
    decides.
    """
    evicted_whole: bool = False
    """All its pods are evicted together, also those beyond its minimum."""
    stale_since: float | None = None
    """Since when it holds pods, but fewer than its minimum, in seconds since the epoch; None when this is not so."""
    torn_since: float | None = None
    """Since when some pods, but fewer than the minimum, are bound, in seconds since the epoch. Reservations do not
    count.

    None when this is not so, or when the time is not recorded yet.
    """
    refusal: Refusal | None = None
    """Set when the group cannot be considered at all, whatever is free."""

    @property
    def name(self) -> str:
        """The name for people. A pod without a PodGroup is shown by the pod's name, not its uid."""
        first = self.pending[0] if self.pending else self.placed[0].pod if self.placed else None
        return self.key.name if first is None or first.names_group else first.name

    @property
    def tree(self) -> SubGroup:
        """The tree of sub-groups. A group without sub-groups has one pod set."""
        return self.root or SubGroup(pod_sets=(PodSet(min_member=self.min_member),))

    def unsaved_s(self, now: float) -> float:
        """Return for how many seconds of work an eviction loses at most: since the start, or the last checkpoint."""
        if self.started_at is None:
            return 0.0
        return min(now - self.started_at, max((one.pod.checkpoint_s for one in self.placed), default=inf))

    def pod_set(self, pod: Pod) -> str:
        """Return the name of the pod set that the pod belongs to."""
        return pod.subgroup if self.root is not None else ""

    @property
    def active(self) -> int:
        """The number of pods that hold a place and keep it."""
        return len(self.placed)

    @property
    def owed(self) -> int:
        """How many more pods must start together, over all pod sets; 0 when the gang already runs."""
        if self.root is None:
            if not self.placed and not self.succeeded:  # as most groups that wait
                return self.min_member
            return max(0, self.min_member - len(self.placed) - sum(self.succeeded.values()))
        held = self.held()
        return sum(max(0, leaf.min_member - held.get(leaf.name, 0)) for leaf in self.root.leaves())

    def held(self) -> dict[str, int]:
        """Return how many pods of each pod set are placed or have succeeded."""
        held = Counter(self.succeeded)
        # This is called after each pod, also for elastic groups of thousands of pods.
        held.update(Counter({"": self.active}) if self.root is None else [one.pod.subgroup for one in self.placed])
        return held

    @property
    def started(self) -> bool:
        """Whether some pods hold a place while others are missing. Such a group is completed before new ones start."""
        return bool(self.placed)

    def __repr__(self) -> str:
        return f"<PodGroup {self.key} {self.active}+{len(self.pending)}/{self.min_member}>"
