"""Keeps what owners say of groups that have, or may have, an object, read as that object would be.

Pods of one group may come from templates that differ: the oldest of them speaks for all, since each event of another
would else change the terms of the whole group.
"""

from dataclasses import dataclass, replace

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, PodUid
from app.model.owner import Grouping
from app.model.pod import Pod
from app.model.podgroup import GroupSpec

TERMS = "queue", "preemptibility"
"""What a group's `spec` may have from a pod."""


@dataclass(frozen=True, slots=True)
class OwnerSpec:
    """What was made of a group."""

    grouping: Grouping
    """Without the sub-group, which is a pod's own."""
    spec: GroupSpec
    rank: tuple[float, str, PodUid]
    """The pod whose terms these are."""


class OwnerSpecs:
    """What was said of groups. Changed by `PodGrouper` alone."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start with nothing said."""
        self._cache = cache
        self._kept: dict[GroupKey, OwnerSpec] = {}

    def of(self, key: GroupKey, pod: Pod, grouping: Grouping) -> OwnerSpec:
        """Return what is said of a group when a pod says this: as before, if that is the same."""
        grouping = replace(grouping, subgroup="") if grouping.subgroup else grouping
        before, rank = self._kept.get(key), (pod.created_at, pod.name, pod.uid)
        if before is None:
            return OwnerSpec(grouping, _read(key, grouping), rank)
        if before.rank < rank and self._speaks(before.rank[-1], key):
            grouping, rank = _on_terms_of(before.grouping, grouping), before.rank
        if before.grouping == grouping:
            return replace(before, rank=rank)
        return OwnerSpec(grouping, _read(key, grouping), rank)

    def keep(self, said: OwnerSpec) -> None:
        """Keep what is said of a group."""
        self._kept[said.spec.key] = said

    def forget_if_over(self, key: GroupKey) -> bool:
        """Forget what was said of a group if the cache has none of its pods any more; return whether it is over."""
        if key not in self._kept or self._cache.groups.pods(key):
            return False
        del self._kept[key]
        return True

    def _speaks(self, uid: PodUid, key: GroupKey) -> bool:
        pod = self._cache.pods.get(uid)
        return pod is not None and pod.group == key


def _read(key: GroupKey, grouping: Grouping) -> GroupSpec:
    metadata = {"name": key.name, "namespace": key.namespace, "uid": "derived", "annotations": grouping.annotations}
    read = decode.pod_group({"metadata": metadata, "spec": grouping.spec})
    return replace(
        read,
        uid="",
        derived=True,
        priority_classes=grouping.priority_classes,
        created_at=grouping.created_at,
        suspended=grouping.suspended,
        problem=grouping.problem or read.problem,
    )


def _on_terms_of(other: Grouping, grouping: Grouping) -> Grouping:
    """Return a grouping with what another one has from its pod."""
    if grouping == other:
        return other
    spec = {key: value for key, value in grouping.spec.items() if key not in TERMS}
    spec |= {key: other.spec[key] for key in TERMS if key in other.spec}
    classes, labels, annotations = other.priority_classes, other.labels, other.annotations
    return replace(grouping, spec=spec, priority_classes=classes, labels=labels, annotations=annotations)
