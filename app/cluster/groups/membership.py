"""Keeps which pods belong to which PodGroup, and forms the groups again when they are read.

A group is formed again only after a change, and once for any number of changes: a gang of 500 pods that are created one
by one is formed once. Its attributes are parts that keep further facts about groups.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from app.cluster.changes import ChangeLog
from app.cluster.groups.asked import AskedPods
from app.cluster.groups.formed import FormedGroups
from app.cluster.groups.frozen import FrozenGroups
from app.cluster.groups.groups import Members, Place, form, has_sub_groups
from app.cluster.groups.partly_bound import TornSince
from app.cluster.groups.progress import GangProgress
from app.cluster.groups.specs import GroupSpecs
from app.cluster.groups.staleness import Staleness
from app.cluster.groups.started import StartedTerms
from app.cluster.groups.touched import Touched
from app.cluster.groups.unsettled import UnsettledGroups
from app.cluster.queues.tree import Queues
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup, TopologyConstraint
from app.model.reason import Refusal

UNLISTED_GPUS = "Leeboard cannot list GpuNodes now, so it does not know which GPUs work; its /readyz says why."

Places = Callable[[Pod], Place | None]
"""The place of a pod: promised, binding or bound; None when the pod has none."""


class Membership:
    """Groups and their pods. Only `ClusterCache` calls `set_*`, `join`, `hear`, `leave` and `note_start`."""

    def __init__(self, place: Places, queues: Queues | None = None, changes: ChangeLog | None = None) -> None:
        """Start empty; `place` returns the place of a pod."""
        self._place = place
        self._pods: dict[GroupKey, dict[PodUid, Pod]] = {}
        changes = changes or ChangeLog()
        self.touched = Touched(self._pods, changes)
        """Which groups have changed."""
        self.specs = GroupSpecs()
        """What objects and owners state about groups; changed through `Membership` alone."""
        self.terms = StartedTerms(self.specs, self._pods, queues or Queues())
        """Queue and priority of groups."""
        self.progress = GangProgress(self.specs, self._pods, self.touched)
        """How many pods gangs need, and have."""
        self.staleness = Staleness(self.touched)
        """Which gangs are stale."""
        self.asked = AskedPods(self.touched)
        """Which pods kube-scheduler does not handle."""
        self.unsettled = UnsettledGroups(changes)
        """Which pending groups must be planned."""
        self._started: dict[PodUid, float] = {}
        self._set_aside: dict[GroupKey, Refusal] = {}
        self._gpus_unknown = ""
        self._formed = FormedGroups()
        self._torn = TornSince()
        self._unformed: dict[GroupKey, None] = {}
        """Groups without pending pods that have changed since the running groups were last read."""

    # Changing -------------------------------------------------------------------------------------------------------

    def set_class(self, name: str, value: int | None) -> Collection[GroupKey]:
        """Set a priority class, or remove it (None); return the groups whose terms may have changed."""
        if not self.specs.put_class(name, value):
            return ()
        affected = [
            key for key, pods in self._pods.items() if self.specs.depends_on(key, name, next(iter(pods.values())))
        ]
        for key in affected:
            self.touched.mark(key)
        return affected

    def set_spec(self, key: GroupKey, spec: GroupSpec | None) -> bool:
        """Set a PodGroup object, or remove it (None); return whether anything changed."""
        is_new = self.specs.put_object(key, spec)
        is_moved = self.terms.note_move(key)
        self._restate(key, is_new=is_new)
        return is_new or is_moved

    def set_derived(self, key: GroupKey, spec: GroupSpec) -> bool:
        """Set what the owners state about a group whose pods join next; return whether anything changed."""
        return self._restate(key, is_new=self.specs.put_derived(key, spec))

    def _restate(self, key: GroupKey, *, is_new: bool) -> bool:
        if is_new:
            self._forget_if_empty(key)
            self.touched.mark(key)
        return is_new

    def join(self, pod: Pod) -> None:
        """Add or replace a pod in its group."""
        self.terms.replace(self._pods.get(pod.group, {}).get(pod.uid), pod)
        self._pods.setdefault(pod.group, {})[pod.uid] = pod
        self.touched.mark(pod.group)

    def hear(self, pod: Pod) -> None:
        """Replace a pod about which only kube-scheduler's statement has changed: its group need not be formed again."""
        self._pods[pod.group][pod.uid] = pod

    def leave(self, pod: Pod) -> None:
        """Remove a pod from its group."""
        self.asked.forget(pod)
        self._started.pop(pod.uid, None)
        members = self._pods.get(pod.group)
        if members is None:
            return
        self.terms.replace(members.pop(pod.uid, None), None)
        if not members:
            del self._pods[pod.group]
            self._set_aside.pop(pod.group, None)
            self._torn.forget(pod.group)
            self._restate(pod.group, is_new=self.specs.drop_derived(pod.group))
            self._forget_if_empty(pod.group)
        self.touched.mark(pod.group)

    def note_start(self, pod: Pod, started_at: float) -> None:
        """Note the time since which a member runs, in seconds since the epoch."""
        if self._started.get(pod.uid) != started_at:
            self._started[pod.uid] = started_at
            self.touched.mark(pod.group)

    def set_aside(self, key: GroupKey, refusal: Refusal) -> None:
        """Exclude a group from planning, for this reason."""
        self._set_aside[key] = refusal
        self.touched.mark(key)

    def readmit(self, key: GroupKey) -> None:
        """Let a group take part in planning again."""
        if self._set_aside.pop(key, None) is not None:
            self.touched.mark(key)

    def doubt_gpus(self) -> None:
        """Refuse groups that are formed from now on with pods that need GPUs: it is unknown which GPUs work."""
        self._gpus_unknown = UNLISTED_GPUS

    def trust_gpus(self) -> Collection[GroupKey]:
        """Note that all agents have reported, or that Leeboard does not wait for their reports any longer.

        Returns the groups that were refused for it, perhaps thousands: each is judged again once it is touched.
        """
        because, self._gpus_unknown = self._gpus_unknown, ""
        waiting = self._formed.waiting().items() if because else ()
        return [key for key, group in waiting if group.refusal is not None and group.refusal.sentence == because]

    # Reading --------------------------------------------------------------------------------------------------------

    def keys(self) -> Collection[GroupKey]:
        """Return the groups that have pods."""
        return self._pods.keys()

    def pods(self, key: GroupKey) -> Collection[Pod]:
        """Return the pods of a group; the caller must not keep the value across an await."""
        return self._pods.get(key, {}).values()

    def has_others(self, key: GroupKey, uid: PodUid) -> bool:
        """Return whether a group has pods besides this one."""
        pods = self._pods.get(key, ())
        return len(pods) > (uid in pods)

    def started_at(self, uid: PodUid) -> float | None:
        """Return since when a member runs, in seconds since the epoch; None when that is unknown."""
        return self._started.get(uid)

    def constraints(self, pod: Pod) -> Sequence[TopologyConstraint]:
        """Return the topology constraints of a pod; nothing for a pod without other pods in its group."""
        spec = self.specs.get(pod.group)
        if spec is None or spec.root is None or len(self._pods.get(pod.group, ())) <= 1:
            return ()
        return tuple(spec.root.constraints_on(pod.subgroup if has_sub_groups(spec) else ""))

    def alone(self, pod: Pod, spec: GroupSpec | None = None) -> PodGroup:
        """Return the group that a future pod would form, for a what-if; `spec` is what its owners state."""
        spec = spec or (self.specs.get(pod.group) if pod.names_group else None)
        members = Members(pods=(pod,), places={}, stuck=(), gpus_unknown=self._gpus_unknown)
        return form(pod.group, spec, members, self.terms.with_spec(pod.group, spec, pod))

    # Forming --------------------------------------------------------------------------------------------------------

    def waiting(self) -> FrozenGroups[PodGroup]:
        """Return the groups with pods that have no place; the value never changes: a change makes a new value."""
        self.form_waiting()
        return self._formed.waiting()

    def running(self) -> FrozenGroups[PodGroup]:
        """Return the groups that hold places, as of the last reading of the pending groups."""
        unformed, self._unformed = self._unformed, {}
        for key in unformed:
            self._put_running(key, self._members(key))
        return self._formed.running()

    def form_waiting(self) -> None:
        """Form the waiting groups now that have changed, which fills `unsettled`."""
        if self.touched.stale:
            stale, self.touched.stale = self.touched.stale, {}
            for key in stale:
                if self._put_waiting(key):
                    self.unsettled.note(key, waits=self._formed.waits(key))

    def form(self) -> None:
        """Form the groups that have changed now, so that the next snapshot need not do it."""
        self.form_waiting()
        self.running()

    def stale_since(self) -> Mapping[GroupKey, float]:
        """Return the stale gangs and since when, in seconds since the epoch; the caller must not keep the value.

        A gang that has become stale since `age_stale` is not among them.
        """
        self.running()
        return self.staleness.since()

    def age_stale(self, now: float) -> None:
        """Record the time, in seconds since the epoch, for gangs that are stale or partially bound since the last call.

        The caller calls this before a snapshot is planned, and not before every kind has been listed: until then the
        members of gangs seem to be missing. The cost is that of the groups that have changed.
        """
        self.form_waiting()
        self.running()
        for key in dict.fromkeys((*self.staleness.age(now), *self._torn.age(now))):
            self.touched.mark(key)

    def _put_waiting(self, key: GroupKey) -> bool:
        members = self._members(key)
        if members is None or not members.waiting():
            # Groups that only run are formed when a plan is made: the members of a gang of 500 are bound one by one.
            self._unformed[key] = None
            return self._formed.put_waiting(key, None)
        self._unformed.pop(key, None)
        return self._formed.put_waiting(key, self._put_running(key, members))

    def _put_running(self, key: GroupKey, members: Members | None) -> PodGroup | None:
        spec, on = self.specs.get(key), self.terms.of(key)
        group = form(key, spec, members, on, self._set_aside.get(key)) if members and on else None
        group = self._torn.timed(group, spec, members.last_bound_at) if members else None
        group = self.staleness.timed(key, group, spec)
        self._formed.put_running(key, group)
        return group

    def _members(self, key: GroupKey) -> Members | None:
        pods = self.pods(key)
        if not pods:
            return None
        return Members(
            pods=pods,
            places={pod.uid: place for pod in pods if (place := self._place(pod))},
            stuck=self.asked.stuck,
            overlooked=self.asked.overlooked,
            succeeded=self.progress.succeeded(key),
            started=self._started,
            gpus_unknown=self._gpus_unknown,
        )

    def _forget_if_empty(self, key: GroupKey) -> None:
        if key not in self._pods and self.specs.get(key) is None:
            self.progress.forget(key)
