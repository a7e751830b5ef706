"""Keeps PodGroup objects, what the owners of pods say of their groups, and the priority classes that both name."""

from collections.abc import Collection, Mapping

from app.cluster.groups.terms import BUILT_IN_CLASSES, DEFAULT_CLASS, merged
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.podgroup import GroupSpec


class GroupSpecs:
    """What is stated of groups. Only `Membership` calls what changes it."""

    def __init__(self) -> None:
        """Start with nothing stated."""
        self._classes: dict[str, int] = {}
        self._objects: dict[GroupKey, GroupSpec] = {}
        """PodGroup objects."""
        self._derived: dict[GroupKey, GroupSpec] = {}
        """What the owners of pods say of their groups, as long as these have pods."""
        self._specs: dict[GroupKey, GroupSpec] = {}
        """What counts of both."""

    def put_class(self, name: str, value: int | None) -> bool:
        """Set a priority class, or remove it (None); return whether the name is worth something else now."""
        before = self._worth(name)
        if value is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = value
        return self._worth(name) != before

    def put_object(self, key: GroupKey, spec: GroupSpec | None) -> bool:
        """Set a PodGroup object, or remove it (None); return whether something else counts now."""
        _put(self._objects, key, spec)
        return self._restate(key)

    def put_derived(self, key: GroupKey, spec: GroupSpec) -> bool:
        """Set what its owners say of a group; return whether something else counts now."""
        self._derived[key] = spec
        return self._restate(key)

    def drop_derived(self, key: GroupKey) -> bool:
        """Forget what its owners say of a group; return whether something else counts now."""
        return self._derived.pop(key, None) is not None and self._restate(key)

    @property
    def classes(self) -> Mapping[str, int]:
        """The priority classes of the cluster, by name."""
        return self._classes

    def knows_class(self, name: str) -> bool:
        """Return whether a name stands for a priority, be the class installed or KAI's."""
        return self._worth(name) is not None

    def has_class(self, name: str) -> bool:
        """Return whether the cluster has a priority class of this name."""
        return name in self._classes

    def depends_on(self, key: GroupKey, name: str, pod: Pod) -> bool:
        """Whether a priority class may count for a group; `pod` is its first."""
        spec = self._specs.get(key)
        return name in (DEFAULT_CLASS, *(spec.priority_classes if spec else ()), *pod.priority_classes)

    def all(self) -> Collection[GroupSpec]:
        """Return what counts of all groups; not to be kept across an await."""
        return self._specs.values()

    def get(self, key: GroupKey) -> GroupSpec | None:
        """Return what counts of a group: its PodGroup object, and what the owners of its pods say."""
        return self._specs.get(key)

    def object(self, key: GroupKey) -> GroupSpec | None:
        """Return the PodGroup object of a group, whatever its owners say."""
        return self._objects.get(key)

    def _worth(self, name: str) -> int | None:
        return self._classes.get(name, BUILT_IN_CLASSES.get(name))

    def _restate(self, key: GroupKey) -> bool:
        spec = merged(self._objects.get(key), self._derived.get(key))
        if self._specs.get(key) == spec:
            return False
        _put(self._specs, key, spec)
        return True


def _put(table: dict[GroupKey, GroupSpec], key: GroupKey, spec: GroupSpec | None) -> None:
    if spec is None:
        table.pop(key, None)
    else:
        table[key] = spec
