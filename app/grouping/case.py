"""Input and output of a row of the table: a pod with its owners, and the shape of its PodGroup."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.grouping.defaults import Default, GroupingDefaults
from app.model.owner import Kind, Origin, Owner
from app.model.pod import Pod
from app.model.seam import RawObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The owners of a pod, and access to other objects of its namespace."""

    owners: tuple[Owner, ...] = ()
    """From the pod's own owner up, as far as they may be read; empty for a pod without an owner."""
    find: Callable[[Kind, str], Owner | None] = lambda *_: None
    """Return the object of this kind and name in the pod's namespace, if it is known."""
    siblings: Callable[[], Iterable[Pod]] = tuple
    """Return the unfinished pods with the same top owner, including this pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pod to be grouped."""

    pod: Pod
    origin: Origin
    owners: tuple[Owner, ...]
    """From the pod's own owner up to the owner that decides; never empty."""
    chain: Chain
    """The input chain, including the owners that let the one below decide."""
    defaults: GroupingDefaults

    @property
    def owner(self) -> Owner:
        """The owner whose kind selects the row."""
        return self.owners[-1]

    @property
    def default(self) -> Default:
        """The administrators' defaults for this kind."""
        return self.defaults.of(self.owner.ref.kind)

    def label(self, key: str) -> str:
        """Return a label of the pod; empty when it is absent."""
        return self.origin.labels.get(key, "")

    def owner_of_kind(self, group: str, name: str) -> Owner | None:
        """Return the owner of this kind, in any version."""
        mine = (one for one in self.owners if (one.ref.kind.group, one.ref.kind.name) == (group, name))
        return next(mine, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """What a row decides about a PodGroup. All else is the same for every kind (`terms`)."""

    min_member: int = 1
    parts: tuple[RawObject, ...] = ()
    """The sub-groups, as in a PodGroup's `spec.subGroups`; empty when there are none."""
    subgroup: str = ""
    """The sub-group of the pod."""
    name: str = ""
    """The name of the PodGroup; empty when the owner's name decides."""
    owner: Owner | None = None
    """The owner of the PodGroup object; None means the owner whose kind selects the row."""
    alone: bool = False
    """No other pod ever joins, so the PodGroup belongs to the pod."""
    priority_classes: tuple[str, ...] = ()
    """They take precedence over those of owners and pods."""
    topology: RawObject | None = None
    """The topology constraint of all pods; empty for none, None when the owner's annotations decide."""
    asked_for: bool = False
    problem: str = ""


Shaping = Callable[[Case], GroupShape]
