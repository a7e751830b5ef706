"""What a row of the table is asked, and what it answers: a pod with its owners in, the shape of its PodGroup out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.grouping.defaults import Default, GroupingDefaults
from app.model.owner import Kind, Origin, Owner
from app.model.pod import Pod
from app.model.seam import RawObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The owners of a pod, and what else of its namespace a row may ask for."""

    owners: tuple[Owner, ...] = ()
    """From the pod's own owner up, as far as they may be read; empty for a pod that nobody owns."""
    find: Callable[[Kind, str], Owner | None] = lambda *_: None
    """Return the object of this kind and name in the pod's namespace, if it is known."""
    siblings: Callable[[], Iterable[Pod]] = tuple
    """Return the pods, this one among them, that have the same top owner and have not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pod to be grouped."""

    pod: Pod
    origin: Origin
    owners: tuple[Owner, ...]
    """From the pod's own owner up to the one that decides; never empty."""
    chain: Chain
    """As it was given: with the owners that let the one below decide."""
    defaults: GroupingDefaults

    @property
    def owner(self) -> Owner:
        """The one whose kind the row is of."""
        return self.owners[-1]

    @property
    def default(self) -> Default:
        """What administrators say of the kind that the row is of."""
        return self.defaults.of(self.owner.ref.kind)

    def label(self, key: str) -> str:
        """Return a label of the pod, empty when it has none."""
        return self.origin.labels.get(key, "")

    def owner_of_kind(self, group: str, name: str) -> Owner | None:
        """Return the owner of this kind, whatever its version."""
        mine = (one for one in self.owners if (one.ref.kind.group, one.ref.kind.name) == (group, name))
        return next(mine, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """What a row says of a PodGroup; all else is the same for every kind (`terms`)."""

    min_member: int = 1
    parts: tuple[RawObject, ...] = ()
    """Its sub-groups, as in a PodGroup's `spec.subGroups`; empty when it is not divided."""
    subgroup: str = ""
    """The sub-group of the pod."""
    name: str = ""
    """Of the PodGroup; empty when its owner names it."""
    owner: Owner | None = None
    """Whose object the PodGroup is; None for the one whose kind the row is of."""
    alone: bool = False
    """No other pod ever joins it, so that it is the pod's own."""
    priority_classes: tuple[str, ...] = ()
    """To be tried before those that any owner or pod names."""
    topology: RawObject | None = None
    """Where all its pods must run; empty for anywhere, None when annotations of the owner say it."""
    asked_for: bool = False
    problem: str = ""


Shaping = Callable[[Case], GroupShape]
