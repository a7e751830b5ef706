"""Knows which pods belong to which PodGroup and on what terms, and forms the groups anew, when somebody asks.

A group is formed anew only after something about it changed, however many changes there were: a gang of 500 pods that
arrive one by one is formed once.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from app.cluster.groups.formed import FormedGroups
from app.cluster.groups.frozen import FrozenGroups
from app.cluster.groups.groups import (
    BUILT_IN_CLASSES,
    DEFAULT_CLASS,
    NOBODY,
    GroupTerms,
    Members,
    Place,
    form,
    has_sub_groups,
    merged,
    terms,
)
from app.cluster.groups.partly_bound import TornSince
from app.cluster.groups.stamps import Stamps
from app.model.names import GroupKey, PodUid, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup, PodSet, TopologyConstraint
from app.model.reason import Refusal

NEVER = 1 << 31
"""More pods than any gang has: a PodGroup that is deleted under its gang must not let half of it start."""

Places = Callable[[Pod], Place | None]
"""Where a pod has a place: promised, binding or bound; None when it has none."""


class Membership:
    """Groups, their objects and their pods. Only `ClusterCache` calls what changes it."""

    def __init__(self, place: Places, takes_pods: Callable[[QueueName], bool] = bool) -> None:
        """Start empty; `place` tells where a pod has a place, `takes_pods` whether a queue exists and is sound."""
        self._place = place
        self._takes_pods = takes_pods
        self._classes: dict[str, int] = {}
        self._objects: dict[GroupKey, GroupSpec] = {}
        """PodGroup objects."""
        self._derived: dict[GroupKey, GroupSpec] = {}
        """What the owners of pods say of their groups, as long as these have pods."""
        self._specs: dict[GroupKey, GroupSpec] = {}
        """What counts of both."""
        self._pods: dict[GroupKey, dict[PodUid, Pod]] = {}
        self._succeeded: dict[GroupKey, dict[PodUid, str]] = {}
        """The pods that have finished well, with the sub-group that each was in."""
        self._started: dict[PodUid, float] = {}
        self._stamps = Stamps()
        self._moved: dict[GroupKey, None] = {}
        """Groups whose PodGroup object names another queue than the one with which their pods were bound."""
        self._stuck: set[PodUid] = set()
        self._overlooked: set[PodUid] = set()
        self._unasked: set[PodUid] = set()
        """Those that had a place and that kube-scheduler has not asked about since, whether they may get one again."""
        self._set_aside: dict[GroupKey, Refusal] = {}
        self._gpus_unknown = ""
        self._formed = FormedGroups()
        self._torn = TornSince()
        self._stale: set[GroupKey] = set()
        """Groups that have changed since those that wait were asked for."""
        self._unformed: set[GroupKey] = set()
        """Groups in which nobody waits, which have changed since those that run were asked for."""
        self._touched: set[GroupKey] = set()
        self._numbers = count(1)
        self._revisions: dict[GroupKey, int] = {}
        """Of the groups with pods; none is ever given twice."""

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
        return name in (
            *(spec.priority_classes if spec else ()),
            *next(iter(self._pods[key].values())).priority_classes,
        )

    def set_spec(self, key: GroupKey, spec: GroupSpec | None) -> bool:
        """Set a PodGroup object, or remove it (None); return whether anything changed."""
        _put(self._objects, key, spec)
        is_moved = self._note_move(key)
        return self._restate(key) or is_moved

    def set_derived(self, key: GroupKey, spec: GroupSpec) -> bool:
        """Set what its owners say of a group whose pods are about to join; return whether anything changed."""
        self._derived[key] = spec
        return self._restate(key)

    def _restate(self, key: GroupKey) -> bool:
        spec = merged(self._objects.get(key), self._derived.get(key))
        if self._specs.get(key) == spec:
            return False
        _put(self._specs, key, spec)
        self._forget_if_empty(key)
        self._mark(key)
        return True

    def join(self, pod: Pod) -> None:
        """Add or replace a pod in its group."""
        self._stamp(self._pods.get(pod.group, {}).get(pod.uid), pod)
        self._pods.setdefault(pod.group, {})[pod.uid] = pod
        self._mark(pod.group)

    def hear(self, pod: Pod) -> None:
        """Replace a pod by one of which kube-scheduler has said something else: no reason to form its group anew."""
        self._pods[pod.group][pod.uid] = pod

    def leave(self, pod: Pod) -> None:
        """Remove a pod from its group."""
        self._stuck.discard(pod.uid)
        self._overlooked.discard(pod.uid)
        self._unasked.discard(pod.uid)
        self._started.pop(pod.uid, None)
        members = self._pods.get(pod.group)
        if members is None:
            return
        self._stamp(members.pop(pod.uid, None), None)
        if not members:
            del self._pods[pod.group]
            self._set_aside.pop(pod.group, None)
            self._torn.forget(pod.group)
            if self._derived.pop(pod.group, None) is not None:
                self._restate(pod.group)
            self._forget_if_empty(pod.group)
        self._mark(pod.group)

    def note_start(self, pod: Pod, started_at: float) -> bool:
        """Note since when a member runs, in seconds since the epoch; return whether that is news."""
        if self._started.get(pod.uid) == started_at:
            return False
        self._started[pod.uid] = started_at
        self._mark(pod.group)
        return True

    def count_success(self, key: GroupKey, uid: PodUid, subgroup: str) -> None:
        """Count a finished member as satisfied in its sub-group, as long as its group is there."""
        if key in self._specs:
            self._succeeded.setdefault(key, {})[uid] = subgroup
            self._mark(key)

    def doubt_ending(self, key: GroupKey, uid: PodUid) -> None:
        """Call a gang stale no more until it is known how this member ended, which is gone."""
        self._formed.doubt(key, uid)
        self._mark(key)

    def trust_ending(self, key: GroupKey, uid: PodUid) -> None:
        """Take that back: it is known, or will never be."""
        self._formed.trust(key, uid)
        self._mark(key)

    def spare(self, key: GroupKey) -> None:
        """Call a gang stale no more until `unspare`: a pod of it could not be evicted."""
        self._formed.spare(key)
        self._mark(key)

    def unspare(self, key: GroupKey) -> None:
        """Take that back: enough time has passed."""
        self._formed.unspare(key)
        self._mark(key)

    def doubt_endings(self) -> None:
        """Call no gang stale until `trust_endings`: which members had finished well before is not known yet."""
        self._formed.doubt_all()

    def trust_endings(self) -> None:
        """Take that back."""
        self._formed.trust_all()

    def mark_stuck(self, pod: Pod) -> None:
        """Note that kube-scheduler's own filters accept the pod nowhere, although there seemed to be room."""
        self._stuck.add(pod.uid)
        self._mark(pod.group)

    def is_stuck(self, pod: Pod) -> bool:
        """Return whether that is so, as far as is known."""
        return pod.uid in self._stuck

    def unmark_stuck(self, pod: Pod) -> bool:
        """Note that kube-scheduler offers nodes for the pod again; return whether that is news."""
        if pod.uid not in self._stuck:
            return False
        self._stuck.discard(pod.uid)
        self._mark(pod.group)
        return True

    def overlook(self, pod: Pod) -> None:
        """Note that kube-scheduler did not ask about a pod while it had a place.

        It gets none until `note_asked` or `reconsider`.
        """
        self._overlooked.add(pod.uid)
        self._unasked.add(pod.uid)
        self._mark(pod.group)

    def is_unasked(self, pod: Pod) -> bool:
        """Return whether kube-scheduler has not asked about a pod since it had a place in vain."""
        return pod.uid in self._unasked

    def note_asked(self, pod: Pod) -> bool:
        """Note that kube-scheduler asks about a pod; return whether it gets places again by that."""
        self._unasked.discard(pod.uid)
        return self.reconsider(pod)

    def reconsider(self, pod: Pod) -> bool:
        """Let a pod get a place again: enough time has passed; return whether that is news."""
        if pod.uid not in self._overlooked:
            return False
        self._overlooked.discard(pod.uid)
        self._mark(pod.group)
        return True

    def set_aside(self, key: GroupKey, refusal: Refusal) -> None:
        """Leave a group out of planning, for this reason."""
        self._set_aside[key] = refusal
        self._mark(key)

    def doubt_gpus(self, because: str) -> None:
        """Refuse groups that are formed from now on, in these words, when a pod of theirs waits for GPUs."""
        self._gpus_unknown = because

    def trust_gpus(self) -> Collection[GroupKey]:
        """Take that back; return the groups that were refused for it: they stay so until they are touched."""
        because, self._gpus_unknown = self._gpus_unknown, ""
        waiting = self._formed.waiting.items() if because else ()
        return [key for key, group in waiting if group.refusal is not None and group.refusal.sentence == because]

    def readmit(self, key: GroupKey) -> bool:
        """Let a group take part again; return whether it had been set aside."""
        self._mark(key)
        return self._set_aside.pop(key, None) is not None

    def touch(self, key: GroupKey) -> None:
        """Have a group formed anew: something about the places of its pods has changed."""
        self._mark(key)

    # Asking ---------------------------------------------------------------------------------------------------------

    def knows_class(self, name: str) -> bool:
        """Return whether a name stands for a priority, be the class installed or KAI's."""
        return self._worth(name) is not None

    def has_class(self, name: str) -> bool:
        """Return whether the cluster has a priority class of this name."""
        return name in self._classes

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

    def constraints(self, pod: Pod) -> Sequence[TopologyConstraint]:
        """Return what the pod is to be close to others by; nothing for a pod that has nobody to be close to."""
        spec = self._specs.get(pod.group)
        if spec is None or spec.root is None or len(self._pods.get(pod.group, ())) <= 1:
            return ()
        return tuple(spec.root.constraints_on(pod.subgroup if has_sub_groups(spec) else ""))

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

    def revision(self, key: GroupKey) -> int:
        """Return a number that changes whenever anything about a group does, its pods, promises and object included."""
        return self._revisions.get(key, 0)

    def owes(self, key: GroupKey, coming: Collection[PodUid] = ()) -> int:
        """Return how many pods of a group are still to be bound before each of its pod sets has its minimum.

        Pods that are `coming` count as bound. A gang whose PodGroup is missing owes more than there can be.
        """
        spec = self._specs.get(key)
        divided = spec is not None and has_sub_groups(spec)
        there = Counter(self._succeeded_by_set(key))
        for pod in self.pods(key):
            if (pod.node is not None and not pod.deleting) or pod.uid in coming:
                there[pod.subgroup if divided else ""] += 1
        leaves = spec.root.leaves() if divided and spec and spec.root else [PodSet(min_member=self.min_member(key))]
        return sum(max(0, leaf.min_member - there[leaf.name]) for leaf in leaves)

    def terms(self, key: GroupKey) -> GroupTerms | None:
        """Return the terms of a group that has pods."""
        members = self._pods.get(key)
        return self._terms(key, self._specs.get(key), next(iter(members.values()))) if members else None

    def _terms(self, key: GroupKey, spec: GroupSpec | None, pod: Pod) -> GroupTerms:
        stated = terms(spec, pod, self._classes)
        queue = self._queue(key) or stated.queue
        preemptible = stated.preemptible or self._stamps.preemptible(key) > 0
        if (queue, preemptible) == (stated.queue, stated.preemptible):
            return stated
        return replace(stated, queue=queue, preemptible=preemptible)

    def _queue(self, key: GroupKey) -> QueueName:
        """Return the queue of a group that has started: where its PodGroup was moved to, else where it was bound.

        Empty when it has not started. A queue that takes no pods is no place to move to: nobody would pay.
        """
        named = self._objects[key].queue if key in self._moved else None
        return named if named and self._takes_pods(named) else self._stamps.queue(key)

    def moved(self) -> Collection[GroupKey]:
        """Return the groups whose queue depends on whether the queue that their PodGroup object names takes pods."""
        return list(self._moved)

    def _note_move(self, key: GroupKey) -> bool:
        """Note whether a group was moved; return whether that is news."""
        spec, bound, before = self._objects.get(key), self._stamps.queue(key), len(self._moved)
        if spec is not None and spec.queue and bound and spec.queue != bound:
            self._moved[key] = None
        else:
            self._moved.pop(key, None)
        return len(self._moved) != before

    def kept_preemptible(self, key: GroupKey, spec: GroupSpec) -> int:
        """Return how many pods keep a group preemptible that would not be with this object; 0 when it would be."""
        members = self._pods.get(key)
        stated = terms(spec, next(iter(members.values())), self._classes) if members else None
        return 0 if stated is None or stated.preemptible else self._stamps.preemptible(key)

    def has_object(self, key: GroupKey) -> bool:
        """Return whether a group has a PodGroup object."""
        return key in self._objects

    def object(self, key: GroupKey) -> GroupSpec | None:
        """Return the PodGroup object of a group, whatever its owners say."""
        return self._objects.get(key)

    def alone(self, pod: Pod, spec: GroupSpec | None = None) -> PodGroup:
        """Return the group that a pod which is not there yet would be, for a what-if; `spec` is what its owners say."""
        spec = spec or (self._specs.get(pod.group) if pod.names_group else None)
        members = Members(pods=(pod,), places={}, stuck=(), gpus_unknown=self._gpus_unknown)
        return form(pod.group, spec, members, self._terms(pod.group, spec, pod))

    # Forming --------------------------------------------------------------------------------------------------------

    def waiting(self, on_change: Callable[[GroupKey, PodGroup | None], None]) -> Mapping[GroupKey, PodGroup]:
        """Return the groups with pods that have no place; tell `on_change` which differ from when last asked."""
        stale, self._stale = self._stale, set()
        for key in stale:
            if self._put_waiting(key):
                on_change(key, self._formed.waiting.get(key))
        return self._formed.waiting

    def running(self) -> FrozenGroups[PodGroup]:
        """Return the groups that hold places, as they were when those that wait were last asked for."""
        unformed, self._unformed = self._unformed, set()
        for key in unformed:
            self._put_running(key, self._members(key))
        return self._formed.running()

    def stale_since(self) -> Mapping[GroupKey, float]:
        """Return the stale gangs with since when they are, in seconds since the epoch; not to be kept.

        One that has become stale since `age_stale` is not among them.
        """
        self.running()
        return self._formed.stale_since()

    def age_stale(self, now: float) -> bool:
        """Note which gangs have become stale or torn since last asked, in seconds since the epoch; return if any."""
        self.running()
        aged = list(dict.fromkeys((*self._formed.age(now), *self._torn.age(now))))
        for key in aged:
            self._mark(key)
        return bool(aged)

    def tell(self, touched: set[GroupKey]) -> None:
        """Add to this set from now on each group about which anything changes."""
        self._touched = touched

    def note_touched(self, key: GroupKey) -> None:
        """Note that there is something new to say of a group, which is as it was."""
        self._touched.add(key)

    def _stamp(self, before: Pod | None, pod: Pod | None) -> None:
        self._stamps.replace(before, pod)
        for one in (before, pod):
            if one is not None and one.bound_queue:
                self._note_move(one.group)

    def _mark(self, key: GroupKey) -> None:
        self._stale.add(key)
        self._touched.add(key)
        if key in self._pods:
            self._revisions[key] = next(self._numbers)
        else:
            self._revisions.pop(key, None)

    def _put_waiting(self, key: GroupKey) -> bool:
        members = self._members(key)
        if members is None or not members.waiting():
            # Who only runs is looked at when a plan is made: the members of a gang of 500 are bound one by one.
            self._unformed.add(key)
            return self._formed.put_waiting(key, None)
        self._unformed.discard(key)
        return self._formed.put_waiting(key, self._put_running(key, members))

    def _put_running(self, key: GroupKey, members: Members | None) -> PodGroup | None:
        spec, on = self._specs.get(key), self.terms(key)
        group = form(key, spec, members, on, self._set_aside.get(key)) if members and on else None
        group = self._torn.timed(group, spec, members.last_bound_at) if members else None
        return self._formed.put_running(key, group, spec)

    def _members(self, key: GroupKey) -> Members | None:
        pods = self._pods.get(key, {}).values()
        if not pods:
            return None
        return Members(
            pods=pods,
            places={pod.uid: place for pod in pods if (place := self._place(pod))},
            stuck=self._stuck,
            overlooked=self._overlooked,
            succeeded=self._succeeded_by_set(key),
            started=self._started,
            gpus_unknown=self._gpus_unknown,
        )

    def _succeeded_by_set(self, key: GroupKey) -> Mapping[str, int]:
        finished = self._succeeded.get(key)
        if not finished:
            return NOBODY
        spec = self._specs.get(key)
        return dict(Counter(finished.values())) if spec and has_sub_groups(spec) else {"": len(finished)}

    def _forget_if_empty(self, key: GroupKey) -> None:
        if key not in self._pods and key not in self._specs:
            self._succeeded.pop(key, None)


def _put(table: dict[GroupKey, GroupSpec], key: GroupKey, spec: GroupSpec | None) -> None:
    if spec is None:
        table.pop(key, None)
    else:
        table[key] = spec
