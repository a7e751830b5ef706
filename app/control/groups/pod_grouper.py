"""Puts pods into the PodGroups that their owners ask for, and regroups them when an owner changes.

A group is formed in memory and at once; the PodGroup object that repeats it is for people (`podgroup_writer`).
A pod whose owners are not known yet waits (`Pod.ungrouped`): alone it might start without its gang. An owner that is
gone before its pods keeps them together as long as they are there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

import structlog

from app.cluster.groups.lineage import Lineage, OwnedObjects, OwnedPods, pods_of
from app.cluster.state.cache import ClusterCache
from app.control.groups.arrivals import Arrivals
from app.control.groups.grouped_pods import bare, named, own_group, says_more
from app.control.groups.missing_owners import waits_for
from app.control.groups.owner_specs import OwnerSpec, OwnerSpecs
from app.control.groups.owner_walks import OwnerWalks
from app.control.groups.owner_watch import OwnerWatch
from app.control.groups.pod_owners import PodOwners
from app.control.groups.podgroup_writer import PodGroupWriter
from app.control.leadership.freshness import Freshness
from app.grouping import Chain, GroupingDefaults, first_link, group, suspension
from app.model.explanation import Workload
from app.model.names import GroupKey, PodUid
from app.model.owner import Grouping, Kind, Owner, OwnerRef
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.question import Check
from app.model.seam import Objects

log = structlog.get_logger()

REGROUPED_AT_ONCE = 50
"""Pods that are regrouped before the event loop gets a turn: an owner may have five thousand."""


class PodGrouper:
    """Who owns which pods, as far as it is known. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Objects,
        writer: PodGroupWriter,
        *,
        freshness: Freshness,
        arrivals: Arrivals,
        defaults: GroupingDefaults,
        changed: asyncio.Event,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with no owner known. `freshness`, `arrivals` and `changed` are told whenever pods may be regrouped."""
        self._cache = cache
        self._writer = writer
        self._defaults = defaults
        self._freshness = freshness
        self._arrivals = arrivals
        self._changed = changed
        self.pod_owners = PodOwners(cache)
        """The owners of pods that are known."""
        self._owners = self.pod_owners.owners
        self._watch = OwnerWatch(self._owners, cluster, self, sleep=sleep)
        self._lineage = Lineage(self._owners)
        self._sayings = OwnerSpecs(cache)
        self._objects = OwnedObjects()
        self._walks = OwnerWalks(cache, self._owners, self._watch, self._lineage, self._objects)
        self._has_seen_pods = False
        self._is_settled = False
        self._regrouping = 0
        """How many changes are being followed: which other kinds matter is known when they have been."""
        self._regrouped = 0

    # What others ask ------------------------------------------------------------------------------------------------

    def settle(self, pod: Pod) -> Pod:
        """Return a pod that a watch shows with the PodGroup it belongs to, which is made known to the cache."""
        first = first_link(pod) if pod.origin is not None else None
        self._part_from_others(pod, first)
        if pod.origin is None:
            return pod
        bound_in = self._bound_in(pod)
        if bound_in is not None:
            pod = replace(pod, group=bound_in, names_group=bound_in.name != pod.uid)
        if first is None:
            return self._join(pod, group(pod, Chain(), self._defaults), bound_in)
        line = self._lineage.add(first, pod.namespace, pod.uid)
        walk = self._walks.walk(line)
        if walk.missing is not None:
            return self._as_known(pod, walk.missing, bound_in)
        return self._join(pod, group(pod, self._walks.chain(line, walk, pod), self._defaults), bound_in)

    def rehearse(self, pod: Pod) -> tuple[Pod, GroupSpec | None]:
        """Return the same for a pod that is not there yet, and what its owners say; nothing comes of it."""
        if pod.origin is None:
            return pod, None
        first = first_link(pod)
        if first is None:
            grouping = group(pod, Chain(), self._defaults)
        else:
            walk = self._owners.walk(first, pod.namespace)
            if walk.missing is not None:
                return replace(pod, ungrouped=waits_for(walk.missing, self._watch)), None
            grouping = group(pod, self._walks.chain(OwnedPods(first, pod.namespace), walk, pod), self._defaults)
        if grouping is None or own_group(pod) not in {"", grouping.name}:
            return pod, None
        spec = self._say(pod, grouping).spec
        return named(pod, grouping, spec), spec

    def workload(self, namespace: str, name: str) -> Workload | None:
        """Return the object of this name that owns pods, the topmost first; None when none is known."""
        found = (self._owners.find(kind, namespace, name) for kind in self._watch.kinds.all())
        owners = sorted((one for one in found if one is not None), key=lambda one: one.owner is not None)
        if not owners:
            return None
        groups = {pod.group: None for pod in self._walks.pods_below(owners[0])}
        groups.update(dict.fromkeys(self._objects.of(owners[0].ref, namespace)))
        return Workload(
            kind=owners[0].ref.kind.name,
            suspended=suspension(self._owners.walk(owners[0].ref, namespace).owners),
            groups=tuple(groups),
        )

    def forget(self, pod: Pod) -> None:
        """Forget a pod that the cache has forgotten."""
        first = first_link(pod) if pod.origin is not None else None
        if first is not None:
            self._lineage.remove(first, pod.namespace, pod.uid)
        self.forget_if_over(pod.group)

    def forget_if_over(self, key: GroupKey) -> None:
        """Forget what was said of a group, if the cache has none of its pods any more."""
        if self._sayings.forget_if_over(key):
            self._writer.forget(key)

    def note_object_gone(self, key: GroupKey) -> None:
        """Note that a PodGroup object has been deleted."""
        self._objects.drop(key)
        self._writer.note_gone(key)

    def settle_object(self, spec: GroupSpec) -> GroupSpec:
        """Return a PodGroup object with whether its owner is suspended: it may have no pods left that would tell."""
        is_news = self._objects.put(spec)
        if spec.owner is None:
            return spec
        self._watch.ask_for(spec.owner.kind)
        if is_news and self._watch.kinds.is_denied(spec.owner.kind):
            # Its pods may have been taken for pods that are alone.
            self._owners.forget_end(spec.owner)
            for uid in pods_of(self._lineage.lines_to(spec.owner, spec.key.namespace)):
                self._regroup_pod(uid)
        return replace(spec, suspended=suspension(self._owners.walk(spec.owner, spec.key.namespace).owners))

    @property
    def owner_watch(self) -> OwnerWatch:
        """What follows the kinds of objects that own pods."""
        return self._watch

    def note_pods_listed(self) -> None:
        """Note that all pods there are have been settled, as far as their owners are known."""
        self._has_seen_pods = True
        self.note_progress()

    def _check(self) -> Check:
        """Return our line of /readyz: after a start nothing is decided before the owners of all pods are known."""
        if self._is_settled:
            unread = ", ".join(f"{kind!r}: {cause}" for kind, cause in self._watch.kinds.unwatchable().items())
            return Check("owners", degraded=f"pods with these owners wait: {unread}" if unread else "")
        unlisted = ", ".join(map(repr, self._watch.kinds.unlisted()))
        return Check("owners", f"owners of pods are not listed yet: {unlisted}" if unlisted else "not listed yet")

    async def run(self) -> None:
        """Follow the owners of pods, and write what follows, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(), name="owner watches")
            tasks.create_task(self._writer.run(), name="podgroups")

    # What the watch of owners tells ---------------------------------------------------------------------------------

    async def owner_changed(self, owner: Owner) -> None:
        """Group the pods anew that come from this object."""
        await self._regroup(self._lineage.lines_of(owner))
        for key in self._objects.of(owner.ref, owner.namespace):
            spec = self._cache.groups.specs.object(key)
            if spec is not None:
                self._cache.apply_group(self.settle_object(spec))

    async def kind_answered(self, kind: Kind) -> None:
        """Group the pods anew that wait for objects of this kind: they are there now, or will never be."""
        await self._regroup(self._lineage.waiting_for(kind))

    async def owner_missed(self, ref: OwnerRef, namespace: str) -> None:
        """Group the pods anew that wait for this one object, which does not exist."""
        await self._regroup(self._lineage.lines_to(ref, namespace))

    def owner_gone(self, owner: Owner) -> None:
        """Forget the object as soon as no pods come from it."""
        # Its objects go with it: written again they would only go again.
        for key in {pod.group for pod in self._walks.pods_below(owner)}:
            self._writer.forget(key)
        self._lineage.retire(owner)

    def late(self) -> Collection[tuple[OwnerRef, str]]:
        """Return the objects, with their namespaces, for which pods wait."""
        return self._lineage.missing()

    def note_progress(self) -> None:
        """Tell the others: pods may be in their groups now, or all owners be known."""
        is_known = self._has_seen_pods and not self._regrouping and not self._watch.kinds.unlisted()
        self._is_settled = self._is_settled or is_known
        self._freshness.note_owners(self._check())
        self._arrivals.note_regrouped()
        self._changed.set()

    # A pod and its owners -------------------------------------------------------------------------------------------

    def _part_from_others(self, pod: Pod, first: OwnerRef | None) -> None:
        """Take a pod from the owner that it had before another one adopted it, or none."""
        known = self._cache.pods.get(pod.uid)
        before = first_link(known) if known is not None and known.origin is not pod.origin else None
        if before is not None and before != first:
            self._lineage.remove(before, pod.namespace, pod.uid)

    def _bound_in(self, pod: Pod) -> GroupKey | None:
        """Return the group that a pod was bound in and stays in; None when its owners still decide.

        Bind writes on each pod in which group it is: what it names when it is first seen is true, or that it is alone.
        """
        known = self._cache.pods.get(pod.uid) or pod
        if not (pod.stays_in_group and known.stays_in_group):
            return None
        return known.group

    def _join(self, pod: Pod, grouping: Grouping | None, bound_in: GroupKey | None) -> Pod:
        if grouping is None or own_group(pod) not in {"", grouping.name}:
            return pod
        said = self._say(pod, grouping)
        spec = said.spec
        if bound_in not in {None, spec.key}:
            return pod
        if spec.key.name == pod.uid:
            # What was said before is taken back too: of an owner that was suspended, say.
            if says_more(spec, pod) or self._cache.groups.specs.get(spec.key) is not None:
                self._cache.derive_group(spec)
            return pod
        self._sayings.keep(said)
        self._cache.derive_group(spec)
        if grouping.owner is None or not self._lineage.is_gone(grouping.owner, pod.namespace):
            self._writer.want(spec.key, said.grouping)
        return named(pod, grouping, spec)

    def _say(self, pod: Pod, grouping: Grouping) -> OwnerSpec:
        """Return what the owners say of the group that a pod belongs to, or is."""
        may_have_object = not grouping.alone or grouping.spec.get("topologyConstraint") or grouping.asked_for
        name = grouping.name if may_have_object or own_group(pod) else pod.uid
        return self._sayings.of(GroupKey(pod.namespace, name), pod, grouping)

    def _as_known(self, pod: Pod, missing: OwnerRef, bound_in: GroupKey | None) -> Pod:
        """Return a pod whose owner is missing as it was grouped before, if it was; else it waits.

        One that is bound runs; what it waits for is to know its sub-group.
        """
        known = self._cache.pods.get(pod.uid)
        # Before the PodGroup of an owner that may not be read was seen, its pods were taken for single ones.
        was_grouped = known is not None and (known.names_group or not self._watch.kinds.is_denied(missing.kind))
        if known is not None and was_grouped and not known.ungrouped and own_group(pod) in {"", known.group.name}:
            return replace(pod, group=known.group, names_group=known.names_group, subgroup=known.subgroup)
        is_named = own_group(pod) and bound_in is None
        return pod if is_named else replace(pod, ungrouped=waits_for(missing, self._watch))

    async def _regroup(self, lines: Iterable[OwnedPods]) -> None:
        """Group the pods of these lines anew, some at a time."""
        self._regrouping += 1
        try:
            for uid in pods_of(lines):
                self._regroup_pod(uid)
                # Counted over all owners: thousands of them may be listed that have one pod each.
                self._regrouped += 1
                if self._regrouped % REGROUPED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self._regrouping -= 1

    def _regroup_pod(self, uid: PodUid) -> None:
        # Who is to be evicted looks to the cache as if it left already: should that fail, it stays.
        pod = self._cache.pods.as_shown(uid)
        if pod is not None:
            try:
                self._cache.apply_pod(self.settle(bare(pod)))
            except Exception:
                # A mistake of ours that one object brings out: the pod stays as it was, and the others are grouped.
                log.exception("pod cannot be grouped", pod=repr(pod))
            self.forget_if_over(pod.group)
