"""The objects that own pods, as far as grouping pods into PodGroups needs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.seam import RawObject


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of an object, as a reference names it."""

    group: str
    """Empty for the core group."""
    version: str
    name: str

    @classmethod
    def of(cls, api_version: str, name: str) -> "Kind":
        """Build it from `apiVersion` and `kind` of a reference."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, name)

    @property
    def api_version(self) -> str:
        """The `apiVersion` of a reference."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __repr__(self) -> str:
        return f"{self.name}.{self.group}/{self.version}" if self.group else f"{self.name}.{self.version}"


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """An object, as an owner reference of another object names it."""

    kind: Kind
    name: str
    uid: str = ""
    """Empty when a label names the object: any object that has this name now."""

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.name}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An object that owns pods, or that owns an owner of pods."""

    ref: OwnerRef
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: OwnerRef | None = None
    """The controller, or else the first owner in its list."""
    fields: RawObject = field(default_factory=dict)
    """`spec` and `status` without the container specs; empty when `Depth.METADATA` is enough."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    problem: str = ""
    """What the object's author must change before its pods can be grouped, without a full stop; empty when nothing."""

    def __repr__(self) -> str:
        return f"<{self.ref.kind.name} {self.namespace}/{self.ref.name}>"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a pod: its owner, and the labels and annotations that grouping reads.

    Pods of one template share one value.
    """

    owner: OwnerRef | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    native_group: str = ""
    """The native PodGroup that `spec.schedulingGroup` names; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The PodGroup of a pod, derived from its owners. A pod with `alone` is its own group."""

    name: str
    """The name of the PodGroup object, in the pod's namespace."""
    alone: bool = False
    """No other pod ever joins this group."""
    spec: RawObject = field(default_factory=dict)
    """In the form of a PodGroup's `spec` (`minMember`, `queue`, `preemptibility`, `subGroups`, `topologyConstraint`),
    without its priority class.
    """
    priority_classes: tuple[str, ...] = ()
    """By name; the first that exists applies."""
    owner: OwnerRef | None = None
    """The owner of the PodGroup object; None means the pod itself."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of the PodGroup object."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations of the PodGroup object."""
    subgroup: str = ""
    """The pod's sub-group; empty when there are none, or when the pod names it itself."""
    created_at: float = 0.0
    """When the group was created, in seconds since the epoch."""
    asked_for: bool = False
    """The owner requires the object, even when it adds no information."""
    suspended: str = ""
    """One sentence when an owner is suspended, so that no further pods are created; otherwise empty."""
    problem: str = ""
    """One sentence for the owner when its data cannot be used; empty when it can."""
