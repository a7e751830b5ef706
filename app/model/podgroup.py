"""A PodGroup: the pods that start together, and what it takes to start them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from app.model.names import GroupKey, QueueName
from app.model.owner import OwnerRef
from app.model.pod import Placed, Pod
from app.model.reason import Refusal

FOREVER_S = inf
"""A grace that is never over."""


@dataclass(frozen=True, slots=True)
class TopologyConstraint:
    """How close together pods must (`required`) or should (`preferred`) be: node label keys of a Topology's levels."""

    topology: str
    required: str = ""
    preferred: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """A leaf of the tree of sub-groups: pods of one role, of which `min_member` start together or none."""

    name: str = ""
    min_member: int = 1
    topology: TopologyConstraint | None = None

    def leaves(self) -> "Iterator[PodSet]":
        """Yield itself, as a tree of one."""
        yield self


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGroup:
    """An inner node of the tree; the root stands for the whole PodGroup."""

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
        """Yield the parts of the tree that have a topology, with it, the outer ones first."""
        if self.topology is not None:
            yield self, self.topology
        for group in self.groups:
            yield from group.constrained()
        for leaf in self.pod_sets:
            if leaf.topology is not None:
                yield leaf, leaf.topology

    def constraints_on(self, pod_set: str) -> Iterator[TopologyConstraint]:
        """Yield the constraints that a pod set stands under: those of the sub-groups around it and its own."""
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
    """By name; the first that exists counts."""
    preemptible: bool | None = None
    """None: decided by the priority (below 100 is preemptible, KAI's rule)."""
    created_at: float = 0.0
    root: SubGroup | None = None
    """Its sub-groups and topology; None when all its pods are one pod set of `min_member`, wherever they run."""
    stale_grace_s: float | None = None
    """For how long it may hold less than its minimum before all of it has to leave; `FOREVER_S` has it repaired in
    place, None leaves it to the policy."""
    owner: OwnerRef | None = None
    """Of the object: with it, the object goes."""
    derived: bool = False
    """Said by the owners of its pods; `uid` is empty as long as no object repeats it."""
    suspended: str = ""
    """One sentence when its owner is suspended, so that no more pods come; empty when it is not."""
    problem: str = ""
    """One sentence for its owner when the object cannot be used; empty when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """A PodGroup with its pods, frozen for one plan; a pod alone is a PodGroup of one."""

    key: GroupKey
    queue: QueueName
    priority: int = 0
    preemptible: bool = True
    min_member: int = 1
    """Of all pod sets together."""
    root: SubGroup | None = None
    """Its sub-groups and topology; None when all its pods are one pod set of `min_member`, wherever they run."""
    created_at: float = 0.0
    pending: tuple[Pod, ...] = ()
    """Pods that hold nothing yet, in the order in which they start."""
    placed: tuple[Placed, ...] = ()
    """Pods that hold resources and keep them: promised, being bound, or bound, and not being deleted."""
    succeeded: Mapping[str, int] = field(default_factory=dict)
    """By pod set: finished pods count as satisfied, since a gang that is ending is not a broken gang."""
    started_at: float | None = None
    """Seconds since the epoch: since when it runs (the first of its placed pods); None when none is bound."""
    stale_grace_s: float | None = None
    """For how long it may be stale before all of it has to leave, as it says itself; None leaves it to the policy."""
    stale_since: float | None = None
    """Seconds since the epoch: since when it holds pods but fewer than its minimum; None when it does not."""
    torn_since: float | None = None
    """Seconds since the epoch: since when some of its pods are bound, and fewer than its minimum, whatever is promised
    to the others; None when they are not, or when nobody has noted the time yet."""
    refusal: Refusal | None = None
    """Set when the group cannot be considered at all, whatever is free."""

    @property
    def name(self) -> str:
        """How people know it: one that is a pod alone goes by the name of the pod, not its uid."""
        first = self.pending[0] if self.pending else self.placed[0].pod if self.placed else None
        return self.key.name if first is None or first.names_group else first.name

    @property
    def tree(self) -> SubGroup:
        """The tree of its sub-groups; of a group without any, one pod set."""
        return self.root or SubGroup(pod_sets=(PodSet(min_member=self.min_member),))

    def pod_set(self, pod: Pod) -> str:
        """Return the name of the pod set that the pod belongs to."""
        return pod.subgroup if self.root is not None else ""

    @property
    def active(self) -> int:
        """How many pods hold resources and keep them."""
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
        """Return how many pods of each pod set are placed or have finished well."""
        held = Counter(self.succeeded)
        # Elastic groups of thousands of pods are asked again after each of them.
        held.update(Counter({"": self.active}) if self.root is None else [one.pod.subgroup for one in self.placed])
        return held

    @property
    def started(self) -> bool:
        """Whether some pods hold resources while others are owed: it must be completed before anything new."""
        return bool(self.placed)

    def __repr__(self) -> str:
        return f"<PodGroup {self.key} {self.active}+{len(self.pending)}/{self.min_member}>"
