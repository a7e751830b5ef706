"""Knows which pods belong to which PodGroup and on what terms, and forms the groups that wait, when somebody asks.

A group is formed anew only after something about it changed, however many changes there were: a gang of 500 pods that
arrive one by one is formed once.
"""

from collections.abc import Callable, Collection, Mapping

from app.cluster.groups import BUILT_IN_CLASSES, DEFAULT_CLASS, Members, Terms, form, terms
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.reason import Refusal

NEVER = 1 << 31
"""More pods than any gang has: a PodGroup that is deleted under its gang must not let half of it start."""

Holds = Callable[[Pod], bool]
"""Whether a pod has a place: promised, binding or bound."""


class Membership:
    """Groups, their objects and their pods. Only `ClusterCache` calls what changes it."""

    def __init__(self, holds: Holds) -> None:
        """Start empty; `holds` tells whether a pod has a place."""
        self._holds = holds
        self._classes: dict[str, int] = {}
        self._specs: dict[GroupKey, GroupSpec] = {}
        self._pods: dict[GroupKey, dict[PodUid, Pod]] = {}
        self._succeeded: dict[GroupKey, set[PodUid]] = {}
        self._stuck: set[PodUid] = set()
        self._set_aside: dict[GroupKey, Refusal] = {}
        self._waiting: dict[GroupKey, PodGroup] = {}
        self._stale: set[GroupKey] = set()
        self._touched: set[GroupKey] = set()

    # Changing -------------------------------------------------------------------------------------------------------

    def set_class(self, name: str, value: int | None) -> Collection[GroupKey]:
        """Set a priority class, or remove it (None); return the groups whose terms may have changed."""
        before = self._worth(name)
        if value is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = value
        if self._worth(name) == before:
            return ()
        affected = [key for key in self._pods if self._depends_on(key, name)]
        for key in affected:
            self._mark(key)
        return affected

    def _worth(self, name: str) -> int | None:
        return self._classes.get(name, BUILT_IN_CLASSES.get(name))

    def _depends_on(self, key: GroupKey, name: str) -> bool:
        if name == DEFAULT_CLASS:
            return True
        spec = self._specs.get(key)
        named = (spec.priority_class if spec else "", next(iter(self._pods[key].values())).priority_class)
        return name in named

    def set_spec(self, key: GroupKey, spec: GroupSpec | None) -> bool:
        """Set a PodGroup object, or remove it (None); return whether anything changed."""
        if self._specs.get(key) == spec:
            return False
        if spec is None:
            del self._specs[key]
            self._forget_if_empty(key)
        else:
            self._specs[key] = spec
        self._mark(key)
        return True

    def join(self, pod: Pod) -> None:
        """Add or replace a pod in its group."""
        self._pods.setdefault(pod.group, {})[pod.uid] = pod
        self._mark(pod.group)

    def leave(self, pod: Pod) -> None:
        """Remove a pod from its group."""
        self._stuck.discard(pod.uid)
        members = self._pods.get(pod.group)
        if members is None:
            return
        members.pop(pod.uid, None)
        if not members:
            del self._pods[pod.group]
            self._set_aside.pop(pod.group, None)
            self._forget_if_empty(pod.group)
        self._mark(pod.group)

    def count_success(self, key: GroupKey, uid: PodUid) -> None:
        """Count a finished member as satisfied, as long as its group is there."""
        if key in self._specs:
            self._succeeded.setdefault(key, set()).add(uid)
            self._mark(key)

    def mark_stuck(self, pod: Pod) -> None:
        """Note that kube-scheduler's own filters accept the pod nowhere, although there seemed to be room."""
        self._stuck.add(pod.uid)
        self._mark(pod.group)

    def unmark_stuck(self, pod: Pod) -> bool:
        """Note that kube-scheduler offers nodes for the pod again; return whether that is news."""
        if pod.uid not in self._stuck:
            return False
        self._stuck.discard(pod.uid)
        self._mark(pod.group)
        return True

    def set_aside(self, key: GroupKey, refusal: Refusal) -> None:
        """Leave a group out of planning, for this reason."""
        self._set_aside[key] = refusal
        self._mark(key)

    def readmit(self, key: GroupKey) -> bool:
        """Let a group take part again; return whether it had been set aside."""
        self._mark(key)
        return self._set_aside.pop(key, None) is not None

    def touch(self, key: GroupKey) -> None:
        """Have a group formed anew: something about the places of its pods has changed."""
        self._mark(key)

    # Asking ---------------------------------------------------------------------------------------------------------

    def keys(self) -> Collection[GroupKey]:
        """Return the groups that have pods."""
        return self._pods.keys()

    def pods(self, key: GroupKey) -> Collection[Pod]:
        """Return the pods of a group; not to be kept across an await."""
        return self._pods.get(key, {}).values()

    def specs(self) -> Collection[GroupSpec]:
        """Return all PodGroup objects; not to be kept across an await."""
        return self._specs.values()

    def spec(self, key: GroupKey) -> GroupSpec | None:
        """Return a PodGroup object."""
        return self._specs.get(key)

    def min_member(self, key: GroupKey) -> int:
        """Return how many pods of a group must start together; more than there can be while its PodGroup is missing."""
        spec = self._specs.get(key)
        if spec is not None:
            return spec.min_member
        return NEVER if any(pod.names_group for pod in self.pods(key)) else 1

    def bound(self, key: GroupKey) -> int:
        """Return how many pods of a group are bound and stay, or have finished well."""
        staying = sum(pod.node is not None and not pod.deleting for pod in self.pods(key))
        return staying + len(self._succeeded.get(key, ()))

    def terms(self, key: GroupKey) -> Terms | None:
        """Return the terms of a group that has pods."""
        members = self._pods.get(key)
        return terms(self._specs.get(key), next(iter(members.values())), self._classes) if members else None

    def alone(self, pod: Pod) -> PodGroup:
        """Return the group that a pod which is not there yet would be, for a what-if."""
        spec = self._specs.get(pod.group) if pod.names_group else None
        members = Members(pods=(pod,), held=frozenset(), stuck=())
        return form(pod.group, spec, members, terms(spec, pod, self._classes))

    def waiting(self, on_change: Callable[[GroupKey, PodGroup | None], None]) -> Mapping[GroupKey, PodGroup]:
        """Return the groups with pods that have no place; tell `on_change` which differ from when last asked."""
        stale, self._stale = self._stale, set()
        for key in stale:
            group = self._formed(key)
            if group != self._waiting.get(key):
                self._replace(key, group)
                on_change(key, group)
        return self._waiting

    def take_touched(self) -> set[GroupKey]:
        """Return, once, the groups about which anything has changed since last asked."""
        touched, self._touched = self._touched, set()
        return touched

    def _mark(self, key: GroupKey) -> None:
        self._stale.add(key)
        self._touched.add(key)

    def _replace(self, key: GroupKey, group: PodGroup | None) -> None:
        if group is None:
            del self._waiting[key]
        else:
            self._waiting[key] = group

    def _formed(self, key: GroupKey) -> PodGroup | None:
        pods, on = self.pods(key), self.terms(key)
        if on is None:
            return None
        held = frozenset(pod.uid for pod in pods if self._holds(pod))
        members = Members(pods=pods, held=held, stuck=self._stuck, succeeded=len(self._succeeded.get(key, ())))
        if not members.waits():
            return None
        group = form(key, self._specs.get(key), members, on, self._set_aside.get(key))
        return group if group.pending or group.refusal else None

    def _forget_if_empty(self, key: GroupKey) -> None:
        if key not in self._pods and key not in self._specs:
            self._succeeded.pop(key, None)
