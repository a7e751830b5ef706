"""Assigns pods to the PodGroups that their owners define, and regroups the pods when an owner changes.

A group is formed in memory and at once; its PodGroup object is written for users (`podgroup_writer`). A pod whose
owners are not known yet waits (`Pod.ungrouped`): alone it might start without its gang. When an owner is deleted before
its pods, the pods stay in their group as long as they exist.
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
    """The owners of all pods, as far as they are known. Only the event loop calls this class."""

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
        """Start without owners. `freshness`, `arrivals` and `changed` are notified whenever pods may be regrouped."""
        self._cache = cache
        self._writer = writer
        self._defaults = defaults
        self._freshness = freshness
        self._arrivals = arrivals
        self._changed = changed
        self.pod_owners = PodOwners(cache)
        """The known owners of pods."""
        self._owners = self.pod_owners.owners
        self._watch = OwnerWatch(self._owners, cluster, self, sleep=sleep)
        self._lineage = Lineage(self._owners)
        self._sayings = OwnerSpecs(cache)
        self._objects = OwnedObjects()
        self._walks = OwnerWalks(cache, self._owners, self._watch, self._lineage, self._objects)
        self._has_seen_pods = False
        self._is_settled = False
        self._regrouping = 0
        """The number of regroupings in progress: only after them all owner kinds that matter are known."""
        self._regrouped = 0

    # Queries --------------------------------------------------------------------------------------------------------

    def settle(self, pod: Pod) -> Pod:
        """Return a pod that a watch shows, with its PodGroup; store the spec of the group in the cache."""
        first = first_link(pod) if pod.origin is not None else None
        known = self._cache.pods.get(pod.uid)
        self._part_from_others(pod, known, first)
        if pod.origin is None:
            return pod
        bound_in = _bound_in(pod, known or pod)
        if bound_in is not None and (bound_in, bound_in.name != pod.uid) != (pod.group, pod.names_group):
            pod = replace(pod, group=bound_in, names_group=bound_in.name != pod.uid)
        if first is None:
            return self._join(pod, group(pod, Chain(), self._defaults), bound_in)
        line = self._lineage.add(first, pod.namespace, pod.uid)
        walk = self._walks.walk(line)
        if walk.missing is not None:
            return self._as_known(pod, walk.missing, bound_in)
        return self._join(pod, group(pod, self._walks.chain(line, walk, pod), self._defaults), bound_in)

    def rehearse(self, pod: Pod) -> tuple[Pod, GroupSpec | None]:
        """Return the group of a pod that is not in the cache, and its spec; change nothing."""
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
        if grouping is None or not _is_grouped(pod, grouping) or pod.group.api:
            return pod, None
        spec = self._say(pod, grouping).spec
        return named(pod, grouping, spec), spec

    def workload(self, namespace: str, name: str) -> Workload | None:
        """Return the object of this name that owns pods, the topmost first; None when there is none."""
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
        """Forget the spec of a group that has no pods in the cache any more."""
        if self._sayings.forget_if_over(key):
            self._writer.forget(key)

    def note_object_gone(self, key: GroupKey) -> None:
        """Note that a PodGroup object has been deleted."""
        self._objects.drop(key)
        self._writer.note_gone(key)

    def settle_object(self, spec: GroupSpec) -> GroupSpec:
        """Return a PodGroup object with the suspension of its owner: a suspended owner may have no pods to show it."""
        is_news = self._objects.put(spec)
        if spec.owner is None:
            return spec
        self._watch.ask_for(spec.owner.kind)
        if is_news and self._watch.kinds.is_denied(spec.owner.kind):
            # The pods of the owner may have been grouped as single pods.
            self._owners.forget_end(spec.owner)
            for uid in pods_of(self._lineage.lines_to(spec.owner, spec.key.namespace)):
                self._regroup_pod(uid)
        return replace(spec, suspended=suspension(self._owners.walk(spec.owner, spec.key.namespace).owners))

    @property
    def owner_watch(self) -> OwnerWatch:
        """The watch of the kinds of objects that own pods."""
        return self._watch

    def note_pods_listed(self) -> None:
        """Note that all listed pods have been grouped, as far as their owners are known."""
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
        """Follow the owners of pods and write PodGroup objects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(), name="owner watches")
            tasks.create_task(self._writer.run(), name="podgroups")

    # Calls of the owner watch ---------------------------------------------------------------------------------------

    async def owner_changed(self, owner: Owner) -> None:
        """Regroup the pods below this object."""
        await self._regroup(self._lineage.lines_of(owner))
        for key in self._objects.of(owner.ref, owner.namespace):
            spec = self._cache.groups.specs.object(key)
            if spec is not None:
                self._cache.apply_group(self.settle_object(spec))

    async def kind_answered(self, kind: Kind) -> None:
        """Regroup the pods that wait for objects of this kind: the kind is listed now, or not available."""
        await self._regroup(self._lineage.waiting_for(kind))

    async def owner_missed(self, ref: OwnerRef, namespace: str) -> None:
        """Regroup the pods that wait for this object, which does not exist."""
        await self._regroup(self._lineage.lines_to(ref, namespace))

    def owner_gone(self, owner: Owner) -> None:
        """Forget the object as soon as it has no pods."""
        # The PodGroup objects are deleted with their owner: written again, they would only be deleted again.
        for key in dict.fromkeys(pod.group for pod in self._walks.pods_below(owner)):
            self._writer.forget(key)
        self._lineage.retire(owner)

    def late(self) -> Collection[tuple[OwnerRef, str]]:
        """Return the objects that pods wait for, with their namespaces."""
        return self._lineage.missing()

    def note_progress(self) -> None:
        """Notify the other parts: pods may be in their groups now, or all owners may be known."""
        is_known = self._has_seen_pods and not self._regrouping and not self._watch.kinds.unlisted()
        self._is_settled = self._is_settled or is_known
        self._freshness.note_owners(self._check())
        self._arrivals.note_regrouped()
        self._changed.set()

    # A pod and its owners -------------------------------------------------------------------------------------------

    def _part_from_others(self, pod: Pod, known: Pod | None, first: OwnerRef | None) -> None:
        """Detach a pod from its former owner when another owner, or none, replaced it."""
        before = first_link(known) if known is not None and known.origin is not pod.origin else None
        if before is not None and before != first:
            self._lineage.remove(before, pod.namespace, pod.uid)

    def _join(self, pod: Pod, grouping: Grouping | None, bound_in: GroupKey | None) -> Pod:
        if grouping is None or not _is_grouped(pod, grouping):
            return pod
        said = self._say(pod, grouping)
        spec = said.spec
        if bound_in not in {None, spec.key}:
            return pod
        if spec.key.name == pod.uid:
            # This also resets an earlier spec, such as the spec of an owner that was suspended.
            if says_more(spec, pod) or self._cache.groups.specs.get(spec.key) is not None:
                self._cache.derive_group(spec)
            return pod
        self._sayings.keep(said)
        self._cache.derive_group(spec)
        if spec.key.api:
            return pod
        if grouping.owner is None or not self._lineage.is_gone(grouping.owner, pod.namespace):
            self._writer.want(spec.key, said.grouping)
        return named(pod, grouping, spec)

    def _say(self, pod: Pod, grouping: Grouping) -> OwnerSpec:
        """Return the spec that the owners define for the group of a pod; in a native group, they define its terms."""
        own = own_group(pod)
        if own is not None and own.api:
            return self._sayings.of(own, pod, grouping)
        may_have_object = not grouping.alone or grouping.spec.get("topologyConstraint") or grouping.asked_for
        name = grouping.name if may_have_object or own is not None else pod.uid
        return self._sayings.of(GroupKey(pod.namespace, name), pod, grouping)

    def _as_known(self, pod: Pod, missing: OwnerRef, bound_in: GroupKey | None) -> Pod:
        """Return a pod with a missing owner in the group that it already has; without such a group the pod waits.

        A bound pod runs anyway; it waits only for its sub-group. A pod that names a native group waits as well, since
        its owners may name the queue.
        """
        known = self._cache.pods.get(pod.uid)
        # Pods of an owner that may not be read count as single pods until its PodGroup is seen.
        was_grouped = known is not None and (known.names_group or not self._watch.kinds.is_denied(missing.kind))
        if known is not None and was_grouped and not known.ungrouped and own_group(pod) in {None, known.group}:
            return replace(pod, group=known.group, names_group=known.names_group, subgroup=known.subgroup)
        own = own_group(pod)
        is_named = own is not None and not own.api and bound_in is None
        return pod if is_named else replace(pod, ungrouped=waits_for(missing, self._watch))

    async def _regroup(self, lines: Iterable[OwnedPods]) -> None:
        """Regroup the pods of these lines, some at a time."""
        self._regrouping += 1
        try:
            for uid in pods_of(lines):
                self._regroup_pod(uid)
                # Counted over all owners: a list may show thousands of owners with one pod each.
                self._regrouped += 1
                if self._regrouped % REGROUPED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self._regrouping -= 1

    def _regroup_pod(self, uid: PodUid) -> None:
        # The cache shows a pod that is being evicted as deleted; if the eviction fails, the pod stays.
        pod = self._cache.pods.as_shown(uid)
        if pod is not None:
            try:
                self._cache.apply_pod(self.settle(bare(pod)))
            except Exception:
                # A bug of ours that one object triggers: the pod stays as it was, and the other pods are grouped.
                log.exception("pod cannot be grouped", pod=repr(pod))
            self.forget_if_over(pod.group)


def _is_grouped(pod: Pod, grouping: Grouping) -> bool:
    """Whether the owners of a pod state anything about its group: not if the pod names another one by annotation."""
    own = own_group(pod)
    return own is None or bool(own.api) or own.name == grouping.name


def _bound_in(pod: Pod, known: Pod) -> GroupKey | None:
    """Return the group in which a pod was bound and stays; None when its owners still decide.

    Bind writes the group on each pod: when a pod is first seen, the group that it names is true, or it is alone.
    """
    return known.group if pod.stays_in_group and known.stays_in_group else None
