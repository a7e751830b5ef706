"""Keeps PodGroup objects, what the owners of pods state about groups, and the priority classes that both name."""

from collections.abc import Collection, Mapping

from app.cluster.groups.terms import BUILT_IN_CLASSES, DEFAULT_CLASS, merged
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.podgroup import GroupSpec


class GroupSpecs:
    """What objects and owners state about groups. Only `Membership` calls the methods that change it."""

    def __init__(self) -> None:
        """Start empty."""
        self._classes: dict[str, int] = {}
        self._objects: dict[GroupKey, GroupSpec] = {}
        """PodGroup objects."""
        self._derived: dict[GroupKey, GroupSpec] = {}
        """What the owners of pods state about their groups, as long as the groups have pods."""
        self._specs: dict[GroupKey, GroupSpec] = {}
        """The result of both."""

    def put_class(self, name: str, value: int | None) -> bool:
        """Set a priority class, or remove it (None); return whether the name has another value now."""
        before = self._worth(name)
        if value is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = value
        return self._worth(name) != before

    def put_object(self, key: GroupKey, spec: GroupSpec | None) -> bool:
        """Set a PodGroup object, or remove it (None); return whether the result has changed."""
        _put(self._objects, key, spec)
        return self._restate(key)

    def put_derived(self, key: GroupKey, spec: GroupSpec) -> bool:
        """Set what its owners state about a group; return whether the result has changed."""
        self._derived[key] = spec
        return self._restate(key)

    def drop_derived(self, key: GroupKey) -> bool:
        """Forget what its owners state about a group; return whether the result has changed."""
        return self._derived.pop(key, None) is not None and self._restate(key)

    @property
    def classes(self) -> Mapping[str, int]:
        """The priority classes of the cluster, by name."""
        return self._classes

    def knows_class(self, name: str) -> bool:
        """Return whether a name stands for a priority: a class of the cluster, or a built-in class of KAI."""
        return self._worth(name) is not None

    def has_class(self, name: str) -> bool:
        """Return whether the cluster has a priority class of this name."""
        return name in self._classes

    def depends_on(self, key: GroupKey, name: str, pod: Pod) -> bool:
        """Whether the terms of a group may depend on a priority class; `pod` is its first."""
        spec = self._specs.get(key)
        return name in (DEFAULT_CLASS, *(spec.priority_classes if spec else ()), *pod.priority_classes)

    def all(self) -> Collection[GroupSpec]:
        """Return the resulting specs of all groups; the caller must not keep the value across an await."""
        return self._specs.values()

    def get(self, key: GroupKey) -> GroupSpec | None:
        """Return the resulting spec of a group: of its PodGroup object and the owners of its pods."""
        return self._specs.get(key)

    def object(self, key: GroupKey) -> GroupSpec | None:
        """Return the PodGroup object of a group, whatever its owners state."""
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
