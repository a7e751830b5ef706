"""Walks from a pod up to its owners, and records the objects on which the pod's group depends."""

from collections.abc import Iterator
from functools import partial

from app.cluster.groups.lineage import Lineage, OwnedObjects, OwnedPods
from app.cluster.groups.owners import Owners, Walk
from app.cluster.state.cache import ClusterCache
from app.control.groups.owner_watch import OwnerWatch
from app.grouping import Chain
from app.model.owner import Kind, Owner, OwnerRef
from app.model.pod import Pod


class OwnerWalks:
    """The walks of one grouper; the kinds of found and missing owners are followed."""

    def __init__(
        self, cache: ClusterCache, owners: Owners, watch: OwnerWatch, lineage: Lineage, objects: OwnedObjects
    ) -> None:
        """Store the collaborators."""
        self._cache = cache
        self._owners = owners
        self._watch = watch
        self._lineage = lineage
        self._objects = objects

    def walk(self, line: OwnedPods) -> Walk:
        """Walk up, past kinds that cannot be read, and record the owners that the line meets and misses.

        The walk stops at a missing owner that has a PodGroup, although its kind is denied: without the owner, pods that
        belong together would start alone.
        """
        walk = self._owners.walk(line.first, line.namespace)
        while walk.missing is not None and walk.missing.uid:
            self._watch.ask_for(walk.missing.kind)
            if not self._watch.kinds.is_denied(walk.missing.kind) or self._objects.of(walk.missing, line.namespace):
                break
            self._owners.end_at(walk.missing)
            walk = self._owners.walk(line.first, line.namespace)
        if walk.missing is not None:
            self._watch.miss(walk.missing.kind)
        self._lineage.note(line, walk)
        return walk

    def chain(self, line: OwnedPods, walk: Walk, pod: Pod) -> Chain:
        """Return the owners of a pod in the form that grouping needs."""
        top = walk.owners[-1] if walk.owners else None
        siblings = partial(self._siblings, pod, top)
        return Chain(owners=walk.owners, find=partial(self._find, line), siblings=siblings)

    def _siblings(self, pod: Pod, top: Owner | None) -> Iterator[Pod]:
        # A pod that is being added is not in the cache yet.
        yield pod
        yield from (one for one in self.pods_below(top) if one.uid != pod.uid)

    def _find(self, line: OwnedPods, kind: Kind, name: str) -> Owner | None:
        """Find an object that is not among the owners, and regroup the line when the object is created or changes."""
        self._watch.ask_for(kind)
        found = self._owners.find(kind, line.namespace, name)
        if line.pods:
            self._lineage.note_asked(line, OwnerRef(kind, name) if found is None else found.ref)
        return found

    def pods_below(self, top: Owner | None) -> Iterator[Pod]:
        """Yield the pods below an object."""
        for uid in self._lineage.pods_below(top) if top is not None else ():
            pod = self._cache.pods.get(uid)
            if pod is not None:
                yield pod
