"""Keeps the group specs that owners define, in the form in which a PodGroup object would be read.

Pods of one group may come from different templates. The oldest pod decides for all of them; otherwise each event of
another pod would change the spec of the whole group.
"""

from dataclasses import dataclass, replace

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, PodUid
from app.model.owner import Grouping
from app.model.pod import Pod
from app.model.podgroup import GroupSpec

TERMS = "queue", "preemptibility"
"""Fields of a group's `spec` that may come from a pod."""


@dataclass(frozen=True, slots=True)
class OwnerSpec:
    """The spec of a group."""

    grouping: Grouping
    """Without the sub-group, which each pod has of its own."""
    spec: GroupSpec
    rank: tuple[float, str, PodUid]
    """The sort key of the pod that provides `TERMS`."""


class OwnerSpecs:
    """The specs of groups. Only `PodGrouper` changes them."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start without specs."""
        self._cache = cache
        self._kept: dict[GroupKey, OwnerSpec] = {}

    def of(self, key: GroupKey, pod: Pod, grouping: Grouping) -> OwnerSpec:
        """Return the spec of a group for the grouping of this pod; the stored one, if it is equal."""
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
        """Store the spec of a group."""
        self._kept[said.spec.key] = said

    def forget_if_over(self, key: GroupKey) -> bool:
        """Forget the spec of a group without pods in the cache; return whether the group is over."""
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
        key=key,
        uid="",
        derived=True,
        priority_classes=grouping.priority_classes,
        created_at=grouping.created_at,
        suspended=grouping.suspended,
        problem=grouping.problem or read.problem,
    )


def _on_terms_of(other: Grouping, grouping: Grouping) -> Grouping:
    """Return a grouping with the `TERMS` of another grouping."""
    if grouping == other:
        return other
    spec = {key: value for key, value in grouping.spec.items() if key not in TERMS}
    spec |= {key: other.spec[key] for key in TERMS if key in other.spec}
    classes, labels, annotations = other.priority_classes, other.labels, other.annotations
    return replace(grouping, spec=spec, priority_classes=classes, labels=labels, annotations=annotations)
