"""Where pods come from: the objects that own them, as far as grouping them into PodGroups needs to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.seam import RawObject


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, as a reference names it."""

    group: str
    """Empty for the core group."""
    version: str
    name: str

    @classmethod
    def of(cls, api_version: str, name: str) -> "Kind":
        """Take `apiVersion` and `kind` of a reference."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, name)

    @property
    def api_version(self) -> str:
        """As references write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __repr__(self) -> str:
        return f"{self.name}.{self.group}/{self.version}" if self.group else f"{self.name}.{self.version}"


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """An object as those name it that it owns."""

    kind: Kind
    name: str
    uid: str = ""
    """Empty: named by a label, so whichever has that name now."""

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.name}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An object that owns pods, or owns their owner."""

    ref: OwnerRef
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: OwnerRef | None = None
    """Its controller, else the first that it names."""
    fields: RawObject = field(default_factory=dict)
    """`spec` and `status`, without what containers run; empty where `Depth.METADATA` is enough."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    problem: str = ""
    """What its owner must change before its pods can be grouped, without a full stop; empty when nothing."""

    def __repr__(self) -> str:
        return f"<{self.ref.kind.name} {self.namespace}/{self.ref.name}>"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a pod comes from: who owns it, and those of its labels and annotations that grouping reads.

    Pods of one template share one value.
    """

    owner: OwnerRef | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The PodGroup that a pod belongs to, as its owners say; `alone` is a group of its own."""

    name: str
    """Of the PodGroup object, in the pod's namespace."""
    alone: bool = False
    """No other pod ever joins this one."""
    spec: RawObject = field(default_factory=dict)
    """In the form of a PodGroup's `spec` (`minMember`, `queue`, `preemptibility`, `subGroups`, `topologyConstraint`),
    save for its priority class."""
    priority_classes: tuple[str, ...] = ()
    """By name; the first that exists counts."""
    owner: OwnerRef | None = None
    """Of the PodGroup object; None for the pod itself."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the PodGroup object."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the PodGroup object."""
    subgroup: str = ""
    """The sub-group of the pod; empty when there are none, or the pod says it itself."""
    created_at: float = 0.0
    """Of the group, in seconds since the epoch."""
    asked_for: bool = False
    """Its owner wants the object to exist, even where it says nothing."""
    suspended: str = ""
    """One sentence when an owner is suspended, so that no more pods come; else empty."""
    problem: str = ""
    """One sentence for its owner when what the owners say cannot be used; empty when it can."""
